"""The console shows what the run directories say, treats outside text as text, and asks before it ends anything."""

import asyncio
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual.pilot import Pilot
from textual.widgets import OptionList, Static

from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.events import EventLog
from eagle3ops.runs.processes import identify
from eagle3ops.screens.app import ConsoleApp
from eagle3ops.screens.confirm import Confirm
from eagle3ops.screens.overview import Overview
from eagle3ops.screens.watching import RunWatch, age, read_runs

EVIL = "[bold red]x[/] [@click=app.quit]y[/] \x1b[31m"


def make_run(root: Path, run_id: str, *, alive: bool = False, **state: Any) -> RunDirectory:
    run = RunDirectory(root / "runs" / run_id)
    run.path.mkdir(parents=True)
    (run.path / "request.json").write_text(json.dumps({"job": "pipeline", "stages": [], "cache": "", "source": "x"}))
    (run.path / "state.json").write_text(json.dumps({"status": "done", "exit_code": 0, "job": "pipeline"} | state))
    if alive:
        me = identify(os.getpid())
        assert me is not None
        (run.path / "supervisor.json").write_text(json.dumps(asdict(me) | {"heartbeat": time.time()}))
    return run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_run(tmp_path, "20261130-044512-older-aaaa", ended=time.time() - 7200)
    run = make_run(
        tmp_path,
        "20261130-054512-demo-bbbb",
        alive=True,
        status="running",
        exit_code=None,
        stages={
            "fetch": {"status": "done", "seconds": 8.3},
            "train": {"status": "running"},
            "serve": {"status": "waiting"},
        },
    )
    with EventLog(run.events_file) as log:
        log.append("stage", {"status": "running"}, "train")
        log.append("progress", {"done": 100, "total": 400, "unit": "steps"}, "train")
        log.append("info", {"text": EVIL}, "train")
        log.append("verdict", {"name": "wiring", "passed": False, "reason": EVIL}, "verify")
    lines = run.events_file.read_text().splitlines()
    later = json.loads(lines[1]) | {"seq": 5, "data": {"done": 200, "total": 400, "unit": "steps"}}
    later["ts"] += 10.0
    run.events_file.write_text("\n".join([*lines, json.dumps(later)]) + "\n")
    return tmp_path


async def settle(pilot: "Pilot[int]") -> None:
    """Until the reads that are under way have been shown."""
    for _ in range(3):
        await pilot.app.workers.wait_for_complete()
        await pilot.pause()


def shown(app: ConsoleApp) -> str:
    """The text of the screen, line by line."""
    width, height = app.size
    lines = app.screen._compositor.render_strips()
    assert len(lines) == height
    assert width
    return "\n".join(line.text for line in lines)


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_runs_and_the_selected_one(root: Path, size: tuple[int, int]) -> None:
    app = ConsoleApp(root)
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        text = shown(app)
    for expected in ("● demo-bbbb", "✓ older-aaaa", "done, 2 h", "train", "50%", "10.0 steps/s", "20 s left", "✗ FAIL"):
        assert expected in text, text
    assert "[bold red]x[/]" in text
    assert "\x1b" not in text
    assert "q Quit" in text
    assert "r Resume" in text


async def test_an_empty_root_says_what_to_do(tmp_path: Path) -> None:
    app = ConsoleApp(tmp_path / "not there yet")
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        text = shown(app)
        assert "No runs in" in text
        assert "eagle3ops --job pipeline" in text
        await pilot.press("r", "c")
        await settle(pilot)
        make_run(tmp_path / "not there yet", "20261130-054512-demo-bbbb")
        overview = app.screen
        assert isinstance(overview, Overview)
        overview.refresh_runs()
        await settle(pilot)
        assert "✓ demo-bbbb" in shown(app)


async def test_selecting_another_run(root: Path) -> None:
    app = ConsoleApp(root)
    async with app.run_test(size=(120, 30)) as pilot:
        await settle(pilot)
        await pilot.press("down")
        await settle(pilot)
        text = shown(app)
        assert "20261130-044512-older-aaaa" in text
        assert "steps/s" not in text
        await pilot.press("q")
    assert app.return_code == 0


async def test_new_events_appear_once(root: Path) -> None:
    app = ConsoleApp(root)
    async with app.run_test(size=(160, 48)) as pilot:
        await settle(pilot)
        with EventLog(root / "runs" / "20261130-054512-demo-bbbb" / "events.jsonl") as log:
            log.append("info", {"text": "a new word"}, "train")
        assert isinstance(app.screen, Overview)
        for _ in range(2):
            app.screen.refresh_runs()
            await settle(pilot)
        assert shown(app).count("a new word") == 1


