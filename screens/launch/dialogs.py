"""What does the form ask in a window of its own? What to start from, and where a file is or shall be."""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Footer, Input, OptionList, Static
from textual.widgets.option_list import Option

from eagle3ops.screens.base import named
from eagle3ops.screens.launch.desk import Start

GROUPS = {"draft": "put away earlier", "bundled": "come with eagle3ops", "run": "pipeline files of runs"}


class ChooseStart(ModalScreen[Start | None]):
    """A list that typing narrows down; a path names a file of this machine."""

    PLACE = "Start from"
    CSS_PATH = "dialogs.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        *named(
            "choose-start",
            [
                Binding("escape", "keep", "Leave it", tooltip="Go on with what is in the form"),
                Binding("down", "move(1)", "Down", show=False, tooltip="The next one"),
                Binding("up", "move(-1)", "Up", show=False, tooltip="The one before"),
            ],
        )
    ]

    def __init__(self, starts: Sequence[Start]) -> None:
        super().__init__()
        self._starts = list(starts)
        self._shown: list[Start] = []

    def compose(self) -> ComposeResult:
        """A field, and what there is below it."""
        with Vertical(id="dialog"):
            yield Input(placeholder="words to narrow it down, or the path of a local file", id="words")
            yield OptionList(id="starts")
        yield Footer()

    def on_mount(self) -> None:
        """Show all of it."""
        dialog = self.query_one("#dialog")
        dialog.border_title, dialog.border_subtitle = "Start from", "up, down and enter choose"
        self._show("")
        self.query_one(Input).focus()

    def _show(self, typed: str) -> None:
        words = typed.lower().split()
        found = [
            start for start in self._starts if all(word in f"{start.label} {start.what}".lower() for word in words)
        ]
        if looks_like_path(typed):
            found.insert(0, Start("file", typed.strip(), "that file, on this machine", typed.strip()))
        self._shown = found
        options = self.query_one("#starts", OptionList)
        options.clear_options()
        rows: list[Option] = []
        group = ""
        for number, start in enumerate(found):
            if start.kind != group and start.kind in GROUPS:
                rows.append(Option(Text(GROUPS[start.kind], style="dim"), disabled=True))
            group = start.kind
            told = Text.assemble(f"  {start.label}", (f"  {start.what}" if start.what else "", "dim"))
            rows.append(Option(told, id=str(number)))
        options.add_options(rows or [Option(Text("Nothing here has these words.", style="dim"), disabled=True)])
        options.highlighted = next((at for at, row in enumerate(rows) if not row.disabled), None)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Narrow down as typed."""
        self._show(event.value)

    def on_input_submitted(self) -> None:
        """Take the one that is marked."""
        options = self.query_one("#starts", OptionList)
        if options.highlighted is not None:
            self._take(options.get_option_at_index(options.highlighted).id)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """One was clicked."""
        self._take(event.option.id)

    def _take(self, number: str | None) -> None:
        if number is not None:
            self.dismiss(self._shown[int(number)])

    def action_move(self, by: int) -> None:
        """Mark another one, while the field keeps the keys."""
        options = self.query_one("#starts", OptionList)
        if by > 0:
            options.action_cursor_down()
        else:
            options.action_cursor_up()

    def action_keep(self) -> None:
        """Start from nothing else."""
        self.dismiss(None)


def looks_like_path(typed: str) -> bool:
    """Whether a person means a file."""
    text = typed.strip()
    return text.startswith(("/", "~", "./", "../")) or "/" in text or text.endswith((".yaml", ".yml"))


class AskPath(ModalScreen[str | None]):
    """One line; None when the person declines."""

    PLACE = "Save as"
    CSS_PATH = "dialogs.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        *named("ask-path", [Binding("escape", "decline", "Not now", tooltip="Write no file")])
    ]

    def __init__(self, question: str, value: str, words: str) -> None:
        super().__init__()
        self._question, self._value, self._words = question, value, words

    def compose(self) -> ComposeResult:
        """The question, a field, and what will happen."""
        with Vertical(id="small"):
            yield Static(Text(self._question, style="bold"))
            yield Input(self._value, id="path")
            yield Static(Text(self._words))
        yield Footer()

    def on_mount(self) -> None:
        """Typing replaces what stands there."""
        self.query_one(Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter was pressed."""
        if event.value.strip():
            self.dismiss(event.value.strip())

    def action_decline(self) -> None:
        """Do without it."""
        self.dismiss(None)
