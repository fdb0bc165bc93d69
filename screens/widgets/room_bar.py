"""Where in the console is one, and where else can one go?"""

from rich.text import Text
from textual import events
from textual.widget import Widget

from eagle3ops.screens.rooms import ROOMS


class RoomBar(Widget):
    """The rooms in one row, each with its key; a click goes there."""

    COMPONENT_CLASSES = {"room-bar--here", "room-bar--key"}  # noqa: RUF012  (as Textual has it)
    DEFAULT_CSS = """
    RoomBar { height: 1; background: $panel; }
    RoomBar > .room-bar--here { background: $accent; color: $background; text-style: bold; }
    RoomBar:light > .room-bar--here { color: $foreground; }
    RoomBar:ansi > .room-bar--here { background: ansi_default; color: $accent; text-style: bold reverse; }
    RoomBar > .room-bar--key { color: $text-accent; text-style: bold; }
    """

    def __init__(self, here: str) -> None:
        super().__init__()
        self._here = here

    def _pieces(self) -> list[tuple[str, str, str]]:
        """Name, key, label of every room; cut where the row is too short for all labels."""
        gap = len(ROOMS)
        room = self.size.width - gap - len(ROOMS)
        longest = max(len(entry.label) for entry in ROOMS)
        while longest > 3 and sum(min(len(entry.label), longest) for entry in ROOMS) > room:
            longest -= 1
        return [(entry.name, entry.key, entry.label[:longest]) for entry in ROOMS]

    def render(self) -> Text:
        """Key, then name; the one that one is in is marked."""
        here = self.get_component_rich_style("room-bar--here")
        key_style = self.get_component_rich_style("room-bar--key")
        text = Text(no_wrap=True, overflow="crop")
        for name, key, label in self._pieces():
            if name == self._here:
                text.append(f"{key}{label}", here)
            else:
                text.append(key, key_style).append(label)
            text.append(" ")
        return text

    def on_click(self, event: events.Click) -> None:
        """To the room under the mouse."""
        at = 0
        for name, key, label in self._pieces():
            at += len(key) + len(label)
            if event.x < at:
                self.call_later(self.app.run_action, f"app.room('{name}')")
                return
            at += 1
