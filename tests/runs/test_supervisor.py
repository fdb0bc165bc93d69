"""Does a run survive what happens to runs: kills, signals, full disks, failing jobs?"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toy_world import Toy, prepare

from eagle3ops.errors import Refused
from eagle3ops.runs.family import left_behind
from eagle3ops.runs.files import read_json
from eagle3ops.runs.ledger import show
from eagle3ops.runs.ledger_rows import changes
from eagle3ops.runs.orders import cancel
from eagle3ops.runs.processes import identify, is_alive
from eagle3ops.runs.starts import launch, spawn
from eagle3ops.runs.store import Store

SLOW_PARTS = ("--set", "stages.make.part_s=0.15", "--set", "stages.make.parts=4")


def until(true: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, f"{what} did not come true"
        time.sleep(0.02)


def test_a_run_does_all_stages_and_the_next_one_none(toy: Toy) -> None:
    first = toy.job()
    assert first.returncode == 0, first.stderr
    assert first.stdout == ""
    assert "PASS  use/joined" in first.stderr
    again = toy.job()
    assert again.returncode == 0
    assert again.stderr.count("done before, skipped") == 3
    assert "PASS  use/joined" in again.stderr
    # What was measured with a patched engine stays so when it is taken over.
    runs = [row["run_id"] for row in changes(toy.root)["rows"]]
    assert [show(toy.root, run)["patches"] for run in runs] == [{"toy-recipe": "applied"}] * 2
    manifest = read_json(toy.last().artifacts / "manifest.json")
    assert manifest is not None
    assert [entry["path"] for entry in manifest["use"]] == ["joined"]
    assert (toy.last().artifacts / "use" / "joined").is_file()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a run that nobody kills makes; keys do not depend on where the root is."""
    whole = Toy(prepare(tmp_path_factory.mktemp("whole")))
    assert whole.job(*SLOW_PARTS).returncode == 0
    return whole.outputs()


@pytest.mark.parametrize(
    "moment", ["runs/*/state.json", "stages/make-*/part-0", "stages/make-*/part-2", "stages/use-*/"]
)
def test_killed_at_any_moment_and_resumed_it_ends_the_same(
    toy: Toy, moment: str, undisturbed: dict[str, bytes]
) -> None:
    toy.start("--job", "pipeline", "--spec", "toy.yaml", *SLOW_PARTS)
    toy.until(moment)
    run = toy.last()
    toy.kill_everything(run)
    assert left_behind(run.path) == []
    kept = {path: path.stat().st_mtime_ns for path in toy.root.glob("stages/make-*/part-?")}
    resumed = toy.call("runs", "resume", "last")
    assert resumed.returncode == 0, resumed.stderr
    assert toy.outputs() == undisturbed
    assert {path: path.stat().st_mtime_ns for path in kept} == kept  # nothing is made twice


def test_what_an_earlier_supervisor_said_is_no_reason_for_how_this_one_ended(toy: Toy) -> None:
    toy.start("--job", "pipeline", "--spec", "toy.yaml", *SLOW_PARTS)
    toy.until("stages/make-*/part-0")
    run = toy.last()
    toy.kill_everything(run)
    with (run.logs / "supervisor.log").open("a") as log:
        log.write("cancelled by SIGTERM\n")
    again = toy.start("runs", "resume", "last")
    toy.until("stages/make-*/part-2")
    supervisor = run.supervisor()
    assert supervisor is not None
    os.kill(supervisor["pid"], signal.SIGKILL)
    said = again.communicate(timeout=30)[1]
    assert again.returncode == 1
    assert "cancelled by SIGTERM" not in said
    assert "the supervisor was ended" in said


