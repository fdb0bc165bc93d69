"""How is text painted whose every token has a look, and how does one walk from token to token?"""

from collections.abc import Sequence
from typing import ClassVar

from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from eagle3ops.screens.base import named
from eagle3ops.screens.tokens.flow import LOOKS, Row, column_of, paint, row_of, token_at
from eagle3ops.screens.widgets.lines import Lines


class TokenLines(Lines):
    """Lines that know the looks of tokens as well: masked is dim, trained underlined, whatever the colours."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"tokens--{look}" for look in LOOKS}
    DEFAULT_CSS = """
    TokenLines > .tokens--masked { color: $text-muted; }
    TokenLines > .tokens--trained { color: $text-success; text-style: underline; }
    TokenLines > .tokens--missed { color: $text-warning; text-style: bold underline; }
    TokenLines > .tokens--thinking { color: $text-accent; text-style: italic underline; }
    TokenLines > .tokens--edge { color: $panel-lighten-2; }
    """

    def _style(self, look: str) -> Style:
        if look not in LOOKS:
            return super()._style(look)
        if look not in self._styles:
            self._styles[look] = self.get_component_rich_style(f"tokens--{look}")
        return self._styles[look]


class TokenText(TokenLines, can_focus=True):
    """A sample's tokens, with a cursor on one of them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *named(
            "token-text",
            [
                Binding("left,h", "token(-1)", "Token before", show=False),
                Binding("right,l", "token(1)", "Next token", show=False),
                Binding("up,k", "line(-1)", "Up", show=False),
                Binding("down,j", "line(1)", "Down", show=False),
                Binding("pageup", "page(-1)", "Page up", show=False),
                Binding("pagedown", "page(1)", "Page down", show=False),
                Binding("home", "edge(False)", "First token", show=False),
                Binding("end", "edge(True)", "Last token", show=False),
            ],
        )
    ]

    class Moved(Message):
        """The cursor is wanted on another token, counted from the first that is shown."""

        def __init__(self, to: int) -> None:
            self.to = to
            super().__init__()

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._rows: Sequence[Row] = ()
        self._count = 0
        self._at = 0

    def put(self, rows: Sequence[Row], count: int, at: int) -> None:
        """Show rows of `count` tokens, the cursor on token `at`."""
        moved = (rows, at) != (self._rows, self._at)
        self._rows, self._count, self._at = rows, count, at
        self.show((), paint(rows, at if count else None))
        if moved:
            self._reveal(row_of(rows, at))

    def _reveal(self, row: int) -> None:
        top, room = int(self.scroll_offset.y), self.room.height
        if not top - room <= row <= top + 2 * room:
            # From far away: with something of what comes before.
            self.scroll_to(y=max(0, row - room // 3), animate=False)
        elif row < top:
            self.scroll_to(y=row, animate=False)
        elif row >= top + room > 0:
            self.scroll_to(y=row - room + 1, animate=False)

    def _want(self, to: int) -> None:
        if self._count:
            self.post_message(self.Moved(min(self._count - 1, max(0, to))))

    def action_token(self, by: int) -> None:
        """Move the cursor by some tokens."""
        self._want(self._at + by)

    def action_line(self, by: int) -> None:
        """Move the cursor by some rows, and keep its column where one can."""
        if not self._rows:
            return
        row = row_of(self._rows, self._at)
        column = column_of(self._rows[row], self._at)
        to = row + by
        # A token that fills several rows is left behind in one step.
        while 0 <= to < len(self._rows):
            found = token_at(self._rows[to], column)
            if found is not None and found != self._at:
                self._want(found)
                return
            to += 1 if by > 0 else -1

    def action_page(self, by: int) -> None:
        """Move the cursor by whole pages."""
        row = row_of(self._rows, self._at) + by * max(1, self.room.height - 2)
        if self._rows:
            found = token_at(self._rows[min(len(self._rows) - 1, max(0, row))], 0)
            self._want(self._at if found is None else found)

    def action_edge(self, at_end: bool) -> None:
        """Move the cursor to the first token or the last."""
        self._want(self._count if at_end else 0)

    def on_click(self, event: events.Click) -> None:
        """Select the token under the mouse."""
        place = event.get_content_offset(self)
        at = int(self.scroll_offset.y) + place.y if place is not None else -1
        if place is not None and 0 <= at < len(self._rows):
            found = token_at(self._rows[at], place.x)
            self._want(self._at if found is None else found)
