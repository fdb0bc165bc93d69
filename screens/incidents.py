"""To be built."""

from collections.abc import Iterable

from textual.widget import Widget
from textual.widgets import Static

from eagle3ops.screens.room import Room


class Incidents(Room):
    """To be built."""

    ROOM = "incidents"
    PLACE = "Incidents"

    def body(self) -> Iterable[Widget]:
        """Nothing yet."""
        yield Static()
