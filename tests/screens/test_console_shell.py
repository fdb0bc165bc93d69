"""The console looks only when told so, draws what the terminal can show, keeps what was chosen, and breaks politely."""

import json
import os
import stat
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from screen_text import until
from test_overview import make_run
from textual.binding import Binding, BindingsMap
from textual.widgets import Button, Input

from eagle3ops.errors import Eagle3opsError, RequestError
from eagle3ops.locations import crash_folder
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.events import EventLog
from eagle3ops.screens import choices, crash
from eagle3ops.screens.app import ENDING_S, ConsoleApp
from eagle3ops.screens.feeds.endings import Endings, environment, run_command
from eagle3ops.screens.feeds.watching import RunRow
from eagle3ops.screens.help import Help
from eagle3ops.screens.overview.room import Overview
from eagle3ops.screens.widgets.colours import ascii_only
from eagle3ops.screens.widgets.confirm import ConfirmByName
from eagle3ops.settings import config_file, resolve
from eagle3ops.watchdog.incidents.incident import Incident

RUN = "20261130-054512-demo-bbbb"
SECRET = "hf_" + "A1b2C3d4E5f6G7h8"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_run(tmp_path, "20261130-044512-older-aaaa", ended=time.time() - 7200)
    make_run(tmp_path, RUN, alive=True, status="running", exit_code=None, stages={"train": {"status": "running"}})
    return tmp_path


def with_settings(root: Path, text: str = "", **options: object) -> ConsoleApp:
    config_file().parent.mkdir(parents=True, exist_ok=True)
    config_file().write_text(text)
    return ConsoleApp(str(root), resolved=resolve(options))


async def test_read_only_has_no_destructive_keys(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    app = with_settings(root, read_only=True)
    async with app.run_test(size=(100, 30)) as pilot:
        text = await until(pilot, "● demo-bbbb", "read-only, local: connected", "q Quit")
        assert "Cancel" not in text
        assert "Resume" not in text
        overview = app.screen
        assert isinstance(overview, Overview)

        async def noted(*words: object, **more: object) -> dict[str, object]:
            asked.append(words)
            return {}

        monkeypatch.setattr(app.link, "call", noted)
        await pilot.press("c")
        await pilot.pause()
        assert isinstance(app.screen, Overview)
        titles = {command.title for command in app.get_system_commands(app.screen_stack[-1])}
        assert not {"Resume", "Cancel"} & titles
        overview.command("cancel", RUN)
        await pilot.pause()
        assert not [words for words in asked if "runs.cancel" in str(words)]
        await pilot.press("f1")
        text = await until(pilot, "read-only", "Close the console", "Try the line")
        assert "runs.cancel" not in text


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_help_is_made_of_the_bindings(root: Path, size: tuple[int, int]) -> None:
    app = with_settings(root, "schema: 1\nkeymap: {runs.cancel: 'X,ctrl+x'}\n")
    async with app.run_test(size=size) as pilot:
        await until(pilot, "● demo-bbbb", "X Cancel")
        await pilot.press("question_mark")
        text = await until(pilot, "X, ^x", "End the run", "runs.cancel")
        assert isinstance(app.screen, Help)
        assert "Take the run up again" in text
        assert next(iter(app.screen._here)) == "Overview", "the room's own keys come first"
        await pilot.press(*"close")
        await until(pilot, "Close the console", "everywhere")
        await pilot.press(*["backspace"] * 5, *"reconn")
        text = await until(pilot, "room.reconnect")
        assert "runs.cancel" not in text
        await pilot.press(*"zzz")
        await until(pilot, "No key does that")
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, Overview)
        await pilot.press("c")
        await pilot.pause()
        assert isinstance(app.screen, Overview), "the old key is gone"
        await pilot.press("X")
        await until(pilot, f"Cancel the run {RUN}?")


