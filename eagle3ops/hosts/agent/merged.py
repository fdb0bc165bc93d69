"""What did several logs say together? Their lines in one file, in order of time, that grows as they do.

The merged lines are a file of the agent's own, without a name, so that windows and searches go through it as through
any log. It is only added to: what came first keeps its place. Each log's lines keep their order; a line without a time
stands behind the one before it in its log, so that a traceback stays whole. Lines of a log that gives no times at all
stand where the log was written to last or, when they come while somebody looks, in the order of their arrival.
"""

import calendar
import os
import re
import secrets
import tempfile
import time
import weakref
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from itertools import accumulate, islice
from threading import Lock
from typing import TYPE_CHECKING, Any

from eagle3ops.errors import Eagle3opsError, RequestError
from eagle3ops.hosts.agent.logs import LineIndex, read_lines
from eagle3ops.runs.log_files import find_log, open_log

if TYPE_CHECKING:
    from eagle3ops.runs.directory import RunDirectory

MAX_LOGS = 256
BOUND = 256 << 20
"""Bytes that are merged at first; of longer logs, only so much of their ends."""

LEAST = 64 << 10
"""Bytes of the end of each log that are merged, however many logs there are."""

AT_ONCE = 8 << 20
"""Bytes of all logs together that are in memory at a time."""

QUICK = 4 << 20
"""Beyond so many bytes the ends alone are merged for a first look."""

LINE_KEPT = 15 << 10
"""Bytes of a line that are kept: a window shows little more."""

SETTLED_S = 2.0
"""A last line without an end counts as whole when nothing was added to it for so long."""

FUTURE_S = 26 * 3600.0
"""A time so long after its log was written is none; what is less may be another time zone."""

KEPT = 4
"""Merges that an agent keeps."""

_PROOF = 64
_SECOND = 20
"""Bytes of `[2026-11-30 04:45:12`."""
_USUAL = re.compile(rb"[\[(]?(\d{4}-\d\d-\d\d[ T_]\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?( ?(?:Z|[+-]\d\d:?\d\d))?")
_OTHER = re.compile(
    rb"^[\[( ]*(?:[A-Z]+ +)?(\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?()"
    rb"|\b((?:\d{4}-)?\d\d-\d\d[ T_]\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?( ?(?:Z|[+-]\d\d:?\d\d))?"
    rb"|[IWEFD](\d{4} \d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?()"
)
_LOOKED_AT = 96


