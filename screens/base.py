"""What do all screens have in common? Actions with names that a keymap can use, and a console that only looks."""

import dataclasses
from collections.abc import Iterable
from typing import ClassVar, TypeVar

from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.worker import Worker, WorkerState

Result = TypeVar("Result")


def named(room: str, bindings: Iterable[Binding]) -> list[BindingType]:
    """The bindings with names for the keymap: the action `cancel` of the room `overview` is `overview.cancel`."""
    return [dataclasses.replace(binding, id=f"{room}.{_plain_action(binding.action)}") for binding in bindings]


def _plain_action(action: str) -> str:
    """`answer(True)` -> `answer-true`, `app.focus_next` -> `focus-next`."""
    called, _, rest = action.partition("(")
    name = called.rpartition(".")[2]
    words = [word for part in rest.rstrip(")").split(",") if (word := part.strip().strip("'\"").lower())]
    return "-".join([name, *(word.replace("-", "minus-") for word in words)]).replace("_", "-")


class ConsoleScreen(Screen[Result]):
    """A screen whose destructive actions are gone where the console only looks."""

    PLACE: ClassVar[str] = ""
    """What the Help screen calls it; the name of the class where this is empty."""
    DESTRUCTIVE: ClassVar[frozenset[str]] = frozenset()
    """Actions that end, restart or delete something."""

    @property
    def read_only(self) -> bool:
        """Whether the console only looks."""
        return bool(getattr(self.app, "read_only", False))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """No key, and no hint in the footer, for what must not be done here."""
        if self.read_only and action in self.DESTRUCTIVE:
            return False
        return super().check_action(action, parameters)

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """A worker came to an end that nobody thought of: say so, and keep the traceback."""
        if event.state is WorkerState.ERROR and event.worker.error is not None:
            report = getattr(self.app, "report_defect", None)
            if report is not None:
                report(event.worker.error)