async def test_a_key_that_is_taken_away_is_said(root: Path) -> None:
    app = with_settings(root, "schema: 1\nkeymap: {runs.cancel: r}\n")
    async with app.run_test(size=(120, 30), notifications=True) as pilot:
        text = await until(pilot, "r Cancel", "takes 'r' from runs.resume")
        assert "Resume" not in text.splitlines()[-1]


def test_every_binding_has_a_name() -> None:
    choices.actions()
    nameless = [
        f"{kind.__module__}.{kind.__name__}: {binding.key}"
        for kind in choices.own_classes()
        for bindings in BindingsMap(kind.__dict__.get("BINDINGS", ())).key_to_bindings.values()
        for binding in bindings
        if binding.id is None
    ]
    assert nameless == [], 'put them in named("ROOM", [...]), so that a keymap and the Help screen know them'


def test_destructive_actions_exist() -> None:
    for kind in choices.own_classes():
        bound = BindingsMap(kind.__dict__.get("BINDINGS", ())).key_to_bindings.values()
        names = {binding.action.partition("(")[0] for bindings in bound for binding in bindings}
        assert getattr(kind, "DESTRUCTIVE", frozenset()) <= names | {name.removeprefix("action_") for name in dir(kind)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("schema: 1\nkeymap:\n  runs.cancle: x\n", (":3:3", "runs.cancle", "did you mean 'runs.cancel'")),
        ("schema: 1\nkeymap:\n  runs.cancel: contrl+x\n", (":3:3", "no modifier 'contrl'", "ctrl")),
        ("schema: 1\nkeymap:\n  runs.cancel: pageupp\n", (":3:3", "no key 'pageupp'", "pageup")),
        ("schema: 1\nkeymap:\n  runs.cancel: []\n", (":3:3", "no key")),
        ("schema: 1\ntheme: nrod\n", (":2:1", "no theme 'nrod'", "did you mean 'nord'")),
    ],
)
def test_choices_that_do_not_exist(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    with pytest.raises(RequestError) as refused:
        with_settings(tmp_path, text)
    assert all(word in str(refused.value) for word in words), str(refused.value)


@given(st.text(max_size=12))
def test_any_key_is_taken_or_refused(key: str) -> None:
    try:
        choices._require_key("here", "runs.cancel", key)
    except RequestError:
        return
    BindingsMap([Binding(key, "quit")])


async def test_ascii_draws_ascii_only(root: Path) -> None:
    app = with_settings(root, ascii=True)
    async with app.run_test(size=(100, 30)) as pilot:
        text = await until(pilot, "* demo-bbbb", "v older-aaaa")
        assert text.isascii()
        await pilot.press("c")
        assert (await until(pilot, "Cancel the run")).isascii()
        await pilot.press("escape", "f1")
        assert (await until(pilot, "Overview", "Keys")).isascii()


@given(st.text())
def test_ascii_is_as_wide_as_the_text(text: str) -> None:
    drawn = ascii_only(text)
    assert drawn.isascii()
    assert cell_len(drawn) == sum(map(cell_len, text)) or any(ord(character) < 32 for character in text)


async def test_no_color_has_no_colour(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = ConsoleApp(str(root))
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, "● demo-bbbb")
        segments = [segment for line in app.screen._compositor.render_strips() for segment in line]
        styles = [segment.style for segment in segments if segment.style is not None]
        assert not [style for style in styles if style.color or style.bgcolor]
        assert any(style.reverse for style in styles), "the selected run stands out"
    assert os.environ["NO_COLOR"] == "1"


async def test_a_theme_that_is_chosen_is_kept(root: Path) -> None:
    app = with_settings(root, "# mine\nschema: 1 # first\nnotify: {bell: false}\n")
    async with app.run_test() as pilot:
        await until(pilot, "demo-bbbb")
        app.theme = "nord"
        for _ in range(100):
            await pilot.pause(0.02)
            if "nord" in config_file().read_text():
                break
    assert config_file().read_text() == "# mine\nschema: 1 # first\ntheme: nord\nnotify: {bell: false}\n"
    assert ConsoleApp(str(root)).theme == "nord"
    assert ConsoleApp(str(root), resolved=resolve({"theme": "gruvbox"})).theme == "gruvbox"


def row(status: str, run_id: str = RUN) -> RunRow:
    return RunRow(run_id, run_id.split("-", 2)[-1], status, 0.0)


def test_an_ending_is_told_once() -> None:
    endings = Endings()
    assert endings.take([row("running"), row("done", "x")]) == []
    assert endings.take([]) == []
    assert endings.take([row("verdict FAIL"), row("done", "x")]) == [row("verdict FAIL")]
    assert endings.take([row("verdict FAIL")]) == []
    assert endings.take([row("running")]) == []
    assert endings.take([row("interrupted")]) == [row("interrupted")]


@given(
    st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["running", "done", "failed"])), max_size=3))
)
def test_only_what_ran_ends(readings: list[list[tuple[str, str]]]) -> None:
    endings, told, seen = Endings(), 0, 0
    for reading in readings:
        rows = [row(status, run_id) for run_id, status in dict(reading).items()]
        told += len(endings.take(rows))
        seen += sum(each.status == "running" for each in rows)
    assert told <= seen


