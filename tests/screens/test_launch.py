"""The launch room fills in, explains, plans, asks and starts exactly once; and nothing that was typed is lost."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from screen_text import shown, until
from textual.pilot import Pilot
from textual.widgets import Input, TextArea

from eagle3ops.errors import Eagle3opsError, HostUnreachable, Refused, RequestError
from eagle3ops.hosts.link import LinkState
from eagle3ops.locations import state_folder
from eagle3ops.runs.directory import find_run
from eagle3ops.screens.app import ConsoleApp
from eagle3ops.screens.launch.desk import Desk, Start
from eagle3ops.screens.launch.draft import Drafts
from eagle3ops.screens.launch.room import Launch
from eagle3ops.screens.launch.verdict import plan_words, short_words, summary
from eagle3ops.screens.widgets.confirm import Confirm, ConfirmByName
from eagle3ops.screens.widgets.glyphs import BLOCKS
from eagle3ops.screens.widgets.lines import Table
from eagle3ops.settings import resolve
from eagle3ops.spec.models import Pipeline

SPEC = """\
# what we try
schema: 1
name: toys
target: {model: x}
stages:
  make:
    parts: 3  # few
"""


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root, and a pipeline file of jobs that need no model; both in one folder."""
    folder = str(Path(__file__).parents[1] / "runs")
    monkeypatch.setenv("EAGLE3OPS_JOBS", "toy_jobs")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([folder, str(tmp_path), *sys.path]))
    monkeypatch.syspath_prepend(folder)
    (tmp_path / "toy_code.py").write_text("VERSION = 1\n")
    (tmp_path / "toys.yaml").write_text(SPEC)
    return tmp_path


async def told(pilot: "Pilot[int]", words: str) -> None:
    """Wait for a toast with these words."""
    for _ in range(600):
        if any(words in f"{toast.title} {toast.message}" for toast in pilot.app._notifications):
            return
        await pilot.pause(0.05)
    raise AssertionError([toast.message for toast in pilot.app._notifications])


def _files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def console(folder: Path, **options: object) -> ConsoleApp:
    return ConsoleApp(str(folder / "root"), resolved=resolve(options))


async def opened(pilot: "Pilot[int]", folder: Path) -> Launch:
    """The room, with the toys in it."""
    await pilot.press("0")
    await until(pilot, "demo.yaml")
    await pilot.press("o")
    await until(pilot, "Start from", "come with eagle3ops")
    pilot.app.screen.query_one(Input).value = str(folder / "toys.yaml")
    await until(pilot, "that file, on")
    await pilot.press("enter")
    await until(pilot, "toys.yaml, unchanged", "use")
    assert isinstance(pilot.app.screen, Launch)
    return pilot.app.screen


async def to_field(pilot: "Pilot[int]", words: str) -> None:
    """Find a setting and put the cursor on it."""
    await pilot.press("slash")
    pilot.app.screen.query_one("#words", Input).value = words
    await until(pilot, f"only: {words}")
    await pilot.press("enter", "down")
    await pilot.pause()


async def test_fill_in_mend_start_and_land_in_the_run(toys: Path) -> None:
    app = console(toys)
    async with app.run_test(size=(130, 36)) as pilot:
        room = await opened(pilot, toys)
        await until(pilot, "● runs", "GiB free", "Plan of the pipeline   read")
        await to_field(pilot, "make.parts")
        await pilot.press("enter")
        await pilot.press(*"many", "enter")
        text = await until(pilot, "1 changed, 1 wrong", "1 to mend")
        assert text.count("stages.make.parts: expected a whole number, got 'many'") >= 1
        await pilot.press("S")
        await told(pilot, "Not started: to mend first")
        await pilot.press("enter")
        await pilot.press("2", "enter")
        await until(pilot, "◆ parts", "changed", "at the start 3", "● runs")
        assert room.desk.form is not None
        assert room.desk.form.text == SPEC.replace("3  # few", "2  # few")
        await pilot.press("y")
        await told(pilot, "--set stages.make.parts=2")
        await pilot.press("S")
        await until(pilot, "Start the pipeline toys?", "Runs make, use, end")
        await pilot.press("n")
        held, app.link.state = app.link.state, LinkState("waiting", wait_s=9.0)
        await until(pilot, "STALE: local is waiting")
        await pilot.press("S")
        await told(pilot, "Nothing can be started until it is back")
        app.link.state = held
        await pilot.press("S")
        await until(pilot, "Start the pipeline toys?")
        await pilot.press("y")
        await told(pilot, ": started")
        assert app.current_mode == "run"
        run = find_run(toys / "root", "last")
        assert app.runs.selected == run.run_id
        assert run.request()["source"].endswith("toys.yaml, changed in the console")
        await pilot.press("0")
        await until(pilot, f"the pipeline of {run.run_id}, unchanged")
        assert _files(state_folder() / "launch") == []
        deadline = time.monotonic() + 30
        while run.status() != "done" and time.monotonic() < deadline:
            await pilot.pause(0.1)
    assert run.status() == "done"
    assert len(_files(toys / "root" / "runs")) == 1