class Clock:
    """The times that the lines of one log begin with, as seconds since 1970."""

    def __init__(self, written: float) -> None:
        self.written = written
        """When the log was last written to: it says the year or the day that a line leaves out."""
        self._known: dict[bytes, float | None] = {}
        self._begun: dict[bytes, tuple[float, int]] = {}

    def all(self, lines: Sequence[bytes]) -> list[float | None]:
        """The time that each line gives near its beginning; None for one that gives none."""
        begun = self._begun
        found: list[float | None] = []
        for line in lines:
            # Lines of one second begin alike: of most, only the fraction has to be read.
            like = begun.get(line[:_SECOND])
            if like is None:
                found.append(self._of(line))
                continue
            whole, at = like
            digits = line[at + 1 : at + 4]
            found.append(whole + int(digits) / 1000 if line[at : at + 1] in b".," and digits.isdigit() else whole)
        return found

    def _of(self, line: bytes) -> float | None:
        match = _USUAL.match(line)
        if match is not None:
            said, fraction, zone = match.groups()
        else:
            match = _OTHER.search(line[:_LOOKED_AT])
            if match is None:
                return None
            groups = match.groups()
            said, fraction, zone = next(groups[at : at + 3] for at in (0, 3, 6) if groups[at] is not None)
        whole = self._whole(said, zone or b"")
        if whole is not None and match.re is _USUAL and len(fraction or b"123") >= 3:
            if len(self._begun) > 100_000:
                self._begun.clear()
            self._begun[line[:_SECOND]] = whole, match.end(1)
        return whole + int(fraction) / 10 ** len(fraction) if fraction and whole is not None else whole

    def _whole(self, said: bytes, zone: bytes) -> float | None:
        key = said + zone
        if key not in self._known:
            if len(self._known) > 100_000:
                self._known.clear()
            self._known[key] = self._seconds(said.decode(), zone.decode().strip())
        return self._known[key]

    def _seconds(self, said: str, zone: str) -> float | None:
        here = time.localtime(self.written)
        hour, minute, second = (int(part) for part in said[-8:].split(":"))
        day = re.findall(r"\d+", said[:-8])
        if len(day) == 1 and len(day[0]) == 4:
            day = [day[0][:2], day[0][2:]]
        numbers = [int(part) for part in day] or [here.tm_mon, here.tm_mday]
        year, month, date = numbers if len(numbers) == 3 else (here.tm_year, *numbers)
        if not (1970 <= year <= 9999 and 1 <= month <= 12 and 1 <= date <= 31 and hour < 24 and minute < 60):
            return None
        try:
            found = self._stamp((year, month, date, hour, minute, second), zone)
            if len(numbers) < 3 and found > self.written + FUTURE_S:
                found = self._stamp((year - 1, month, date, hour, minute, second), zone)
            elif not day and found > self.written + 60:
                found -= 86400
        except (OverflowError, ValueError):
            return None
        return found if found <= self.written + FUTURE_S else None

    @staticmethod
    def _stamp(parts: tuple[int, int, int, int, int, int], zone: str) -> float:
        if not zone:
            return time.mktime((*parts, 0, 0, -1))
        shift = 0
        if zone != "Z":
            digits = zone[1:].replace(":", "")
            shift = (int(digits[:2]) * 60 + int(digits[2:])) * (-60 if zone[0] == "-" else 60)
        return calendar.timegm((*parts, 0, 0, 0)) - shift


@dataclass(slots=True)
class _Log:
    """One of the logs, and how far it is merged."""

    name: str
    taken: int = 0
    """Bytes that are merged, or were left out at the beginning."""
    left_out: int = 0
    head: bytes = b""
    proof: bytes = b""
    """What stands before `taken`."""
    file: tuple[int, int] | None = None
    key: float = 0.0
    timed: bool = False
    clock: Clock = field(default_factory=lambda: Clock(0.0))

    def continues(self, fd: int | None) -> bool:
        """Whether an open file is the one that was read so far, or its continuation."""
        if fd is None:
            return self.taken == 0
        status = os.fstat(fd)
        if self.file is None:
            return True
        return (
            self.file == (status.st_dev, status.st_ino)
            and status.st_size >= self.taken
            and os.pread(fd, len(self.head), 0) == self.head
            and os.pread(fd, len(self.proof), self.taken - len(self.proof)) == self.proof
        )

    def note(self, fd: int) -> None:
        """Remember what the file was."""
        status = os.fstat(fd)
        self.file = status.st_dev, status.st_ino
        self.head = os.pread(fd, min(_PROOF, self.taken), 0)
        self.proof = os.pread(fd, min(_PROOF, self.taken), max(0, self.taken - _PROOF))


