"""Ops about the events of a run: the stream that begins behind any event and ends with the run."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3ops.errors import RequestError
from eagle3ops.hosts.agent.operation import Batch, End, Raw, Surroundings, stream
from eagle3ops.hosts.agent.protocol import MAX_NESTING
from eagle3ops.runs.events import parse_line

BATCH_BYTES = 256 << 10
"""Bytes of events read and sent at a time."""

MAX_EVENT = 8 << 20
"""Bytes of the longest event that is passed on; of a longer one everything but its data is."""

MAX_HELD = 64 << 20
"""Bytes without a line end at which waiting for one is given up."""

FAST_S, SLOW_S = 0.05, 0.5
"""Pause between looks while things happen, and the longest one at rest."""


@dataclass(slots=True)
class EventTail:
    """Reads the lines of an event log as they are added, each checked and none changed."""

    path: Path
    last_seq: int
    offset: int = 0
    """Where the next line begins."""
    _file: tuple[int, int] | None = None

    def seek(self, hint: int | None = None) -> None:
        """Go to the first event behind `last_seq` without reading what is before it; `hint` is where it may be."""
        try:
            with self.path.open("rb", buffering=0) as file:
                stat = os.fstat(file.fileno())
                self._file = (stat.st_dev, stat.st_ino)
                fd, size = file.fileno(), stat.st_size
                if hint is not None and 0 < hint <= size and self._is_behind(fd, hint):
                    self.offset = hint
                elif self.last_seq > 0:
                    self.offset = self._search(fd, size)
        except FileNotFoundError:
            return

    def _is_behind(self, fd: int, offset: int) -> bool:
        """Does a line end at `offset` that the reader has seen?"""
        start = max(0, offset - BATCH_BYTES)
        before = os.pread(fd, offset - start, start)
        if not before.endswith(b"\n"):
            return False
        event = parse_line(before[before.rfind(b"\n", 0, -1) + 1 :])
        return event is not None and event.seq <= self.last_seq

    def _search(self, fd: int, size: int) -> int:
        """A line start at or before the first event that is new; numbers only ever rise in a log."""
        low, high = 0, size
        while high - low > BATCH_BYTES:
            middle = (low + high) // 2
            chunk = os.pread(fd, BATCH_BYTES, middle)
            found = None
            start = chunk.find(b"\n") + 1
            while start > 0 and (end := chunk.find(b"\n", start)) >= 0:
                if (event := parse_line(chunk[start:end])) is not None:
                    found = event.seq
                    break
                start = end + 1
            if found is None:
                # Damaged, or one line longer than a batch: everything from here on is read.
                return low
            if found <= self.last_seq:
                low = middle + start
            else:
                high = middle
        return low

    def read(self) -> list[bytes]:
        """The next new events as lines, about `BATCH_BYTES` of them; none when there is nothing new."""
        while True:
            chunk = self._chunk()
            if not chunk:
                return []
            self.offset += len(chunk)
            lines = [line for raw in chunk.split(b"\n") if raw and (line := self._check(raw)) is not None]
            if lines:
                return lines

    def _chunk(self) -> bytes:
        """Whole lines from `offset` on; none while the next one is not whole."""
        try:
            with self.path.open("rb", buffering=0) as file:
                fd = file.fileno()
                stat = os.fstat(fd)
                if self._file not in (None, (stat.st_dev, stat.st_ino)) or stat.st_size < self.offset:
                    self.offset = 0
                self._file = (stat.st_dev, stat.st_ino)
                length = BATCH_BYTES
                while True:
                    chunk = os.pread(fd, length, self.offset)
                    end = chunk.rfind(b"\n") + 1
                    if end or len(chunk) < length:
                        return chunk[:end]
                    if length > MAX_HELD:
                        # No event of ours is that long; what is skipped here in pieces is no event in any piece.
                        return chunk
                    length *= 4
        except FileNotFoundError:
            return b""

    def _check(self, line: bytes) -> bytes | None:
        """The line as it is passed on; None for one that is damaged or was seen."""
        try:
            line.decode("utf-8")
        except UnicodeDecodeError:
            return None
        event = parse_line(line)
        if event is None or event.seq <= self.last_seq:
            return None
        self.last_seq = event.seq
        if len(line) > MAX_EVENT:
            reason = f"{len(line)} bytes are too many to be sent"
        elif line.count(b"[") + line.count(b"{") > MAX_NESTING and _depth(event.data) > MAX_NESTING:
            reason = "it is nested too deeply to be sent"
        else:
            return line
        kept = {"seq": event.seq, "ts": event.ts, "stage": event.stage, "kind": event.kind, "data": {"omitted": reason}}
        return json.dumps(kept).encode()


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
    return depth


async def events(here: Surroundings, *, run: str, after: int = 0, offset: int | None = None) -> AsyncIterator[Batch]:
    """Every event of a run whose number is above `after`, until the run has ended.

    `offset` is the one that an earlier stream ended with: a hint that saves looking for the place.
    """
    if after < 0:
        raise RequestError(f"runs.events: after is the number of an event, or 0, not {after}")
    from eagle3ops.runs.directory import RunDirectory, find_run

    found: RunDirectory = await here.in_thread(find_run, here.root, run)
    tail = EventTail(found.events_file, after)
    await here.in_thread(tail.seek, offset)
    pause = FAST_S
    while True:
        lines, alive = await here.in_thread(_look, found, tail)
        if lines:
            pause = FAST_S
            yield Raw(lines)
        elif alive:
            await asyncio.sleep(pause)
            pause = min(pause * 1.3, SLOW_S)
        else:
            break
    yield End(await here.in_thread(_ending, found, tail))


def _look(run: Any, tail: EventTail) -> tuple[list[bytes], bool]:
    """New events, and whether the run was going on before they were read: if not, nothing comes behind them."""
    alive = run.alive()
    return tail.read(), alive


def _ending(run: Any, tail: EventTail) -> dict[str, Any]:
    return {
        "run": run.run_id,
        "status": run.status(),
        "interruption": run.interruption(),
        "state": run.state(),
        "after": tail.last_seq,
        "offset": tail.offset,
    }


OPERATIONS = (stream("runs.events", events),)
