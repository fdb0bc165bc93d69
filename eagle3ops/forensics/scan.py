"""Which lines of a log, however long, are worth reading? Streams it in blocks; memory does not grow with the log.

Whatever may speak of trouble, and what stands around it, is taken apart; of the rest lines are only counted. Of lines
that differ in numbers only the first ones are read, and what stands at the end.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

from eagle3ops.forensics.lines import Line, take_apart

BLOCK = 1 << 20
WHOLE = 1 << 20
"""A log of up to so many bytes is read in full."""
HEAD, TAIL = 48 << 10, 128 << 10
"""Bytes at the beginning and at the end that are always read."""
BEFORE, AFTER, TRACE = 2048, 3072, 24576
"""Bytes read before and after a line that speaks of trouble, and after the head of a traceback."""
SAME = 24
"""Lines that differ in numbers only are read so often, and at the last block again."""
DENSE = 500
"""Lines of a block that speak of trouble, from which on alike ones are put aside together."""
SHAPES = 20_000
"""So many kinds of lines are told apart; what is new after them is read at the end of the log only."""

# Each is looked for on its own: that is faster than one pattern of all, and what stands around is read anyway.
_CUES = (
    b"Traceback",
    b"rror",
    b"ERROR",
    b"FATAL",
    b"xception",
    b"ailed",
    b"illed",
    b"imed out",
    b"atchdog",
    b"baton",
    b"available shared",
    b"Xid",
)
_DIGITS = b"0123456789abcdef"
"""What is left out of a line to see which others are like it."""


class Bytes(Protocol):
    """Something that gives bytes one after another: an open file, or what is unpacked from one."""

    def read(self, size: int, /) -> bytes | None:
        """The next bytes, at most so many; none at the end."""


def read_lines(
    stream: Bytes,
    file: int,
    *,
    size: int,
    begin: int = 0,
    number: int = 0,
    late: Callable[[], bool] = bool,
    hurried: list[int] | None = None,
) -> Iterator[Line]:
    """The lines of a log of `size` bytes that may matter, in order, from byte `begin` on, at which the stream stands.

    `number` lines are before it. Once `late()`, only the end of the log is read; from which byte on there was no time
    for more is appended to `hurried`.
    """
    selection = _Selection(size, begin)
    offset = begin
    kept = b""
    while offset + len(kept) < size and (more := stream.read(min(BLOCK, size - offset - len(kept)))):
        if not begin and not offset and not kept and more.startswith((b"\xff\xfe", b"\xfe\xff")):
            selection.cues = tuple(b"\0".join(cue[at : at + 1] for at in range(len(cue))) for cue in _CUES)
        block = kept + more if kept else more
        end = block.rfind(b"\n") + 1
        if end == 0 and len(block) < 4 * BLOCK and len(block) + offset < size:
            kept = block
            continue
        # A line longer than several blocks is cut: nobody reads it, and it must not fill the memory.
        end = end or len(block)
        kept = block[end:]
        block = block[:end]
        if not selection.hurry and late():
            selection.hurry = True
            if hurried is not None:
                hurried.append(offset)
        at = 0
        for start, stop in selection.ranges(block, offset):
            number += block.count(b"\n", at, start)
            at = start
            while at < stop:
                line_end = block.find(b"\n", at, stop)
                line_end = stop if line_end < 0 else line_end
                yield take_apart(block[at:line_end], file, offset + at, number + 1)
                number += 1 if line_end < stop else 0
                at = line_end + 1 if line_end < stop else stop
        number += block.count(b"\n", at)
        offset += len(block)
    if kept:
        yield take_apart(kept, file, offset, number + 1)


class _Selection:
    """Chooses what is read of one log."""

    def __init__(self, size: int, begin: int) -> None:
        self._size = size
        self._begin = begin
        self._shapes: dict[int, int] = {}
        self._read_to = 0
        self.whole = size - begin <= WHOLE
        self.cues: tuple[bytes, ...] = _CUES
        """As the bytes of the log spell them: in UTF-16 with a zero between two letters."""
        self.hurry = False
        """Only the end of it is still read."""

    def ranges(self, block: bytes, offset: int) -> list[tuple[int, int]]:
        """Spans of whole lines in a block that begins at a byte of the log."""
        length = len(block)
        tail = self._size - TAIL - offset
        last = [(block.rfind(b"\n", 0, tail) + 1 if tail > 0 else 0, length)] if tail < length else []
        if self.hurry:
            return last
        if self.whole:
            return [(0, length)]
        spans = last
        head = self._begin + HEAD - offset
        if head > 0:
            spans.append((0, self._line_end(block, min(length, head))))
        if self._read_to > offset:
            spans.append((0, self._line_end(block, min(length, self._read_to - offset))))
        for start, stop in self._chosen(block):
            more = TRACE if block.find(b"Traceback", start, stop) >= 0 else AFTER
            self._read_to = max(self._read_to, offset + stop + more)
            begin = block.rfind(b"\n", 0, max(0, start - BEFORE)) + 1 if start > BEFORE else 0
            spans.append((begin, self._line_end(block, min(length, stop + more))))
        return _merged(spans)

    def _chosen(self, block: bytes) -> list[tuple[int, int]]:
        """The lines of a block that hold one of the words, and are not like many that were read before."""
        find, before = block.find, block.rfind
        lines: dict[int, int] = {}
        for cue in self.cues:
            at, stop = find(cue), 0
            while at >= 0:
                # Never back beyond the line before: a search backwards costs what it passes over.
                start = before(b"\n", stop, at) + 1 or stop
                stop = find(b"\n", at) + 1 or len(block)
                lines[start] = stop
                at = find(cue, stop)
            if len(lines) > DENSE:
                return self._dense(block)
        return [(start, stop) for start, stop in sorted(lines.items()) if self._new(_shape(block[start:stop]))]

    def _dense(self, block: bytes) -> list[tuple[int, int]]:
        """The same where many lines hold a word: alike ones are put aside all at once."""
        shapes = block.translate(None, _DIGITS).split(b"\n")
        fresh = {shape for shape in set(shapes) if self._shapes.get(hash(shape), 0) < SAME}
        if not fresh:
            return []
        lines, at = [], 0
        for shape, line in zip(shapes, block.split(b"\n"), strict=True):
            stop = min(len(block), at + len(line) + 1)
            if shape in fresh and self._new(hash(shape)):
                if any(cue in line for cue in self.cues):
                    lines.append((at, stop))
                else:
                    fresh.discard(shape)
                    self._shapes[hash(shape)] = SAME
            at = stop
        return lines

    def _line_end(self, block: bytes, at: int) -> int:
        if at >= len(block):
            return len(block)
        found = block.find(b"\n", at)
        return len(block) if found < 0 else found + 1

    def _new(self, shape: int) -> bool:
        count = self._shapes.get(shape, 0)
        if count >= SAME or (not count and len(self._shapes) >= SHAPES):
            return False
        self._shapes[shape] = count + 1
        return True


def _shape(line: bytes) -> int:
    """What lines that differ in numbers only have in common."""
    return hash(line[:400].translate(None, _DIGITS))


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], stop)
        elif start < stop:
            merged.append((start, stop))
    return merged
