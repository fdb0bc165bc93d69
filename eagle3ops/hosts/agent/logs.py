"""What stands in a log at this place? Windows by byte and by line into files of any size, from either end.

Line windows begin and end at line starts. Raw windows say exactly which bytes they are; where one would begin or end
inside a UTF-8 character it begins behind it or ends before it.
"""

import hashlib
import os
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock
from typing import Any

CHUNK = 256 << 10
"""Bytes between two entries of a line index."""

LINE_CAP = 16 << 10
"""Bytes of a line that are shown; of a longer one the beginning, and how much follows."""

WINDOW_BYTES = 1 << 20
"""Bytes of text in one line window; it then has fewer lines than asked for, and `more` says so."""

MAX_LINES = 20_000
COUNT_AT_ONCE = 64 << 20
"""Bytes that are counted through to give a window from the end its line numbers; beyond, they are left out."""

KEPT_INDEXES = 64
_PROOF = 64


@dataclass(frozen=True, slots=True)
class LineWindow:
    """Some lines of a log, whole ones."""

    lines: tuple[str, ...]
    first: int | None
    """Number of the first line, from 0; None when the log is too long to count it on the way."""
    total: int | None
    """Lines in the log, a torn last one included; None when not counted."""
    offset: int
    """Byte at which the first line begins."""
    end: int
    """Byte behind the last line."""
    size: int
    """Bytes of the log."""
    complete: bool
    """False when the last line here has no line end yet."""
    more: bool
    """True when lines were left out because the window was full."""


