"""What does a person want to note of a run? Three lines, of which at least one says something."""

from collections.abc import Callable, Mapping
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label, Static

from eagle3ops.screens.base import named

FIELDS = (
    ("hypothesis", "Hypothesis: what was expected, and why"),
    ("change", "Change: what was done differently"),
    ("outcome", "Outcome: what came of it"),
)


class NoteForm(ModalScreen[dict[str, str]]):
    """What was typed, with `save` to say whether it is to be kept; a note that was given up is not lost."""

    CSS_PATH = "note_form.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        *named(
            "note",
            [
                Binding("ctrl+s", "save", "Save", tooltip="Add the note to the run"),
                Binding("escape", "leave", "Not now", tooltip="Leave; what was typed is there when one comes back"),
            ],
        )
    ]

    def __init__(
        self,
        run_id: str,
        draft: Mapping[str, str],
        last: Mapping[str, str],
        typing: Callable[[dict[str, str]], object] = lambda typed: None,
    ) -> None:
        super().__init__()
        self._run_id, self._draft, self._last, self._typing = run_id, draft, last, typing

    def compose(self) -> ComposeResult:
        """One field a line; what was said last time shines through an empty one."""
        with Vertical(id="dialog"):
            yield Static(Text(f"A note on {self._run_id}", style="bold"))
            for name, label in FIELDS:
                yield Label(Text(label))
                yield Input(self._draft.get(name, ""), placeholder=self._last.get(name, ""), id=name)
            with Horizontal(id="buttons"):
                yield Button(Text("Not now (Escape)"), id="no")
                yield Button(Text("Save (Enter)"), id="yes", variant="success")

    def on_mount(self) -> None:
        """Begin with the first field."""
        self.query_one("#hypothesis", Input).focus()

    def _typed(self) -> dict[str, str]:
        return {name: self.query_one(f"#{name}", Input).value for name, _ in FIELDS}

    def on_input_changed(self, _: Input.Changed) -> None:
        """Whoever keeps what is typed is told."""
        self._typing(self._typed())

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter saves."""
        self.action_save()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """A button was chosen."""
        if event.button.id == "yes":
            self.action_save()
        else:
            self.action_leave()

    def action_save(self) -> None:
        """Keep it, if it says anything."""
        typed = self._typed()
        if any(text.strip() for text in typed.values()):
            self.dismiss({**typed, "save": "yes"})
        else:
            self.notify("The note says nothing yet.", severity="warning")

    def action_leave(self) -> None:
        """Leave."""
        self.dismiss(self._typed())
