"""Where shall one go? One line to type in."""

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from eagle3ops.screens.base import named


class Goto(ModalScreen[str]):
    """What was typed; nothing where the person thought better of it."""

    DEFAULT_CSS = """
    Goto { align: center middle; }
    Goto #dialog { width: 64; max-width: 90%; height: auto; border: round $accent; padding: 0 1; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [*named("goto", [Binding("escape", "leave", "Stay here")])]

    def __init__(self, question: str, value: str = "") -> None:
        super().__init__()
        self._question, self._value = question, value

    def compose(self) -> ComposeResult:
        """The question and a field."""
        with Vertical(id="dialog"):
            yield Static(Text(self._question))
            yield Input(self._value, id="where")

    def on_mount(self) -> None:
        """Type at once."""
        self.query_one("#where", Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter goes there."""
        self.dismiss(event.value.strip())

    def action_leave(self) -> None:
        """Go nowhere."""
        self.dismiss("")