async def test_an_ending_rings_and_runs_the_command(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "told"
    program = (
        "import os, sys; open(sys.argv[1], 'w').write("
        "','.join(os.environ['EAGLE3OPS_' + n] for n in ('RUN', 'NAME', 'STATUS', 'HOST'))); sys.exit(sys.argv[2])"
    )
    command = json.dumps([sys.executable, "-c", program, str(out), "boo; $(touch x) [b]"])
    app = with_settings(root, f"schema: 1\nrefresh: 0.2\nnotify: {{command: {command}}}\n")
    rung: list[int] = []
    app.bell = lambda: rung.append(1)  # type: ignore[method-assign]
    async with app.run_test(size=(120, 30), notifications=True) as pilot:
        await until(pilot, "● demo-bbbb")
        run_folder = RunDirectory(root / "runs" / RUN).path
        with EventLog(RunDirectory(run_folder).events_file) as log:
            root_cause = {"file": "engine.log", "line_no": 3, "offset": 9, "text": "ValueError: no\x1b room"}
            log.append("stage", {"status": "failed", "error": "exit code 1", "root": root_cause}, "train")
        (run_folder / "state.json").write_text(json.dumps({"status": "failed", "exit_code": 1, "job": "pipeline"}))
        (run_folder / "supervisor.json").unlink()
        await until(pilot, "✗ demo-bbbb", "notify.command failed")
        # Not looked for on the screen: where the line breaks depends on the interpreter's path.
        assert any("boo; $(touch x) [b]" in notice.message for notice in app._notifications)
        # The incident that it ended of is known too, and is not told a second time.
        app.incidents.hurry()
        for _ in range(200):
            await pilot.pause(0.05)
            if app.incidents.open:
                break
        assert app.incidents.open
        await pilot.pause(ENDING_S + 0.4)
        assert [notice.message for notice in app._notifications if RUN in notice.title] == [
            "failed: train: ValueError: no room (engine.log)\n5 opens Incidents."
        ]
    assert out.read_text() == f"{RUN},demo-bbbb,failed,local"
    assert rung == [1]


async def test_a_run_that_falls_silent_rings_and_runs_the_command_once(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "told"
    program = (
        "import os, sys; open(sys.argv[1], 'a').write("
        "','.join(os.environ['EAGLE3OPS_' + n] for n in ('RUN', 'NAME', 'STATUS', 'HOST')) + ';')"
    )
    command = json.dumps([sys.executable, "-c", program, str(out)])
    app = with_settings(root, f"schema: 1\nnotify: {{command: {command}}}\n")
    rung: list[int] = []
    app.bell = lambda: rung.append(1)  # type: ignore[method-assign]
    told = "train has said nothing for 2 min 05 s"
    quiet = Incident(id="1", kind="silent", severity="warn", title=told, first=1.0, last=126.0, run=RUN)
    async with app.run_test(size=(120, 30), notifications=True) as pilot:
        await until(pilot, "● demo-bbbb")
        app._incident_came(quiet)
        app._incident_came(replace(quiet, id="2", kind="warning"))
        await until(pilot, "has said nothing")
        for _ in range(200):
            if out.is_file() and out.read_text():
                break
            await pilot.pause(0.05)
    assert out.read_text() == f"{RUN},demo-bbbb,silent,local;"
    assert rung == [1]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["/not/there"], "cannot be started"),
        ([sys.executable, "-c", "import time; time.sleep(600)"], "took longer than 0.5 s"),
        ([sys.executable, "-c", f"import sys; print('no', '{SECRET}', file=sys.stderr); sys.exit(3)"], "code 3: no ["),
    ],
)
async def test_a_command_that_fails_says_so(argv: list[str], words: str) -> None:
    with pytest.raises(Eagle3opsError) as failed:
        await run_command(argv, environment(row("done"), "local"), 0.5 if "sleep" in argv[-1] else 60)
    assert words in str(failed.value)
    assert SECRET not in str(failed.value)