class LineIndex:
    """Counts of line ends at every `CHUNK` bytes of one file; it grows with the file.

    Threads may share it: the array is only added to, or replaced as a whole.
    """

    def __init__(self) -> None:
        self._counts = array("Q", [0])
        self._proofs: list[tuple[int, bytes]] = []
        self._lock = Lock()

    def extend(self, fd: int, size: int) -> None:
        """Take in what was added; begin anew when the file is not the continuation of what was counted."""
        with self._lock:
            if not self._holds(fd, size):
                self._counts = array("Q", [0])
                self._proofs = []
            position = (len(self._counts) - 1) * CHUNK
            while position + CHUNK <= size:
                chunk = _read(fd, position, CHUNK)
                if len(chunk) < CHUNK:
                    break
                self._counts.append(self._counts[-1] + chunk.count(b"\n"))
                position += CHUNK
                if len(self._counts) == 2:
                    self._proofs.append((0, _digest(chunk[:_PROOF])))
                last = (position - _PROOF, _digest(chunk[-_PROOF:]))
                self._proofs[1:] = [last]

    @property
    def covered(self) -> int:
        """Bytes that are counted."""
        return (len(self._counts) - 1) * CHUNK

    def line_ends_before(self, fd: int, offset: int) -> int:
        """Number of line ends in the bytes before `offset`."""
        counts = self._counts
        entry = min(offset // CHUNK, len(counts) - 1)
        count = counts[entry]
        for chunk in _chunks(fd, entry * CHUNK, offset):
            count += chunk.count(b"\n")
        return count

    def start_of_line(self, fd: int, line: int, size: int) -> int | None:
        """Byte at which line `line` begins; None when the file has fewer lines."""
        if line == 0:
            return 0
        counts = self._counts
        entry = max(0, bisect_right(counts, line - 1) - 1)
        missing = line - counts[entry]
        position = entry * CHUNK
        for chunk in _chunks(fd, position, size):
            here = chunk.count(b"\n")
            if here < missing:
                missing -= here
                position += len(chunk)
                continue
            at = -1
            for _ in range(missing):
                at = chunk.find(b"\n", at + 1)
            return position + at + 1
        return None

    def _holds(self, fd: int, size: int) -> bool:
        return size >= self.covered and all(_digest(_read(fd, at, _PROOF)) == proof for at, proof in self._proofs)


class LineIndexes:
    """The indexes of the logs that were looked at lately, by file identity."""

    def __init__(self, keep: int = KEPT_INDEXES) -> None:
        self._keep = keep
        self._indexes: OrderedDict[tuple[int, int], LineIndex] = OrderedDict()
        self._lock = Lock()

    def of(self, fd: int) -> LineIndex:
        """The index of an open file; it may have to be extended."""
        status = os.fstat(fd)
        key = (status.st_dev, status.st_ino)
        with self._lock:
            index = self._indexes.setdefault(key, LineIndex())
            self._indexes.move_to_end(key)
            while len(self._indexes) > self._keep:
                self._indexes.popitem(last=False)
        return index

    def __len__(self) -> int:
        return len(self._indexes)


def read_window(fd: int, offset: int, max_bytes: int) -> dict[str, Any]:
    """The text from byte `offset` on, at most `max_bytes`; a negative offset counts from the end."""
    size = os.fstat(fd).st_size
    start = max(0, size + offset) if offset < 0 else min(offset, size)
    data = _read(fd, start, max_bytes)
    # Only the rest of a character that began before counts as torn; stray bytes are shown as what they are.
    torn = torn_tail(_read(fd, max(0, start - 3), min(3, start)))
    skipped = _continuation(data) if torn else 0
    ended = start + len(data) >= size
    kept = data[skipped:] if ended else data[skipped : len(data) - torn_tail(data[skipped:])]
    if not kept and data:
        # Nothing but pieces of characters: not UTF-8 at all, so it is shown as it is rather than never passed.
        skipped, kept = 0, data
    begin = start + skipped
    return {
        "offset": begin,
        "end": begin + len(kept),
        "size": size,
        "text": kept.decode("utf-8", errors="replace"),
    }


def identity(fd: int) -> dict[str, str]:
    """What tells an open file from one that takes its name later: the file's number, and how it begins, in hex.

    A file that is written anew in its place keeps its number; its beginning is then another one.
    """
    status = os.fstat(fd)
    return {"file": f"{status.st_dev:x}-{status.st_ino:x}", "head": _read(fd, 0, _PROOF).hex()}


def line_at(fd: int, offset: int, index: LineIndex) -> int:
    """Number of the line that holds a byte; the last line's for a byte behind the end."""
    size = os.fstat(fd).st_size
    index.extend(fd, size)
    return max(0, min(index.line_ends_before(fd, min(offset, size)), _total(fd, size, index) - 1))


def read_lines(fd: int, line: int, count: int, index: LineIndex) -> LineWindow:
    """`count` lines from line `line` on; -1 is the last line, and `count` lines from -100 on are of the last 100."""
    size = os.fstat(fd).st_size
    if line < 0:
        start = _start_from_end(fd, size, -line)
        if size - index.covered <= COUNT_AT_ONCE:
            index.extend(fd, size)
            first: int | None = index.line_ends_before(fd, start)
        else:
            first = 0 if start == 0 else None
    else:
        index.extend(fd, size)
        found = index.start_of_line(fd, line, size)
        start = size if found is None else found
        first = line if found is not None else _total(fd, size, index)
    lines, end, complete, more = _take(fd, start, size, count)
    total = None
    if first is not None and size - index.covered <= COUNT_AT_ONCE:
        total = _total(fd, size, index)
    return LineWindow(tuple(lines), first, total, start, end, size, complete, more)


def _total(fd: int, size: int, index: LineIndex) -> int:
    """Lines in the file; a torn last one is one."""
    torn = size > 0 and _read(fd, size - 1, 1) != b"\n"
    return index.line_ends_before(fd, size) + torn


def _take(fd: int, start: int, size: int, count: int) -> tuple[list[str], int, bool, bool]:
    """Lines from `start` on: their texts, the byte behind them, is the last one whole, were lines left out."""
    lines: list[str] = []
    end, room = start, WINDOW_BYTES
    head, length = b"", 0
    for chunk in _chunks(fd, start, size):
        at = 0
        while at < len(chunk):
            stop = chunk.find(b"\n", at)
            piece = chunk[at:] if stop < 0 else chunk[at:stop]
            if len(head) < LINE_CAP:
                head += piece[: LINE_CAP - len(head)]
            length += len(piece)
            if stop < 0:
                break
            lines.append(_shown(head, length))
            room -= len(head)
            end += length + 1
            head, length, at = b"", 0, stop + 1
            if len(lines) == count or room <= 0:
                return lines, end, True, len(lines) < count and end < size
    if length and len(lines) < count:
        return [*lines, _shown(head, length)], end + length, False, False
    return lines, end, True, False


def _shown(head: bytes, length: int) -> str:
    if length <= len(head):
        return head.removesuffix(b"\r").decode("utf-8", errors="replace")
    kept = head[: len(head) - torn_tail(head)]
    return f"{kept.decode('utf-8', errors='replace')} [... {length - len(kept)} more bytes]"


def _start_from_end(fd: int, size: int, lines: int) -> int:
    """Byte at which the last `lines` lines begin."""
    # The line end at the end of the file ends the last line, it does not begin another.
    missing = lines + 1 if size and _read(fd, size - 1, 1) == b"\n" else lines
    position = size
    while position > 0:
        begin = max(0, position - CHUNK)
        chunk = _read(fd, begin, position - begin)
        here = chunk.count(b"\n")
        if here < missing:
            missing -= here
            position = begin
            continue
        at = len(chunk)
        for _ in range(missing):
            at = chunk.rfind(b"\n", 0, at)
        return begin + at + 1
    return 0


def torn_tail(data: bytes) -> int:
    """How many bytes at the end are the beginning of a UTF-8 character that is not whole."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 4 if 0xF0 <= byte < 0xF5 else 3 if byte >= 0xE0 else 2 if byte >= 0xC2 else 1
        return back if length > back and byte < 0xF5 else 0
    return 0


def _continuation(data: bytes) -> int:
    """How many bytes at the beginning are the rest of a character; 0 when it is not that."""
    count = 0
    while count < min(3, len(data)) and data[count] & 0xC0 == 0x80:
        count += 1
    return count


def _read(fd: int, offset: int, length: int) -> bytes:
    """Exactly these bytes, or fewer at the end of the file."""
    pieces, missing = [], length
    while missing > 0:
        piece = os.pread(fd, missing, offset)
        if not piece:
            break
        pieces.append(piece)
        missing -= len(piece)
        offset += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _chunks(fd: int, start: int, end: int) -> Iterator[bytes]:
    while start < end:
        chunk = _read(fd, start, min(CHUNK, end - start))
        if not chunk:
            return
        yield chunk
        start += len(chunk)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
