"""Which line stands above all rooms, and which below? The title with the host, and the keys.

Textual's own header and footer are a widget for every key, made anew whenever the focus moves; these are one each, and
paint only when their text changes. The footer here leaves keys out, from the end, where the row is too short, and never
those that lead to help and out.
"""

import re
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual import events
from textual.screen import Screen
from textual.widget import Widget

FUNCTION_KEY = re.compile(r"f\d+")
LAST = frozenset({"quit", "help"})
"""Actions whose keys are always shown."""


class TitleBar(Widget):
    """The console's name, the host, and how the line to it stands."""

    DEFAULT_CSS = """
    TitleBar { dock: top; height: 1; background: $panel; color: $foreground; padding: 0 1; }
    """

    def on_mount(self) -> None:
        """Follow what the console says of itself."""
        self.watch(self.app, "title", self._changed, init=False)
        self.watch(self.app, "sub_title", self._changed, init=False)
        self.tooltip = "A click opens the command palette"

    def _changed(self) -> None:
        self.refresh()

    def render(self) -> Text:
        """One line."""
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(self.app.title, "bold")
        if self.app.sub_title:
            text.append(" — ", "dim").append(self.app.sub_title)
        return text

    def on_click(self) -> None:
        """The command palette."""
        self.call_later(self.app.run_action, "app.command_palette")


@dataclass(frozen=True, slots=True)
class Hint:
    """A key and what it does."""

    key: str
    """As it is shown."""
    label: str
    action: str
    enabled: bool
    press: str
    """The key as it is pressed."""

    @property
    def width(self) -> int:
        """Cells, with the blanks around it."""
        return cell_len(self.key) + cell_len(self.label) + 3


class KeyBar(Widget):
    """The keys that do something here; a click on one does it."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"key-bar--key", "key-bar--off"}
    DEFAULT_CSS = """
    KeyBar { dock: bottom; height: 1; background: $footer-background; color: $footer-foreground; }
    KeyBar > .key-bar--key { color: $footer-key-foreground; text-style: bold; }
    KeyBar > .key-bar--off { color: $footer-foreground 50%; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._hints: tuple[Hint, ...] = ()

    def on_mount(self) -> None:
        """Follow the focus and all else that changes the keys."""
        self.screen.bindings_updated_signal.subscribe(self, self._look)
        self.call_after_refresh(self._look, self.screen)

    def on_unmount(self) -> None:
        """Follow nothing any more."""
        self.screen.bindings_updated_signal.unsubscribe(self)

    def _look(self, screen: Screen[object]) -> None:
        if not screen.is_attached or self.app.app_focus is None:
            return
        found: dict[str, Hint] = {}
        palette = self.app.COMMAND_PALETTE_BINDING
        focused = screen.focused
        useless: frozenset[str] = getattr(screen, "useless", frozenset())
        typing = focused is not None and focused.check_consume_key("a", "a")
        for key, (_, binding, enabled, _) in screen.active_bindings.items():
            if binding.show or key == palette:
                name = self.app.get_key_display(binding)
                if typing and len(name) == 1:
                    # It would be typed. Another key of the same action may still do it: F1.
                    if not FUNCTION_KEY.fullmatch(key):
                        continue
                    name = key.upper()
                label = "palette" if key == palette else binding.description
                works = enabled and binding.action not in useless
                found.setdefault(binding.action, Hint(name, label, binding.action, works, binding.key))
        hints = tuple(found.values())
        if hints != self._hints:
            self._hints = hints
            self.refresh()

    def shown(self, width: int) -> list[Hint]:
        """Those for which there is room, in their order; what opens the help is always among them."""
        wanted = list(self._hints)
        while sum(hint.width for hint in wanted) > width:
            droppable = [hint for hint in wanted if hint.action not in LAST]
            if not droppable:
                break
            wanted.remove(droppable[-1])
        return wanted

    def render(self) -> Text:
        """Key and word, one after the other."""
        key, off = self.get_component_rich_style("key-bar--key"), self.get_component_rich_style("key-bar--off")
        text = Text(no_wrap=True, overflow="crop")
        for hint in self.shown(self.size.width):
            text.append(f" {hint.key}", key if hint.enabled else off)
            text.append(f" {hint.label} ", "" if hint.enabled else off)
        return text

    def on_click(self, event: events.Click) -> None:
        """Do what stands under the mouse."""
        at = 0
        for hint in self.shown(self.size.width):
            at += hint.width
            if event.x < at:
                if hint.enabled:
                    # As if it were pressed: the action may belong to the pane that has the focus.
                    self.app.simulate_key(hint.press)
                return
