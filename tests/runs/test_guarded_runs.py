"""Is a stage that hangs found, explained and started again, as far as the pipeline file allows, and nothing else?"""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from toy_world import Toy

from eagle3ops.runs.family import left_behind
from eagle3ops.runs.files import read_json
from eagle3ops.runs.processes import ProcessId, identify
from eagle3ops.supervisor.decision import FILE, Decision, from_json

STOPPED = ("--set", "stages.use.mode=stopped")
RESTART = (*STOPPED, "--set", "watchdog.action=restart")


@pytest.fixture
def guarded(toy: Toy) -> Toy:
    """A world whose guard knows one fault."""
    toy.variables["EAGLE3OPS_GUARD"] = "toy_guard"
    return toy


def until(toy: Toy, kind: str, **data: Any) -> dict[str, Any]:
    """The first event of a kind whose data hold this."""
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        for event in toy.events():
            if event["kind"] == kind and data.items() <= event["data"].items():
                return event
        time.sleep(0.05)
    raise AssertionError(f"no {kind} {data}: {toy.events()[-3:]}")


def test_what_hangs_is_started_again_and_the_run_goes_on(guarded: Toy) -> None:
    process = guarded.start("--job", "pipeline", "--spec", "toy.yaml", *RESTART)
    guarded.until("runs/*/child.pid")
    (guarded.last().path / "mended").touch()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "use: watchdog: a process is stopped" in err
    assert "use: watchdog: ended and started again: restart 1 of 1 for this fault" in err
    remedy = until(guarded, "remedy", step="restart")
    assert remedy["data"]["incident"] == until(guarded, "incident")["data"]["id"]
    assert (
        guarded.last().state()["stages"]["use"] | {"attempt": 2, "status": "done"}
        == (guarded.last().state()["stages"]["use"])
    )
    assert left_behind(guarded.last().path) == []
    told = json.loads(guarded.call("incidents", "last", "--all", "--json").stdout)
    [incident] = [one for one in told if one["kind"] == "stopped"]
    assert incident["over"] is True
    assert incident["explanation"] == "Somebody sent it SIGSTOP."
    assert incident["evidence"][-1]["what"].startswith("the watchdog: ended and started again")


@pytest.mark.slow
def test_the_real_guard_finds_explains_and_collects_before_it_is_ended(toy: Toy) -> None:
    process = toy.start("--job", "pipeline", "--spec", "toy.yaml", *RESTART)
    toy.until("runs/*/child.pid")
    (toy.last().path / "mended").touch()
    _, err = process.communicate(timeout=110)
    assert process.returncode == 0, err
    assert "use: watchdog: stopped" in err
    kinds = [event["kind"] for event in toy.events()]
    assert kinds.index("incident") < kinds.index("remedy")
    evidence = Path(until(toy, "remedy", step="restart")["data"]["evidence"])
    assert evidence == toy.last().artifacts / "incident-1"
    assert (evidence / "dossier.json").is_file()
    assert left_behind(toy.last().path) == []


def test_the_same_fault_again_ends_the_run_with_4(guarded: Toy) -> None:
    ended = guarded.job(*RESTART)
    assert ended.returncode == 4, ended.stderr
    assert [event["data"]["step"] for event in guarded.events() if event["kind"] == "remedy"] == ["restart", "give_up"]
    run = guarded.last()
    assert f"{run.run_id}: use: stopped by the watchdog: a process is stopped" in ended.stderr
    assert "the same fault again, without progress since it was restarted 1 times" in ended.stderr
    assert f"the evidence is in {run.artifacts / 'incident-1'}" in ended.stderr
    assert run.state()["stages"]["use"]["exit_code"] == 4
    assert left_behind(run.path) == []


def test_notify_ends_nothing_and_decisions_about_others_are_ignored(guarded: Toy) -> None:
    guarded.start("--job", "pipeline", "--spec", "toy.yaml", *STOPPED)
    child = identify(int(guarded.until("runs/*/child.pid").read_text() or "1"))
    until(guarded, "remedy", step="notify")
    run = guarded.last()
    attempt = ProcessId.from_json(until(guarded, "process", role="use", state="started")["data"])
    assert attempt is not None
    assert not (run.path / FILE).exists()
    _decide(run.path, attempt)  # although the pipeline file allows no more than to tell
    time.sleep(0.5)
    assert identify(attempt.pid) == attempt
    assert child is None or identify(child.pid) == child
    guarded.kill_everything(run)


