"""The lines themselves: any number of them, of which only those in the window are drawn, or even here."""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from eagle3ops.screens.base import named
from eagle3ops.screens.logs.source import Line, Rows
from eagle3ops.screens.logs.text import LEVEL_MARKS, Shown, show_line
from eagle3ops.screens.widgets.wrapping import wrapped

WHEEL = 3
MARGIN = 64
"""Lines above and below the window that are fetched with it."""


SOURCE_LOOKS = 5
"""Ways in which the names of a line's log look; the names say which it is, the looks only make it seen."""


class LogView(ScrollView, can_focus=True):
    """Scrolls through rows, with a cursor, a selection, and marks for levels and matches."""

    PLACE: ClassVar[str] = "In a log"
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "log--gutter",
        "log--cursor",
        "log--selected",
        "log--match",
        "log--error",
        "log--warning",
        "log--debug",
        "log--time",
        *(f"log--source-{number}" for number in range(SOURCE_LOOKS)),
    }

    BINDINGS: ClassVar[list[BindingType]] = [
        *named(
            "log",
            [
                Binding("up,k", "move(-1)", "Up", show=False, tooltip="One line up"),
                Binding("down,j", "move(1)", "Down", show=False, tooltip="One line down"),
                Binding("shift+up", "move(-1, True)", "Select up", show=False, tooltip="Select lines, upwards"),
                Binding("shift+down", "move(1, True)", "Select down", show=False, tooltip="Select lines, downwards"),
                Binding("pageup,b", "page(-1)", "Page up", show=False, tooltip="One window up"),
                Binding("pagedown,space", "page(1)", "Page down", show=False, tooltip="One window down"),
                Binding("ctrl+u", "page(-0.5)", "Half a page up", show=False, tooltip="Half a window up"),
                Binding("ctrl+d", "page(0.5)", "Half a page down", show=False, tooltip="Half a window down"),
                Binding("home,g", "first", "First line", show=False),
                Binding("end,G", "last", "Last line, and follow", show=False),
                Binding("left", "aside(-1)", "Left", show=False, tooltip="Back to the left of long lines"),
                Binding("right", "aside(1)", "Right", show=False, tooltip="On to the right of long lines"),
                Binding("v", "select", "Select lines", show=False, tooltip="Begin to select here, or select nothing"),
            ],
        )
    ]

    @dataclass
    class Needed(Message):
        """Rows that are to be drawn and are not here."""

        first: int
        last: int

    class Moved(Message):
        """The cursor, the window or whether the end is followed has changed."""

    def __init__(self, rows: Rows, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.rows = rows
        self.cursor = 0
        self.mark: int | None = None
        self.follow = True
        self.wrap = False
        self.times = True
        self.found: dict[int, tuple[tuple[int, int], ...]] = {}
        """What a search found in lines, by their numbers."""
        self.labels: tuple[str, ...] = ()
        """Names of the logs, where lines of several are shown."""
        self.words: tuple[str, ...] = ()
        """Why there is nothing, where there is nothing."""
        self._skip = 0
        """Pieces of the first row that are above the window: a wrapped line can be taller than it."""
        self._widest = 0
        self._moving = False
        self._drawn: list[tuple[int, int, int]] = []
        self._painted: list[tuple[object, ...]] = []
        self._looks: dict[str, Style] = {}
        self._base: Style | None = None

    def tell(self, words: tuple[str, ...]) -> None:
        """Say why there is nothing."""
        if words != self.words:
            self.words = words
            if not self.rows.count:
                self.refresh()

    def show(self, rows: Rows, cursor: int) -> None:
        """Show other rows, with the cursor on one of them."""
        self.rows, self.mark, self._widest, self._skip = rows, None, 0, 0
        self.changed()
        if self.follow:
            self.to_end()
        else:
            self.go(cursor, middle=True)

    def changed(self, *, arrived: bool = False) -> None:
        """Rows were added or taken away; or they have `arrived`, and those that have not are not asked for again."""
        count = self.rows.count
        self.cursor = max(0, min(self.cursor, count - 1))
        for row in range(self.top, min(count, self.top + self.height)):
            line = self.shown(row)
            if line is not None:
                self._widest = max(self._widest, line.width())
        height = count + (self.height - 1 if self.wrap and count else 0)
        width = self.size.width if self.wrap else self.gutter_width + self._widest
        self._moving = True
        self.virtual_size = Size(width, height)
        self._moving = False
        if self.follow:
            self.to_end()
        self.redraw(ask=not arrived)

    @property
    def height(self) -> int:
        """Rows of the screen."""
        return max(1, self.scrollable_content_region.height)

    @property
    def top(self) -> int:
        """The row that is drawn first."""
        return max(0, self.scroll_offset.y)

    @property
    def gutter_width(self) -> int:
        """Cells for the cursor's mark, the line number, the level and the name of the log."""
        return len(str(self._last_number())) + 5 + self._label_width

    @property
    def _label_width(self) -> int:
        return max(map(cell_len, self.labels)) + 1 if self.labels else 0

    def _last_number(self) -> int:
        last = self.rows.get(self.rows.count - 1)
        return max(9999, self.rows.count, (last.number or 0) + 1 if last else 0)

    def shown(self, row: int) -> Shown | None:
        """A row as it is drawn; None when it is not here."""
        line = self.rows.get(row)
        if line is None:
            return None
        spans = line.spans or (self.found.get(line.number, ()) if line.number is not None else ())
        shown = show_line(line.text, spans)
        return shown if self.times else shown.without_time()

    def redraw(self, *, ask: bool = True) -> None:
        """Draw everything anew, and say what is missing."""
        self._lay_out()
        last = max((row for row, _, _ in self._drawn), default=self.top)
        if ask and any(self.rows.get(row) is None for row in range(self.top, min(last + 1, self.rows.count))):
            self.post_message(self.Needed(max(0, self.top - MARGIN), min(self.rows.count - 1, last + MARGIN)))
        self._repaint()

    def _repaint(self) -> None:
        """Paint the rows of the screen that are not what they were: most keys change two."""
        general = (self.size, self.gutter_width, self.labels, self.times, self.wrap, self.scroll_offset.x)
        fresh: list[tuple[object, ...]] = [(*drawn, self._look_of(drawn[0]), general) for drawn in self._drawn]
        before, self._painted = self._painted, fresh
        width = self.size.width
        changed = [
            Region(0, y, width, 1)
            for y in range(max(len(before), len(fresh)))
            if y >= len(before) or y >= len(fresh) or before[y] != fresh[y]
        ]
        if changed:
            self.refresh(*changed)

    def _look_of(self, row: int) -> tuple[object, ...]:
        line = self.rows.get(row)
        found = self.found.get(line.number) if line is not None and line.number is not None else None
        chosen = self.mark is not None and min(self.mark, self.cursor) <= row <= max(self.mark, self.cursor)
        return line, found, row == self.cursor, row == self.cursor and self.has_focus, chosen

    def notify_style_update(self) -> None:
        """Another theme."""
        super().notify_style_update()
        self._looks.clear()
        self._base = None

    def _look(self, name: str) -> Style:
        if name not in self._looks:
            self._looks[name] = self.get_component_rich_style(name, partial=True)
        return self._looks[name]

    def _lay_out(self) -> None:
        """Which piece of which row stands in which row of the screen."""
        self._drawn = []
        row, height, width = self.top, self.height, self._text_width()
        while len(self._drawn) < height and row < self.rows.count:
            line = self.shown(row) if self.wrap else None
            places = line.rows(width) if line is not None else [(0, -1)]
            if row == self.top and self._skip:
                places = places[min(self._skip, len(places) - 1) :]
            self._drawn += [(row, begin, end) for begin, end in places]
            row += 1
        del self._drawn[height:]

    def _pieces(self, row: int) -> int:
        """Rows of the screen that a row takes."""
        line = self.shown(row)
        return len(line.rows(self._text_width())) if line is not None and self.wrap else 1

    def _text_width(self) -> int:
        return max(2, self.scrollable_content_region.width - self.gutter_width)

    def render_line(self, y: int) -> Strip:
        """One row of the screen."""
        width = self.scrollable_content_region.width
        if y >= len(self._drawn):
            # One row is left free above the words.
            words = [piece for said in self.words for piece in wrapped(said, width - 4)] if not self.rows.count else []
            told = words[y - 1] if 0 < y <= len(words) else ""
            return Strip([Segment(f"  {told}", self._plain())]).adjust_cell_length(width, self._plain())
        row, begin, end = self._drawn[y]
        line = self.rows.get(row)
        base = self._plain() + self._row_style(row)
        gutter = Strip(self._gutter(row, line, base, first=begin == 0), self.gutter_width)
        text = Strip(self._segments(row, base))
        if self.wrap and end >= 0 and (shown := self.shown(row)) is not None:
            cells = [Shown(shown.text[:place]).width() for place in (begin, end)]
            text = text.crop(*cells)
        elif not self.wrap:
            text = text.crop(self.scroll_offset.x, self.scroll_offset.x + self._text_width())
        return Strip.join([gutter, text]).adjust_cell_length(width, base)

    def _plain(self) -> Style:
        if self._base is None:
            self._base = self.rich_style
        return self._base

    def _row_style(self, row: int) -> Style:
        if self.mark is not None and min(self.mark, self.cursor) <= row <= max(self.mark, self.cursor):
            return self._look("log--selected")
        if row == self.cursor and self.has_focus:
            return self._look("log--cursor")
        return Style.null()

    def _gutter(self, row: int, line: Line | None, base: Style, *, first: bool) -> list[Segment]:
        selected = self.mark is not None and min(self.mark, self.cursor) <= row <= max(self.mark, self.cursor)
        mark = ">" if row == self.cursor else "*" if selected else " "
        number = str(line.number + 1) if first and line is not None and line.number is not None else ""
        dim = self._look("log--gutter")
        shown = self.shown(row) if first else None
        level = shown.level if shown is not None else ""
        width = self.gutter_width - 4 - self._label_width
        segments = [
            Segment(f"{mark}{number:>{width}} ", base + dim),
            Segment(f"{LEVEL_MARKS[level]} ", base + self._level_style(level)),
        ]
        if self.labels:
            source = line.source if first and line is not None else None
            label = self.labels[source] if source is not None and source < len(self.labels) else ""
            look = f"log--source-{(source or 0) % SOURCE_LOOKS}"
            style = self._look(look)
            segments.append(Segment(set_cell_size(label, self._label_width), base + style))
        return segments

    def _level_style(self, level: str) -> Style:
        if level in ("error", "warning", "debug"):
            return self._look(f"log--{level}")
        return Style.null()

    def _segments(self, row: int, base: Style) -> list[Segment]:
        line = self.shown(row)
        if line is None:
            return [Segment("...", base + self._look("log--gutter"))]
        style = base + self._level_style(line.level)
        timed = style + self._look("log--time")
        match = self._look("log--match")
        edges = sorted({0, line.time, len(line.text), *(edge for span in line.spans for edge in span)})
        segments = []
        for begin, end in pairwise(edges):
            here = timed if end <= line.time else style
            if any(start <= begin and end <= stop for start, stop in line.spans):
                here += match
            segments.append(Segment(line.text[begin:end], here))
        return segments

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """The window goes elsewhere; the cursor stays in it."""
        super().watch_scroll_y(old_value, new_value)
        if round(old_value) == round(new_value):
            return
        self._skip = 0
        if not self._moving:
            self.cursor = max(self.top, min(self.cursor, self.top + self.height - 1, self.rows.count - 1))
            self.post_message(self.Moved())
        self.redraw()

    def watch_show_horizontal_scrollbar(self) -> None:
        """The bar takes a row away: the end that is followed is then another one."""
        self.call_after_refresh(self.changed)

    def _on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Who scrolls up wants to read, not to follow; of a line that is taller than the window, its pieces first."""
        self.follow = False
        if self._turn(-WHEEL):
            event.stop()
            event.prevent_default()
        else:
            super()._on_mouse_scroll_up(event)

    def _on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """The pieces of a line that is taller than the window, then the lines behind it."""
        if self._turn(WHEEL):
            event.stop()
            event.prevent_default()
        else:
            super()._on_mouse_scroll_down(event)

    def _turn(self, pieces: int) -> bool:
        """Move the window within a line that is taller than it; False when there is nothing left of it that way."""
        if not self.wrap or not self._drawn:
            return False
        most = max(0, self._pieces(self.top) - self.height)
        if (pieces > 0 and self._skip >= most) or (pieces < 0 and self._skip == 0):
            return False
        skip = max(0, min(self._skip + pieces, most))
        self._skip = skip
        self.cursor = self.top
        self.redraw()
        self.post_message(self.Moved())
        return True

    def on_scroll_up(self) -> None:
        """The same, above the handle of the scrollbar."""
        self.follow = False

    def on_scroll_to(self) -> None:
        """The same, with the handle of the scrollbar."""
        self.follow = False

    def on_resize(self, event: events.Resize) -> None:
        """Another size: more rows to draw, others to wrap."""
        self.changed()

    def on_focus(self) -> None:
        """The cursor is drawn when keys move it."""
        self._repaint()

    def on_blur(self) -> None:
        """And not when they do not."""
        self._repaint()

    def _scroll(self, y: int, skip: int = 0) -> None:
        self._moving = True
        self.scroll_to(y=max(0, y), animate=False, force=True)
        self._moving = False
        self._skip = skip

    def go(self, row: int, *, middle: bool = False, extend: bool = False) -> None:
        """Move the cursor, and the window with it when it has to."""
        count = self.rows.count
        if not count:
            return
        before = self.cursor
        self.cursor = max(0, min(row, count - 1))
        if extend and self.mark is None:
            self.mark = before
        self.follow = self.follow and self.cursor == count - 1
        last = self._last_whole_row()
        if middle and not self.top <= self.cursor <= last:
            self._scroll(self.cursor - self.height // 2)
        elif self.cursor < self.top:
            self._scroll(self.cursor)
        elif self.cursor > last:
            top, skip = self._top_for_last(self.cursor)
            # A line that is taller than the window is read from its beginning.
            self._scroll(top, 0 if top == self.cursor else skip)
        elif self.cursor == self.top and self._skip and self._pieces(self.top) <= self.height:
            self._skip = 0
        self.redraw()
        self.post_message(self.Moved())

    def _last_whole_row(self) -> int:
        """The last row that is drawn to its end."""
        if not self.wrap or not self._drawn:
            return self.top + self.height - 1
        row, _, end = self._drawn[-1]
        line = self.shown(row)
        return row if line is None or end >= len(line.text) or row == self.top else row - 1

    def _top_for_last(self, row: int) -> tuple[int, int]:
        """Where the window begins that ends with this row: a row, and how many of its pieces are above the window."""
        if not self.wrap:
            return row - self.height + 1, 0
        room, top = self.height, row + 1
        while top > 0 and room > 0:
            room -= self._pieces(top - 1)
            top -= 1
        return top, max(0, -room)

    def to_end(self) -> None:
        """The window and the cursor at the end."""
        self.cursor = max(0, self.rows.count - 1)
        self._scroll(*self._top_for_last(self.cursor))

    def selection(self) -> tuple[int, int]:
        """The first and the last selected row."""
        other = self.cursor if self.mark is None else self.mark
        return min(other, self.cursor), max(other, self.cursor)

    def on_click(self, event: events.Click) -> None:
        """The mouse moves the cursor; with shift, it selects."""
        offset = event.get_content_offset(self)
        if offset is not None and offset.y < len(self._drawn):
            if not event.shift:
                self.mark = None
            self.go(self._drawn[offset.y][0], extend=event.shift)

    def action_move(self, rows: int, extend: bool = False) -> None:
        """The cursor goes up or down; within a line that is taller than the window, the window does."""
        if self.cursor == self.top and not extend and self._turn(rows):
            self.follow = self.follow and rows > 0
            return
        self.go(self.cursor + rows, extend=extend)

    def action_page(self, pages: float) -> None:
        """A window up or down."""
        if self.cursor == self.top and self._turn(int((self.height - 1) * pages)):
            self.follow = self.follow and pages > 0
            return
        rows = int((max(1, self._last_whole_row() - self.top)) * abs(pages)) or 1
        self.go(self.cursor + (rows if pages > 0 else -rows))

    def action_first(self) -> None:
        """To the first line."""
        self.go(0)

    def action_last(self) -> None:
        """To the last line, and stay there."""
        self.follow = True
        self.go(self.rows.count - 1)

    def action_aside(self, steps: int) -> None:
        """Long lines are read by scrolling aside."""
        if not self.wrap:
            self.scroll_to(x=self.scroll_offset.x + steps * (self._text_width() // 2), animate=False)

    def action_select(self) -> None:
        """Begin a selection at the cursor, or end it."""
        self.mark = self.cursor if self.mark is None else None
        self.redraw()
        self.post_message(self.Moved())
