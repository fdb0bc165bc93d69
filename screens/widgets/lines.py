"""How are many changing lines painted so that few bytes go to the terminal?

Only the cells that changed are painted again, and a line changes its style a few times at most.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, overload

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from eagle3ops.screens.base import named
from eagle3ops.screens.widgets.cells import Line

LOOKS = ("plain", "dim", "head", "good", "warn", "bad", "history", "stale", "cursor")


class Drawn(Sequence[Line]):
    """Lines that are made when somebody looks at them: of hundreds, some dozens are seen."""

    def __init__(self, count: int, draw: Callable[[int], Line]) -> None:
        self._count = count
        self._draw = draw
        self._known: dict[int, Line] = {}

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> Line: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Line]: ...

    def __getitem__(self, at: int | slice) -> Line | Sequence[Line]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(self._count))]
        if not -self._count <= at < self._count:
            raise IndexError(at)
        at %= self._count
        if at not in self._known:
            self._known[at] = self._draw(at)
        return self._known[at]


class Lines(ScrollView, can_focus=False):
    """Lines without a cursor, under a heading that stays; scrolls when there are more than fit."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"lines--{look}" for look in LOOKS}
    DEFAULT_CSS = """
    Lines { height: auto; overflow-x: hidden; scrollbar-size-vertical: 1; }
    Lines > .lines--dim { color: $text-muted; }
    Lines > .lines--head { color: $text-accent; text-style: bold; }
    Lines > .lines--good { color: $text-success; }
    Lines > .lines--warn { color: $text-warning; text-style: bold; }
    Lines > .lines--bad { color: $text-error; text-style: bold; }
    Lines > .lines--history { color: $accent; }
    Lines > .lines--stale { color: $text-muted; text-style: italic; }
    Lines > .lines--cursor { text-style: reverse; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._head: Line = ()
        self._lines: Sequence[Line] = []
        self._styles: dict[str, Style] = {}
        self.cursor: int | None = None

    @property
    def room(self) -> Size:
        """Cells for the heading and lines, without the scroll bar."""
        return self.scrollable_content_region.size

    def show(self, head: Line, lines: Sequence[Line], cursor: int | None = None) -> None:
        """Put these on the screen in place of those before."""
        # A list may still grow in the hands of who made it; what is made on demand stays as it is.
        fresh = lines if isinstance(lines, Drawn) else list(lines)
        before, heading = self._lines, 1 if head else 0
        grows = self.styles.height is not None and self.styles.height.is_auto
        if bool(self._head) != bool(head) or (grows and len(fresh) != len(before)):
            self._head, self._lines, self.cursor = head, fresh, cursor
            self._extend(heading)
            self.refresh(layout=grows)
            return
        width, top, dirty = self.room.width, int(self.scroll_offset.y), []
        if head != self._head:
            dirty.append(Region(0, 0, width, 1))
        for row in range(max(0, self.room.height - heading)):
            at = row + top
            old, new = (at_of[at] if at < len(at_of) else () for at_of in (before, fresh))
            if (old != new and (not old or not new or at in (self.cursor, cursor))) or (at == self.cursor) != (
                at == cursor
            ):
                dirty.append(Region(0, row + heading, width, 1))
            elif (span := changed(old, new)) is not None:
                left, right = span
                dirty.append(Region(left, row + heading, min(right, width) - left, 1))
        self._head, self._lines, self.cursor = head, fresh, cursor
        self._extend(heading)
        if dirty:
            self.refresh(*dirty)

    def _extend(self, heading: int) -> None:
        """Say how far one can scroll; in steps, as every change of that paints the whole widget."""
        rows = len(self._lines) + heading
        if rows <= self.room.height:
            rows = 0
        else:
            rows += -rows % 8
        if self.virtual_size.height != rows:
            self.virtual_size = Size(0, rows)

    def line(self, at: int) -> Line:
        """What a line says."""
        return self._lines[at]

    def line_at(self, event: events.MouseEvent) -> int | None:
        """The line under the mouse; None for the heading, the frame, and below the last line."""
        inside = event.get_content_offset(self)
        if inside is None or (self._head and inside.y == 0):
            return None
        at = inside.y - (1 if self._head else 0) + int(self.scroll_offset.y)
        return at if 0 <= at < len(self._lines) else None

    def notify_style_update(self) -> None:
        """Another theme."""
        super().notify_style_update()
        self._styles.clear()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As many rows as there are lines."""
        return max(1, len(self._lines) + (1 if self._head else 0))

    def render_line(self, y: int) -> Strip:
        """One row of the screen."""
        if self._head and y == 0:
            return self._strip(self._head)
        at = y - (1 if self._head else 0) + int(self.scroll_offset.y)
        if not 0 <= at < len(self._lines):
            return Strip.blank(self.room.width, self.rich_style)
        return self._strip(self._lines[at], selected=at == self.cursor)

    def _strip(self, line: Line, *, selected: bool = False) -> Strip:
        width = self.room.width
        if selected:
            text = "".join(text for text, _ in line)
            segments = [Segment(text, self._style("cursor"))]
        else:
            segments = [Segment(text, self._style(look)) for text, look in line]
        return Strip(segments).adjust_cell_length(width, self._style("cursor") if selected else self.rich_style)

    def _style(self, look: str) -> Style:
        if look not in self._styles:
            self._styles[look] = self.get_component_rich_style(f"lines--{look if look in LOOKS else 'plain'}")
        return self._styles[look]


