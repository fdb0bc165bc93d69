"""How does one browser page get a console of its own? A process that ends when the page does, whatever it is doing."""

import asyncio
import contextlib
import json
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from textual_serve.app_service import AppService
from textual_serve.download_manager import DownloadManager

LEAVE_S = 5.0
"""How long a console may take to leave by itself."""
_NOT_ITS_OWN = ("TMUX", "TMUX_PANE", "STY", "WINDOW", "LINES")
"""What the terminal of the server says of itself; the console's terminal is the page."""
_COLUMNS, _ROWS = (10, 1000), (4, 500)


class BadMessage(Exception):
    """The page said something that no page of ours says."""


class Session(AppService):
    """One console process and the line to its page."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        write_bytes: Callable[[bytes], Awaitable[None]],
        write_str: Callable[[str], Awaitable[None]],
        close: Callable[[], Awaitable[None]],
        downloads: DownloadManager,
    ) -> None:
        super().__init__(
            "", write_bytes=write_bytes, write_str=write_str, close=close, download_manager=downloads, debug=False
        )
        self._argv = list(argv)

    async def _open_app_process(self, width: int = 80, height: int = 24) -> Process:
        """Start the console: arguments as they are, where textual-serve would hand a line to a shell."""
        environment = self._build_environment(width, height)
        for name in _NOT_ITS_OWN:
            environment.pop(name, None)
        environment["TERM"] = "xterm-256color"
        process = await asyncio.create_subprocess_exec(
            *self._argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C in the server's terminal is the server's
        )
        self._process, self._stdin = process, process.stdin
        return process

    async def run(self) -> None:
        """Carry what the console says to the page; hang up when it has ended, however it did."""
        try:
            await super().run()
        finally:
            await self.remote_close()

    async def take(self, text: str) -> None:
        """Carry what the page says to the console.

        Raises:
            BadMessage: it is not what a page of ours says.
        """
        try:
            kind, *rest = json.loads(text)
            value: Any = rest[0] if rest else None
            if kind == "stdin":
                await self.send_bytes(value.encode("utf-8", "replace"))
            elif kind == "resize":
                await self.set_terminal_size(*size(value["width"], value["height"]))
            elif kind == "ping":
                await self.remote_write_str(json.dumps(["pong", value]))
            elif kind == "blur":
                await self.blur()
            elif kind == "focus":
                await self.focus()
            else:
                raise BadMessage(f"no such message: {str(kind)[:40]!a}")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise BadMessage(f"{type(error).__name__}: {error}") from error

    async def stop(self) -> None:
        """End the console: it is asked to leave, and killed if it does not."""
        process, self._task, task = self._process, None, self._task
        if process is None:
            return
        await self._download_manager.cancel_app_downloads(app_service_id=self.app_service_id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self.send_meta({"type": "quit"})
                if self._stdin is not None:
                    # Also where it does not read what it is told: a console whose page is gone leaves.
                    self._stdin.close()
                await process.wait()
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if task is not None:
            await asyncio.wait([task], timeout=LEAVE_S)
            task.cancel()


def size(width: object, height: object) -> tuple[int, int]:
    """Columns and rows of a page, within bounds.

    Raises:
        ValueError: they are no numbers.
    """
    if not isinstance(width, int | float | str) or not isinstance(height, int | float | str):
        raise ValueError("the size of a page is two numbers")
    try:
        columns, rows = int(width), int(height)
    except OverflowError as error:
        raise ValueError(str(error)) from error
    return min(max(columns, _COLUMNS[0]), _COLUMNS[1]), min(max(rows, _ROWS[0]), _ROWS[1])
