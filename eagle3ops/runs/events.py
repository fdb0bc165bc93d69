"""What happened in a run, in order? An append-only file of JSON lines that several processes write and anyone reads.

One line is one event: `{"seq": 7, "ts": 1796013913.25, "stage": "train", "kind": "metric", "data": {...}}`. A line that
was torn by a crash is skipped by readers and repaired by the next writer.
"""

import contextlib
import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from eagle3ops.runs.redact import redact_data

DURABLE = frozenset({"run", "stage", "verdict", "error"})
"""Kinds that are flushed to disk before `append` returns: changes of state."""

LOCK_S = 10.0
"""So long another writer may keep the file locked. One that was stopped meanwhile must not stop all others."""
_TAIL = 1 << 16
_WHOLE = 1 << 24


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened."""

    seq: int
    ts: float
    """Seconds since 1970, by the clock of the machine that runs the stage."""
    stage: str | None
    kind: str
    data: Mapping[str, Any]

    def line(self) -> str:
        """As it stands in the file, without the newline."""
        fields = {"seq": self.seq, "ts": self.ts, "stage": self.stage, "kind": self.kind, "data": self.data}
        return json.dumps(_finite(fields), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become strings, so that `jq` can read every line."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)


def parse_line(line: bytes) -> Event | None:
    """Read one line; None when it is torn, damaged or not an event."""
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(raw, dict):
        return None
    seq, ts, stage, kind, data = (raw.get(name) for name in ("seq", "ts", "stage", "kind", "data"))
    if not isinstance(seq, int) or isinstance(seq, bool) or seq < 0:
        return None
    if not isinstance(ts, int | float) or isinstance(ts, bool) or ts != ts:
        return None
    if not isinstance(kind, str) or not isinstance(data, dict) or not (stage is None or isinstance(stage, str)):
        return None
    with contextlib.suppress(OverflowError):
        return Event(seq, float(ts), stage, kind, data)
    return None


class EventLog:
    """The writer's end. Safe for several processes, and for several threads of one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._thread_lock = threading.Lock()
        self._known_size = -1
        self._last_seq = 0
        self._patience_s = LOCK_S

    def append(self, kind: str, data: Mapping[str, Any], stage: str | None = None) -> Event:
        """Add one event, numbered after the last one in the file, without the secrets that its texts may hold.

        Raises:
            OSError: it could not be written whole; nothing of it stays in the file.
        """
        clean = redact_data(data)
        with self._thread_lock:
            self._lock()
            try:
                size = os.fstat(self._fd).st_size
                if size != self._known_size:
                    size = self._catch_up(size)
                event = Event(self._last_seq + 1, round(time.time(), 3), stage, kind, clean)
                line = (event.line() + "\n").encode("utf-8", errors="replace")
                try:
                    written = os.write(self._fd, line)
                    if written < len(line):
                        # A disk that fills up takes a part; the next attempt names the reason.
                        os.write(self._fd, line[written:])
                    if kind in DURABLE:
                        os.fsync(self._fd)
                except OSError:
                    os.ftruncate(self._fd, size)
                    self._known_size = -1
                    raise
                self._known_size, self._last_seq = size + len(line), event.seq
                return event
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give the file back."""
        os.close(self._fd)

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lock(self) -> None:
        """Be the only writer; after `LOCK_S` one of two: what a stopped one has begun is written whole, or not yet."""
        until = time.monotonic() + self._patience_s
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._patience_s = LOCK_S
                return
            except BlockingIOError:
                if time.monotonic() > until:
                    self._patience_s = LOCK_S / 50
                    return
                time.sleep(0.002)

    def _catch_up(self, size: int) -> int:
        """Find the last number in use and cut off a torn last line; returns the file's size afterwards."""
        window = _TAIL
        while True:
            start = max(0, size - window)
            tail = os.pread(self._fd, size - start, start)
            end = tail.rfind(b"\n") + 1
            events = [event for line in tail[:end].split(b"\n") if (event := parse_line(line))]
            if events or start == 0:
                break
            window *= 8
        if start + end < size:
            os.ftruncate(self._fd, start + end)
        self._last_seq = max((event.seq for event in events), default=0)
        return start + end


def read_events(path: Path, after: int = 0) -> Iterator[Event]:
    """All whole events whose number is above `after`; damaged lines are skipped, a missing file has none."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        for line in file:
            if line.endswith(b"\n") and (event := parse_line(line)) and event.seq > after:
                yield event


class RawEvent(NamedTuple):
    """An event, and where it stands."""

    offset: int
    """Of the first byte after its line: from there a reader can go on."""
    line: bytes
    """As it stands in the file, without the newline."""
    event: Event


class EventReader:
    """A reader that remembers where it was: each `read` gives what has been added since."""

    def __init__(self, path: Path, after: int = 0, offset: int = 0) -> None:
        """Begin with the first event above `after`.

        Args:
            path: the log.
            after: number of the last event that is known.
            offset: byte from which to look for more, one that a `RawEvent` named; any other one costs a torn line.
        """
        self.path = path
        self.last_seq = after
        self.offset = offset

    def read(self) -> list[Event]:
        """The events since the last call."""
        found: list[Event] = []
        while (chunk := self._chunk(_WHOLE)) is not None:
            found += [event for _, _, event in chunk]
        return found

    def read_raw(self, max_bytes: int = 1 << 20) -> list[RawEvent] | None:
        """The next events from at most so many bytes (more where one line is longer).

        An empty list: there was something, but nothing new or whole. None: there is no more for now.
        """
        return self._chunk(max_bytes)

    def _chunk(self, max_bytes: int) -> list[RawEvent] | None:
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self.offset:
                    self.offset = 0
                file.seek(self.offset)
                chunk = file.read(max_bytes)
                end = chunk.rfind(b"\n") + 1
                while not end and len(chunk) >= max_bytes > 0:
                    max_bytes *= 8
                    file.seek(self.offset)
                    chunk = file.read(max_bytes)
                    end = chunk.rfind(b"\n") + 1
        except FileNotFoundError:
            return None
        if not end:
            return None
        at, found = self.offset, []
        self.offset += end
        last = self.last_seq
        for line in chunk[: end - 1].split(b"\n"):
            at += len(line) + 1
            event = parse_line(line)
            if event is not None and event.seq > last:
                last = event.seq
                found.append(RawEvent(at, line, event))
        self.last_seq = last
        return found