async def test_what_does_not_fit_is_started_only_by_name(toys: Path) -> None:
    (toys / "toys.yaml").write_text(SPEC.replace("parts: 3", f"forecast_bytes: {1 << 60}"))
    app = console(toys)
    async with app.run_test(size=(130, 36)) as pilot:
        await opened(pilot, toys)
        await until(pilot, "REFUSED", "disk: 1024.0 PiB are forecast", "→ free some space")
        await pilot.press("S")
        await until(pilot, "Refused: the pipeline toys does not fit")
        await pilot.press("escape", "S")
        await until(pilot, "Refused: the pipeline toys does not fit")
        await pilot.press("y")
        await until(pilot, "against the forecast?")
        await pilot.press("escape")
        await pilot.pause()
        assert not isinstance(app.screen, Confirm | ConfirmByName)
        assert not (toys / "root" / "runs").exists()
        await pilot.press("S")
        await until(pilot, "Refused:")
        await pilot.press("y")
        await until(pilot, "against the forecast?")
        await pilot.press(*"toys", "enter")
        await told(pilot, ": started")
        run = find_run(toys / "root", "last")
        assert run.request()["forced"] is True
        deadline = time.monotonic() + 30
        while run.alive() and time.monotonic() < deadline:
            await pilot.pause(0.1)


async def test_small_terminal_text_pages_and_drafts(toys: Path) -> None:
    app = console(toys, ascii=True)
    async with app.run_test(size=(80, 24)) as pilot:
        room = await opened(pilot, toys)
        await until(pilot, "plan: 3 run")
        await pilot.press("p")
        await until(pilot, "* runs", "memory not forecast")
        assert "toys.yaml" not in shown(app)
        await pilot.press("escape", "v")
        await until(pilot, "# what we try")
        area = room.query_one("#text", TextArea)
        assert app.focused is area
        area.text = SPEC + "\x1b[31m  use: {mode: hnag}\n  usee: [1\n"
        await until(pilot, "no YAML", "x ")
        assert "\x1b" not in area.text
        area.text = SPEC + "  use: {mode: hnag}\n"
        await until(pilot, "line 8:", "stages.use.mode", "did you mean 'hang'?")
        await pilot.press("escape", "n")
        await until(pilot, "x mode", "hnag", "wrong")
        await pilot.press("space", "left")
        await until(pilot, "plan: 3 run", "changed")
        await pilot.press("r")
        await until(pilot, "unchanged")
        await to_field(pilot, "use passed")
        await pilot.press("space")
        await until(pilot, "false", "1 changed")
        await pilot.press("escape")
        # Whatever kills the console now: it is on the disk.
        await pilot.pause(0.6)
        (kept,) = _files(state_folder() / "launch")
        assert "passed: false" in json.loads(kept.read_text())["text"]
        text = shown(app)
        assert all(ord(character) < 128 for character in text.replace("⭘", "")), text
        await pilot.press("escape")
        await pilot.pause(0.2)
        assert app.current_mode == "overview"
    app = console(toys, read_only=True)
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("0")
        text = await until(pilot, "1 changed: toys.yaml", "Find")
        await told(pilot, "Draft taken up")
        assert "Start" not in text.splitlines()[-1]
        room = app.screen  # type: ignore[assignment]
        await pilot.press("S", "w")
        await pilot.pause(0.2)
        assert app.screen is room
        await pilot.press("R")
        await until(pilot, "toys.yaml, unchanged")
        await told(pilot, "o lists it")
        await pilot.press("o")
        await until(pilot, "put away earlier", "toys.yaml, changed")
        await pilot.press("enter")
        await until(pilot, "1 changed: toys.yaml")


