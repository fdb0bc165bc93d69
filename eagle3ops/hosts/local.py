"""How is an agent started on this machine? As a child with pipes, out of reach of the terminal's Ctrl-C."""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import cast

from eagle3ops.errors import HostUnreachable

HELD_BYTES = 4 << 20
"""What may have arrived and not been read, before the agent has to wait."""

WORDS_BYTES = 8 << 10
"""How much of the end of standard error is kept."""

LEAVE_S = 2.0
WORDS_WAIT_S = 1.0


class LocalTransport:
    """The agent of this machine."""

    def __init__(
        self,
        python: str = sys.executable,
        root: str | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        command: Sequence[str] | None = None,
        name: str = "local",
    ) -> None:
        self.name = name
        root_words = ["--root", root] if root else []
        self.command = list(command) if command else [python, "-m", "eagle3ops", "agent", *root_words]
        self.environment = environment
        self._early: LocalChannel | None = None

    async def open_early(self) -> None:
        """Start it for the `open` that comes first; what stands in the way is for that to say."""
        with suppress(HostUnreachable):
            self._early = await self._start()

    async def close_early(self) -> None:
        """End what was started early and never opened."""
        early, self._early = self._early, None
        if early is not None:
            await early.close()

    async def open(self) -> "LocalChannel":
        """Start it.

        Raises:
            HostUnreachable: it cannot be started.
        """
        early, self._early = self._early, None
        return early or await self._start()

    async def _start(self) -> "LocalChannel":
        loop = asyncio.get_running_loop()
        try:
            transport, channel = await loop.subprocess_exec(
                LocalChannel, *self.command, env=self.environment, start_new_session=True
            )
        except OSError as error:
            raise HostUnreachable(f"{self.name}: {self.command[0]} cannot be started: {error.strerror}") from error
        channel.attach(transport)
        return channel


class LocalChannel(asyncio.SubprocessProtocol):
    """Standard input and output of a child."""

    def __init__(self) -> None:
        self._process: asyncio.SubprocessTransport | None = None
        self._arrived = bytearray()
        self._words = bytearray()
        self._news = asyncio.Event()
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._ended = asyncio.Event()
        self._gone = asyncio.Event()
        self._output_over = False
        self._paused = False

    def attach(self, process: asyncio.SubprocessTransport) -> None:
        """Called once, when it has started."""
        self._process = process

    @property
    def pid(self) -> int:
        """Of the agent."""
        assert self._process is not None
        return self._process.get_pid()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Called by the event loop."""
        if fd == 2:
            self._words += data
            del self._words[:-WORDS_BYTES]
            return
        self._arrived += data
        self._news.set()
        pipe = self._output()
        if len(self._arrived) > HELD_BYTES and not self._paused and pipe is not None:
            self._paused = True
            pipe.pause_reading()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Called by the event loop."""
        if fd == 1:
            self._output_over = True
            self._news.set()
        elif fd == 0:
            self._may_write.set()

    def process_exited(self) -> None:
        """Called by the event loop."""
        self._ended.set()
        self._may_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop when it has ended and its pipes are closed."""
        self._output_over = True
        self._news.set()
        self._ended.set()
        self._gone.set()

    def pause_writing(self) -> None:
        """Called by the event loop."""
        self._may_write.clear()

    def resume_writing(self) -> None:
        """Called by the event loop."""
        self._may_write.set()

    async def read(self) -> bytes:
        """What has arrived; empty once the agent has ended."""
        while not self._arrived:
            if self._output_over:
                # Its last words and exit code come a moment later, unless a child of its holds the pipe.
                with suppress(TimeoutError):
                    async with asyncio.timeout(WORDS_WAIT_S):
                        await self._gone.wait()
                return b""
            self._news.clear()
            await self._news.wait()
        data = bytes(self._arrived)
        self._arrived.clear()
        self._go_on_reading()
        return data

    async def write(self, data: bytes) -> None:
        """Send all of it; waits while the agent does not read."""
        await self._may_write.wait()
        assert self._process is not None
        pipe = cast("asyncio.WriteTransport | None", self._process.get_pipe_transport(0))
        if pipe is None or pipe.is_closing() or self._ended.is_set():
            raise BrokenPipeError("the agent has ended")
        pipe.write(data)

    async def close(self) -> None:
        """End the agent: it leaves when its input ends, and is killed when it does not."""
        if self._process is None:
            return
        pipe = self._process.get_pipe_transport(0)
        if pipe is not None:
            pipe.close()
        self._arrived.clear()
        self._go_on_reading()
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self._ended.wait()
        # Kills what is still there; closing twice does nothing. One that hangs in a dead mount dies when that lets go.
        self._process.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self._ended.wait()

    def last_words(self) -> str:
        """The end of standard error, and how it ended if it has."""
        code = self._process.get_returncode() if self._process else None
        said = self._words.decode("utf-8", errors="replace").strip()
        if code is None:
            return said
        how = f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"{said} ({how})" if said else f"the agent {how}"

    def _go_on_reading(self) -> None:
        pipe = self._output()
        if self._paused and pipe is not None:
            self._paused = False
            pipe.resume_reading()

    def _output(self) -> asyncio.ReadTransport | None:
        if self._process is None:
            return None
        return cast("asyncio.ReadTransport | None", self._process.get_pipe_transport(1))