async def test_the_worst_is_confirmed_by_name(root: Path) -> None:
    app = with_settings(root)
    answers: list[bool | None] = []

    def ask() -> None:
        question = ConfirmByName(f"Delete {RUN}?", "It is gone then.", name=RUN, yes="Delete", no="Keep")
        app.push_screen(question, answers.append)

    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "demo-bbbb")
        for typed, key, wanted in (("", "escape", False), (RUN, "enter", True)):
            ask()
            await until(pilot, "Type 2026", "Keep")
            await pilot.press("enter", *"demo", "enter")
            await until(pilot, f"That is not {RUN}")
            assert len(answers) == int(wanted)
            assert app.screen.query_one("#yes", Button).disabled
            app.screen.query_one(Input).value = typed
            await pilot.pause()
            await pilot.press(key)
            await pilot.pause()
            assert answers[-1] is wanted


async def test_a_worker_that_breaks_leaves_a_report(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = with_settings(root)
    async with app.run_test(size=(120, 30), notifications=True) as pilot:
        await until(pilot, "demo-bbbb")

        async def broken(*_: object, **__: object) -> None:
            raise KeyError(f"token={SECRET}")

        monkeypatch.setattr(app.runs, "ask", broken)
        await until(pilot, "This is a defect of eagle3ops", "The report is in")
    reports = list(crash_folder().iterdir())
    text = reports[0].read_text()
    assert stat.S_IMODE(reports[0].stat().st_mode) == 0o600
    assert "KeyError" in text
    assert SECRET not in text


def test_a_report_says_what_is_needed_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    try:
        raise RuntimeError(f"\x1b[31mred, with token={SECRET}")
    except RuntimeError as error:
        text = crash.report(
            error, link="gpu: connected", screen="Overview", size="80x24", keys=["c", "(typed)", "enter"]
        )
    for words in ("RuntimeError", "gpu: connected", "xterm-256color", "c (typed) enter", "textual: 8", "Overview"):
        assert words in text
    assert SECRET not in text
    assert "\x1b" not in text


def test_reports_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLE3OPS_STATE", str(tmp_path))
    for _ in range(crash.KEPT + 3):
        assert crash.leave("x") is not None
    assert len(list((tmp_path / "crashes").iterdir())) == crash.KEPT
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EAGLE3OPS_STATE", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = crash.leave("y")
    assert path is not None
    assert path.read_text() == "y"


async def test_what_is_typed_into_a_field_is_not_remembered(root: Path) -> None:
    app = with_settings(root)
    async with app.run_test() as pilot:
        await until(pilot, "demo-bbbb")
        await pilot.press("f1", "s", "3", "escape")
        assert list(app._last_keys) == ["f1", "(typed)", "(typed)", "escape"]
