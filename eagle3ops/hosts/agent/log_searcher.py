"""Which lines of one file match? A program of its own, because a regular expression can take forever and holds the GIL.

The agent starts it with the log as standard input and the request as its argument, and ends it at will. It speaks in
lines of JSON on standard output, and imports nothing but the standard library, so that it starts in hundredths of a
second. The kernel ends it (SIGPROF) when one piece of the file takes `PATIENCE_S` of processor time.
"""

import json
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any

PIECE = 512 << 10
"""Bytes that are searched between two reports."""

PATIENCE_S = 2.0
SEARCH_CAP = 64 << 10
"""Bytes of a line that are searched; what follows in a longer one is not."""

TEXT_CAP = 16 << 10
"""Bytes of a matching line that are sent."""

TEXT_BYTES = 4 << 20
"""Bytes of text that one search sends; the matches behind them are counted, and marked."""

FEW = 256
"""Matches in a piece up to which it is not taken apart into lines."""

SPANS = 20
"""Places in a line that are named."""

REPORT_S = 0.05
MEMORY = 1 << 30

Piece = tuple[int, bytes, int]
"""Byte at which it begins, whole lines without the last line end, bytes of the file with that line end."""


def pieces(fd: int, start: int, end: int) -> Iterator[Piece]:
    """The lines from `start` to `end`, in pieces; of a very long line the beginning is a piece of its own."""
    head, length, position = b"", 0, start
    while position + length < end:
        chunk = os.pread(fd, min(PIECE, end - position - length), position + length)
        if not chunk:
            break
        if length + len(chunk) > SEARCH_CAP and length:
            # The line that began in an earlier chunk, by itself.
            stop = chunk.find(b"\n")
            head = (head + (chunk if stop < 0 else chunk[:stop]))[: SEARCH_CAP + 1]
            if stop < 0:
                length += len(chunk)
                continue
            yield position, head, length + stop + 1
            position += length + stop + 1
            head, length, chunk = b"", 0, chunk[stop + 1 :]
        stop = chunk.rfind(b"\n")
        if stop >= 0:
            yield position, head + chunk[:stop], length + stop + 1
            position += length + stop + 1
            head, length, chunk = b"", 0, chunk[stop + 1 :]
        head, length = (head + chunk)[: SEARCH_CAP + 1], length + len(chunk)
    if length:
        yield position, head, length


@dataclass(frozen=True, slots=True)
class Condition:
    """One pattern that a line holds, or must not."""

    text: Callable[[str], object]
    data: Callable[[bytes], object] | None
    """The same for lines of ASCII, which need no decoding; None for a pattern that means something else there."""
    lower: bool
    """`data` looks at lines in lower case: three times as fast as looking at both."""
    invert: bool
    find: Callable[[str], Iterator[re.Match[str]]]
    across: Callable[[bytes, int], re.Match[bytes] | None] | None
    """`data` for many lines at once, for a pattern that cannot see over the end of a line."""


_SAME_IN_BYTES = re.compile(r"(?!.*(?:\\[uUN]|\(\?[a-zA-Z-]*[uaL]))[\x00-\x7f]*", re.DOTALL)
_WITHIN_A_LINE = re.compile(r"""(?!.*\(\?[^:])(?:[\w :/=,;<>@#%&'"~`!.|*+?(){}^$-]|\\[dwb.|*+?()\[\]])+""", re.ASCII)
_SAME_IN_LOWER_CASE = re.compile(r"(?:[^\\\[A-Z]|\\[^A-Za-z0-9]|\\[dswb])*", re.DOTALL)


def condition(asked: dict[str, Any]) -> Condition:
    """A condition as it was asked for; raises re.error when it is none."""
    pattern, ignore_case = str(asked["pattern"]), bool(asked.get("ignore_case"))
    compiled = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    data, lower, across = None, False, None
    if _SAME_IN_BYTES.fullmatch(pattern):
        lower = ignore_case and "(?" not in pattern and bool(_SAME_IN_LOWER_CASE.fullmatch(pattern))
        flags = re.IGNORECASE if ignore_case and not lower else 0
        data = re.compile(pattern.encode(), flags).search
        if not asked.get("invert") and _WITHIN_A_LINE.fullmatch(pattern):
            across = re.compile(pattern.encode(), flags | re.MULTILINE).search
    return Condition(compiled.search, data, lower, bool(asked.get("invert")), compiled.finditer, across)