def test_the_stage_dies_with_its_supervisor_and_so_does_what_it_started(toy: Toy) -> None:
    toy.start("--job", "pipeline", "--spec", "toy.yaml", "--set", "stages.use.mode=child")
    while not (number := toy.until("runs/*/child.pid").read_text()):
        time.sleep(0.01)
    child = identify(int(number))
    assert child is not None
    run = toy.last()
    supervisor = run.supervisor()
    assert supervisor is not None
    os.kill(supervisor["pid"], signal.SIGKILL)
    deadline = time.monotonic() + 20
    while is_alive(child.as_json()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(child.as_json())
    assert left_behind(run.path) == []
    assert toy.started[0].wait(20) == 1
    assert run.status() == "interrupted"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_the_run_and_says_how_to_resume(toy: Toy, number: signal.Signals) -> None:
    process = toy.start("--job", "pipeline", "--spec", "toy.yaml", "--set", "stages.use.mode=child")
    toy.until("runs/*/child.pid")
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    run = toy.last()
    assert f"eagle3ops runs resume {run.run_id}" in err
    assert run.state()["status"] == "cancelled"
    assert run.state()["stages"]["use"]["status"] == "cancelled"
    assert left_behind(run.path) == []


def test_runs_cancel_ends_a_detached_run(toy: Toy) -> None:
    assert toy.job("--detach", "--set", "stages.use.mode=child").returncode == 0
    toy.until("runs/*/child.pid")
    assert toy.last().alive()
    assert toy.call("runs", "cancel", "last").returncode == 0
    assert toy.last().state()["exit_code"] == 130
    assert toy.call("runs", "cancel", "last").returncode == 2


def test_a_cancel_that_takes_its_time_is_seen_at_once(toy: Toy) -> None:
    assert toy.job("--detach", "--set", "stages.use.mode=hang").returncode == 0
    toy.until("stages/use-*/")
    run = toy.last()
    until(lambda: (run.state()["stages"].get("use") or {}).get("status") == "running", "the stage")
    # It is deep in a call by the time that its process has loaded what it needs.
    until(lambda: (run.logs / "use.log").exists() and left_behind(run.path), "its process")
    before = run.last_seq()
    assert cancel(run)
    until(lambda: "cancelling" in run.state() or not run.alive(), "the mark")
    shown = toy.call("runs", "show", run.run_id)
    said = [event.data for event in run.reader(before).read() if event.kind == "info"]
    if run.alive():
        # Whoever looks in between, sees both: that it goes on, and that it has heard.
        assert run.status() == "running"
        assert "being cancelled (SIGTERM)" in shown.stdout
    until(lambda: not run.alive(), "the end")
    assert [(data["cancelling"], data["text"].startswith("cancelled by SIGTERM: use has 12 s")) for data in said] == [
        ("SIGTERM", True)
    ]
    state = run.state()
    assert (state["status"], "cancelling" in state) == ("cancelled", False)


def test_a_run_whose_supervisor_was_stopped_can_be_cancelled(toy: Toy) -> None:
    assert toy.job("--detach", "--set", "stages.use.mode=child").returncode == 0
    toy.until("runs/*/child.pid")
    supervisor = toy.last().supervisor()
    assert supervisor is not None
    os.kill(supervisor["pid"], signal.SIGSTOP)
    cancelled = toy.call("runs", "cancel", "last", "--json")
    assert cancelled.returncode == 0, cancelled.stderr
    assert json.loads(cancelled.stdout) == {"run": toy.last().run_id, "host": "local", "status": "cancelled"}


def test_detached_json_names_the_run(toy: Toy) -> None:
    started = toy.job("--detach", "--json", "--set", "stages.use.mode=child")
    assert json.loads(started.stdout) == {"run": toy.last().run_id, "host": "local", "path": str(toy.last().path)}


def test_a_run_is_looked_after_once(toy: Toy) -> None:
    assert toy.job("--detach", "--set", "stages.use.mode=child").returncode == 0
    toy.until("runs/*/child.pid")
    with pytest.raises(Refused, match="is running"):
        launch(toy.last(), "another")
    second = spawn(toy.last(), "another")
    assert second.wait(20) == 0
    assert "looks after this run already" in (toy.last().logs / "supervisor.log").read_text()
    assert toy.call("runs", "resume", "last").returncode == 6
    assert toy.last().alive()


def test_two_runs_do_not_work_in_one_stage(toy: Toy) -> None:
    runs = [toy.start("--job", "pipeline", "--spec", "toy.yaml", *SLOW_PARTS) for _ in range(2)]
    told = [process.communicate(timeout=60)[1] for process in runs]
    assert [process.returncode for process in runs] == [0, 0], told
    both = "".join(told)
    assert both.count("make: made") == 4


def test_a_stage_waits_for_the_process_that_works_in_its_folder(toy: Toy) -> None:
    plan = json.loads(toy.call("plan", "toy.yaml", "--json").stdout)
    with Store(toy.root).working(Path(plan["stages"][0]["out"]), pytest.fail):
        run = toy.start("--job", "make", "--spec", "toy.yaml")
        assert run.stderr is not None
        while "another run works in make-" not in (told := run.stderr.readline()):
            assert told
        assert not list(toy.root.glob("stages/make-*/part-0"))
    assert run.wait(30) == 0


def test_a_failing_verdict_lets_the_run_go_on_and_ends_it_with_3(toy: Toy) -> None:
    for skipped in (False, True):
        run = toy.job("--set", "stages.use.passed=false")
        assert run.returncode == 3
        assert "FAIL  use/joined: a part is wrong" in run.stderr
        assert (toy.last().artifacts / "end" / "report").is_file()
        assert ("use: done before" in run.stderr) is skipped


def test_a_stage_whose_figures_would_say_nothing_is_not_started_after_a_failing_verdict(toy: Toy) -> None:
    toy.variables = {"TOY_POINTLESS_AFTER": "use/joined"}
    for _ in range(2):
        run = toy.job("--set", "stages.use.passed=false")
        assert run.returncode == 3
        assert "FAIL  use/joined: a part is wrong" in run.stderr
        assert "end was not started: use/joined is FAIL, so its figures would say nothing" in run.stderr
        assert f"runs resume {toy.last().run_id} --yes runs end all the same" in run.stderr
        state = toy.last().state()
        assert (state["status"], state["exit_code"], state["stages"]["end"]["status"]) == ("failed", 3, "waiting")
    found = json.loads(toy.call("incidents", "last", "--json").stdout)
    assert [one["kind"] for one in found if one["severity"] == "error"] == ["verdict"]
    # What is undecided stops nothing.
    before = toy.variables
    toy.variables = before | {"TOY_UNDECIDED": "1"}
    undecided = toy.job("--set", "seed=2")
    assert undecided.returncode == 3
    assert "UNDECIDED  use/joined" in undecided.stderr
    assert (toy.last().artifacts / "end" / "report").is_file()
    toy.variables = before
    assert toy.job("--set", "stages.use.passed=false", "--set", "seed=1").returncode == 3
    assert not (toy.last().artifacts / "end" / "report").exists()
    forced = toy.call("runs", "resume", "last", "--yes")
    assert forced.returncode == 3
    assert (toy.last().artifacts / "end" / "report").is_file()
    assert toy.job().returncode == 0


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("raise", "ZeroDivisionError: nobody expected this"),
        ("explain", "the model file is damaged"),
        ("full", "joined: no space left on the disk"),
    ],
)
def test_a_failing_stage_says_why_in_one_line(toy: Toy, mode: str, words: str) -> None:
    run = toy.job("--set", f"stages.use.mode={mode}")
    assert run.returncode == 1
    assert words in run.stderr
    assert "Traceback" not in run.stderr
    # It has said it all: no root cause is looked up in its log and told again.
    assert "cause:" not in run.stderr
    assert "root" not in toy.last().state()["stages"]["use"]
    assert toy.last().state()["stages"]["end"]["status"] == "waiting"
    assert words in toy.last().state()["cause"]


