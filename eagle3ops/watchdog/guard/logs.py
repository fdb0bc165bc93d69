"""What has been written to these logs since the last look?

A log may be cut to nothing (copytruncate), moved away and begun anew (logrotate), grow faster than it can be read, hold
one endless line, or not be there yet. What is read at one look is bounded; what is passed over is counted. Only regular
files are opened: reading a pipe would take from whoever it is meant for.
"""

import contextlib
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

READ_BYTES = 1 << 20
"""Read from one log at one look."""
HEAD_BYTES = 1 << 18
"""Of a log that is longer than can be read at once, so much of the beginning is read: it tells how a server started."""
BEHIND_BYTES = 8 << 20
"""Whoever is further behind jumps to the last `READ_BYTES`."""
LINE_BYTES = 1 << 16
"""A longer line is cut."""
MAX_LOGS = 64

Line = tuple[str, str, float]
"""Name of the log, text without its end, and when it was written at the latest (monotonic seconds)."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")


class Tails:
    """Several logs, read as they grow. Not for several threads at once.

    Args:
        paths: the logs; more may be added by `follow`.
        clock: monotonic seconds.
        wall: seconds since 1970, the clock of the files' times.
    """

    def __init__(
        self,
        paths: Iterable[Path] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._clock, self._wall = clock, wall
        self._tails: dict[Path, _Tail] = {}
        self.follow(paths)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The logs that are followed."""
        return tuple(self._tails)

    @property
    def skipped(self) -> int:
        """Bytes that were passed over because there were too many."""
        return sum(tail.skipped for tail in self._tails.values())

    @property
    def reasons(self) -> dict[str, str]:
        """Name of a log that cannot be read -> why."""
        return {tail.name: tail.reason for tail in self._tails.values() if tail.reason}

    def follow(self, paths: Iterable[Path], starts: Mapping[Path, int] | None = None) -> None:
        """Follow these as well, `MAX_LOGS` in all.

        Args:
            paths: the logs.
            starts: log -> byte before which nothing is read, as it is about something else.
        """
        for path in paths:
            if path not in self._tails and len(self._tails) < MAX_LOGS:
                self._tails[path] = _Tail(path, (starts or {}).get(path, 0))
        names = Counter(path.name for path in self._tails)
        for path, tail in self._tails.items():
            tail.name = path.name if names[path.name] == 1 else str(path)

    def read(self) -> list[Line]:
        """Whole lines that are new since the last call, log by log; without control characters.

        The segments that a progress bar draws over each other (ended by a carriage return) count as lines.
        """
        found: list[Line] = []
        for tail in self._tails.values():
            now = self._clock()
            lines, age = tail.read(self._wall())
            found += [(tail.name, line, now - age) for line in lines]
        return found

    def close(self) -> None:
        """Give the descriptors back."""
        for tail in self._tails.values():
            tail.close()


class _Tail:
    """One log."""

    def __init__(self, path: Path, start: int = 0) -> None:
        self.path = path
        self._start = start
        self.name = path.name
        self.reason = ""
        self.skipped = 0
        self._fd: int | None = None
        self._at = 0
        self._rest = b""
        self._cut = False
        """The rest of a line that was too long is being passed over."""
        self._fresh = True
        """Not yet read to its end: it holds what was written before anybody looked."""

    def read(self, wall: float) -> tuple[list[str], float]:
        """New lines, and how long ago they were written at least, in seconds; 0 for what was written meanwhile."""
        try:
            if self._fd is None and not self._open():
                return [], 0.0
            lines, age = self._more(wall)
            if not lines and self._moved():
                # The last words that were written to the old file have been read.
                self.close()
                self._start = 0
                if self._open():
                    self._fresh = False
                    lines, age = self._more(wall)
        except OSError as error:
            self.close()
            self.reason = error.strerror or str(error)
            return [], 0.0
        return lines, age

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = None

    def _open(self) -> bool:
        try:
            if not stat.S_ISREG(os.stat(self.path).st_mode):
                self.reason = "not a regular file"
                return False
            self._fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError as error:
            self.reason = error.strerror or str(error)
            return False
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            self.close()
            self.reason = "not a regular file"
            return False
        # A file that is shorter was begun anew.
        self._start = self._start if os.fstat(self._fd).st_size >= self._start else 0
        self.reason, self._at, self._rest, self._cut = "", self._start, b"", False
        return True

    def _moved(self) -> bool:
        """Is there another file under the name by now? While there is none, the old one is still read."""
        assert self._fd is not None
        ours = os.fstat(self._fd)
        try:
            there = os.stat(self.path)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino)

    def _more(self, wall: float) -> tuple[list[str], float]:
        assert self._fd is not None
        facts = os.fstat(self._fd)
        if facts.st_size < self._at:
            self._start, self._at, self._rest, self._cut = 0, 0, b"", False
        lines: list[str] = []
        behind = facts.st_size - self._at
        if behind > BEHIND_BYTES or (self._fresh and behind > READ_BYTES):
            head = HEAD_BYTES if self._at == self._start else 0
            if head:
                lines = self._split(os.pread(self._fd, head, self._at))
            start = max(self._at + head, facts.st_size - READ_BYTES)
            self.skipped += start - self._at - head
            self._at, self._rest, self._cut = start, b"", True
        chunk = os.pread(self._fd, READ_BYTES, self._at)
        self._at += len(chunk)
        lines += self._split(chunk)
        age = 0.0
        if self._fresh:
            # Written before anybody looked: at the file's own time at the latest.
            age = min(max(0.0, wall - facts.st_mtime), 1e7)
            self._fresh = self._at < facts.st_size
        return lines, age

    def _split(self, chunk: bytes) -> list[str]:
        *whole, self._rest = re.split(rb"[\r\n]", self._rest + chunk)
        if whole and self._cut:
            del whole[0]
            self._cut = False
        if len(self._rest) > LINE_BYTES:
            if not self._cut:
                whole.append(self._rest[:LINE_BYTES])
            self._rest, self._cut = b"", True
        return [text for line in whole if (text := clean(line))]


def clean(line: bytes) -> str:
    """The text of a line without what would steer a terminal, shortened to `LINE_BYTES`."""
    text = line[:LINE_BYTES].decode("utf-8", "replace")
    if not (text.isascii() and text.isprintable()):
        text = _CONTROLS.sub("", _ESCAPES.sub("", text))
    return text.strip()
