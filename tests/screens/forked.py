"""Agents for tests of screens: real ones, forked from a process that has imported already what they need.

To start an interpreter for each of some hundred consoles would take longer than all that they are asked. How an agent
is started as a child with pipes is for the tests of hosts.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module

from eagle3ops.errors import HostUnreachable

EARLY = (
    "operations", "outputs.drafters", "runs.compare", "runs.ledger", "runs.planning", "spec.load",
    "spec.schema", "telemetry.sampler",
)  # fmt: skip
"""Modules that an agent would import when they are needed."""


@contextmanager
def nursery() -> Iterator[str]:
    """The process that agents are forked from; yields the name of its socket, for which no path is too long."""
    name = f"eagle3ops-tests-{os.getpid()}"
    with subprocess.Popen([sys.executable, __file__, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise AssertionError("no agent can be forked")
        try:
            yield f"\0{name}"
        finally:
            process.kill()


class ForkedTransport:
    """An agent that is forked from the process behind a socket."""

    name = "local"

    def __init__(self, address: str) -> None:
        self._address, self._folder = address, os.getcwd()

    async def open(self) -> "ForkedChannel":
        """Fork one, with the environment as it is here and now."""
        try:
            reader, writer = await asyncio.open_unix_connection(self._address)
        except OSError as error:
            raise HostUnreachable(f"no agent can be forked: {error}") from error
        wish = {"environment": dict(os.environ), "folder": self._folder}
        writer.write(json.dumps(wish).encode() + b"\n")
        return ForkedChannel(reader, writer)


class ForkedChannel:
    """Its standard input and output."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def read(self) -> bytes:
        """What has arrived; empty once the agent has ended."""
        try:
            return await self._reader.read(1 << 18)
        except ConnectionError:
            return b""

    async def write(self, data: bytes) -> None:
        """Send all of it."""
        if self._writer.is_closing():
            raise BrokenPipeError("the agent has ended")
        self._writer.write(data)
        await self._writer.drain()

    async def close(self) -> None:
        """Its input ends, and so does it."""
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    def last_words(self) -> str:
        """What it says on standard error is seen in the output of the tests."""
        return "the agent ended"


def _fork(connection: socket.socket) -> None:
    if os.fork():
        return
    os.setsid()
    said = bytearray()
    # Not a byte more than the wish: the rest is for the agent.
    while not said.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte:
            os._exit(0)
        said += byte
    wish = json.loads(said)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(wish["folder"])
    os.environ.clear()
    os.environ.update(wish["environment"])
    time.tzset()
    sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in sys.path]
    os.dup2(connection.fileno(), 0)
    os.dup2(connection.fileno(), 1)
    connection.close()

    from eagle3ops.hosts.agent import loop
    from eagle3ops.operations import OPERATIONS

    loop.main(OPERATIONS)


def _serve(name: str) -> None:
    for module in EARLY:
        import_module(f"eagle3ops.{module}")
    # Children are nobody's zombies.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"\0{name}")
        listening.listen(64)
        os.write(1, b"ready\n")
        while True:
            connection, _ = listening.accept()
            with connection:
                _fork(connection)


if __name__ == "__main__":
    _serve(sys.argv[1])
