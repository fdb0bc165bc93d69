"""Whatever ends, starts or changes something asks first, names what it is about, and is absent where one only looks.

Which deeds there are is learnt from the rooms: one that is new and not in `DEEDS` fails here, and so does a key that
changes something without being declared as destructive.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from bench_worlds import bench_json, make_bench_run
from screen_text import shown, until
from stage import DONE, FAILED, NOW, canned_root, staged
from test_launch import opened, toys
from textual.pilot import Pilot
from textual.screen import ModalScreen
from textual.widgets import Input

from eagle3ops.operations import OPERATIONS
from eagle3ops.outputs import drafters as outputs
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.processes import identify
from eagle3ops.screens.app import ConsoleApp
from eagle3ops.screens.base import ConsoleScreen
from eagle3ops.screens.launch.desk import Desk
from eagle3ops.screens.launch.dialogs import AskPath
from eagle3ops.screens.ledger.note_form import NoteForm
from eagle3ops.screens.room import Room
from eagle3ops.screens.rooms import ROOMS
from eagle3ops.screens.widgets.confirm import Confirm, ConfirmByName

__all__ = ["toys"]  # a fixture
GOING, GOOD, BETTER = "20261130-085501-going-eeee", "20261130-010000-good-aaaa", "20261130-020000-better-bbbb"
CHANGING = {
    "runs.place", "runs.resume", "runs.cancel", "runs.gc", "runs.note", "runs.delete", "drafters.promote",
    "drafters.rollback", "file.begin", "file.write", "file.commit",
}  # fmt: skip
LOOKING = {
    "doctor", "drafters.list", "drafters.show", "file.read", "file.stat", "incidents.list", "ledger.rows", "log.cause",
    "log.follow", "log.lines", "log.list", "log.merged", "log.merged_search", "log.read", "log.search",
    "patches.journal", "ping",
    "runs.artifacts", "runs.bench", "runs.compare", "runs.diagnose", "runs.diff", "runs.environment", "runs.events",
    "runs.list", "runs.notes", "runs.plan", "runs.processes", "runs.show", "runs.state", "runs.tokens", "runs.wiring",
    "spec.check", "spec.of_run", "spec.schema", "telemetry.inventory", "telemetry.watch",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Deed:
    """What a destructive action has to do before it does anything."""

    room: str
    action: str
    run: str
    """The one that is selected."""
    asks: type[ModalScreen[Any]] | None
    """None: it asks nothing, and `why`."""
    words: str
    """That the question has to contain; they name the target."""
    agrees: Sequence[str]
    """The keys that say yes; `=TEXT` types TEXT into the field."""
    op: str
    """What the host is asked to do then."""
    about: tuple[str, str] = ("run", "")
    """An argument of it, and what it is; the run, where that is empty."""
    why: str = ""


RESUME = Deed(
    "", "resume", FAILED, None, "", (), "runs.resume", why="it ends nothing, and cancel takes it back without a loss"
)
CANCEL = Deed("", "cancel", GOING, Confirm, f"Cancel the run {GOING}?", ("y",), "runs.cancel")
DEEDS = [
    *(replace(deed, room=room) for room in ("overview", "run", "incidents", "ledger") for deed in (RESUME, CANCEL)),
    Deed("ledger", "delete", DONE, ConfirmByName, f"Delete the run {DONE}?", (f"={DONE}", "enter"), "runs.delete"),
    Deed("ledger", "note", DONE, NoteForm, f"A note on {DONE}", ("=so far so good", "enter"), "runs.note"),
    Deed("bench", "promote", BETTER, Confirm, f"Promote {BETTER} at 3/1/4?", ("y",), "drafters.promote"),
    Deed(
        "bench", "roll_back", BETTER, Confirm, f"Roll back from {GOOD} at 3/1/4?", ("y",), "drafters.rollback",
        ("target", "ab" * 32),
    ),
    Deed("launch", "start", DONE, Confirm, "Start the pipeline toys?", ("y",), "runs.place", ("job", "pipeline")),
    Deed("launch", "save", DONE, AskPath, "Save the pipeline file as", ("=new.yaml", "enter"), "save",
         ("path", "new.yaml")),
]  # fmt: skip


def kinds() -> dict[str, type[ConsoleScreen[None]]]:
    """The rooms' screens."""
    found = {entry.name: type(entry.make()) for entry in ROOMS}
    assert all(issubclass(kind, ConsoleScreen) for kind in found.values())
    return found  # type: ignore[return-value]


