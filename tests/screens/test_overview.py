"""The console shows what the run directories say, treats outside text as text, and asks before it ends anything."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from screen_text import shown, until

from eagle3ops.hosts.agent import ops_runs
from eagle3ops.hosts.transport import Channel, ConnectionRefusedForGood
from eagle3ops.locations import config_folder
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.events import EventLog
from eagle3ops.runs.processes import identify
from eagle3ops.screens.app import ConsoleApp
from eagle3ops.screens.asking import ConsolePrompts
from eagle3ops.screens.feeds.watching import RunWatch, age, run_rows
from eagle3ops.screens.overview.attention import matters
from eagle3ops.screens.overview.graph import graph_lines
from eagle3ops.screens.overview.lines import event_lines, matter_lines, status_line
from eagle3ops.screens.overview.room import Overview
from eagle3ops.screens.widgets.glyphs import BLOCKS

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


def summaries(root: Path) -> list[dict[str, Any]]:
    """The runs below a root, as an agent answers."""
    found: list[dict[str, Any]] = ops_runs.list_runs(ops_runs.here(str(root)))["runs"]
    return found


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_runs_and_the_selected_one(root: Path, size: tuple[int, int]) -> None:
    app = ConsoleApp(str(root))
    async with app.run_test(size=size) as pilot:
        text = await until(
            pilot, "● demo-bbbb", "✓ older-aaaa", "2 h", "train", "50%", "10.0 steps/s", "20 s left", "✗ FAIL"
        )
    assert "[bold red]x[/]" in text
    assert "\x1b" not in text
    assert "q Quit" in text
    assert "r Resume" in text
    assert "local: connected" in text


async def test_an_empty_root_says_what_to_do(tmp_path: Path) -> None:
    root = tmp_path / "not there yet"
    app = ConsoleApp(str(root))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "No runs in", "eagle3ops --job pipeline")
        await pilot.press("r", "c", "3")
        await until(pilot, "There is no run yet.", "0 opens Launch")
        await pilot.press("1")
        make_run(root, "20261130-054512-demo-bbbb")
        await until(pilot, "✓ demo-bbbb")


async def test_selecting_another_run(root: Path) -> None:
    app = ConsoleApp(str(root))
    async with app.run_test(size=(120, 30)) as pilot:
        await until(pilot, "steps/s")
        await pilot.press("down")
        assert "steps/s" not in await until(pilot, "20261130-044512-older-aaaa")
        await pilot.press("q")
    assert app.return_code == 0


async def test_new_events_appear_once(root: Path) -> None:
    app = ConsoleApp(str(root))
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, "steps/s")
        with EventLog(root / "runs" / "20261130-054512-demo-bbbb" / "events.jsonl") as log:
            log.append("info", {"text": "a new word"}, "train")
            await until(pilot, "a new word")
            log.append("info", {"text": "another one"}, "train")
        assert (await until(pilot, "another one")).count("a new word") == 1


async def test_an_agent_that_is_killed_is_missed_and_replaced(root: Path) -> None:
    app = ConsoleApp(str(root))
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, "steps/s", "local: connected")
        assert app.link.hello is not None
        os.kill(app.link.hello.pid, signal.SIGKILL)
        with EventLog(root / "runs" / "20261130-054512-demo-bbbb" / "events.jsonl") as log:
            log.append("info", {"text": "said meanwhile"}, "train")
        assert (await until(pilot, "said meanwhile", "local: connected")).count("said meanwhile") == 1
        assert app.link.connections == 2


async def test_a_line_that_is_lost_for_good_is_said_in_full(root: Path) -> None:
    class Changed:
        name = "local"

        async def open(self) -> Channel:
            raise ConnectionRefusedForGood("THE HOST KEY HAS CHANGED to SHA256:abc", remedy="ask whoever runs it")

    app = ConsoleApp(str(root))
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await until(pilot, "steps/s", "local: connected")
        app.link.transport = Changed()
        assert app.link.hello is not None
        os.kill(app.link.hello.pid, signal.SIGKILL)
        await until(pilot, "KEY HAS CHANGED", "SHA256:abc", "→ ask whoever", "Then press ctrl+l", "local stopped")
        assert isinstance(app.screen, Overview)
        assert app.screen.query_one("#panes").has_class("stale")


async def test_cancel_asks_first_and_names_the_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(Overview, "command", lambda self, *words: asked.append(words))
    app = ConsoleApp(str(root))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "● demo-bbbb")
        for key in ("escape", "n", "enter"):
            await pilot.press("c")
            await until(pilot, "Cancel the run 20261130-054512-demo-bbbb?")
            await pilot.press(key)
            await pilot.pause()
            assert isinstance(app.screen, Overview)
        assert asked == []
        await pilot.press("c", "y")
        await pilot.pause()
        assert asked == [("cancel", "20261130-054512-demo-bbbb")]
        await pilot.press("down")
        await until(pilot, "20261130-044512-older-aaaa")
        await pilot.press("c", "r")
        await pilot.pause()
        assert isinstance(app.screen, Overview)
        assert len(asked) == 1, "a run that is done is neither cancelled nor resumed"


async def test_resume_says_what_the_agent_says(tmp_path: Path) -> None:
    make_run(
        tmp_path, "20261130-054512-demo-bbbb", status="failed", exit_code=1, cause="train: broke", remedy="mend it"
    )
    app = ConsoleApp(str(tmp_path))
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await until(pilot, "train: broke", "→ mend it")
        await pilot.press("r")
        # The run was made up here: it has no pipeline file.
        await until(pilot, "spec.yaml")


async def test_a_root_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where a folder should be")
    (tmp_path / "ledger.sqlite").mkdir()
    app = ConsoleApp(str(tmp_path / "runs" / "below"))
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await until(pilot, "The runs cannot be read.", "is a file, not a folder", "another folder with --root")


async def test_a_host_that_is_not_there_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLE3OPS_CONFIG", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        app = ConsoleApp(host=f"ssh://someone@127.0.0.1:{nobody.getsockname()[1]}")
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, "refused", "trying again in")
            await pilot.press("q")
    assert app.return_code == 0


async def test_a_secret_is_asked_for_and_not_shown(tmp_path: Path) -> None:
    app = ConsoleApp(str(tmp_path))
    answers: list[str | None] = []

    async def ask() -> None:
        answers.append(await ConsolePrompts(app).secret("passphrase of \x1b[31m id_ed25519"))

    async with app.run_test(size=(100, 30)) as pilot:
        for keys, expected in ((("s", "3", "enter"), "s3"), (("s", "escape"), None)):
            app.run_worker(ask())
            text = await until(pilot, "passphrase of", "id_ed25519")
            assert "\x1b" not in text
            await pilot.press(*keys[:-1])
            assert "s3" not in shown(app)
            await pilot.press(keys[-1])
            for _ in range(200):
                await pilot.pause(0.02)
                if answers:
                    break
            assert answers.pop() == expected


async def test_the_palette_knows_the_commands(root: Path) -> None:
    app = ConsoleApp(str(root))
    async with app.run_test() as pilot:
        await until(pilot, "demo-bbbb")
        told = [command.title for command in app.get_system_commands(app.screen)]
        titles = set(told)
        assert sorted(told) == sorted(titles), "everything once"
    assert {"Resume", "Cancel", "Reconnect", "Open", "Decide", "Hosts", "Quit"} <= titles


async def test_another_host_is_looked_at_and_the_first_one_again(root: Path) -> None:
    """Runs go on: nothing is sent to either host but questions."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        hosts = {"lab": {"address": f"ssh://127.0.0.1:{nobody.getsockname()[1]}"}}
        config_folder().mkdir(parents=True, exist_ok=True)
        (config_folder() / "hosts.yaml").write_text(json.dumps({"schema": 1, "hosts": hosts}))
        app = ConsoleApp(str(root))
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, "● demo-bbbb", "lab   H switches")
            await pilot.press("4")
            await until(pilot, "Host local")
            await pilot.press("1", "H")
            await until(pilot, "● local", "lab    ssh://127.0.0.1")
            await pilot.press("down", "enter")
            text = await until(pilot, "lab not connected", "refused")
            assert "demo-bbbb" not in text
            await pilot.press("4")
            assert "Host local" not in await until(pilot, "Nothing read yet")
            await pilot.press("1", "H")
            await until(pilot, "Look at which host?", "● lab")
            await pilot.press("escape", "H")
            await until(pilot, "Look at which host?", "● lab")
            await pilot.press("up", "enter")
            await until(pilot, "local connected", "● demo-bbbb", "steps/s")


