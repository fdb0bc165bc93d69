"""How do bytes get to an agent and back? What a subprocess here and a program behind SSH have in common."""

from typing import Protocol

from eagle3ops.errors import HostUnreachable


class ConnectionRefusedForGood(HostUnreachable):
    """Trying again cannot help: a host key that is unknown or changed, no way to log in, no agent, another protocol."""


class AgentDidNotStart(ConnectionRefusedForGood):
    """The host was reached and no agent came up. For good where none ever did; where one did before, it may again:
    the host may be booting, short of processes, or without a mount."""


class Channel(Protocol):
    """A running agent's standard input and output."""

    async def read(self) -> bytes:
        """The next bytes, as many as have arrived; empty once the agent or the connection has ended."""

    async def write(self, data: bytes) -> None:
        """Send all of `data`; waits while the other side does not read.

        Raises:
            OSError: the connection has ended (ConnectionError, BrokenPipeError).
        """

    async def close(self) -> None:
        """End the connection, and the agent with it; runs go on. May be called more than once."""

    def last_words(self) -> str:
        """What was said on standard error, and how it ended if it has: for messages to a person. May be empty."""


class Transport(Protocol):
    """A way to reach one host."""

    name: str
    """What a person calls the host: `local`, a name from hosts.yaml, or `ssh://user@host:port`."""

    async def open(self) -> Channel:
        """Start an agent.

        Raises:
            HostUnreachable: not now; trying again later may help.
            ConnectionRefusedForGood: trying again cannot help.
        """
