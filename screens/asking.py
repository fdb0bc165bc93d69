"""How does a connection that needs a passphrase, or a yes, get it from the person at the console?"""

from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from eagle3ops.screens.base import named
from eagle3ops.screens.widgets.confirm import Confirm
from eagle3ops.words import plain


class Secret(ModalScreen[str | None]):
    """One line that is not shown; None when the person declines."""

    CSS_PATH = "widgets/confirm.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*named("secret", [Binding("escape", "decline", "Not now")])]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """The question and one field."""
        with Vertical(id="dialog"):
            yield Static(Text(self._question, style="bold"))
            yield Input(password=True, id="secret")
            yield Static(Text("Enter: use it, Escape: not now. It is kept in memory until the console ends."))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter was pressed."""
        self.dismiss(event.value)

    def action_decline(self) -> None:
        """Do without it."""
        self.dismiss(None)


class ConsolePrompts:
    """Asks the person at the console. Must be called from a Textual worker, as connections are made in one."""

    def __init__(self, app: "App[int]") -> None:
        self._app = app

    async def secret(self, question: str) -> str | None:
        """A passphrase or password; None when the person declines."""
        return await self._app.push_screen(Secret(plain(question)), wait_for_dismiss=True)

    async def confirm(self, question: str) -> bool:
        """Yes or no."""
        lines = question.splitlines() or [""]
        dialog = Confirm(plain(lines[0]), "\n".join(map(plain, lines[1:])), yes="Yes", no="No")
        return await self._app.push_screen(dialog, wait_for_dismiss=True) or False