def deeds_of(kind: type[object]) -> set[str]:
    """The destructive actions of a screen, inherited ones too."""
    return {action for base in kind.__mro__ for action in vars(base).get("DESTRUCTIVE", ())}


def keys_of(kind: type[object], action: str) -> list[str]:
    """The keys of an action of a screen."""
    bindings = (each for base in kind.__mro__ for each in vars(base).get("BINDINGS", ()))
    return [key for each in bindings if each.action.partition("(")[0] == action for key in each.key.split(",")]


def test_every_deed_of_every_room_is_in_the_table() -> None:
    there = {(room, action) for room, kind in kinds().items() for action in deeds_of(kind)}
    assert there == {(deed.room, deed.action) for deed in DEEDS}
    assert len(DEEDS) == len(there)
    assert [deed.action for deed in DEEDS if deed.asks is None and not deed.why] == []
    for room, action in there:
        assert keys_of(kinds()[room], action), (room, action)


def test_every_op_is_known_to_look_or_to_change() -> None:
    assert not CHANGING & LOOKING
    assert set(OPERATIONS) == CHANGING | LOOKING


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Runs of each kind: done, failed, going on with an incident, promoted, better than that."""
    root = canned_root(tmp_path)
    going = RunDirectory(root / "runs" / GOING)
    going.logs.mkdir(parents=True)
    request = {"job": "pipeline", "stages": ["train"], "cache": "", "source": "x", "created": NOW - 299.0}
    (going.path / "request.json").write_text(json.dumps(request))
    state = {"status": "running", "job": "pipeline", "started": NOW - 299.0, "stages": {"train": {"status": "running"}}}
    (going.path / "state.json").write_text(json.dumps(state))
    me = identify(os.getpid())
    assert me is not None
    (going.path / "supervisor.json").write_text(json.dumps(asdict(me) | {"heartbeat": time.time()}))
    odd = {"id": "w1", "title": "a deadlock", "severity": "error"}
    event = {"seq": 1, "ts": NOW - 60.0, "stage": "train", "kind": "incident", "data": odd}
    going.events_file.write_text(json.dumps(event) + "\n")
    make_bench_run(root, GOOD)
    make_bench_run(root, BETTER, bench_json(low=1.5, value=1.7, high=1.9))
    outputs.promote(root, run=GOOD)
    return root


def watched(app: ConsoleApp, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What the host is asked to change, none of which reaches it."""
    changes: list[tuple[str, dict[str, Any]]] = []
    ask = app.link.call

    async def spied(op: str, **arguments: Any) -> dict[str, Any]:
        if op not in CHANGING or (op == "runs.delete" and not arguments.get("delete")):
            return await ask(op, **arguments)
        changes.append((op, arguments))
        return {"run": FAILED, "fresh": True}

    async def save(self: Desk, path: str, **_: Any) -> str:
        changes.append(("save", {"path": path}))
        return path

    monkeypatch.setattr(app.link, "call", spied)
    monkeypatch.setattr(Desk, "save", save)
    return changes


async def enter(pilot: "Pilot[int]", room: str, run: str) -> None:
    """Open a room with a run selected, and wait until it is about that one."""
    app = pilot.app
    assert isinstance(app, ConsoleApp)
    app.runs.select(run)
    await app.action_room(room)
    words = {
        "incidents": ["a deadlock", "train failed"],
        "bench": [run, "drafters of toy"],
        "launch": ["toys", "● runs"],
    }
    await until(pilot, *words.get(room, [run] if room != "ledger" else ["5 runs by newest"]))
    for _ in range(200):
        if app.runs.detail is not None and app.runs.detail.row.run_id == run:
            break
        await pilot.pause(0.02)
    if room == "incidents":
        await pilot.press("home", *["down"] * (run == FAILED))
        await until(pilot, f"─{run}")
    elif room == "ledger":
        await pilot.press("home")
        for _ in range(9):
            if f"─{run}" in shown(app):
                break
            await pilot.press("down")
            await pilot.pause(0.3)
        await until(pilot, f"─{run}")


