"""One log on the screen: the windows that are drawn are fetched, filtered and searched through the agent."""

import asyncio
import time

from rich.cells import cell_len
from rich.text import Text
from textual import on, work

from eagle3ops.errors import Eagle3opsError
from eagle3ops.screens.logs.source import Document, Host, Matches
from eagle3ops.screens.logs.text import LEVEL_PATTERNS, Condition, Part, parse_condition
from eagle3ops.screens.logs.view import LogView
from eagle3ops.screens.room import Room
from eagle3ops.screens.widgets.glyphs import glyphs_of
from eagle3ops.words import human_bytes, plain

TYPING_S = 0.15
"""As long as somebody types faster than this, nothing is searched."""

PAINT_S = 0.1


class LogReading(Room):
    """What the screen of logs does with the log that it shows; how that looks is up to `Logs`."""

    _host: Host
    """Answers about the logs of the run that is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self._document: Document | None = None
        self._typed = {"search": "", "filter": "", "go": "", "part": ""}
        self._part = Part()
        self._level = ""
        self._filter: Matches | None = None
        self._search: Matches | None = None
        self._scanning: Matches | None = None
        self._hit: int | None = None
        self._turned = False
        self._wanted: tuple[int, int] | None = None
        self._loading = False
        self._painted = 0.0
        self._origin: tuple[int, str, int] | None = None
        """Number of a line, its log, and the byte at which it begins there."""
        self._told = ""
        """Why the cursor was brought to where it is."""
        self._error: str | None = None
        self._read_at: float | None = None
        """When the host last answered."""

    @property
    def _view(self) -> LogView:
        return self.query_one("#log", LogView)

    def _say(self, error: Eagle3opsError) -> None:
        told, before = plain(error.what) + (f"; {plain(error.remedy)}" if error.remedy else ""), self._error
        self._error = told
        self._show_status()
        if told != before and cell_len(told) + 2 > self._view.size.width:
            # The line below the log has no room for it, and what to do stands at its end.
            self.notify(plain(error), title="Logs", severity="error", markup=False)

    def _show_status(self) -> None:
        """Something that the status tells has changed."""
        raise NotImplementedError

    # Lines that are to be drawn.

    @on(LogView.Needed)
    def _needed(self, event: LogView.Needed) -> None:
        self._want(event.first, event.last)

    def _want(self, first: int, last: int) -> None:
        self._wanted = (first, last)
        if not self._loading:
            self._loading = True
            self._load()

    @work(group="load", exit_on_error=False)
    async def _load(self) -> None:
        """Bring what was asked for last; what was scrolled past meanwhile is not fetched."""
        try:
            while self._wanted is not None:
                (first, last), self._wanted = self._wanted, None
                rows = self._view.rows
                await rows.load(first, last)
                if self._search is not None and self._search.complete:
                    self._view.found = await self._found_in(self._search, first, last)
                if rows is self._view.rows:
                    self._view.changed(arrived=True)
        except Eagle3opsError as error:
            self._say(error)
        finally:
            self._loading = False

    async def _found_in(self, search: Matches, first: int, last: int) -> dict[int, tuple[tuple[int, int], ...]]:
        """What a search found in these rows, by line numbers."""
        lines = [line for row in range(first, last + 1) if (line := self._view.rows.get(row)) is not None]
        numbers = [line.number for line in lines if line.number is not None]
        found: dict[int, tuple[tuple[int, int], ...]] = {}
        if not numbers:
            return found
        row = await search.row_at(numbers[0])
        while row < search.count:
            await search.load(row, row)
            match = search.get(row)
            if match is None or match.number is None or match.number > numbers[-1]:
                break
            found[match.number] = match.spans
            row += 1
        return found

    @on(LogView.Moved)
    def _moved(self) -> None:
        if self._search is not None:
            view = self._view
            self._want(view.top, min(view.top + view.height, view.rows.count - 1))
        self._show_status()
        self._find_origin()

    @work(exclusive=True, group="origin", exit_on_error=False)
    async def _find_origin(self) -> None:
        """The log of the line of the cursor, and the byte at which it begins there, once the cursor rests."""
        await asyncio.sleep(TYPING_S)
        document, number = self._document, self._number()
        if document is not None and number is not None and document.counted:
            try:
                origin = await document.origin_of(number)
            except Eagle3opsError:
                return
            if origin is not None:
                self._origin = (number, *origin)
                self._show_status()

    def _number(self) -> int | None:
        """The line number of the cursor."""
        line = self._view.rows.get(self._view.cursor)
        return line.number if line is not None else None

    # Filter and search.

    def _conditions(self) -> list[Condition]:
        typed = parse_condition(self._typed["filter"])
        level = Condition(LEVEL_PATTERNS[self._level]) if self._level else None
        return [one for one in (typed, level, self._part_condition()) if one is not None]

    def _part_condition(self) -> Condition | None:
        """What a line must hold to be of the chosen ranks."""
        return None

    @work(exclusive=True, group="filter", exit_on_error=False)
    async def _apply_filter(self, wait: float = 0.0) -> None:
        """Show only the lines that match; all of them when nothing is asked for."""
        await asyncio.sleep(wait)
        document, conditions = self._document, self._conditions()
        if document is None:
            return
        if not conditions:
            self._filter = self._scanning = None
            if self._view.rows is not document:
                self._view.show(document, self._number() or 0)
            self._show_status()
            return
        matches = self._scanning = Matches(self._host, document.which, conditions)
        try:
            await matches.scan(self._scanned)
            # The cursor may have moved meanwhile.
            number = self._number()
            row = await matches.row_at(number) if number is not None and not self._view.follow else 0
        except Eagle3opsError as error:
            self._say(error)
        else:
            self._error = None
            self._filter = matches
            self._view.show(matches, row)
        finally:
            if self._scanning is matches:
                self._scanning = None
        self._show_status()

    @work(exclusive=True, group="search", exit_on_error=False)
    async def _apply_search(self, *, jump: bool) -> None:
        """Find all lines that match, and go to the next one."""
        document, condition = self._document, parse_condition(self._typed["search"])
        self._search = self._hit = None
        self._view.found = {}
        if document is None or condition is None:
            self._view.changed()
            self._show_status()
            return
        matches = self._scanning = Matches(self._host, document.which, [condition, *self._conditions()])
        try:
            await matches.scan(self._scanned)
        except Eagle3opsError as error:
            self._say(error)
            return
        finally:
            if self._scanning is matches:
                self._scanning = None
        self._search, self._error = matches, None
        if jump:
            await self._jump(0)
        view = self._view
        self._want(view.top, min(view.top + view.height, view.rows.count - 1))
        self._show_status()

    def _scanned(self) -> None:
        """A search has come further."""
        matches = self._scanning
        now = time.monotonic()
        if matches is not None and now - self._painted > PAINT_S:
            self._painted = now
            self._show_status()
        elif matches is None and self._filter is not None and self._filter.complete:
            self._view.changed()

    @work(exclusive=True, group="jump", exit_on_error=False)
    async def action_next(self, step: int) -> None:
        """To the next or the previous match."""
        if self._search is None:
            words = "The search goes on." if self._scanning else "Nothing is searched for; / begins a search."
            self.notify(words, severity="warning")
            return
        try:
            await self._jump(step)
        except Eagle3opsError as error:
            self._say(error)

    async def _jump(self, step: int) -> None:
        """To the match at the cursor or behind it (0), the next (1) or the one before (-1); round the end."""
        search, number = self._search, self._number() or 0
        if search is None or not search.count:
            self.notify("No line matches.", severity="warning")
            return
        row = await search.row_at(number + (step > 0)) - (step < 0)
        self._turned = not 0 <= row < search.count
        row %= search.count
        await search.load(row, row)
        line = search.get(row)
        if line is None or line.number is None:
            return
        while True:
            rows = self._view.rows
            place = await rows.row_at(line.number) if isinstance(rows, Matches) else line.number
            if rows is self._view.rows:
                break
        self._hit = row
        self._view.go(place, middle=True)

    # The status.

    def _where(self) -> Text:
        """Which log, and which line and byte of it."""
        document, view = self._document, self._view
        if document is None:
            return Text("no log")
        number, which = self._number(), document.which
        origin = self._origin if self._origin is not None and self._origin[0] == number else None
        text = Text(plain(which.name), style="bold")
        if document.size == 0:
            text.append("  is empty" if not which.merged else "  are empty", "")
        elif not document.counted:
            text.append(f"  the end of {human_bytes(max(0, document.size))}; its lines are being counted", "not bold")
        else:
            text.append(f"  line {(number or 0) + 1:,} of {document.count:,}", "not bold")
            if origin is not None and which.merged:
                text.append(f"  {plain(origin[1])}, byte {origin[2]:,}", "not bold dim")
            elif origin is not None:
                text.append(f"  byte {origin[2]:,} of {document.size:,}", "not bold dim")
        first, last = view.selection()
        if view.mark is not None:
            text.append(f"  {last - first + 1:,} selected", "bold")
        return text

    def _how(self) -> Text:
        """What is seen of the log: is it followed, filtered, searched?"""
        if self._error:
            return Text(f"! {self._error}", style="bold red", no_wrap=True, overflow="ellipsis")
        view, document = self._view, self._document
        below = max(0, view.rows.count - 1 - view.cursor)
        glyphs = glyphs_of(self.app)
        parts = [
            Text(f"{glyphs.follow} following", style="green")
            if view.follow
            else Text(f"{glyphs.paused} paused, {below:,} below; f follows", "yellow")
        ]
        if self._told and not view.follow:
            parts.insert(0, Text(f"{glyphs.cause} {self._told}", style="bold"))
        if self._scanning is not None and document is not None:
            share = self._scanning.scanned / max(1, document.size)
            parts.append(Text(f"searching {min(1.0, share):.0%}, {self._scanning.count:,} so far", style="cyan"))
        if self._filter is not None:
            inside = str(Part(self._part.ranks)) if self._part_condition() is not None else ""
            shown = " and ".join(filter(None, [self._typed["filter"], _level_words(self._level), inside]))
            parts.append(Text(f"filter {plain(shown)}: {many(self._filter.count, 'line')}", style="bold"))
        if self._search is not None:
            place = f"{self._hit + 1:,} of " if self._hit is not None else ""
            parts.append(Text(f"/{plain(self._typed['search'])}: {place}{self._search.count:,}", style="bold"))
        if document is not None and document.which.merged and (self._part.ranks or self._part.roles):
            parts.append(Text(f"only {plain(self._part)}", style="bold"))
        parts += [Text(left, style="yellow")] if (left := self._left_out()) else []
        parts += [Text("went on from the other end", style="yellow")] if self._turned and self._hit is not None else []
        parts += [Text("wrapped")] if view.wrap else []
        parts += [Text("no times")] if not view.times else []
        return Text("  ").join(parts)

    def _left_out(self) -> str:
        """What is not here of what is shown, in words."""
        return ""


def many(count: int, what: str) -> str:
    """`1 line`, `3,001 lines`."""
    return f"{count:,} {what}{'s' if count != 1 else ''}"


def _level_words(level: str) -> str:
    return {"warning": "warnings and errors", "error": "errors only"}.get(level, "")
