"""Do training and serving feed the drafter the same tensors, and if not, which layer is wrong?"""

from collections.abc import Iterable
from typing import Any, ClassVar

from textual import work
from textual.binding import Binding, BindingType
from textual.widget import Widget

from eagle3ops.screens.base import named
from eagle3ops.screens.room import RunRoom
from eagle3ops.screens.widgets.clipboard import copy
from eagle3ops.screens.widgets.lines import Lines
from eagle3ops.screens.wiring.map import wiring_lines
from eagle3ops.screens.wiring.view import view_of

REPORT = 100
"""Columns of a copied report."""


class Wiring(RunRoom):
    """Verdict and remedy, the layers of every side, the fingerprints."""

    ROOM = "wiring"
    OP = "runs.wiring"
    CSS_PATH = "room.tcss"
    PLACE = "Wiring"
    BINDINGS: ClassVar[list[BindingType]] = [
        *named(
            "wiring",
            [
                Binding("u", "unfold", "Unfold", tooltip="Show every layer, or only those that somebody reads"),
                Binding("y", "copy", "Copy", tooltip="Copy the whole page as text"),
            ],
        )
    ]

    def __init__(self) -> None:
        super().__init__()
        self._unfolded = False

    def panes(self) -> Iterable[Widget]:
        """One page that scrolls."""
        page = Lines(id="wiring")
        page.can_focus = True
        yield page

    def on_mount(self) -> None:
        """Keys scroll the page at once."""
        super().on_mount()
        self.query_one("#wiring").focus()

    def state(self) -> tuple[object, ...]:
        """The room for the page, and how long ago the verdict was given, in minutes."""
        return self._unfolded, self.query_one("#wiring", Lines).room, int(self.console.clock() // 60)

    def draw(self, answer: dict[str, Any]) -> None:
        """Put the page together for the room that there is."""
        page = self.query_one("#wiring", Lines)
        width, height = page.room
        if width:
            view, glyphs = view_of(answer), self.console.glyphs
            now = self.console.clock()
            page.show((), wiring_lines(view, width, height, glyphs, now, unfolded=self._unfolded))

    def action_unfold(self) -> None:
        """Show every layer, or fold those that nobody reads."""
        self._unfolded = not self._unfolded
        self._glance()

    @work(exit_on_error=False)
    async def action_copy(self) -> None:
        """Copy the page as text."""
        if self.answer is None:
            self.notify("There is nothing to copy yet.", severity="warning")
            return
        lines = wiring_lines(
            view_of(self.answer), REPORT, 10_000, self.console.glyphs, self.console.clock(), unfolded=True
        )
        text = "\n".join("".join(text for text, _ in line).rstrip() for line in lines)
        where = await copy(text + "\n", self.app.copy_to_clipboard)
        self.notify(where, title="Copied the wiring", markup=False)
