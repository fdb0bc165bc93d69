"""Shall it be done although the gate refuses? Only with a reason, which is recorded."""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from eagle3ops.screens.base import named


class Overrule(ModalScreen[str | None]):
    """The reason, or None for no."""

    DEFAULT_CSS = """
    Overrule { align: center middle; }
    Overrule #dialog { width: 76; max-width: 96%; height: auto; max-height: 94%; padding: 0 2; border: round $error; background: $surface; }
    Overrule #refusals { height: auto; max-height: 8; }
    Overrule Static { width: 1fr; }
    Overrule #buttons { height: auto; align-horizontal: right; }
    Overrule Button { margin-left: 2; }
    """  # noqa: E501  (a style sheet)
    BINDINGS: ClassVar[list[BindingType]] = [*named("overrule", [Binding("escape", "keep", "No")])]

    def __init__(self, question: str, refusals: Sequence[str], consequence: str, *, yes: str, no: str) -> None:
        super().__init__()
        self._question, self._refusals, self._consequence = question, refusals, consequence
        self._yes, self._no = yes, no

    def compose(self) -> ComposeResult:
        """What the gate says, what it would mean, a field for the reason; the button of the deed is off until then."""
        with Vertical(id="dialog"):
            yield Static(Text(self._question, style="bold"))
            with VerticalScroll(id="refusals"):
                for refusal in self._refusals:
                    yield Static(Text(f"✗ {refusal}"))
            yield Static(Text(self._consequence))
            yield Static(Text("Say why it is to be done all the same; it is recorded."))
            yield Input(id="reason", max_length=1000)
            with Horizontal(id="buttons"):
                yield Button(Text(f"{self._no} (Escape)"), id="no")
                yield Button(Text(f"{self._yes} (Enter)"), id="yes", variant="error", disabled=True)

    def on_mount(self) -> None:
        """The field has the focus."""
        self.query_one("#reason", Input).focus()

    def _reason(self) -> str:
        return self.query_one("#reason", Input).value.strip()

    def on_input_changed(self) -> None:
        """Another letter was typed."""
        self.query_one("#yes", Button).disabled = not self._reason()

    def on_input_submitted(self) -> None:
        """Enter does nothing without a reason."""
        if self._reason():
            self.dismiss(self._reason())

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """A button was chosen."""
        self.dismiss(self._reason() or None if event.button.id == "yes" else None)

    def action_keep(self) -> None:
        """Do nothing."""
        self.dismiss(None)