async def test_save_as_asks_before_it_replaces_and_the_mouse_works(toys: Path) -> None:
    app = console(toys)
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(pilot, toys)
        rows = shown(app).splitlines()
        at = next(number for number, row in enumerate(rows) if " seed " in row)
        await pilot.click("#form", offset=(10, at - 2), times=2)
        await until(pilot, "Editing: Enter takes it")
        await pilot.press("7", "enter")
        await until(pilot, "◆ seed", "1 changed")
        await pilot.press("w")
        await until(pilot, "Save the pipeline file as")
        await pilot.press("enter")
        await until(pilot, "Replace")
        await pilot.press("n")
        assert (toys / "toys.yaml").read_text() == SPEC
        await pilot.press("w")
        await until(pilot, "Save the pipeline file as")
        app.screen.query_one(Input).value = str(toys / "other.yaml")
        await pilot.press("enter")
        await until(pilot, "other.yaml, unchanged")
        assert (toys / "other.yaml").read_text() == SPEC + "seed: 7\n"
        # Another line is selected while a field is only on its way to the keys: it must not keep them, unseen.
        table = app.screen.query_one("#form", Table)
        table.focus()
        await pilot.press("enter")
        table.action_edge(False)
        await until(pilot, "job: one of")
        await pilot.press("1")
        await until(pilot, "Needs a decision")