def test_a_killed_stage_is_named_with_its_signal(toy: Toy) -> None:
    process = toy.start("--job", "pipeline", "--spec", "toy.yaml", "--set", "stages.use.mode=hang")
    toy.until("stages/use-*/")
    run = toy.last()
    for pid in left_behind(run.path):
        os.kill(pid, signal.SIGKILL)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "use: ended by SIGKILL" in err


def test_json_is_events_and_nothing_else(toy: Toy) -> None:
    run = toy.job("--json", "--set", "stages.use.passed=false")
    assert run.returncode == 3
    events = [json.loads(line) for line in run.stdout.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events == toy.events()
    assert events[-1]["data"]["exit_code"] == 3
    assert all(set(event) == {"seq", "ts", "stage", "kind", "data"} for event in events)


def test_a_reader_that_leaves_does_not_end_the_run(toy: Toy) -> None:
    process = toy.start("--job", "pipeline", "--spec", "toy.yaml", "--json", *SLOW_PARTS)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(30) == 0
    assert toy.last().state()["status"] == "done"


def test_one_stage_alone_needs_those_before_it(toy: Toy) -> None:
    refused = toy.job(job="end")
    assert refused.returncode == 2
    assert "make, use" in refused.stderr
    assert "--job make first" in refused.stderr
    assert not (toy.root / "runs").exists()
    for name in ("make", "use", "end"):
        assert toy.job(job=name).returncode == 0


def test_what_does_not_fit_is_refused_before_it_starts(toy: Toy) -> None:
    for setting, word in (("forecast_bytes", "disk"), ("forecast_memory", "memory")):
        refused = toy.job("--set", f"stages.make.{setting}={10**18}")
        assert refused.returncode == 6
        assert f"{word}: " in refused.stderr
        assert "888.2 PiB" in refused.stderr
        plan = toy.call("plan", "toy.yaml", "--set", f"stages.make.{setting}={10**18}", "--json")
        assert plan.returncode == 6
        assert word in json.loads(plan.stdout)["refused"]
    assert not (toy.root / "runs").exists()


@pytest.fixture
def small_disk(toy: Toy) -> Toy:
    toy.root.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(toy.root)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    return toy


@pytest.fixture(autouse=True)
def _unmount(tmp_path: Path) -> object:
    yield
    root = tmp_path / "root"
    if root.is_mount():
        subprocess.run(["umount", "-l", str(root)], check=True)


def test_a_full_disk_is_named_and_the_run_resumes_once_there_is_room(small_disk: Toy) -> None:
    toy = small_disk
    run = toy.job("--set", "stages.make.part_bytes=1048576")
    assert run.returncode == 1
    assert "no space left on the disk" in run.stderr
    assert str(toy.root) in run.stderr
    last_words = [event for event in toy.events() if event["kind"] == "run" and event["data"]["status"] == "failed"]
    assert len(last_words) == 1
    subprocess.run(["mount", "-o", "remount,size=32m", str(toy.root)], check=True)
    resumed = toy.call("runs", "resume", "last")
    assert resumed.returncode == 0, resumed.stderr


def test_a_disk_so_full_that_nothing_can_be_written_still_ends_with_a_message(small_disk: Toy) -> None:
    toy = small_disk
    process = toy.start("--job", "pipeline", "--spec", "toy.yaml", "--set", "stages.make.part_s=0.3")
    toy.until("stages/make-*/part-0")
    with (toy.root / "filler").open("wb", buffering=0) as filler:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    if filler.write(b"x" * size) < size:
                        break
            except OSError:
                continue
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "no space left on the disk" in err
    (toy.root / "filler").unlink()
    resumed = toy.call("runs", "resume", "last")
    assert resumed.returncode == 0, resumed.stderr


def test_a_read_only_root_is_refused_before_anything_starts(small_disk: Toy) -> None:
    toy = small_disk
    subprocess.run(["mount", "-o", "remount,ro", str(toy.root)], check=True)
    run = toy.job()
    assert run.returncode == 1
    assert f"{toy.root}: the file system is read-only" in run.stderr
    assert "--root" in run.stderr
    assert list(toy.root.iterdir()) == []
