"""To be built."""

from collections.abc import Iterable

from textual.widget import Widget
from textual.widgets import Static

from eagle3ops.screens.room import Room


class Tokens(Room):
    """To be built."""

    ROOM = "tokens"
    PLACE = "Supervised tokens"

    def body(self) -> Iterable[Widget]:
        """Nothing yet."""
        yield Static()
