"""Ops about the logs of a run: which are there, windows into them, what is added to them, and which lines match."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3ops.errors import Eagle3opsError, RequestError
from eagle3ops.hosts.agent.operation import Batch, End, Surroundings, operation, stream

if TYPE_CHECKING:
    from eagle3ops.runs.directory import RunDirectory

MAX_BYTES = 4 << 20
PIECE = 128 << 10
FAST_S, SLOW_S = 0.05, 0.5

MAX_MATCHES = 20_000
MAX_CONDITIONS = 8
MAX_PATTERN = 2000
MAX_WORDS = 16 << 10
_SEARCHES = asyncio.Semaphore(4)
"""Searches that go on at the same time; others wait."""


def _run(here: Surroundings, run: str) -> "RunDirectory":
    from eagle3ops.runs.directory import find_run

    return find_run(here.root, run)


def list_logs(here: Surroundings, *, run: str, evidence: str = "") -> dict[str, Any]:
    """Names and sizes of a run's logs, or of the files in a folder of evidence, `incident-N`."""
    from eagle3ops.runs import log_files

    found = _run(here, run)
    return {"run": found.run_id, "logs": log_files.list_logs(found, evidence)}


def read(here: Surroundings, *, run: str, log: str, offset: int = 0, max_bytes: int = 65536) -> dict[str, Any]:
    """The text of some bytes; a negative offset counts from the end."""
    from eagle3ops.hosts.agent import logs
    from eagle3ops.runs import log_files

    if not 4 <= max_bytes <= MAX_BYTES:
        raise RequestError(f"log.read: max_bytes is between 4 and {MAX_BYTES}, not {max_bytes}")
    with log_files.open_log(_run(here, run), log) as fd:
        return logs.read_window(fd, offset, max_bytes)


def lines(
    here: Surroundings, *, run: str, log: str, line: int = -100, count: int = 100, at: int | None = None
) -> dict[str, Any]:
    """Some whole lines, from line `line` on (0 is the first, -1 the last), or from the one that holds byte `at` on."""
    from eagle3ops.hosts.agent import logs
    from eagle3ops.runs import log_files

    if not 1 <= count <= logs.MAX_LINES:
        raise RequestError(f"log.lines: count is between 1 and {logs.MAX_LINES}, not {count}")
    with log_files.open_log(_run(here, run), log) as fd:
        index = here.indexes.of(fd)
        first = line if at is None else logs.line_at(fd, max(0, at), index)
        return asdict(logs.read_lines(fd, first, count, index)) | logs.identity(fd)


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
        from eagle3ops.runs import log_files

        if not log_files.find_log(self.run, self.log).exists():
            return None
        with log_files.open_log(self.run, self.log) as fd:
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


async def search(
    here: Surroundings,
    *,
    run: str,
    log: str,
    pattern: str,
    invert: bool = False,
    ignore_case: bool = False,
    also: list[Any] | None = None,
    line: int = 0,
    offset: int = 0,
    limit: int = 500,
    every: int = 0,
) -> AsyncIterator[Batch]:
    """The lines that match, from line `line` on, which begins at byte `offset`.

    Args:
        here: the agent.
        run: the run.
        log: the name of its log.
        pattern: a regular expression of Python that is searched for in each line.
        invert: the lines that do not match.
        ignore_case: `a` is `A`, too.
        also: more conditions: objects with `pattern`, `invert`, `ignore_case`.
        line: number of the first line.
        offset: byte at which that line begins.
        limit: so many matches are sent.
        every: 0 ends the search with the last match that is sent; else the others are counted, and each so manieth is
            marked with its line and byte, so that any part of the matches can be asked for.
    """
    from eagle3ops.runs import log_files

    asked = checked_search(pattern, invert, ignore_case, also, line, offset, limit, every)
    found = await here.in_thread(_run, here, run)
    async with _SEARCHES:
        with ExitStack() as opened:
            searcher = await start_searcher(
                await here.in_thread(opened.enter_context, log_files.open_log(found, log)), asked
            )
        async for batch in searched(searcher, {"run": found.run_id, "log": log}, asked):
            yield batch