def test_a_decision_about_another_attempt_or_a_torn_one_is_ignored(toy: Toy) -> None:
    toy.start("--job", "pipeline", "--spec", "toy.yaml", "--set", "stages.use.mode=child", *RESTART[2:])
    while not toy.until("runs/*/child.pid").read_text():
        time.sleep(0.01)
    run = toy.last()
    attempt = ProcessId.from_json(until(toy, "process", role="use", state="started")["data"])
    assert attempt is not None
    for other in (ProcessId(attempt.pid, attempt.start - 1, attempt.boot), ProcessId(1, 1, attempt.boot)):
        _decide(run.path, other)
        time.sleep(0.3)
    _decide(run.path, attempt, stage="make")
    time.sleep(0.3)
    (run.path / FILE).write_text((run.path / FILE).read_text()[:-20])
    time.sleep(0.3)
    assert identify(attempt.pid) == attempt
    _decide(run.path, attempt)
    assert until(toy, "remedy", step="bisect")["data"]["environment"] == {"NCCL_P2P_DISABLE": "1"}
    second = until(toy, "stage", status="running", attempt=2)
    while (again := _started_after(toy, second["seq"])) is None:
        time.sleep(0.05)
    environment = Path(f"/proc/{again.pid}/environ").read_bytes().split(b"\0")
    assert b"NCCL_P2P_DISABLE=1" in environment
    assert b'EAGLE3OPS_ENGINE_ARGUMENTS=["--disable-custom-all-reduce"]' in environment
    toy.kill_everything(run)


def test_a_guard_that_dies_does_not_harm_the_run(toy: Toy) -> None:
    (toy.folder / "bad_guard.py").write_text("raise SystemExit(7)\n")
    toy.variables["EAGLE3OPS_GUARD"] = "bad_guard"
    ended = toy.job("--set", "stages.make.part_s=0.4", "--set", "stages.make.parts=3")
    assert ended.returncode == 0, ended.stderr


def test_a_failing_stage_shows_the_root_cause_that_its_engine_logged(toy: Toy) -> None:
    ended = toy.job("--set", "stages.use.mode=engine")
    assert ended.returncode == 1
    assert "use: failed" in ended.stderr
    lines = ended.stderr.splitlines()
    [at] = [number for number, line in enumerate(lines) if line.startswith("  cause: engine-serve.log:8  ")]
    assert "torch.OutOfMemoryError: CUDA out of memory" in lines[at]
    assert lines[at + 1].startswith("    ")
    assert lines[at + 2].startswith("    -> ")
    root = toy.last().state()["stages"]["use"]["root"]
    log = (toy.last().logs / "engine-serve.log").read_bytes()
    assert log[root["offset"] :].startswith(b"torch.OutOfMemoryError")
    assert any(event["data"].get("root") == root for event in toy.events() if event["kind"] == "stage")
    [incident] = json.loads(toy.call("incidents", "last", "--json").stdout)
    assert incident["evidence"][0]["what"].startswith("the cause, by engine-serve.log:8: torch.OutOfMemoryError")
    assert (incident["evidence"][0]["log"], incident["evidence"][0]["offset"]) == ("engine-serve.log", root["offset"])
    assert incident["explanation"] == root["explanation"]


def _decide(run_dir: Path, attempt: ProcessId, stage: str = "use") -> None:
    decision = Decision(
        incident="1234",
        stage=stage,
        attempt=attempt,
        action="restart",
        title="it hangs",
        why="a test",
        fingerprint="abcd",
        rung="nccl-p2p",
        environment={"NCCL_P2P_DISABLE": "1"},
        arguments=("--disable-custom-all-reduce",),
    )
    decision.write(run_dir)
    assert from_json(read_json(run_dir / FILE)) == decision
    os.utime(run_dir / FILE)


def _started_after(toy: Toy, seq: int) -> ProcessId | None:
    found = [
        ProcessId.from_json(event["data"])
        for event in toy.events()
        if event["seq"] > seq and event["kind"] == "process" and event["data"].get("role") == "use"
    ]
    return found[0] if found else None
