"""An engine that hangs under load, or in its start: found, explained, evidence taken, restarted once, the run goes on.

With the reference engine, and with a real SGLang where EAGLE3OPS_SGLANG_PYTHON names a Python that has it.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PIPELINE = """\
schema: 1
name: hang
target: {{model: tiny-random}}
engine: {{name: {engine}, dtype: float32, device: cpu, max_running_requests: 8{python}}}
watchdog:
  action: restart
  deadlines: {{starting: 45, importing: 45, connecting: 45, loading: 45, allocating: 45, warming_up: 45}}
stages:
  generate: {{train: 40, heldout: 8, max_new_tokens: 400, batch: 4}}
"""

HELD_ONCE = """\
#!/bin/sh
# The first server that this Python starts is held in its scheduler's start, later ones are not.
case "$*" in
*sglang.launch_server*)
    if mkdir "{marker}" 2>/dev/null; then export SGLANG_TEST_STUCK_SCHEDULER_INIT=3600; fi ;;
esac
exec "{python}" "$@"
"""

T = TypeVar("T")
Fault = Callable[["Started"], int]
"""Does harm to the engine of a run; returns the process that was harmed."""


@dataclass
class Started:
    """A run in the background."""

    root: Path
    process: subprocess.Popen[str]

    @property
    def folder(self) -> Path:
        return max((self.root / "runs").glob("*-hang-*"))

    def events(self) -> list[dict[str, Any]]:
        text = (self.folder / "events.jsonl").read_text(errors="replace")
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events() if event["kind"] == kind]

    def engine(self) -> psutil.Process:
        def leader() -> psutil.Process | None:
            for event in self.of_kind("process"):
                if event["data"]["role"] == "engine-generate" and event["data"]["state"] == "started":
                    return psutil.Process(event["data"]["pid"])
            return None

        return self.until(leader)

    def until(self, look: "Callable[[], T | None]", patience_s: float = 240) -> "T":
        """What `look` finds, once it finds something."""
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            try:
                found = look()
            except (OSError, ValueError, psutil.Error):
                found = None
            if found is not None:
                return found
            if self.process.poll() is not None:
                pytest.fail(f"the run ended with {self.process.returncode}: {self.process.communicate()[1][-3000:]}")
            time.sleep(0.1)
        pytest.fail("what was waited for did not come")


def stop_under_load(started: Started, name: str = "") -> int:
    """SIGSTOP the engine, or its child of that name, once it has answered some prompts and has more to answer."""
    engine = started.engine()
    started.until(lambda: started.of_kind("progress") or None)
    doomed = engine
    if name:
        doomed = started.until(lambda: next((c for c in engine.children(recursive=True) if name in c.name()), None))
    os.kill(doomed.pid, signal.SIGSTOP)
    return doomed.pid


def stop_scheduler(started: Started) -> int:
    return stop_under_load(started, "sglang::sched")


def stop_in_start(started: Started) -> int:
    """SIGSTOP the reference engine while it imports."""
    engine = started.engine()
    os.kill(engine.pid, signal.SIGSTOP)
    return engine.pid


def held(started: Started) -> int:
    """SGLang holds itself."""
    engine = started.engine()
    return started.until(
        lambda: next((c.pid for c in engine.children(recursive=True) if "sglang::sched" in c.name()), None)
    )


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str, str], Started]]:
    """Starts the generate stage with an engine."""
    environment = {**os.environ, "EAGLE3OPS_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    begun: list[Started] = []

    def go(engine: str, python: str = "") -> Started:
        spec, root = tmp_path / "hang.yaml", tmp_path / "root"
        spec.write_text(PIPELINE.format(engine=engine, python=f", python: {python}" if python else ""))
        command = [sys.executable, "-m", "eagle3ops", "--spec", str(spec), "--root", str(root)]
        subprocess.run([*command, "--job", "fetch"], env=environment, check=True, capture_output=True)
        before = set((root / "runs").iterdir())
        process = subprocess.Popen(
            [*command, "--job", "generate"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started = Started(root, process)
        begun.append(started)
        started.until(lambda: (set((root / "runs").iterdir()) - before) or None)
        return started

    yield go
    for started in begun:
        if started.process.poll() is None:
            started.process.send_signal(signal.SIGINT)
            try:
                started.process.wait(40)
            except subprocess.TimeoutExpired:
                started.process.kill()
        started.process.communicate()


def judge(started: Started, victim: int, states: set[str]) -> None:
    """The run came through, with one incident rightly named, its evidence taken before the kill, and one restart."""
    _, told = started.process.communicate(timeout=600)
    events = started.events()
    assert started.process.returncode == 0, told[-4000:]
    incidents = [event["data"] for event in events if event["kind"] == "incident"]
    assert len({incident["id"] for incident in incidents}) == 1, incidents
    assert incidents[0]["kind"] in states
    assert incidents[0]["explanation"]
    assert incidents[0]["remedies"]
    (remedy,) = [event for event in events if event["kind"] == "remedy"]
    assert remedy["data"]["step"] == "restart"
    engines = [e for e in events if e["kind"] == "process" and e["data"]["role"] == "engine-generate"]
    assert [e["data"]["state"] for e in engines].count("started") == 2
    assert not psutil.pid_exists(victim)
    # What the harmed process was at can only be known from before it was ended.
    folder = started.folder / "artifacts" / "incident-1"
    dossier = json.loads((folder / "dossier.json").read_text())
    assert dossier["at"] < remedy["ts"]
    assert dossier["intrusive"]
    processes = (folder / "processes.json").read_text()
    assert str(victim) in processes
    assert list(folder.rglob(f"{victim}.txt")), "no stacks of the harmed process"
    summary = next((started.root / "stages").glob("generate-*/summary.json"))
    assert json.loads(summary.read_text())["rows"] == {"heldout": 8, "train": 40}


@pytest.mark.parametrize("fault", [stop_under_load, stop_in_start])
def test_a_stopped_reference_engine_costs_one_restart(start: Callable[[str], Started], fault: Fault) -> None:
    started = start("reference")
    judge(started, fault(started), {"stopped"})


@pytest.mark.sglang
@pytest.mark.parametrize("fault", [stop_scheduler, held])
def test_a_stopped_sglang_costs_one_restart(start: Callable[[str, str], Started], fault: Fault, tmp_path: Path) -> None:
    python = os.environ["EAGLE3OPS_SGLANG_PYTHON"]
    if fault is held:
        shim = tmp_path / "bin/python"
        shim.parent.mkdir()
        shim.write_text(HELD_ONCE.format(python=python, marker=tmp_path / "held"))
        shim.chmod(0o755)
        python = str(shim)
    started = start("sglang", python)
    judge(started, fault(started), {"overdue", "deadlock"} if fault is held else {"stopped"})
