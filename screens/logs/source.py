"""Which lines of a log does a screen need now? Windows of it, and of what matches in it; never the whole.

Following asks for the sizes of the logs and then for the newest window: `log.follow` would bring every byte that a
chatty engine writes over a line that may be slow, to show forty of its lines.
"""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from eagle3ops.hosts.link import Link
from eagle3ops.screens.logs.text import Condition

PAGE = 256
"""Lines that are asked for at once."""

KEPT_PAGES = 24
TAIL = 128
"""Lines at the end that are asked for when the log has grown."""

TEXTS = 2000
"""Matches whose text comes with a search; that of others is asked for when they are looked at."""

KEPT_TEXTS = 8000


class Host(Protocol):
    """What is asked of an agent, about one run."""

    def call(self, op: str, **arguments: Any) -> Awaitable[Mapping[str, Any]]:
        """One answer."""

    def stream(self, op: str, **arguments: Any) -> AsyncIterator[list[Any]]:
        """Batches of items."""


class RunHost:
    """The agent, asked about one run."""

    def __init__(self, link: Link, run_id: str, root: str | None) -> None:
        self._link = link
        self._about = {"run": run_id} | ({} if root is None else {"root": root})

    def call(self, op: str, **arguments: Any) -> Awaitable[Mapping[str, Any]]:
        """One answer."""
        return self._link.call(op, **self._about, **arguments)

    def stream(self, op: str, **arguments: Any) -> AsyncIterator[list[Any]]:
        """Batches of items."""
        return self._link.stream(op, **self._about, **arguments)


