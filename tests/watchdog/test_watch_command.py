"""What does `eagle3ops watch` say of real processes, and with which exit code does it leave?"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3ops.runs.processes import RUN_VARIABLE, identify

Watch = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    """Start `eagle3ops watch ...`."""
    started: list[subprocess.Popen[str]] = []
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EAGLE3OPS_")}
    environment |= {
        "EAGLE3OPS_ROOT": str(tmp_path / "root"),
        "EAGLE3OPS_STATE": str(tmp_path / "state"),
        "EAGLE3OPS_RUNTIME": str(tmp_path / "runtime"),
    }
    (tmp_path / "runtime").mkdir(mode=0o700)

    def start(*arguments: object) -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "eagle3ops", "watch", *map(str, arguments)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        process.wait()


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that waits."""
    with (tmp_path / "out.log").open("wb") as out:
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdout=out)
    yield process
    process.kill()
    process.wait()


def _until(process: "subprocess.Popen[str]", wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    assert process.stdout is not None
    for line in process.stdout:
        told: dict[str, Any] = json.loads(line)
        if wanted(told):
            return told
    raise AssertionError(process.stderr.read() if process.stderr else "")


@pytest.mark.slow
def test_a_process_that_is_stopped_goes_on_and_ends(watch: Watch, sleeper: Any, tmp_path: Path) -> None:
    process = watch("--pid", sleeper.pid, "--json", "--evidence", tmp_path / "evidence")
    _until(process, lambda told: told["type"] == "reading" and told["standing"] == "healthy")
    os.kill(sleeper.pid, signal.SIGSTOP)
    told = _until(process, lambda told: told["type"] == "reading" and told["standing"] == "convicted")
    assert told["state"] == "stopped"
    assert told["suspects"] == [sleeper.pid]
    incident = _until(process, lambda told: told["type"] == "incident" and told["severity"] == "error")
    assert incident["kind"] == "stopped"
    os.kill(sleeper.pid, signal.SIGCONT)
    _until(process, lambda told: told["type"] == "incident" and told["over"])
    sleeper.terminate()
    out, err = process.communicate()
    assert process.returncode == 0, err
    told_last = [one for one in map(json.loads, out.splitlines()) if one["type"] == "reading"][-1]
    assert (told_last["state"], told_last["standing"]) == ("ended", "healthy"), out
    assert sleeper.wait() == -signal.SIGTERM  # nobody else has ended it
    assert err.startswith(f"watching pid {sleeper.pid}")


def test_nobody_reads_any_more(watch: Watch, sleeper: Any) -> None:
    process = watch("--pid", sleeper.pid, "--json")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait() == 0
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()


@pytest.mark.slow
def test_what_still_stands_when_time_is_up_is_exit_code_4(watch: Watch, sleeper: Any, tmp_path: Path) -> None:
    os.kill(sleeper.pid, signal.SIGSTOP)
    process = watch("--pid", sleeper.pid, "--for", "25", "--evidence", tmp_path / "evidence", "--no-probe")
    out, err = process.communicate()
    assert process.returncode == 4, (out, err)
    assert "convicted  stopped" in out
    assert "-> the evidence is in" in out
    for words in ("does nothing until it is told to go on", f"-> `kill -CONT {sleeper.pid}`"):
        assert out.count(words) == 1
    assert "time is up, stopped (convicted)" in err
    assert (tmp_path / "evidence/incident-1").is_dir()
    os.kill(sleeper.pid, signal.SIGCONT)
    assert sleeper.poll() is None


def test_a_server_by_its_url(watch: Watch, start_engine: Any) -> None:
    engine = start_engine()
    process = watch("--url", engine.url, "--json")
    told = _until(process, lambda told: told["type"] == "reading" and told["state"] == "serving")
    assert told["phase"] == "serving"
    engine.end()
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert f"log {engine.log}" in err
    assert "/generate" in engine.asked()


@pytest.mark.slow
def test_a_run_stage_by_stage(watch: Watch, tmp_path: Path) -> None:
    run = tmp_path / "root/runs/20261130-000000-demo-abcd"
    (run / "logs").mkdir(parents=True)
    (run / "request.json").write_text(json.dumps({"run_id": run.name, "stages": ["make", "use"]}))
    me = identify(os.getpid())
    assert me is not None
    (run / "supervisor.json").write_text(json.dumps(me.as_json()))

    def state(**stages: str) -> None:
        facts = {"status": "running", "stages": {name: {"status": status} for name, status in stages.items()}}
        (run / "state.new").write_text(json.dumps(facts))
        (run / "state.new").rename(run / "state.json")

    def work() -> "subprocess.Popen[bytes]":
        marked = os.environ | {RUN_VARIABLE: str(run)}
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=marked)

    stage = work()
    try:
        state(make="running", use="waiting")
        process = watch("--run", "last", "--json")
        told = _until(process, lambda told: told["type"] == "reading" and told["standing"] == "healthy")
        assert "make" in told["title"]
        stage.kill()
        stage.wait()
        stage = work()
        state(make="done", use="running")
        told = _until(process, lambda told: told["standing"] == "healthy" and "use" in told["title"])
        stage.kill()
        stage.wait()
        state(make="done", use="done")
        (run / "supervisor.json").write_text(json.dumps({"pid": 1 << 30, "start": 1, "boot": "x"}))
        _, err = process.communicate()
        assert process.returncode == 0, err
        assert watch("--run", "last").wait() == 2  # it does not go on any more
    finally:
        stage.kill()
        stage.wait()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--pid", str(1 << 30)], "there is no process"),
        (["--url", "http://127.0.0.1:1"], "nothing listens at http://127.0.0.1:1"),
        (["--url", "nonsense://x"], "not the URL of a server"),
        (["--run", "nope"], "there is no run 'nope'"),
        (["--pid", "1", "--deadline", "loading"], "it takes a phase and seconds"),
        (["--pid", "1", "--deadline", "lunch=3"], "it takes a phase and seconds"),
        (["--pid", "1", "--stage", "serve"], "--stage goes with --run"),
        (["--pid", "1", "--run", "x"], "not allowed with"),
        (["--pid", "1", "--host", "elsewhere"], "it works on this machine"),
        ([], "required"),
    ],
)
def test_what_cannot_be_watched(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    from eagle3ops.cli import main

    assert main(["watch", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_the_smallest_wait() -> None:
    # `--for` may be shorter than anything takes.
    from eagle3ops.cli import main

    began = time.monotonic()
    assert main(["watch", "--pid", str(os.getpid()), "--for", "0.1", "--no-probe"]) == 0
    assert time.monotonic() > began
