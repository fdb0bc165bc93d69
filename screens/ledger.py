"""To be built."""

from collections.abc import Iterable

from textual.widget import Widget
from textual.widgets import Static

from eagle3ops.screens.room import Room


class Ledger(Room):
    """To be built."""

    ROOM = "ledger"
    PLACE = "Ledger"

    def body(self) -> Iterable[Widget]:
        """Nothing yet."""
        yield Static()
