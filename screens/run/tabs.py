"""Which parts of a run can be looked at, and which one is?"""

from rich.cells import cell_len
from textual import events
from textual.message import Message

from eagle3ops.screens.widgets.lines import Lines

TABS = {
    "stages": "State, progress, time, CPU and memory of every stage",
    "processes": "What the run has started: argv, environment, how it ended",
    "metrics": "The figures of the run, plotted",
    "artifacts": "What the stages have made, and whether it is still there",
    "verdicts": "What was judged, and why",
}
"""Name, whose first letter is its key, and what is there."""


class TabBar(Lines):
    """The parts in one row, each with its key and how many there are; a click goes there."""

    class Chosen(Message):
        """A tab was clicked."""

        def __init__(self, tab: str) -> None:
            super().__init__()
            self.tab = tab

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._ends: list[tuple[int, str]] = []

    def show_tabs(self, here: str, counts: dict[str, int]) -> None:
        """Mark the one that is looked at."""
        line: list[tuple[str, str]] = []
        at, self._ends = 0, []
        for tab in TABS:
            rest = f"{tab[1:]} {counts.get(tab, 0):,} "
            line += [(f" {tab[0]}{rest}", "cursor")] if tab == here else [(f" {tab[0]}", "head"), (rest, "plain")]
            at += 2 + cell_len(rest)
            self._ends.append((at, tab))
        self.show((), [tuple(line)])

    def on_click(self, event: events.Click) -> None:
        """Go to the tab under the mouse."""
        tab = next((tab for end, tab in self._ends if event.x < end), None)
        if tab is not None:
            self.post_message(self.Chosen(tab))