async def test_what_waits_leads_to_where_it_is_decided(root: Path) -> None:
    make_run(root, "20261130-054612-exp-cccc", status="failed", exit_code=1, cause="train: broke", ended=time.time())
    app = ConsoleApp(str(root))
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, "✗ failed exp-cccc", "train: broke", "Needs a decision: 2")
        await pilot.press("down")
        await until(pilot, "20261130-054512-demo-bbbb", "Needs a decision: 2")
        await pilot.press("d")
        await until(pilot, "20261130-054612-exp-cccc")
        assert app.runs.selected == "20261130-054612-exp-cccc", "the keys are for the run that the line is about"
        await pilot.press("enter")
        await pilot.pause()
        assert app.current_mode == "logs"
        await pilot.press("1")
        await until(pilot, "Needs a decision")
        await pilot.click("#runs", offset=(5, 2))
        keys = (await until(pilot, "20261130-054512-demo-bbbb")).splitlines()[-1]
        await pilot.click("KeyBar", offset=(keys.index("Decide"), 0))
        await until(pilot, "20261130-054612-exp-cccc")


async def test_the_keys_that_lead_on_are_shown_however_narrow_it_is(root: Path) -> None:
    app = ConsoleApp(str(root))
    async with app.run_test(size=(40, 20)) as pilot:
        text = await until(pilot, "demo-bbbb", "q Quit", "? Help")
        assert "Hosts" not in text.splitlines()[-1]


