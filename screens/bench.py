"""To be built."""

from collections.abc import Iterable

from textual.widget import Widget
from textual.widgets import Static

from eagle3ops.screens.room import Room


class Bench(Room):
    """To be built."""

    ROOM = "bench"
    PLACE = "Bench"

    def body(self) -> Iterable[Widget]:
        """Nothing yet."""
        yield Static()
