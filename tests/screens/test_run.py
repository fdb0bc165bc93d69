"""The Run room shows what a run's events and its host say, follows them, and copies what one points at."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from screen_text import shown, until
from textual.widgets import Button

from eagle3ops.runs import environments
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.events import EventLog
from eagle3ops.runs.processes import identify
from eagle3ops.screens.app import ConsoleApp
from eagle3ops.screens.logs.room import Logs
from eagle3ops.screens.run import room as run_screen
from eagle3ops.screens.run.room import Run

RUN = "20261130-054512-demo-bbbb"
EVIL = "[bold red]x[/] [@click=app.quit]y[/] \x1b]52;c;aGk=\x07"
SIZES = pytest.mark.parametrize("size", [(80, 24), (160, 48)])


def request(run: RunDirectory) -> None:
    run.logs.mkdir(parents=True)
    (run.path / "request.json").write_text(json.dumps({"job": "pipeline", "stages": [], "cache": "", "source": "x"}))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    older = RunDirectory(tmp_path / "runs" / "20261130-044512-older-aaaa")
    request(older)
    (older.path / "state.json").write_text(json.dumps({"status": "done", "exit_code": 0, "job": "fetch"}))
    run = RunDirectory(tmp_path / "runs" / RUN)
    request(run)
    now = time.time()
    usage = {"user_seconds": 3.0, "system_seconds": 1.0, "max_rss_bytes": 2**30, "major_faults": 7}
    facts = {"seconds": 8.0, "cpu_seconds": 4.0, "max_memory_bytes": 2**30, "started": now - 90, "usage": usage}
    stages = {
        "fetch": {"status": "done", **facts, "out": "/out/fetch"},
        "train": {"status": "running", "started": now - 60},
        "serve": {"status": "waiting"},
    }
    state = {"status": "running", "exit_code": None, "job": "pipeline", "started": now - 100, "stages": stages}
    (run.path / "state.json").write_text(json.dumps(state))
    me = identify(os.getpid())
    assert me is not None
    (run.path / "supervisor.json").write_text(json.dumps(asdict(me) | {"heartbeat": now}))
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "model.safetensors").write_bytes(b"x" * 2048)
    base = environments.keep(run.path, {"HOME": "/root", "OLD": "1"})
    own = environments.keep(run.path, {"HOME": "/root", "RANK": "3", "EVIL": EVIL})
    with EventLog(run.events_file) as log:
        log.append("process", started("supervisor", ["python", "-m", "x"], environment=base), None)
        log.append("process", started("fetch", ["fetch"], pid=8), "fetch")
        log.append("process", {"role": "fetch", "state": "ended", "pid": 8, "code": -9}, "fetch")
        argv = ["python", "-m", "engine", "--model-path", "/my model", EVIL]
        log.append("process", started("engine", argv, environment=own, rank="3", **me.as_json()), "train")
        for step in range(40):
            for depth in range(3):
                log.append(
                    "metric", {"name": f"train/loss_{depth}", "value": 5 - step / 10 + depth, "step": step}, "train"
                )
        log.append("metric", {"name": "tokens", "value": 4096}, "fetch")
        log.append("progress", {"done": 100, "total": 400, "unit": "steps"}, "train")
        log.append("artifact", {"path": str(tmp_path / "made"), "note": EVIL}, "fetch")
        log.append("artifact", {"path": str(tmp_path / "deleted"), "note": "n"}, "fetch")
        log.append("verdict", {"name": "wiring", "passed": False, "reason": EVIL, "data": {"side": {"k": 2}}}, "verify")
    return tmp_path


def started(role: str, argv: list[str], **more: Any) -> dict[str, Any]:
    return {"role": role, "state": "started", "argv": argv, "log": f"logs/{role}.log", "offset": 0} | more


@SIZES
async def test_every_part_by_its_key(root: Path, size: tuple[int, int]) -> None:
    app = ConsoleApp(str(root))
    async with app.run_test(size=size) as pilot:
        await until(pilot, "demo-bbbb")
        await pilot.press("2")
        text = await until(pilot, "● running", "job pipeline", "25%", "· waiting", "✓ done", "50 %", "1.0 GiB")
        assert isinstance(app.screen, Run)
        assert ("✗ FAIL" in text) is (size[0] == 160)
        await pilot.press("home")
        await until(pilot, "/out/fetch", "7 pages read from disk", "tokens 4,096")
        await pilot.press("p")
        text = await until(pilot, "✗ SIGKILL", "python -m engine", "3 variables, 3 other", "+ RANK=3", "- OLD")
        assert "--model-path '/my model'" in text
        assert "rank" in text
        assert "\x1b" not in text
        assert "HOME" not in text
        await pilot.press("e")
        for _ in range(100):
            # What is below is as long as it will be only once it has been laid out anew.
            await pilot.press("ctrl+d")
            if "HOME=/root" in shown(app):
                break
            await pilot.pause(0.05)
        await until(pilot, "HOME=/root")
        await pilot.press("m")
        await until(pilot, "train: loss", "nats", "lowest 1.1, highest 5", "step", "39")
        await pilot.press("right", "right", "l")
        await until(pilot, "lowest 3.1, highest 7", "logarithmic")
        await pilot.press("a")
        await until(pilot, "✓ there", "made/", "2.0 KiB", "model.safetensors", "✗ gone", "[@click=app.quit]y")
        await pilot.press("v")
        await until(pilot, "✗ FAIL", "verify/wiring", "side.k: 2", "[bold red]x[/]")
        await pilot.press("left_square_bracket")
        await until(pilot, "✓ done", "Nothing was judged yet.")


async def test_what_happens_meanwhile_appears(root: Path) -> None:
    app = ConsoleApp(str(root))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "demo-bbbb")
        await pilot.press("2", "p")
        await until(pilot, "✗ SIGKILL", "processes 3")
        with EventLog(RunDirectory(root / "runs" / RUN).events_file) as log:
            log.append("process", started("late", ["late"], pid=2**22 + 1, start=1, boot="x"), "train")
            log.append("metric", {"name": "train/loss_0", "value": float("nan"), "step": 41}, "train")
        await until(pilot, "processes 4", "◌ lost", "metrics 2")
        await pilot.press("m")
        await until(pilot, "NaN", "1 value no number")


@pytest.fixture
def orphan() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


async def test_a_process_that_dies_without_a_word_is_lost(root: Path, orphan: subprocess.Popen[bytes]) -> None:
    run = RunDirectory(root / "runs" / RUN)
    (run.path / "supervisor.json").write_text(json.dumps({"pid": 2**22 + 1, "start": 1, "boot": "x"}))
    known = identify(orphan.pid)
    assert known is not None
    with EventLog(run.events_file) as log:
        log.append("process", started("orphan", ["sleep", "600"], **known.as_json()), "train")
    app = ConsoleApp(str(root))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "demo-bbbb")
        await pilot.press("2", "p")
        await until(pilot, "◌ interrupted", "r takes it up again", "sleep 600", "● running")
        orphan.kill()
        orphan.wait()
        await until(pilot, "◌ lost", "It lives no more")


async def test_by_mouse(root: Path) -> None:
    app = ConsoleApp(str(root))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "demo-bbbb")
        await pilot.click("RoomBar", offset=(12, 0))
        text = await until(pilot, "✓ done", "processes 3")
        row = next(line for line in text.splitlines() if "processes 3" in line)
        await pilot.click("#tabs", offset=(row.index("rocesses") - row.index("stages"), 0))
        await until(pilot, "python -m engine", "RANK=3")
        await pilot.click("#list", offset=(5, 2))
        await until(pilot, "✗ SIGKILL", "Its environment was not written down")
        await pilot.click("#stages", offset=(5, 1))
        await until(pilot, "/out/fetch")


async def test_copying_says_where_to(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[str] = []

    async def route(text: str, _: object) -> str:
        copied.append(text)
        return "nowhere"

    monkeypatch.setattr(run_screen, "copy", route)
    app = ConsoleApp(str(root))
    async with app.run_test(size=(160, 48), notifications=True) as pilot:
        await until(pilot, "demo-bbbb")
        await pilot.press("2")
        await until(pilot, "✓ done", "artifacts 2")
        await pilot.press("home", "y")
        await until(pilot, "copied nowhere")
        for key, word in (("p", "RANK=3"), ("m", "lowest"), ("a", "✓ there"), ("v", "side.k")):
            await pilot.press(key)
            await until(pilot, word)
            await pilot.press("y")
            await pilot.pause(0.1)
        await pilot.press("p", "Y")
        await pilot.pause(0.1)
    out, command, values, path, verdict, whole = copied
    assert out == "/out/fetch"
    assert command.startswith("python -m engine --model-path '/my model'")
    assert values.startswith("stage\tfigure\tstep\tvalue\ntrain\tloss 0\t0\t5\n")
    assert path == str(root / "made")
    assert verdict.startswith("FAIL verify/wiring: [bold red]x")
    assert whole.startswith("env -u OLD ")
    assert "RANK=3 python -m engine" in whole


async def test_enter_opens_the_log_and_cancel_asks_first(root: Path) -> None:
    app = ConsoleApp(str(root))
    (RunDirectory(root / "runs" / RUN).logs / "train.log").write_text("hello from the stage\n")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "demo-bbbb")
        await pilot.press("2")
        await until(pilot, "✓ done")
        await pilot.press("c")
        await until(pilot, f"Cancel the run {RUN}?")
        assert app.focused is not None
        assert app.focused.id == "no"
        assert isinstance(app.focused, Button)
        await pilot.press("n", "enter")
        await until(pilot, "hello from the stage")
        assert isinstance(app.screen, Logs)


async def test_without_any_run_it_says_where_one_is_started(tmp_path: Path) -> None:
    app = ConsoleApp(str(tmp_path))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "connected")
        await pilot.press("2")
        await until(pilot, "There is no run yet.", "Launch")
        await pilot.press("p", "m", "y", "enter", "left_square_bracket", "end", "r")
        await pilot.pause()
        assert "There is no run yet." in shown(app)