@dataclass(slots=True)
class _Buffer:
    """The lines of one log that were read and not yet merged."""

    log: _Log
    source: int
    fd: int
    end: int
    final: bool
    """Whether a last line without an end is taken."""
    at: int
    keys: list[float] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    done: bool = False

    def fill(self, size: int) -> None:
        """Read on, at least one whole line."""
        while not self.keys and not self.done:
            chunk = os.pread(self.fd, min(size, self.end - self.at), self.at)
            stop = chunk.rfind(b"\n")
            if stop >= 0:
                self._add(chunk[:stop], stop + 1)
                self.done = self.at >= self.end
            elif self.at + len(chunk) < self.end and chunk:
                self._endless(chunk)
            else:
                if chunk and self.final:
                    self._add(chunk, len(chunk))
                self.done = True

    def _endless(self, chunk: bytes) -> None:
        """A line that is longer than what is read at once: its beginning, and how much follows."""
        length, at = len(chunk), self.at + len(chunk)
        while at < self.end and (more := os.pread(self.fd, min(AT_ONCE, self.end - at), at)):
            stop = more.find(b"\n")
            chunk += more[: len(more) if stop < 0 else stop][: max(0, LINE_KEPT - len(chunk))]
            length += len(more) if stop < 0 else stop
            at += len(more)
            if stop >= 0:
                self._add(_cut(chunk, length), length + 1)
                return
        if self.final:
            self._add(_cut(chunk, length), length)
        self.done = True

    def _add(self, data: bytes, length: int) -> None:
        """Lines that take `length` bytes of the log."""
        log, lines = self.log, data.split(b"\n")
        times = log.clock.all(lines)
        if not log.timed:
            first = next((one for one in times if one is not None), None)
            log.timed = first is not None
            log.key = max(log.key, log.clock.written if first is None else min(first, log.clock.written))
        key = log.key
        for said in times:
            if said is not None and said > key:
                key = said
            self.keys.append(key)
        log.key = key
        starts = accumulate(map(len, lines), lambda start, line: start + line + 1, initial=self.at)
        self.starts += islice(starts, len(lines))
        if max(map(len, lines)) > LINE_KEPT and len(data) + 1 >= length:
            lines = [_cut(line, len(line)) for line in lines]
        self.lines += lines
        self.at += length


def _cut(line: bytes, length: int) -> bytes:
    """A line of `length` bytes, or its beginning and how much follows."""
    return line if length <= LINE_KEPT else line[:LINE_KEPT] + b" [... %d more bytes]" % (length - LINE_KEPT)


@dataclass(frozen=True, slots=True)
class Batch:
    """Some lines in order."""

    lines: list[bytes]
    sources: list[int]
    """The number of each one's log."""
    starts: list[int]
    """The byte at which each one begins in its log."""


def in_order(buffers: Sequence[_Buffer], size: int) -> Iterator[Batch]:
    """All lines of the buffers in order, without having all of them in memory."""
    while True:
        for buffer in buffers:
            buffer.fill(size)
        filled = [buffer for buffer in buffers if buffer.keys]
        if not filled:
            return
        # Up to here nothing can come any more that belongs in between.
        horizon = min((buffer.keys[-1] for buffer in filled if not buffer.done), default=float("inf"))
        keys: list[float] = []
        batch = Batch([], [], [])
        for buffer in filled:
            count = bisect_right(buffer.keys, horizon)
            keys += buffer.keys[:count]
            batch.lines.extend(buffer.lines[:count])
            batch.starts.extend(buffer.starts[:count])
            batch.sources.extend([buffer.source] * count)
            del buffer.keys[:count], buffer.lines[:count], buffer.starts[:count]
        order = sorted(range(len(keys)), key=keys.__getitem__)
        yield Batch(
            [batch.lines[at] for at in order],
            [batch.sources[at] for at in order],
            [batch.starts[at] for at in order],
        )


class Spool:
    """A file without a name, which is gone with the last who reads it."""

    def __init__(self) -> None:
        with tempfile.TemporaryFile(prefix="eagle3ops-merged-") as file:
            self.fd = os.dup(file.fileno())
        weakref.finalize(self, os.close, self.fd)