async def until_true(pilot: "Pilot[int]", changes: Sequence[object]) -> None:
    """Wait until something was changed."""
    for _ in range(400):
        if changes:
            return
        await pilot.pause(0.02)
    raise AssertionError(f"nothing was done:\n{shown(pilot.app)}")


async def test_a_deed_asks_and_names_what_it_is_about(root: Path, toys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app, rooms = staged(root), kinds()
    async with app.run_test(size=(130, 40)) as pilot:
        changes = watched(app, monkeypatch)
        await until(pilot, "local: connected", "going-eeee")
        await opened(pilot, toys)
        for deed in DEEDS:
            await enter(pilot, deed.room, deed.run)
            room = app.screen
            (key,) = keys_of(rooms[deed.room], deed.action)
            if deed.asks is not None:
                for no in ([] if deed.asks is AskPath else ["enter"]) + ["escape"]:
                    if app.screen is room:
                        await pilot.press(key)
                    await until(pilot, deed.words)
                    assert isinstance(app.screen, deed.asks), deed
                    await pilot.press(no)
                    await pilot.pause()
                    assert changes == [], f"{deed}: {no} is no yes"
                assert app.screen is room, deed
                await pilot.press(key)
                await until(pilot, deed.words)
                for word in deed.agrees:
                    if word.startswith("="):
                        app.screen.query(Input).first().value = word[1:]
                    else:
                        await pilot.press(word)
            else:
                await pilot.press(key)
            await until_true(pilot, changes)
            ((op, arguments),) = changes
            name, wanted = deed.about
            assert (op, arguments[name]) == (deed.op, wanted or deed.run), deed
            changes.clear()


@pytest.mark.parametrize("read_only", [True, False])
async def test_no_other_key_changes_anything(root: Path, monkeypatch: pytest.MonkeyPatch, read_only: bool) -> None:
    """All keys of all rooms but those of deeds; and where one only looks, just those."""
    app, rooms, seen, bases = staged(root, read_only=read_only), kinds(), list[Room](), set[type]()
    async with app.run_test(size=(130, 40)) as pilot:
        changes = watched(app, monkeypatch)
        await until(pilot, "local: connected", "going-eeee")
        for room, kind in rooms.items():
            await app.action_room(room)
            screen = app.screen
            assert isinstance(screen, Room)
            seen.append(screen)
            app.runs.select(FAILED)
            await pilot.pause(0.3)
            if read_only:
                titles = {command.title for command in app.get_system_commands(app.screen)}
                for action in deeds_of(kind):
                    assert screen.check_action(action, ()) is False
                    assert not set(keys_of(kind, action)) & set(screen.active_bindings), (room, action)
                    assert not set(labels_of(kind, action)) & titles, (room, action)
            for key in pressed(kind, bases, deeds=read_only):
                await pilot.press(key)
                assert changes == [], f"{room}: {key}"
                for _ in range(4):
                    if app.screen is screen and not isinstance(app.focused, Input):
                        break
                    await pilot.press("escape")
                await app.action_room(room)
                assert app.screen is screen, f"{room}: {key}"
        await pilot.pause(0.3)
        assert changes == []
        # While the console closes, timers of rooms go on after the screens are gone.
        screens = app._screen_stack[:]
        app._screen_stack.clear()
        assert [room for room in seen if room.visible_now] == []
        app._screen_stack.extend(screens)


def labels_of(kind: type[object], action: str) -> Iterator[str]:
    """What an action is called in the palette."""
    for base in kind.__mro__:
        for each in vars(base).get("BINDINGS", ()):
            if each.action.partition("(")[0] == action:
                yield each.description


def pressed(kind: type[object], bases: set[type], *, deeds: bool) -> list[str]:
    """The keys of a room: those of its deeds, and Enter, or all the others, but those of `bases` that it adds to."""
    own = [base for base in kind.__mro__ if base.__module__.startswith("eagle3ops") and (deeds or base not in bases)]
    bases.update(own)
    bindings = [each for base in own for each in vars(base).get("BINDINGS", ())]
    mine = [each for each in bindings if deeds is (each.action.partition("(")[0] in deeds_of(kind))]
    keys = [key for each in mine for key in each.key.split(",")]
    return list(dict.fromkeys(["enter", "enter", *keys] if deeds else keys))