def checked_search(
    pattern: str,
    invert: bool,
    ignore_case: bool,
    also: list[Any] | None,
    line: int,
    offset: int,
    limit: int,
    every: int,
) -> dict[str, Any]:
    """What the searcher is asked, from the arguments of a request.

    Raises:
        RequestError: one of them is out of bounds.
    """
    conditions = _conditions([{"pattern": pattern, "invert": invert, "ignore_case": ignore_case}, *(also or [])])
    if not 0 <= limit <= MAX_MATCHES or not (every == 0 or 16 <= every <= 1 << 20) or line < 0 or offset < 0:
        raise RequestError(
            f"log.search: limit is between 0 and {MAX_MATCHES}, every is 0 or at least 16, line and offset not negative"
        )
    return {"conditions": conditions, "line": line, "offset": offset, "limit": limit, "every": every}


def _conditions(given: list[Any]) -> list[dict[str, Any]]:
    if len(given) > MAX_CONDITIONS:
        raise RequestError(f"log.search: at most {MAX_CONDITIONS} conditions, not {len(given)}")
    for one in given:
        if not isinstance(one, dict) or not isinstance(one.get("pattern"), str):
            raise RequestError("log.search: a condition is an object with pattern, invert and ignore_case")
        if len(one["pattern"]) > MAX_PATTERN:
            raise RequestError(f"log.search: a pattern has at most {MAX_PATTERN} characters")
    return [{key: one.get(key) for key in ("pattern", "invert", "ignore_case")} for one in given]


async def start_searcher(fd: int, asked: dict[str, Any]) -> asyncio.subprocess.Process:
    """Search an open file in a process of its own: a regular expression holds the GIL for as long as it likes."""
    program = Path(__file__).with_name("log_searcher.py")
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", str(program), json.dumps(asked)),
        stdin=fd,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def searched(
    searcher: asyncio.subprocess.Process, named: dict[str, Any], asked: dict[str, Any]
) -> AsyncIterator[Batch]:
    """What a searcher finds, and at the end what was searched (`named`) and how much of it."""
    from eagle3ops.hosts.agent.protocol import LineSplitter

    assert searcher.stdout is not None
    splitter, at, lines = LineSplitter(), asked["offset"], asked["line"]
    try:
        while chunk := await searcher.stdout.read(1 << 20):
            items = []
            for said in splitter.feed(chunk):
                kind, message = said[:1], json.loads(said[1:])
                if kind == b"i":
                    at, lines = message["at"], message["lines"]
                    items.append(message)
                    continue
                if items:
                    yield items
                if kind == b"e":
                    yield End(named | message)
                    return
                raise RequestError(f"log.search: not a regular expression: {message['what']}")
            if items:
                yield items
        if await searcher.wait() == -signal.SIGPROF:
            raise RequestError(
                f"log.search: {asked['conditions'][0]['pattern'][:80]!a} takes for ever behind line {lines}, "
                f"byte {at}; the search was ended",
                remedy="a repetition inside a repetition does that, as in (a+)+; say it without",
            )
        assert searcher.stderr is not None
        words = (await searcher.stderr.read(MAX_WORDS)).decode(errors="replace").strip().rpartition("\n")[2]
        raise Eagle3opsError(
            f"log.search: the search of {named['log']} ended by itself, with {searcher.returncode}"
            + (f": {words[:300]}" if words else "")
        )
    finally:
        with suppress(ProcessLookupError):
            searcher.kill()
        await searcher.wait()


OPERATIONS = (
    operation("log.list", list_logs),
    operation("log.read", read),
    operation("log.lines", lines),
    stream("log.follow", follow),
    stream("log.search", search),
)