class Merge:
    """Some logs of one run as one."""

    def __init__(self, run: "RunDirectory", names: Sequence[str], *, bound: int = BOUND) -> None:
        self.run = run
        self.names = tuple(names)
        self.built = False
        self.pending = False
        """Whether a last line without an end waits for its end."""
        self.seen = 0
        """Bytes of the logs when they were looked at last."""
        self._bound = bound
        self._lock = Lock()
        self._begin()

    def _begin(self) -> None:
        self.generation = secrets.token_hex(8)
        """Another one says that the lines have other places."""
        self.file = Spool()
        self.index = LineIndex()
        self.sources = array("H")
        self.offsets = array("Q")
        self._size = 0
        self._logs = [_Log(name) for name in self.names]
        self.built = False

    @property
    def left_out(self) -> dict[str, int]:
        """Bytes at the beginning of logs that are not merged, as there would be too much."""
        return {log.name: log.left_out for log in self._logs if log.left_out}

    def waiting(self) -> int:
        """Bytes that are not merged yet, at most about."""
        return max(0, sum(size_of(self.run, name) for name in self.names) - sum(log.taken for log in self._logs))

    def refresh(self) -> None:
        """Take in what was added; begin anew when a log is not the continuation of what was merged.

        Raises:
            Eagle3opsError: the lines cannot be kept.
        """
        with self._lock, ExitStack() as stack:
            opened = [_opened(stack, self.run, name) for name in self.names]
            whole = all(log.continues(fd) for log, fd in zip(self._logs, opened, strict=True))
            if not whole or self._size > 2 * self._bound:
                self._begin()
            sizes = [os.fstat(fd).st_size if fd is not None else 0 for fd in opened]
            if not self.built:
                self._leave_out(opened, sizes)
            try:
                self._take(opened, sizes)
            except OSError as error:
                self._begin()
                raise Eagle3opsError(
                    f"the logs cannot be merged: {error.strerror}",
                    remedy=f"make room in {tempfile.gettempdir()} on the host, or look at fewer logs at once",
                ) from error
            self.seen, self.built = sum(sizes), True

    def _leave_out(self, opened: Sequence[int | None], sizes: Sequence[int]) -> None:
        room = share(sizes, self._bound)
        for log, fd, size in zip(self._logs, opened, sizes, strict=True):
            if fd is not None and size > room:
                log.left_out = log.taken = _next_line(fd, size - room, size)

    def _take(self, opened: Sequence[int | None], sizes: Sequence[int]) -> None:
        buffers = []
        now = time.time()
        for source, (log, fd, size) in enumerate(zip(self._logs, opened, sizes, strict=True)):
            if fd is not None and size > log.taken:
                log.clock.written = os.fstat(fd).st_mtime
                final = now - log.clock.written > SETTLED_S
                buffers.append(_Buffer(log, source, fd, size, final, log.taken))
        for batch in in_order(buffers, max(128 << 10, AT_ONCE // max(1, len(buffers)))):
            self.sources.extend(batch.sources)
            self.offsets.extend(batch.starts)
            data = b"\n".join(batch.lines) + b"\n"
            _write(self.file.fd, data)
            self._size += len(data)
        self.pending = False
        for buffer in buffers:
            buffer.log.taken = buffer.at
            buffer.log.note(buffer.fd)
            self.pending |= buffer.at < buffer.end
        self.index.extend(self.file.fd, self._size)

    def window(self, line: int, count: int) -> dict[str, Any]:
        """Some merged lines, as `read_lines` answers them, with what each one's log is."""
        self.refresh()
        with self._lock:
            file, index, sources, offsets, generation = (
                self.file, self.index, self.sources, self.offsets, self.generation,
            )  # fmt: skip
        found = asdict(read_lines(file.fd, line, count, index))
        first, lines = found["first"] or 0, len(found["lines"])
        found |= {
            "sources": list(sources[first : first + lines]),
            "origin": offsets[first] if lines else None,
            "file": generation,
        }
        return found | self.state()

    def state(self) -> dict[str, Any]:
        """What every answer says of the merge."""
        return {"seen": self.seen, "pending": self.pending, "left_out": self.left_out}

    def row_at(self, name: str, offset: int) -> int:
        """The merged line that holds a byte of a log; the nearest one when that is not merged."""
        source, best = self.names.index(name), 0
        for row, (whose, at) in enumerate(zip(self.sources, self.offsets, strict=False)):
            if whose == source:
                if at > offset:
                    break
                best = row
        return best

    def ends(self, count: int) -> dict[str, Any]:
        """The last lines of the logs in order, for a first look: not counted."""
        with ExitStack() as stack:
            buffers, total = [], 0
            for source, name in enumerate(self.names):
                fd = _opened(stack, self.run, name)
                if fd is not None:
                    size = os.fstat(fd).st_size
                    total += size
                    log = _Log(name, clock=Clock(os.fstat(fd).st_mtime))
                    at = _next_line(fd, size - LEAST, size) if size > LEAST else 0
                    buffers.append(_Buffer(log, source, fd, size, True, at))
            batches = list(in_order(buffers, LEAST))
        return {
            "lines": [line.decode("utf-8", "replace") for batch in batches for line in batch.lines][-count:],
            "sources": [source for batch in batches for source in batch.sources][-count:],
            "first": None, "total": None, "offset": 0, "end": 0, "size": total, "complete": True, "more": False,
            "origin": None, "file": "", "seen": total, "pending": False, "left_out": {},
        }  # fmt: skip


class Merges:
    """The merges that were looked at lately."""

    def __init__(self, keep: int = KEPT) -> None:
        self._keep = keep
        self._merges: OrderedDict[tuple[str, tuple[str, ...]], Merge] = OrderedDict()
        self._lock = Lock()

    def of(self, run: "RunDirectory", names: Sequence[Any]) -> Merge:
        """The merge of some logs of a run.

        Raises:
            RequestError: those are no names of logs.
        """
        if not 1 <= len(names) <= MAX_LOGS or not all(isinstance(name, str) for name in names):
            raise RequestError(f"logs is a list of 1 to {MAX_LOGS} names of logs", remedy="log.list shows the names")
        for name in names:
            if "\0" in name or not _encodable(name):
                raise RequestError(f"{name!a} is not the name of a log", remedy="log.list shows the names")
            find_log(run, name)
        key = str(run.path), tuple(dict.fromkeys(names))
        with self._lock:
            merge = self._merges.setdefault(key, Merge(run, key[1]))
            self._merges.move_to_end(key)
            while len(self._merges) > self._keep:
                self._merges.popitem(last=False)
        return merge


def _encodable(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def share(sizes: Sequence[int], bound: int) -> int:
    """Bytes of the end of each log, so that all together are not above the bound; what short ones leave, others get."""
    left, room = bound, max(sizes, default=0)
    rest = sorted(sizes)
    for at, size in enumerate(rest):
        room = left // (len(rest) - at)
        if size > room:
            break
        left -= size
        room = max(room, size)
    return max(room, LEAST)


def size_of(run: "RunDirectory", name: str) -> int:
    """Bytes of a log; 0 when it is not there."""
    with suppress(OSError, RequestError):
        return find_log(run, name).stat().st_size
    return 0


def _opened(stack: ExitStack, run: "RunDirectory", name: str) -> int | None:
    """A log that is there; one that is not yet written is no error, and one that cannot be read is not left out."""
    if not os.path.lexists(find_log(run, name)):
        return None
    try:
        return stack.enter_context(open_log(run, name))
    except RequestError as error:
        if not os.path.lexists(find_log(run, name)):
            return None
        raise RequestError(error.what, remedy=error.remedy or "look at the other logs without it") from error


def _next_line(fd: int, offset: int, size: int) -> int:
    """Where the first line begins that begins behind a byte; the end when none does within some MiB."""
    at = offset
    while at < min(size, offset + AT_ONCE):
        chunk = os.pread(fd, LEAST, at)
        stop = chunk.find(b"\n")
        if stop >= 0:
            return at + stop + 1
        if not chunk:
            break
        at += len(chunk)
    return offset


def _write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