@dataclass(frozen=True, slots=True)
class Which:
    """What is looked at: one log, or several as one."""

    logs: tuple[str, ...]
    merged: bool = False

    @classmethod
    def one(cls, log: str) -> "Which":
        """A log by itself."""
        return cls((log,))

    @property
    def name(self) -> str:
        """For people."""
        return f"{len(self.logs)} logs merged" if self.merged else self.logs[0]

    def windows(self) -> tuple[str, dict[str, Any]]:
        """The op that answers windows, and its arguments that say of what."""
        return ("log.merged", {"logs": list(self.logs)}) if self.merged else ("log.lines", {"log": self.logs[0]})

    def searches(self) -> tuple[str, dict[str, Any]]:
        """The op that searches, and its arguments that say what."""
        if self.merged:
            return "log.merged_search", {"logs": list(self.logs)}
        return "log.search", {"log": self.logs[0]}


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log."""

    number: int | None
    """From 0; None as long as nobody has counted."""
    text: str
    spans: tuple[tuple[int, int], ...] = ()
    source: int | None = None
    """Which of several logs it is from."""


class Rows(Protocol):
    """Lines that can be scrolled through."""

    @property
    def count(self) -> int:
        """How many there are."""

    def get(self, row: int) -> Line | None:
        """One of them, if it is here."""

    async def load(self, first: int, last: int) -> None:
        """Bring these here."""

    async def lines(self, first: int, last: int) -> list[Line]:
        """These, wherever they are."""


class Document:
    """All the lines of one log, or of several as one."""

    def __init__(self, host: Host, which: Which) -> None:
        self.which = which
        self.size = -1
        self.left_out: dict[str, int] = {}
        """Bytes at the beginning of logs that were too much to be merged."""
        self.counted = False
        """Whether rows are line numbers; else there are only the last lines, and nobody knows which they are."""
        self._host = host
        self._count = 0
        self._pages: OrderedDict[int, tuple[Line, ...]] = OrderedDict()
        self._tail: list[Line] = []
        self._tail_first = 0
        self._seen = -1
        self._pending = False
        self._file = self._head = ""

    def grown(self, sizes: Mapping[str, int]) -> bool:
        """Whether there is more than was looked at, given the sizes of the logs."""
        return self._pending or self._seen != sum(sizes.get(log, 0) for log in self.which.logs)

    @property
    def count(self) -> int:
        """Lines that are known of."""
        return self._count

    def get(self, row: int) -> Line | None:
        """A line, if it is here."""
        if self._tail_first <= row < self._tail_first + len(self._tail):
            return self._tail[row - self._tail_first]
        page = self._pages.get(row // PAGE)
        return page[row % PAGE] if page is not None and row % PAGE < len(page) else None

    async def look(self) -> bool:
        """Fetch the end of the log anew; True when the log is another one, or was cut."""
        lines: list[str] = []
        sources: list[Any] = []
        window = await self._window(-TAIL, TAIL)
        while True:
            lines += window["lines"]
            sources += window.get("sources", ())
            if not window["more"] or len(lines) >= TAIL or not window["lines"]:
                break
            window = await self._window(len(lines) - TAIL, TAIL - len(lines))
        total, size = window["total"], int(window["size"])
        counted = isinstance(total, int)
        count = total if counted else len(lines)
        file, head = str(window.get("file", "")), str(window.get("head", ""))
        another = bool(self._file and file) and (file != self._file or not head.startswith(self._head))
        self._file, self._head = file or self._file, head
        cut = another or (self.counted and counted and (size < self.size or count < self._count))
        if cut or counted != self.counted:
            self._pages.clear()
        else:
            for page in [page for page in self._pages if page >= (self._count - 1) // PAGE]:
                # Its last line may have become longer.
                del self._pages[page]
        self.counted, self.size, self._count = counted, size, count
        self._seen, self._pending = int(window.get("seen", size)), bool(window.get("pending", False))
        self.left_out = dict(window.get("left_out", {}))
        self._tail_first = max(0, count - len(lines))
        self._tail = _lines(self._tail_first if counted else None, lines, sources)
        return cut

    async def number(self) -> None:
        """Have the lines counted, which the host does once."""
        await self._window(0, 1)

    async def load(self, first: int, last: int) -> None:
        """Bring these rows here, unless they are."""
        if not self.counted:
            return
        for page in range(max(0, first) // PAGE, min(last, self._count - 1) // PAGE + 1):
            begin, end = page * PAGE, min((page + 1) * PAGE, self._count)
            if page in self._pages:
                self._pages.move_to_end(page)
            elif begin < self._tail_first or end > self._tail_first + len(self._tail):
                self._keep(page, await self._lines(begin, end))

    async def lines(self, first: int, last: int) -> list[Line]:
        """These rows, wherever they are."""
        if not self.counted:
            return self._tail[first : last + 1]
        return list(await self._lines(first, last + 1))

    async def origin_of(self, number: int) -> tuple[str, int] | None:
        """The log that a line is of, and the byte at which it begins there."""
        window = await self._window(number, 1)
        if not window["lines"]:
            return None
        if self.which.merged:
            return self.which.logs[window["sources"][0]], int(window["origin"])
        return self.which.logs[0], int(window["offset"])

    async def line_at(self, log: str, offset: int) -> int:
        """Number of the line that holds a byte of a log."""
        op, arguments = self.which.windows()
        if self.which.merged:
            arguments["log"] = log
        window = await self._host.call(op, at=offset, count=1, **arguments)
        return int(window["first"] or 0)

    async def _lines(self, begin: int, end: int) -> tuple[Line, ...]:
        found: list[Line] = []
        while begin + len(found) < end:
            window = await self._window(begin + len(found), min(PAGE, end - begin - len(found)))
            if not window["lines"]:
                break
            found += _lines(begin + len(found), window["lines"], window.get("sources", ()))
        return tuple(found)

    def _keep(self, page: int, lines: tuple[Line, ...]) -> None:
        self._pages[page] = lines
        while len(self._pages) > KEPT_PAGES:
            self._pages.popitem(last=False)

    async def _window(self, line: int, count: int) -> Mapping[str, Any]:
        op, arguments = self.which.windows()
        return await self._host.call(op, line=line, count=count, **arguments)


def _lines(first: int | None, texts: Sequence[Any], sources: Sequence[Any]) -> list[Line]:
    """Lines of a window."""
    return [
        Line(
            None if first is None else first + place,
            str(text),
            source=int(sources[place]) if place < len(sources) else None,
        )
        for place, text in enumerate(texts)
    ]


class Matches:
    """The lines of one log, or of several as one, that fulfil all conditions."""

    def __init__(self, host: Host, which: Which, conditions: list[Condition]) -> None:
        self.which = which
        self.conditions = conditions
        self.scanned = 0
        """Bytes that were searched."""
        self.complete = False
        self._host = host
        self._count = 0
        self._texts: OrderedDict[int, Line] = OrderedDict()
        self._marks: list[tuple[int, int, int]] = []
        self._next = (0, 0, False)

    @property
    def count(self) -> int:
        """Matches so far."""
        return self._count

    def get(self, row: int) -> Line | None:
        """A match, if its text is here."""
        return self._texts.get(row)

    async def scan(self, progress: Callable[[], None]) -> None:
        """Search the log, or what was added to it since."""
        self.complete = False
        line, offset, torn = self._next
        if torn:
            self._forget_last()
        base = self._count
        # A line that dropped begins the search anew: whatever comes twice says which match it is.
        async for items in self._search(line=line, offset=offset, limit=TEXTS, every=PAGE):
            for item in items:
                for index, *found in item["found"]:
                    self._keep(base + int(index), _line(found))
                for index, number, start in item["marks"]:
                    if not self._marks or base + index - self._marks[-1][0] >= PAGE:
                        self._marks.append((base + index, number, start))
                self._count = base + int(item["matches"])
                self.scanned = int(item["at"])
                if "next" in item:
                    number, start, torn = item["next"]
                    self._next = (int(number), int(start), bool(torn))
            progress()
        self.complete = True
        progress()

    async def load(self, first: int, last: int) -> None:
        """Bring the texts of these matches here."""
        for place in range(max(0, self._mark_of(first)), self._mark_of(last) + 1):
            begin = self._marks[place][0]
            end = self._marks[place + 1][0] if place + 1 < len(self._marks) else self._count
            if all(row in self._texts for row in range(max(begin, first), min(end, last + 1))):
                continue
            _, line, offset = self._marks[place]
            async for items in self._search(line=line, offset=offset, limit=end - begin, every=0):
                for index, *found in (found for item in items for found in item["found"]):
                    self._keep(begin + int(index), _line(found))

    async def lines(self, first: int, last: int) -> list[Line]:
        """These matches, wherever they are."""
        found = []
        for begin in range(first, last + 1, PAGE):
            end = min(begin + PAGE, last + 1)
            await self.load(begin, end - 1)
            found += [line for row in range(begin, end) if (line := self.get(row)) is not None]
        return found

    async def row_at(self, number: int) -> int:
        """The first match that is line `number` or stands behind it; `count` when there is none."""
        place = bisect_right(self._marks, number, key=lambda mark: mark[1]) - 1
        if place < 0:
            return 0
        begin = self._marks[place][0]
        end = self._marks[place + 1][0] if place + 1 < len(self._marks) else self._count
        await self.load(begin, end - 1)
        numbers = [
            line.number if (line := self.get(row)) and line.number is not None else 0 for row in range(begin, end)
        ]
        return begin + bisect_left(numbers, number)

    def _mark_of(self, row: int) -> int:
        return bisect_right(self._marks, row, key=lambda mark: mark[0]) - 1

    def _forget_last(self) -> None:
        """The last line had no end yet when it was searched."""
        self._count -= 1
        self._texts.pop(self._count, None)
        if self._marks and self._marks[-1][0] >= self._count:
            self._marks.pop()

    def _keep(self, row: int, line: Line) -> None:
        self._texts[row] = line
        self._texts.move_to_end(row)
        while len(self._texts) > KEPT_TEXTS:
            self._texts.popitem(last=False)

    def _search(self, **arguments: Any) -> AsyncIterator[list[Any]]:
        first, *others = self.conditions
        op, about = self.which.searches()
        also = [one.arguments() for one in others]
        return self._host.stream(op, also=also, **about, **first.arguments(), **arguments)


def _line(found: list[Any]) -> Line:
    number, _, text, spans, *more = found
    source = int(more[0]) if more and more[0] is not None else None
    return Line(int(number), str(text), tuple((int(begin), int(end)) for begin, end in spans), source)
