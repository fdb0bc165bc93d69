"""What is held while a host is reached over SSH: the connections of every jump, and an agent's input and output."""

import asyncio
import contextlib
import re
from collections.abc import Callable

import asyncssh

from eagle3ops.hosts.ssh.bootstrap import clean, has_begun
from eagle3ops.hosts.ssh.config import Endpoint

READ_BYTES = 1 << 16
MAX_BANNER = 1 << 20
MAX_WORDS = 1 << 14
CLOSE_S = 2.0
_HELLO = re.compile(rb'\{"agent":\s*"eagle3ops"')


class Connection:
    """A logged-in connection, and those of the jumps below it."""

    def __init__(self, hops: list[tuple[Endpoint, asyncssh.SSHClientConnection]]) -> None:
        self.hops = hops

    @property
    def ssh(self) -> asyncssh.SSHClientConnection:
        """The connection to the host itself: for SFTP, or for a command of one's own."""
        return self.hops[-1][1]

    @property
    def endpoint(self) -> Endpoint:
        return self.hops[-1][0]

    async def close(self) -> None:
        """Hang up, politely for two seconds and then anyway."""
        for _, connection in reversed(self.hops):
            connection.close()
            try:
                async with asyncio.timeout(CLOSE_S):
                    await connection.wait_closed()
            except (TimeoutError, OSError, asyncssh.Error):
                connection.abort()

    async def __aenter__(self) -> "Connection":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class SshChannel:
    """An agent's standard input and output behind SSH."""

    def __init__(self, connection: Connection, process: "asyncssh.SSHClientProcess[bytes]") -> None:
        self.connection = connection
        self.process = process
        self.lost: str | None = None
        """Why the connection ended, when it was not the agent that did."""
        self.greeted = False
        """The agent has said hello."""
        self.begun = False
        """The login shell has run `sh`, which has read its script."""
        self._ahead = b""
        self._seen = b""
        self._errors = bytearray()
        self._closed = False
        self._listener = asyncio.create_task(self._listen())

    @property
    def status(self) -> int | None:
        """Exit code of the remote command, once known."""
        return self.process.exit_status if self.process.exit_status is None or self.process.exit_status >= 0 else None

    @property
    def signal(self) -> str | None:
        """The signal that ended the remote command, without SIG."""
        ended_by = self.process.exit_signal
        return ended_by[0] if ended_by else None

    async def until_hello(self, on_begun: Callable[[], None]) -> str | None:
        """Wait for the agent's first line and leave it to be read; what came instead when there will be none.

        Args:
            on_begun: called once, when `begun` has become true.
        """
        while True:
            data = await self.read()
            if not data:
                with contextlib.suppress(TimeoutError, asyncssh.Error, OSError):
                    async with asyncio.timeout(CLOSE_S):
                        await self.process.wait_closed()
                        await self._listener
                return self.printed()
            self._seen += data
            found = _HELLO.search(self._seen)
            if found:
                self._ahead = self._seen[found.start() :]
                self._seen, self.greeted = b"", True
                return None
            if not self.begun and has_begun(self._seen.decode(errors="replace")):
                self.begun = True
                on_begun()
            if len(self._seen) > MAX_BANNER:
                return "it printed more than a megabyte and no agent"

    def printed(self) -> str:
        """The end of what came on standard output instead of an agent, as it came."""
        return self._seen[-MAX_WORDS:].decode("utf-8", errors="replace")

    async def read(self) -> bytes:
        """The next bytes; empty at the end."""
        if self._ahead:
            data, self._ahead = self._ahead, b""
            return data
        try:
            return await self.process.stdout.read(READ_BYTES)
        except (asyncssh.Error, OSError) as error:
            self.lost = clean(getattr(error, "reason", None) or str(error))
            return b""

    async def write(self, data: bytes) -> None:
        """Send all of it."""
        try:
            self.process.stdin.write(data)
            await self.process.stdin.drain()
        except asyncssh.Error as error:
            self.lost = clean(error.reason)
            raise ConnectionResetError(error.reason) from error

    async def close(self) -> None:
        """Hang up; the agent sees the end of its input."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError, asyncssh.Error):
            if not self.greeted:
                # A login shell that waits for something would wait on after us; where the server passes signals on.
                self.process.kill()
            self.process.stdin.write_eof()
        self.process.close()
        await self.connection.close()
        await end_task(self._listener)

    def errors(self) -> str:
        """The end of standard error, line by line; nothing in it steers a terminal."""
        lines = self._errors.decode("utf-8", errors="replace").splitlines()
        return "\n".join(clean(line) for line in lines if line.strip())

    def last_words(self) -> str:
        """Standard error's end, and how it ended if it has."""
        words = [self.errors()]
        if self.lost is not None:
            words.append(self.lost)
        elif self.signal is not None:
            words.append(f"ended by SIG{self.signal}")
        elif self.status:
            words.append(f"exit code {self.status}")
        return "; ".join(word for word in words if word)

    async def _listen(self) -> None:
        """Drain standard error, so that nothing on the host waits for us."""
        with contextlib.suppress(asyncssh.Error, OSError):
            while data := await self.process.stderr.read(READ_BYTES):
                self._errors += data
                del self._errors[:-MAX_WORDS]


async def end_task(task: "asyncio.Task[object]") -> None:
    if not task.done():
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):  # its outcome was taken, or is of no interest
        await task