async def test_cancel_asks_first_and_names_the_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(Overview, "_command", lambda self, *words: asked.append(words))
    app = ConsoleApp(root)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        for key in ("escape", "n", "enter"):
            await pilot.press("c")
            await pilot.pause()
            assert isinstance(app.screen, Confirm)
            assert "Cancel the run 20261130-054512-demo-bbbb?" in shown(app)
            await pilot.press(key)
            await pilot.pause()
            assert isinstance(app.screen, Overview)
        assert asked == []
        await pilot.press("c", "y")
        await pilot.pause()
        assert asked == [("cancel", "20261130-054512-demo-bbbb")]
        await pilot.press("down")
        await settle(pilot)
        await pilot.press("c", "r")
        await pilot.pause()
        assert isinstance(app.screen, Overview)
        assert len(asked) == 1, "a run that is done is neither cancelled nor resumed"


async def test_resume_runs_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(
        tmp_path, "20261130-054512-demo-bbbb", status="failed", exit_code=1, cause="train: broke", remedy="mend it"
    )
    argv: list[tuple[object, ...]] = []
    real = asyncio.create_subprocess_exec

    async def instead(*words: object, **options: Any) -> asyncio.subprocess.Process:
        argv.append(words)
        program = "import sys; sys.stderr.write('[bold]no such thing'); sys.exit(2)"
        return await real(sys.executable, "-c", program, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", instead)
    app = ConsoleApp(tmp_path)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await settle(pilot)
        text = shown(app)
        assert "train: broke" in text
        assert "→ mend it" in text
        await pilot.press("r")
        await settle(pilot)
        assert argv[0][3:6] == ("runs", "resume", "20261130-054512-demo-bbbb")
        assert argv[0][6:] == ("--root", str(tmp_path), "--detach")
        assert [notice.message for notice in app._notifications] == ["[bold]no such thing"]


async def test_a_root_that_cannot_be_read_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Path) -> list[Any]:
        raise PermissionError(13, "Permission denied", "/root/[b]")

    monkeypatch.setattr("eagle3ops.screens.overview.read_runs", fails)
    app = ConsoleApp(root)
    async with app.run_test(notifications=True) as pilot:
        await settle(pilot)
        assert "Permission denied" in next(iter(app._notifications)).message
        assert isinstance(app.screen.query_one("#hint"), Static)


async def test_the_palette_knows_the_commands(root: Path) -> None:
    app = ConsoleApp(root)
    async with app.run_test() as pilot:
        await settle(pilot)
        assert isinstance(app.screen.query_one("#runs"), OptionList)
        titles = {command.title for command in app.get_system_commands(app.screen)}
    assert {"Resume run", "Cancel run", "Quit"} <= titles


def test_a_verdict_that_failed_is_not_just_done(tmp_path: Path) -> None:
    make_run(tmp_path, "20261130-054512-demo-bbbb", exit_code=3)
    make_run(tmp_path, "20261130-064512-demo-cccc", status="running")
    assert [row.status for row in read_runs(tmp_path)] == ["interrupted", "verdict FAIL"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.sampled_from(["status", "exit_code", "stages", "started", "ended", "job", "cause"]), json_values
    ),
    st.lists(
        st.tuples(
            st.sampled_from(["progress", "stage", "verdict", "info", "run"]),
            st.dictionaries(
                st.sampled_from(["done", "total", "unit", "status", "name", "passed", "text"]), json_values
            ),
        ),
        max_size=5,
    ),
)
def test_whatever_stands_in_a_run_is_shown(
    tmp_path_factory: pytest.TempPathFactory, state: dict[str, Any], events: list[tuple[str, dict[str, Any]]]
) -> None:
    from eagle3ops.screens.overview import _stage_table, _status_line

    root = tmp_path_factory.mktemp("any")
    run = make_run(root, "20261130-054512-demo-bbbb", **state)
    with EventLog(run.events_file) as log:
        for kind, data in events:
            log.append(kind, data, "train")
    detail = RunWatch(run).read()
    assert read_runs(root)[0].run_id == run.run_id
    assert _stage_table(detail.stages, time.time()).row_count == len(detail.stages)
    assert "\x1b" not in _status_line(detail, time.time()).plain


def test_ages() -> None:
    assert [age(seconds) for seconds in (-1, 4, 720, 7200, 500_000)] == ["0 s", "4 s", "12 min", "2 h", "6 d"]


def test_headless_mode_never_imports_the_screens() -> None:
    program = "import sys, eagle3ops.cli, eagle3ops.headless; print('textual' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
