"""Shall this really be done? A question that names what it is about."""

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Static


class Confirm(ModalScreen[bool]):
    """True for yes. Escape, `n` and a click beside it mean no."""

    CSS_PATH = "confirm.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape", "answer(False)", "No"),
    ]

    def __init__(self, question: str, consequence: str, *, yes: str, no: str) -> None:
        super().__init__()
        self._question, self._consequence = question, consequence
        self._yes, self._no = yes, no

    def compose(self) -> ComposeResult:
        """Question, consequence and two buttons; the harmless one has the focus."""
        with Vertical(id="dialog"):
            yield Static(Text(self._question, style="bold"))
            yield Static(Text(self._consequence))
            with Horizontal(id="buttons"):
                yield Button(Text(f"{self._no} (n)"), id="no")
                yield Button(Text(f"{self._yes} (y)"), id="yes", variant="error")

    def on_mount(self) -> None:
        """Enter alone must not destroy anything."""
        self.query_one("#no", Button).focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """A button was chosen."""
        self.dismiss(event.button.id == "yes")

    def action_answer(self, answer: bool) -> None:
        """A key was pressed."""
        self.dismiss(answer)
