"""What do the GPUs do, in as few lines as possible? For the overview."""

from textual import events

from eagle3ops.screens.feed import feed_of
from eagle3ops.screens.glyphs import glyphs_of
from eagle3ops.screens.lines import Lines
from eagle3ops.screens.machine_tables import strip_lines

LOOK_S = 0.25
LOWEST = 20
"""On a terminal of fewer rows there is no room for it."""


class GpuStrip(Lines):
    """Some GPUs a line: index, utilisation, memory, power; or why there are none."""

    DEFAULT_CSS = "GpuStrip { height: auto; max-height: 8; margin: 0 1; }"

    def on_mount(self) -> None:
        """Look for something new from time to time; who looks away does not pay for it."""
        self._drawn: tuple[object, ...] = ()
        self.tooltip = "g or a click: GPUs and processes"
        self._fit()
        self.set_interval(LOOK_S, self._look)

    def on_resize(self, _: events.Resize) -> None:
        """Another width makes other lines."""
        self._look()

    def on_click(self) -> None:
        """Show more."""
        self.call_later(self.app.run_action, "app.gpus")

    def _fit(self) -> None:
        self.display = self.app.size.height >= LOWEST

    def _look(self) -> None:
        if self.app.screen is not self.screen:
            return
        self._fit()
        feed = feed_of(self.app)
        state = (feed.machine.version, feed.stale, feed.machine.failure, self.room.width)
        if state != self._drawn and self.room.width:
            self._drawn = state
            self.show((), strip_lines(feed.machine, self.room.width, feed.stale, glyphs_of(self.app)))
