"""Which keys are there, and what does each do? Read off the bindings themselves, never written by hand."""

from dataclasses import dataclass
from typing import ClassVar

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer, Input, Static

from eagle3ops.screens import choices
from eagle3ops.screens.base import named
from eagle3ops.words import plain


@dataclass(frozen=True, slots=True)
class KeyRow:
    """One action and its keys."""

    keys: str
    label: str
    what: str
    name: str
    """As a keymap names it; empty for what Textual's own widgets do."""
    shown: bool = True
    """Whether the footer shows it."""

    def matches(self, words: str) -> bool:
        """Whether every word occurs somewhere."""
        text = f"{self.keys} {self.label} {self.what} {self.name}".lower()
        return all(word in text for word in words.lower().split())


def here(screen: Screen[object]) -> dict[str, list[KeyRow]]:
    """What keys do on a screen as it stands, by where: its own, the focused pane's, everywhere."""
    app = screen.app
    found: dict[tuple[str, str], tuple[list[str], KeyRow]] = {}
    for node, binding, enabled, _ in screen.active_bindings.values():
        if not enabled or not (binding.description or binding.id):
            continue
        place = choices.where(type(node))
        row = KeyRow("", binding.description, choices.meaning(type(node), binding), binding.id or "", binding.show)
        keys, known = found.get((place, binding.action), ([], row))
        # An action that Textual binds too goes by our own words.
        found[place, binding.action] = (keys, known if known.name else row)
        keys.append(app.get_key_display(binding))
    sections: dict[str, list[KeyRow]] = {}
    for (place, _), (keys, row) in found.items():
        sections.setdefault(place, []).append(
            KeyRow(", ".join(dict.fromkeys(keys)), row.label or row.name, row.what, row.name, row.shown)
        )
    first = choices.where(type(screen))

    def order(item: tuple[str, list[KeyRow]]) -> tuple[bool, bool, bool]:
        # The screen's own actions first, then the pane's; what a list does with arrows is known.
        place, rows = item
        return place != first, not any(map(_own, rows)), place == EVERYWHERE

    return dict(sorted(sections.items(), key=order))


def _own(row: KeyRow) -> bool:
    return bool(row.name) and not row.name.startswith("lines.")


def elsewhere(shown: set[str], keymap: dict[str, str], *, read_only: bool) -> dict[str, list[KeyRow]]:
    """The actions of the other screens."""
    sections: dict[str, list[KeyRow]] = {}
    for action in choices.actions().values():
        if action.name in shown or action.where == EVERYWHERE or (read_only and action.destructive):
            continue
        keys = keymap[action.name].split(",") if action.name in keymap else action.keys
        row = KeyRow(", ".join(keys), action.label, action.what, action.name)
        sections.setdefault(action.where, []).append(row)
    return sections


EVERYWHERE = "everywhere"


class Help(ModalScreen[None]):
    """Keys of the screen that it was called from, then those of the others; typing narrows them down."""

    PLACE = "Help"
    CSS_PATH = "help.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        *named(
            "help",
            [
                Binding("escape,f1", "close", "Close", tooltip="Back to where you were"),
                Binding("down", "scroll(1)", "Down", show=False, tooltip="One line down"),
                Binding("up", "scroll(-1)", "Up", show=False, tooltip="One line up"),
                Binding("pagedown", "scroll(10)", "Page down", show=False, tooltip="Ten lines down"),
                Binding("pageup", "scroll(-10)", "Page up", show=False, tooltip="Ten lines up"),
            ],
        )
    ]

    def __init__(self, of: Screen[object], keymap: dict[str, str], *, read_only: bool) -> None:
        super().__init__()
        self._here = here(of)
        shown = {row.name for rows in self._here.values() for row in rows}
        self._elsewhere = elsewhere(shown, keymap, read_only=read_only)
        self._read_only = read_only

    def compose(self) -> ComposeResult:
        """A field to search in and the keys below."""
        with Vertical(id="dialog"):
            yield Input(placeholder="search: a key, an action, a word", id="words")
            with VerticalScroll(id="list", can_focus=False):
                yield Static(id="keys")
        yield Footer()

    def on_mount(self) -> None:
        """Show all of it."""
        dialog = self.query_one("#dialog")
        dialog.border_title = "Keys" + (" (read-only: what ends or resumes a run is off)" if self._read_only else "")
        dialog.border_subtitle = "change them: keymap in config.yaml (eagle3ops config path)"
        self._show("")
        self.query_one(Input).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Narrow down as typed."""
        self._show(event.value)

    def on_input_submitted(self) -> None:
        """Enter leaves the list as it is."""

    def action_close(self) -> None:
        """Back to where you were."""
        self.dismiss(None)

    def action_scroll(self, lines: int) -> None:
        """Move the list."""
        self.query_one("#list").scroll_relative(y=lines, animate=False)

    def _show(self, words: str) -> None:
        parts: list[Text | Table] = []
        for title, sections in (("", self._here), ("on other screens", self._elsewhere)):
            kept = {place: [row for row in rows if row.matches(words)] for place, rows in sections.items()}
            for place, rows in kept.items():
                if rows:
                    heading = f"{place}, {title}" if title else place
                    parts += [Text(heading, style="bold underline"), self._table(rows), Text()]
        if not parts:
            parts = [Text(f"No key does that: {plain(words)!r}. Escape closes.")]
        self.query_one("#keys", Static).update(Group(*parts))

    def _table(self, rows: list[KeyRow]) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, show_header=False, expand=True)
        table.add_column(width=14, style="bold", overflow="fold")
        table.add_column(ratio=3, overflow="fold")
        table.add_column(ratio=2, style="dim", overflow="fold")
        for row in sorted(rows, key=lambda row: (not row.name, not row.shown)):
            label = row.label if row.what in ("", row.label) else f"{row.label}: {row.what}" if row.label else row.what
            table.add_row(Text(row.keys), Text(label), Text(row.name))
        return table
