"""Ops about the logs of a run: which are there, windows into them, and what is added to them."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from eagle3ops.errors import RequestError
from eagle3ops.hosts.agent.operation import Batch, End, Surroundings, operation, stream

if TYPE_CHECKING:
    from eagle3ops.runs.directory import RunDirectory

MAX_BYTES = 4 << 20
PIECE = 128 << 10
FAST_S, SLOW_S = 0.05, 0.5


def _run(here: Surroundings, run: str) -> "RunDirectory":
    from eagle3ops.runs.directory import find_run

    return find_run(here.root, run)


def list_logs(here: Surroundings, *, run: str) -> dict[str, Any]:
    """Names and sizes of a run's logs."""
    from eagle3ops.hosts.agent import logs

    found = _run(here, run)
    return {"run": found.run_id, "logs": logs.list_logs(found)}


def read(here: Surroundings, *, run: str, log: str, offset: int = 0, max_bytes: int = 65536) -> dict[str, Any]:
    """The text of some bytes; a negative offset counts from the end."""
    from eagle3ops.hosts.agent import logs

    if not 4 <= max_bytes <= MAX_BYTES:
        raise RequestError(f"log.read: max_bytes is between 4 and {MAX_BYTES}, not {max_bytes}")
    with logs.open_log(_run(here, run), log) as fd:
        return logs.read_window(fd, offset, max_bytes)


def lines(here: Surroundings, *, run: str, log: str, line: int = -100, count: int = 100) -> dict[str, Any]:
    """Some whole lines, from line `line` on (0 is the first, -1 the last)."""
    from eagle3ops.hosts.agent import logs

    if not 1 <= count <= logs.MAX_LINES:
        raise RequestError(f"log.lines: count is between 1 and {logs.MAX_LINES}, not {count}")
    with logs.open_log(_run(here, run), log) as fd:
        return asdict(logs.read_lines(fd, line, count, here.indexes.of(fd)))


class _Follower:
    """Reads what is added to a log, which may not be there yet, be cut or be replaced."""

    def __init__(self, run: "RunDirectory", log: str, offset: int) -> None:
        self.run = run
        self.log = log
        self.offset = offset
        self._file: tuple[int, int] | None = None

    def look(self) -> tuple[dict[str, Any] | None, bool]:
        """The next piece, and whether the run was going on before it was read: if not, nothing comes behind it."""
        alive = self.run.alive()
        piece = self.read(final=False)
        return (self.read(final=True) if piece is None and not alive else piece), alive

    def read(self, *, final: bool) -> dict[str, Any] | None:
        """The next piece; None when nothing was added. `final`: also the beginning of a character that never ended."""
        from eagle3ops.hosts.agent import logs

        if not logs.find_log(self.run, self.log).exists():
            return None
        with logs.open_log(self.run, self.log) as fd:
            status = os.fstat(fd)
            if self.offset < 0:
                self.offset = logs.read_window(fd, self.offset, 8)["offset"]
            reset = self._file not in (None, (status.st_dev, status.st_ino)) or status.st_size < self.offset
            self._file = (status.st_dev, status.st_ino)
            if reset:
                self.offset = 0
            data = os.pread(fd, PIECE, self.offset)
        kept = data if final else data[: len(data) - logs.torn_tail(data)]
        if not kept and not reset:
            return None
        start, self.offset = self.offset, self.offset + len(kept)
        piece = {"offset": start, "end": self.offset, "text": kept.decode("utf-8", errors="replace")}
        return piece | {"reset": True} if reset else piece


async def follow(here: Surroundings, *, run: str, log: str, offset: int = 0) -> AsyncIterator[Batch]:
    """What is added to a log from byte `offset` on (negative: from the end), until the run has ended.

    A piece with `reset` says that the log was cut or replaced, and begins anew.
    """
    found = await here.in_thread(_run, here, run)
    follower = _Follower(found, log, offset)
    pause = FAST_S
    while True:
        piece, alive = await here.in_thread(follower.look)
        if piece is not None:
            pause = FAST_S
            yield [piece]
        elif alive:
            await asyncio.sleep(pause)
            pause = min(pause * 1.3, SLOW_S)
        else:
            break
    status = await here.in_thread(found.status)
    yield End({"run": found.run_id, "log": log, "status": status, "end": max(0, follower.offset)})


OPERATIONS = (
    operation("log.list", list_logs),
    operation("log.read", read),
    operation("log.lines", lines),
    stream("log.follow", follow),
)