class Lines:
    """The lines of a piece: all of them, or those few that may match."""

    def __init__(self, data: bytes, few: dict[int, int] | None = None) -> None:
        self._data = data
        self._few = few
        """Where those few begin, by their numbers."""
        self.all = data.split(b"\n") if few is None else []
        self.count = len(self.all) or data.count(b"\n") + 1
        self._starts: list[int] = []

    def start(self, number: int) -> int:
        """The byte of the piece at which a line begins."""
        if self._few is not None:
            return self._few[number]
        self._starts = self._starts or [0, *accumulate(len(line) + 1 for line in self.all)]
        return self._starts[number]

    def line(self, number: int) -> bytes:
        """One line."""
        if self._few is None:
            return self.all[number]
        stop = self._data.find(b"\n", self._few[number])
        return self._data[self._few[number] :] if stop < 0 else self._data[self._few[number] : stop]


def few_lines(data: bytes, one: Condition) -> dict[int, int] | None:
    """The lines that match, found without taking the piece apart; None when there are too many, or it cannot be."""
    if one.across is None or b"\r" in data or not data.isascii():
        return None
    text = data.lower() if one.lower else data
    few: dict[int, int] = {}
    at = number = counted = 0
    while match := one.across(text, at):
        start = text.rfind(b"\n", 0, match.start()) + 1
        stop = text.find(b"\n", match.start())
        number += text.count(b"\n", counted, start)
        counted = start
        if len(few) == FEW or (stop if stop >= 0 else len(text)) - start > SEARCH_CAP:
            return None
        few[number] = start
        if stop < 0:
            break
        at = stop + 1
    return few


def matching(data: bytes, conditions: Sequence[Condition]) -> tuple[Lines, list[int]]:
    """The lines of a piece, and which of them fulfil all conditions."""
    few = few_lines(data, conditions[0])
    lines = Lines(data, few)
    if few is not None:
        found = list(few)
        for one in conditions[1:]:
            texts = {number: lines.line(number).decode() for number in found}
            found = [number for number in found if bool(one.text(texts[number])) is not one.invert]
        return lines, found
    return lines, _matching(data, lines.all, conditions)


def _matching(data: bytes, lines: list[bytes], conditions: Sequence[Condition]) -> list[int]:
    numbers: list[int] = list(range(len(lines)))
    ascii_lines = _searched(lines) if data.isascii() else None
    lower_lines: list[bytes] | None = None
    texts: list[str] | None = None
    for one in conditions:
        if one.data is not None and ascii_lines is not None:
            here = ascii_lines
            if one.lower:
                here = lower_lines = lower_lines or _searched(_split(data.lower()))
            numbers = _hold(one.data, here, numbers, one.invert)
        else:
            texts = texts or [line.decode("utf-8", "replace") for line in _searched(lines)]
            numbers = _hold(one.text, texts, numbers, one.invert)
    return numbers


def _split(data: bytes) -> list[bytes]:
    return data.split(b"\n")


def _searched(lines: list[bytes]) -> list[bytes]:
    """What of each line is searched: not the rest of an endless one, not the CR before its end."""
    return [
        line[:SEARCH_CAP].removesuffix(b"\r") if len(line) > SEARCH_CAP or line[-1:] == b"\r" else line
        for line in lines
    ]


def _hold(search: Callable[[Any], object], lines: Sequence[Any], numbers: list[int], invert: bool) -> list[int]:
    if invert:
        return [number for number in numbers if not search(lines[number])]
    return [number for number in numbers if search(lines[number])]


