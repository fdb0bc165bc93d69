"""To be built."""

from collections.abc import Iterable

from textual.widget import Widget
from textual.widgets import Static

from eagle3ops.screens.room import Room


class Wiring(Room):
    """To be built."""

    ROOM = "wiring"
    PLACE = "Wiring"

    def body(self) -> Iterable[Widget]:
        """Nothing yet."""
        yield Static()
