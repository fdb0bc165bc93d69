"""What do all screens have in common? Actions with names that a keymap can use, and a console that only looks."""

import dataclasses
from collections.abc import Iterable
from functools import partial
from typing import ClassVar, TypeVar

from textual.app import SystemCommand
from textual.binding import Binding, BindingsMap, BindingType
from textual.screen import Screen
from textual.worker import Worker, WorkerState

Result = TypeVar("Result")


def named(room: str, bindings: Iterable[Binding]) -> list[BindingType]:
    """The bindings with names for the keymap: the action `sort` of the room `gpus` is `gpus.sort`."""
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
        if self.read_only and any(action in vars(kind).get("DESTRUCTIVE", ()) for kind in type(self).__mro__):
            return False
        return super().check_action(action, parameters)

    def commands(self) -> Iterable[SystemCommand]:
        """What the screen's own keys do, for the command palette."""
        told: set[str] = set()
        for kind in type(self).__mro__:
            for binding in BindingsMap(kind.__dict__.get("BINDINGS", ())).key_to_bindings.values():
                for bound in binding:
                    if bound.id is None or not bound.description or bound.action in told:
                        continue
                    if bound.action.startswith("app."):
                        # The palette has what is everybody's once already.
                        continue
                    told.add(bound.action)
                    # `curve(1)` is the action `curve`.
                    if self.check_action(bound.action.partition("(")[0], ()):
                        yield SystemCommand(
                            bound.description, bound.tooltip, partial(self.run_action_here, bound.action)
                        )

    async def run_action_here(self, action: str) -> None:
        """Do what a key of this screen does."""
        await self.app.run_action(action, self)

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """A worker came to an end that nobody thought of: say so, and keep the traceback."""
        if event.state is WorkerState.ERROR and event.worker.error is not None:
            report = getattr(self.app, "report_defect", None)
            if report is not None:
                report(event.worker.error)
