"""Does only the right host with the right key get in, and is every refusal explained?"""

import pytest
from sshd_world import SshWorld, keygen, python

from eagle3ops.hosts.address import parse_address
from eagle3ops.hosts.registry import Host
from eagle3ops.hosts.ssh import SshTransport
from eagle3ops.hosts.ssh_errors import HostKeyChanged, HostKeyUnknown


class Answers:
    """A person who gives the answers of a list, and remembers what was asked."""

    def __init__(self, *answers: str | None) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def secret(self, question: str) -> str | None:
        self.asked.append(question)
        return self.answers.pop(0) if self.answers else None

    async def confirm(self, question: str) -> bool:
        self.asked.append(question)
        return bool(self.answers and self.answers.pop(0))


def reach(address: str, *answers: str | None) -> SshTransport:
    host = Host(name="gpu", address=parse_address(address), python=python())
    return SshTransport(host, Answers(*answers))


async def test_trusted_host_runs_commands(ssh_world: SshWorld) -> None:
    server = ssh_world.server()
    ssh_world.trust(server)
    async with await reach(server.url()).connect() as connection:
        assert (await connection.ssh.run("echo $HOME")).stdout == f"{server.home}\n"


async def test_unknown_key_never_connects(ssh_world: SshWorld) -> None:
    server = ssh_world.server()
    with pytest.raises(HostKeyUnknown, match="hosts trust gpu"):
        await reach(server.url()).connect()
    assert "Accepted" not in server.log()
