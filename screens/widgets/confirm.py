"""Shall this really be done? A question that names what it is about."""

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from eagle3ops.screens.base import named


class Confirm(ModalScreen[bool]):
    """True for yes. Escape, `n` and a click beside it mean no."""

    CSS_PATH = "confirm.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        *named("confirm", [Binding("y", "answer(True)", "Yes"), Binding("n,escape", "answer(False)", "No")])
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
        """Answer the question."""
        self.dismiss(answer)


class ConfirmByName(ModalScreen[bool]):
    """For what cannot be undone: True only when the name of what is destroyed was typed in full."""

    CSS_PATH = "confirm.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        *named("confirm-by-name", [Binding("escape", "keep", "No")]),
    ]

    def __init__(self, question: str, consequence: str, *, name: str, yes: str, no: str) -> None:
        super().__init__()
        self._question, self._consequence, self._name_wanted = question, consequence, name
        self._yes, self._no = yes, no

    def compose(self) -> ComposeResult:
        """Question, consequence, a field for the name; the button of the deed stays off until it is right."""
        with Vertical(id="dialog"):
            yield Static(Text(self._question, style="bold"))
            yield Static(Text(self._consequence))
            yield Static(Text.assemble("Type ", (self._name_wanted, "bold"), " to go on."), id="wanted")
            yield Input(id="name")
            with Horizontal(id="buttons"):
                yield Button(Text(f"{self._no} (Escape)"), id="no")
                yield Button(Text(f"{self._yes} (Enter)"), id="yes", variant="error", disabled=True)

    def _right(self) -> bool:
        return self.query_one("#name", Input).value.strip() == self._name_wanted

    def on_input_changed(self) -> None:
        """Another letter was typed."""
        self.query_one("#yes", Button).disabled = not self._right()

    def on_input_submitted(self) -> None:
        """Enter does nothing until the name is right, and says so."""
        if self._right():
            self.dismiss(True)
        else:
            told = Text.assemble("✗ That is not ", (self._name_wanted, "bold"), ": nothing was done.")
            self.query_one("#wanted", Static).update(told)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """A button was chosen."""
        self.dismiss(event.button.id == "yes" and self._right())

    def action_keep(self) -> None:
        """Destroy nothing."""
        self.dismiss(False)
