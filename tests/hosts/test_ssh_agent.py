"""Does an agent come up behind any login shell, and is it said what is missing when it does not?"""

from sshd_world import SshWorld, python

from eagle3ops.hosts.address import parse_address
from eagle3ops.hosts.client import AgentClient
from eagle3ops.hosts.registry import Host
from eagle3ops.hosts.ssh import SshTransport


def reach(address: str, interpreter: str | None = None, root: str | None = None) -> SshTransport:
    return SshTransport(Host(name="gpu", address=parse_address(address), python=interpreter, root=root))


async def test_agent_answers(ssh_world: SshWorld) -> None:
    server = ssh_world.server()
    ssh_world.trust(server)
    async with await AgentClient.connect(reach(server.url(), python(), "~/some where/runs")) as client:
        assert client.hello.root == f"{server.home}/some where/runs"
        assert (await client.call("ping"))["time"] > 0
