"""A person at a console who logs in to hosts, for the tests."""

import subprocess
from pathlib import Path

from sshd_world import Sshd, python

from eagle3ops.hosts.address import parse_address
from eagle3ops.hosts.registry import Host
from eagle3ops.hosts.ssh.transport import Limits, SshTransport


class Answers:
    """A person who gives the answers of a list, and remembers what was asked."""

    def __init__(self, *answers: str | bool | None) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def secret(self, question: str) -> str | None:
        self.asked.append(question)
        answer = self.answers.pop(0) if self.answers else None
        return answer if isinstance(answer, str) else None

    async def confirm(self, question: str) -> bool:
        self.asked.append(question)
        return bool(self.answers and self.answers.pop(0))


def reach(address: str, person: Answers | None = None, limits: Limits | None = None) -> SshTransport:
    host = Host(name="gpu", address=parse_address(address), python=python())
    return SshTransport(host, person or Answers(), limits=limits)


async def works(transport: SshTransport) -> bool:
    async with await transport.connect() as connection:
        return (await connection.ssh.run("echo in")).stdout == "in\n"


def said(*command: str) -> str:
    """What a short program prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def public(key: Path) -> str:
    """Type and key of a key pair's file."""
    return " ".join(Path(f"{key}.pub").read_text().split()[:2])


def logged_in(server: Sshd) -> bool:
    return "Accepted " in server.log()
