"""What exactly is the drafter taught? A sample token by token, with what is trained on and what is masked."""

from collections.abc import Iterable
from typing import Any, ClassVar

from textual import on, work
from textual.binding import Binding, BindingType
from textual.widget import Widget

from eagle3ops.screens.base import named
from eagle3ops.screens.room import RunRoom
from eagle3ops.screens.tokens.flow import TokensView, fact_lines, flow, token_lines, view_of
from eagle3ops.screens.tokens.lines import TokenLines, TokenText
from eagle3ops.screens.widgets.clipboard import copy
from eagle3ops.screens.widgets.goto import Goto
from eagle3ops.screens.widgets.lines import Lines

SPLITS = ("train", "heldout")
TALL = 30
"""From so many rows on there is room for what is missed most."""
WINDOW = 4096
"""Tokens that are asked for at once: the host sends no more."""


class Tokens(RunRoom):
    """Facts about the sample and its split, the sample, and all about the token under the cursor."""

    ROOM = "tokens"
    OP = "runs.tokens"
    CSS_PATH = "room.tcss"
    PLACE = "Supervised tokens"
    BINDINGS: ClassVar[list[BindingType]] = [
        *named(
            "tokens",
            [
                Binding("n", "sample(1)", "Next", tooltip="The next sample of the split"),
                Binding("p", "sample(-1)", "Previous", tooltip="The sample before"),
                Binding(
                    "slash", "goto", "Go to", key_display="/", tooltip="Go to a sample: its number, or a part of its id"
                ),
                Binding(
                    "N", "find_next", "Find next", show=False, tooltip="The next sample whose id holds what was typed"
                ),
                Binding("s", "split", "Split", tooltip="Change between the samples to train on and those held out"),
                Binding("e", "edges", "Edges", tooltip="Show where tokens begin, and every blank"),
                Binding("x", "missed(1)", "Missed", tooltip="Go to the next token that the drafter cannot propose"),
                Binding("X", "missed(-1)", "Missed before", show=False, tooltip="Go to the missed token before"),
                Binding("greater_than_sign", "window(1)", "Later part", show=False, tooltip="Of a long sample: go on"),
                Binding(
                    "less_than_sign", "window(-1)", "Earlier part", show=False, tooltip="Of a long sample: go back"
                ),
                Binding("y", "copy", "Copy", show=False, tooltip="Copy the sample's text as it is shown"),
            ],
        )
    ]

    def __init__(self) -> None:
        super().__init__()
        self._split, self._row, self._first = SPLITS[0], 0, 0
        self._find: str | None = None
        self._sought = ""
        self._edges = False
        self._at = 0
        self._seen: tuple[object, ...] = ()
        self._view: TokensView | None = None
        self._viewed: dict[str, Any] | None = None

    def panes(self) -> Iterable[Widget]:
        """Facts, text, one token."""
        yield TokenLines(id="facts")
        yield TokenText(id="tokens")
        yield Lines(id="token")

    def on_mount(self) -> None:
        """Arrows walk through the tokens at once."""
        super().on_mount()
        self.query_one("#tokens").focus()

    def arguments(self) -> dict[str, Any]:
        """Which sample."""
        asked: dict[str, Any] = {"split": self._split, "row": self._row, "first": self._first}
        return asked if self._find is None else asked | {"find": self._find}

    def state(self) -> tuple[object, ...]:
        """The cursor, and the room for the text."""
        return self._at, self._edges, self.query_one("#tokens", Lines).room, self.query_one("#facts", Lines).room

    def draw(self, answer: dict[str, Any]) -> None:
        """Put facts, text and the selected token on the screen."""
        facts, text, one = (
            self.query_one("#facts", Lines),
            self.query_one("#tokens", TokenText),
            self.query_one("#token", Lines),
        )
        if answer is not self._viewed:
            self._viewed, self._view = answer, view_of(answer)
            self._arrived(answer, self._view)
        view, glyphs = self._view, self.console.glyphs
        if view is None or not facts.room.width:
            return
        facts.show((), fact_lines(view, facts.room.width, glyphs, tall=self.size.height >= TALL))
        sample = view.sample
        if sample is None:
            text.put((), 0, 0)
            one.show((), [])
            return
        rows = flow(sample, text.room.width, glyphs, edges=self._edges)
        text.put(rows, len(sample.ids), self._at)
        one.show((), token_lines(sample, self._at, one.room.width, glyphs))

    def _arrived(self, answer: dict[str, Any], view: TokensView) -> None:
        """Another answer: keep the place if it is the same sample, else begin where the training does."""
        if self._find is not None:
            if answer.get("found") is False:
                self.notify(f"No id in {self._split} holds {self._find!r}.", severity="warning", markup=False)
            self._find = None
        if view.row is not None:
            self._row = view.row
        sample = view.sample
        seen = (answer.get("run"), view.split, view.row, sample.first if sample else 0)
        if seen != self._seen:
            self._seen = seen
            trained = [at for at, look in enumerate(sample.looks) if look != "masked"] if sample else []
            self._at = trained[0] if trained and sample is not None and sample.first == 0 else 0
        if sample is not None:
            self._at = min(self._at, max(0, len(sample.ids) - 1))

    def _go(self, row: int) -> None:
        self._row, self._first, self._find = max(0, row), 0, None
        self._glance()

    def action_sample(self, by: int) -> None:
        """Another sample of the split."""
        rows = self._view.rows if self._view is not None else 0
        if 0 <= self._row + by < rows:
            self._go(self._row + by)

    def action_split(self) -> None:
        """The other split, from its beginning."""
        self._split = SPLITS[1 - SPLITS.index(self._split)]
        self._go(0)

    def action_goto(self) -> None:
        """Ask where to go."""

        def answered(where: str | None) -> None:
            if where and where.isdecimal() and len(where) < 12:
                rows = self._view.rows if self._view is not None else 0
                if 0 < rows < int(where):
                    self.notify(f"{self._split} has {rows} samples; this is the last.", severity="warning")
                self._go(int(where) - 1)
            elif where:
                self._sought = where
                self.action_find_next()

        self.app.push_screen(Goto("Go to which sample? Its number, or a part of its id.", self._sought), answered)

    def action_find_next(self) -> None:
        """The next sample whose id holds what was typed."""
        if not self._sought:
            self.action_goto()
            return
        self._first, self._find = 0, self._sought
        self._glance()

    def action_edges(self) -> None:
        """Show where tokens begin, or not."""
        self._edges = not self._edges
        self._glance()

    def action_missed(self, by: int) -> None:
        """Go to another token that the drafter cannot propose."""
        sample = self._view.sample if self._view is not None else None
        places = [at for at, look in enumerate(sample.looks) if look == "missed"] if sample is not None else []
        beyond = [at for at in places if (at > self._at if by > 0 else at < self._at)]
        if beyond or places:
            self._at = (beyond or places)[0 if by > 0 else -1]
            self._glance()
        else:
            self.notify("The draft vocabulary misses no trained token here.", timeout=3)

    def action_window(self, by: int) -> None:
        """Another part of a long sample."""
        sample = self._view.sample if self._view is not None else None
        first = self._first + by * WINDOW
        if sample is not None and 0 <= first < sample.total:
            self._first = first
            self._glance()

    @on(TokenText.Moved)
    def _moved(self, message: TokenText.Moved) -> None:
        self._at = message.to
        self._glance()

    @work(exit_on_error=False)
    async def action_copy(self) -> None:
        """Copy the text as it is shown."""
        view = self._view
        if view is None or view.sample is None:
            self.notify("There is nothing to copy yet.", severity="warning")
            return
        rows = flow(view.sample, 10_000, self.console.glyphs, edges=self._edges)
        text = "\n".join("".join(piece.text for piece in row.pieces) for row in rows)
        where = await copy(text + "\n", self.app.copy_to_clipboard)
        self.notify(where, title=f"Copied sample {(view.row or 0) + 1} of {view.split}", markup=False)