class Host:
    """Answers as a host does, until told otherwise."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.failures: list[Exception] = []

    async def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        self.asked.append((op, arguments))
        if op == "runs.place" and self.failures:
            raise self.failures.pop(0)
        answers: dict[str, dict[str, Any]] = {
            "spec.schema": {"schema": {"properties": {"seed": {"type": "integer"}}}, "jobs": ["pipeline"]},
            "spec.check": {"problems": []},
            "runs.plan": {"stages": []},
            "spec.of_run": {"run": "r1", "text": "seed: 5\n", "path": "/r/spec.yaml"},
            "runs.place": {"run": "r2", "path": "/r2", "fresh": True},
        }
        return answers[op]

    @property
    def keys(self) -> list[str]:
        return [arguments["key"] for op, arguments in self.asked if op == "runs.place"]


def desk(host: Host, folder: Path) -> Desk:
    return Desk(host.ask, "local", None, lambda: 1.0, Drafts("local", "", folder))


async def test_a_start_whose_answer_was_lost_keeps_its_key_over_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host()
    one = desk(host, tmp_path)
    await one.open()
    assert one.form is not None
    one.form.write("seed: 3\n")
    host.failures = [HostUnreachable("gone"), HostUnreachable("gone")]
    for _ in range(2):
        with pytest.raises(HostUnreachable):
            await one.place(forced=False)
    monkeypatch.setattr("eagle3ops.screens.launch.draft.is_alive", lambda data: False)
    other = desk(host, tmp_path)
    await other.open()
    await other.place(forced=False)
    assert len(set(host.keys)) == 1
    # What was started is no draft any more, and the next start is another one.
    assert _files(tmp_path) == []
    await other.place(forced=False)
    assert len(set(host.keys)) == 2


async def test_a_refused_start_and_another_text_have_other_keys(tmp_path: Path) -> None:
    host = Host()
    one = desk(host, tmp_path)
    await one.open()
    assert one.form is not None
    host.failures = [Refused("full"), HostUnreachable("gone")]
    with pytest.raises(Refused):
        await one.place(forced=False)
    with pytest.raises(HostUnreachable):
        await one.place(forced=True)
    one.form.write("seed: 4\n")
    await one.place(forced=False)
    assert len(set(host.keys)) == 3


async def test_beginning_with_a_run_puts_away_what_was_typed(tmp_path: Path) -> None:
    host = Host()
    one = desk(host, tmp_path)
    await one.open()
    assert one.form is not None
    one.form.write("seed: 3\n")
    await one.begin(Start("run", "r1", "r1"))
    assert one.form.text == "seed: 5\n"
    assert one.form.command("local", None)[0] == "eagle3ops --job pipeline --spec /r/spec.yaml"
    (away,) = [start for start in await one.starts([]) if start.kind == "draft"]
    await one.begin(away)
    assert one.form.text == "seed: 3\n"


async def test_a_host_that_does_not_know_the_question_is_told_of(tmp_path: Path, toys: Path) -> None:
    app = console(toys)
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, "connected")

        async def refuse(op: str, **_: Any) -> dict[str, Any]:
            raise RequestError(f"there is no op {op}", remedy="install a newer eagle3ops there")

        app.runs.ask = refuse  # type: ignore[method-assign]
        await pilot.press("0")
        await until(pilot, "there is no op spec.schema", "install a newer", "ctrl+l asks again")


async def test_files_of_this_machine_go_to_another_one_with_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def send(caller: Any, pipeline: Pipeline, tell: Any) -> Pipeline:
        await caller.call("spec.check", spec_text="")
        tell("sent")
        return pipeline.model_copy(update={"seed": 77})

    monkeypatch.setattr("eagle3ops.hosts.uploads.with_files_there", send)
    host, heard = Host(), list[str]()
    one = Desk(host.ask, "gpu", None, lambda: 1.0, Drafts("gpu", "", tmp_path))
    await one.open()
    assert one.form is not None
    one.form.write("schema: 1\nname: x\ntarget: {model: y}\n")
    await one.send_files(heard.append)
    await one.check()
    assert "seed: 77" in host.asked[-1][1]["spec_text"], "it is planned with the files where they are"
    await one.place(forced=False)
    assert heard == ["sent"]
    assert "seed: 77" in host.asked[-1][1]["spec_text"]
    # A host that is newer knows settings that this console cannot read; it gets the text as it is.
    one.form.write("schema: 1\nnew: x\n")
    await one.send_files(heard.append)
    await one.place(forced=False)
    assert host.asked[-1][1]["spec_text"] == "schema: 1\nnew: x\n"

    async def missing(op: str, **arguments: Any) -> dict[str, Any]:
        if op == "runs.plan":
            raise RequestError("stages.generate.prompts: /x: no such file", remedy="give one")
        return await host.ask(op, **arguments)

    one.ask = missing
    await one.check()
    assert one.form.problems[0].remedy == "where it is a file of this machine, S sends it there first; else give one"


async def test_a_plan_says_of_what_and_of_when_it_is(tmp_path: Path) -> None:
    host = Host()
    one = desk(host, tmp_path)
    assert plan_words(one, "connecting") == ("NO PLAN: local is connecting", False)
    assert plan_words(one, "connected") == ("Plan", False)
    await one.open()
    await one.check()
    assert one.form is not None
    assert plan_words(one, "connected")[0].startswith("Plan of the pipeline   read ")
    assert short_words(one, "connected", BLOCKS) == "plan: all done already"
    assert plan_words(one, "waiting") == (plan_words(one, "waiting")[0], True)
    assert "STALE: local is waiting" in plan_words(one, "waiting")[0]
    assert short_words(one, "waiting", BLOCKS) == "plan: STALE"
    one.form.write("seed: 8\n")
    title, stale = plan_words(one, "connected")
    assert stale
    assert title.startswith("BEING COMPUTED; below: of ")
    assert title.endswith(", before the last change")
    assert short_words(one, "connected", BLOCKS) == "plan: being computed"
    one.placing = True
    assert plan_words(one, "waiting")[0] == "STARTING: the answer of local is awaited (waiting)"
    assert summary(one, "local") == ""


async def test_a_judgement_is_of_its_text_only(tmp_path: Path) -> None:
    host = Host()
    one = desk(host, tmp_path)
    await one.open()
    assert one.form is not None
    await one.check()
    assert one.fresh is not None
    one.form.write("seed: 9\n")
    assert one.fresh is None

    async def fail(op: str, **_: Any) -> dict[str, Any]:
        raise Eagle3opsError("no")

    one.ask = fail
    await one.check()
    assert one.fresh is None
    assert one.trouble is not None
