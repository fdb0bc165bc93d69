"""Which parts of a run can be looked at, and which one is?"""

from rich.cells import cell_len
from textual import events
from textual.message import Message

from eagle3ops.screens.lines import Lines

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

    def show_tabs(self, here: str, counts: dict[str, int]) -> None:
        """Mark the one that is looked at."""
        self._pieces = [(tab, f" {tab} {counts.get(tab, 0)} ") for tab in TABS]
        self.show((), [tuple((text, "cursor" if tab == here else "plain") for tab, text in self._pieces)])

    def on_click(self, event: events.Click) -> None:
        """Go to the tab under the mouse."""
        at = 0
        for tab, text in getattr(self, "_pieces", []):
            at += cell_len(text)
            if event.x < at:
                self.post_message(self.Chosen(tab))
                return