def test_a_verdict_that_failed_is_not_just_done(tmp_path: Path) -> None:
    make_run(tmp_path, "20261130-054512-demo-bbbb", exit_code=3)
    make_run(tmp_path, "20261130-064512-demo-cccc", status="running")
    assert [row.status for row in run_rows(summaries(tmp_path))] == ["interrupted", "verdict FAIL"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40)
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
    root = tmp_path_factory.mktemp("any")
    run = make_run(root, "20261130-054512-demo-bbbb", **state)
    with EventLog(run.events_file) as log:
        for kind, data in events:
            log.append(kind, data, "train")
    watch = RunWatch(run.run_id)
    for event in run.reader().read():
        watch.take(event)
    detail = watch.detail(ops_runs.state(ops_runs.here(str(root)), run=run.run_id))
    assert [row.run_id for row in run_rows(summaries(root))] in ([run.run_id], [])
    drawn = [
        status_line(detail, time.time(), 80, BLOCKS),
        *graph_lines(detail.stages, 80, BLOCKS, boxed=False),
        *event_lines(detail.tail, 80, 50),
        *matter_lines(matters(run_rows(summaries(root)), detail, None, [], None, time.time()), 80, BLOCKS),
    ]
    assert all(part.isprintable() for line in drawn for part, _ in line)


def test_ages() -> None:
    known = [age(seconds) for seconds in (-1, 4, 720, 7200, 500_000, 1e40)]
    assert known == ["0 s", "4 s", "12 min", "2 h", "6 d", "over 100 years"]


def test_headless_mode_never_imports_the_screens() -> None:
    program = "import sys, eagle3ops.cli, eagle3ops.commands.jobs; print('textual' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