def shown(line: bytes, length: int) -> str:
    """A line as `log.lines` shows it."""
    if length <= TEXT_CAP:
        return line.removesuffix(b"\r").decode("utf-8", "replace")
    head = line[:TEXT_CAP]
    kept = head.decode("utf-8", "ignore") if _torn(head) else head.decode("utf-8", "replace")
    return f"{kept} [... {length - TEXT_CAP} more bytes]"


def _torn(head: bytes) -> bool:
    """Whether nothing but a character cut in two at the end is wrong with it."""
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return error.end == len(head) and error.reason == "unexpected end of data"
    return False


def spans(text: str, one: Condition) -> list[tuple[int, int]]:
    """Where in the text the pattern was found: who shows it need not search again, which can take for ever."""
    if one.invert:
        return []
    return [match.span() for match in islice(one.find(text), SPANS) if match.end() > match.start()]


class Report:
    """What was found since the last line that was written."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._last = time.monotonic()
        self.matches = 0
        self.found: list[tuple[int, int, int, str, list[tuple[int, int]]]] = []
        self.marks: list[tuple[int, int, int]] = []

    def send(self, at: int, lines: int, *, now: bool = False, **more: object) -> None:
        """Write one, unless the last one is fresh and there is nothing of weight to say."""
        if not (now or more) and not self.found and time.monotonic() - self._last < REPORT_S:
            return
        item = {"at": at, "lines": lines, "matches": self.matches, "found": self.found, "marks": self.marks}
        self._write(b"i" + json.dumps(item | more, separators=(",", ":")).encode() + b"\n")
        self.found, self.marks, self._last = [], [], time.monotonic()


def be_patient() -> None:
    """For so much processor time from now on, and not longer: the signal ends the program, whatever it is doing."""
    signal.setitimer(signal.ITIMER_PROF, PATIENCE_S)


def search(
    fd: int, asked: dict[str, Any], write: Callable[[bytes], object], before_piece: Callable[[], object] = be_patient
) -> dict[str, Any]:
    """Search, report, and return how it ended."""
    conditions = [condition(one) for one in asked["conditions"]]
    line, offset, limit, every = asked["line"], asked["offset"], asked["limit"], asked["every"]
    size = os.fstat(fd).st_size
    report, sent, room = Report(write), 0, TEXT_BYTES
    resume = (line, min(offset, size), False)
    for start, data, length in pieces(fd, offset, size):
        before_piece()
        lines, numbers = matching(data, conditions)
        whole = os.pread(fd, 1, start + length - 1) == b"\n"
        for number in numbers:
            texts = sent < limit and room > 0
            if not texts and not every:
                break
            if texts or report.matches % every == 0:
                place = start + lines.start(number)
                if every and report.matches % every == 0:
                    report.marks.append((report.matches, line + number, place))
                if texts:
                    found = lines.line(number)
                    text = shown(found, length - whole if lines.count == 1 else len(found))
                    places = spans(text, conditions[0])
                    report.found.append((report.matches, line + number, place, text, places))
                    sent, room = sent + 1, room - len(text)
            report.matches += 1
        line += lines.count
        if whole:
            resume = (line, start + length, False)
        else:
            resume = (line - 1, start + data.rfind(b"\n") + 1, numbers[-1:] == [lines.count - 1])
        full = not every and (sent >= limit or room <= 0)
        report.send(start + length, line, now=full)
        if full:
            break
    report.send(min(size, resume[1]), line, next=resume)
    return {"matches": report.matches, "lines": line, "size": size}


def main() -> int:
    """Search standard input as the argument asks."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    be_patient()
    out = sys.stdout.buffer

    def write(line: bytes) -> None:
        out.write(line)
        out.flush()

    try:
        end = search(0, json.loads(sys.argv[1]), write)
    except BrokenPipeError:
        return 1
    except (re.error, OverflowError, RecursionError, MemoryError) as error:
        words = str(error) if isinstance(error, re.error) else f"too large ({type(error).__name__})"
        write(b"x" + json.dumps({"what": words}).encode() + b"\n")
        return 1
    write(b"e" + json.dumps(end).encode() + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
