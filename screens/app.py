"""The console: what does a person see who types `eagle3ops`?"""

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen

from eagle3ops.screens.overview import Overview


class ConsoleApp(App[int]):
    """One root, its runs, and what can be done with them."""

    TITLE = "eagle3ops"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("q", "quit", "Quit")]

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root
        self.sub_title = str(root)

    def on_mount(self) -> None:
        """Open the overview."""
        self.push_screen(Overview(self.root))

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The palette: Textual's own commands and those of the overview."""
        yield from super().get_system_commands(screen)
        if isinstance(screen, Overview):
            yield SystemCommand("Resume run", "Take the selected run up again where it stopped", screen.action_resume)
            yield SystemCommand("Cancel run", "End the selected run; asks first", screen.action_cancel)


def main(root: Path) -> int:
    """Open the console on `root`; returns the exit code."""
    app = ConsoleApp(root)
    app.run()
    return app.return_code or 0