class Table(Lines, can_focus=True):
    """Lines with a cursor that keys, wheel and clicks move."""

    PLACE: ClassVar[str] = "Lists"
    BINDINGS: ClassVar[list[BindingType]] = [
        *named(
            "lines",
            [
                Binding("up,k", "move(-1)", "Up", show=False),
                Binding("down,j", "move(1)", "Down", show=False),
                Binding("pageup", "page(-1)", "Page up", show=False),
                Binding("pagedown", "page(1)", "Page down", show=False),
                Binding("home", "edge(False)", "First", show=False),
                Binding("end", "edge(True)", "Last", show=False),
            ],
        )
    ]

    class Moved(Message):
        """The cursor is wanted on another line."""

        def __init__(self, to: int, table: "Table") -> None:
            self.to = to
            self.table = table
            super().__init__()

        @property
        def control(self) -> "Table":
            """The table, for who has several."""
            return self.table

    aim: int | None = None
    """Where the cursor is wanted, until it is there: keys may come faster than they are painted."""

    def show(self, head: Line, lines: Sequence[Line], cursor: int | None = None) -> None:
        """Put these on the screen, with the cursor where the screen has it."""
        self.aim = None
        super().show(head, lines, cursor)

    @property
    def _from(self) -> int:
        return self.aim if self.aim is not None else self.cursor or 0

    def action_move(self, by: int) -> None:
        """Move the cursor by some lines."""
        self._want(self._from + by)

    def action_page(self, by: int) -> None:
        """Move the cursor by whole pages."""
        self._want(self._from + by * max(1, self.room.height - 2))

    def action_edge(self, at_end: bool) -> None:
        """Move the cursor to the first line or the last."""
        self._want(len(self._lines) if at_end else 0)

    def _want(self, to: int) -> None:
        if self._lines:
            self.aim = min(len(self._lines) - 1, max(0, to))
            self.post_message(self.Moved(self.aim, self))

    def on_click(self, event: events.Click) -> None:
        """Select the line under the mouse."""
        at = self.line_at(event)
        if at is not None:
            self._want(at)

    def reveal(self) -> None:
        """Scroll so that the cursor is in sight."""
        self._reveal()
        # Lines that have only just come make it possible to scroll that far when they stand there.
        self.call_after_refresh(self._reveal)

    def _reveal(self) -> None:
        room = self.room.height - (1 if self._head else 0)
        if self.cursor is None or room < 1:
            return
        top = int(self.scroll_offset.y)
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False)
        elif self.cursor >= top + room:
            self.scroll_to(y=self.cursor - room + 1, animate=False)


def changed(old: Line, new: Line) -> tuple[int, int] | None:
    """The first cell that differs and the one behind the last; None when nothing does."""
    if old == new:
        return None
    before = [(character, look) for text, look in old for character in text]
    after = [(character, look) for text, look in new for character in text]
    first = 0
    for one, other in zip(before, after, strict=False):
        if one != other:
            break
        first += 1
    width = cell_len("".join(character for character, _ in after))
    left = cell_len("".join(character for character, _ in after[:first]))
    if cell_len("".join(character for character, _ in before)) != width:
        return left, max(width, cell_len("".join(character for character, _ in before)))
    same = 0
    while same < min(len(before), len(after)) - first and before[-1 - same] == after[-1 - same]:
        same += 1
    return left, width - cell_len("".join(character for character, _ in after[len(after) - same :]))
