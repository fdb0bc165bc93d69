"""What do the GPUs do, in as few lines as possible? For the overview."""

from textual import events

from eagle3ops.screens.feeds.machine_feed import feed_of
from eagle3ops.screens.gpus.tables import gpu_table, strip_lines
from eagle3ops.screens.widgets.glyphs import glyphs_of
from eagle3ops.screens.widgets.lines import Lines

LOWEST = 20
"""On a terminal of fewer rows there is no room for it."""


class GpuStrip(Lines):
    """One GPU a line with its history where there is room, else some side by side; or why there are none."""

    DEFAULT_CSS = "GpuStrip { height: auto; max-height: 9; padding: 0 1; }"

    def on_mount(self) -> None:
        """Say what a click does."""
        self._drawn: tuple[object, ...] = ()
        self.tooltip = "g or a click: GPUs and processes"

    def on_click(self, event: events.Click) -> None:
        """Show more."""
        event.stop()
        self.call_later(self.app.run_action, "app.gpus")

    def look(self, *, tall: bool, second: int) -> None:
        """Paint the last sample, if there is anything new about it.

        Args:
            tall: there is room for a line a GPU.
            second: what only moves is painted once in each, with all else that moves.
        """
        self.display = self.app.size.height >= LOWEST
        feed, width = feed_of(self.app), self.room.width
        machine, stale, glyphs = feed.machine, feed.stale, glyphs_of(self.app)
        states = tuple(gpu.words for gpu in machine.snapshot.gpus) if machine.snapshot is not None else None
        state = (states, second, stale, machine.failure, width, tall)
        if state == self._drawn or not width:
            return
        self._drawn = state
        count = len(machine.snapshot.gpus) if machine.snapshot is not None else 0
        if not tall or not 0 < count <= 8:
            self.show((), strip_lines(machine, width, stale, glyphs))
            return
        head, lines = gpu_table(machine, width, glyphs)
        if stale:
            lines = [tuple((text, "stale") for text, _ in line) for line in lines]
            head = ((f"GPUs: {stale}"[:width], "warn"),)
        self.show(head, lines)
