"""Are exactly those processes signalled that were meant: all of a run's, however they hide, and nobody else's?"""

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
from hypothesis import given
from hypothesis import strategies as st
from runaways import NAMES, alive
from toy_world import Toy

from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.family import end_left_behind, family, known_processes, left_behind, remember, tree
from eagle3ops.runs.files import write_json
from eagle3ops.runs.orders import cancel, sweep
from eagle3ops.runs.processes import (
    SUPERVISOR_VARIABLE,
    ProcessId,
    identify,
    is_alive,
    process_table,
    read_stat,
    send_signal,
)
from eagle3ops.telemetry.processes import ProcessTrees

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(3600)"]


def until(true: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline, f"{what} did not come true"
        time.sleep(0.01)


@pytest.fixture
def sleeper() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Makes processes that sleep, and ends them."""
    made: list[subprocess.Popen[bytes]] = []

    def make() -> subprocess.Popen[bytes]:
        made.append(subprocess.Popen(SLEEP, start_new_session=True))
        return made[-1]

    yield make
    for process in made:
        process.kill()
        process.wait()


def reuse(pid: int, make: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """A new process that has the number of one that has ended. The kernel is told which number it gave out last."""
    last = Path("/proc/sys/kernel/ns_last_pid")
    for _ in range(200):
        try:
            last.write_text(str(pid - 1))
        except OSError as error:
            pytest.skip(f"the kernel does not let the next process id be chosen: {error}")
        process = make()
        if process.pid == pid:
            return process
    pytest.skip("other programs were always faster to get the number")


def test_a_reused_number_is_never_signalled(tmp_path: Path, sleeper: Callable[[], subprocess.Popen[bytes]]) -> None:
    first = sleeper()
    meant = identify(first.pid)
    assert meant is not None
    assert send_signal(meant, 0)
    first.kill()
    first.wait()
    assert not send_signal(meant, signal.SIGKILL)
    # The start is counted in hundredths of a second; within the same one, the two could not be told apart.
    time.sleep(0.03)
    other = reuse(meant.pid, sleeper)
    assert not is_alive(meant.as_json())
    assert not send_signal(meant, signal.SIGKILL)

    run = RunDirectory(tmp_path / "runs" / "r")
    run.path.mkdir(parents=True)
    write_json(run.path / "supervisor.json", meant.as_json())
    write_json(run.path / "intent.json", {"token": "t", "process": meant.as_json()})
    remember(run.path, [meant])
    assert not run.alive()
    assert not cancel(run)
    assert left_behind(run.path) == []
    assert end_left_behind(run.path) == []
    time.sleep(0.1)
    assert other.poll() is None
    now = identify(other.pid)
    assert now is not None
    assert send_signal(now, signal.SIGKILL)
    assert other.wait(10) == -signal.SIGKILL


def test_identities_can_be_written_and_read(sleeper: Callable[[], subprocess.Popen[bytes]]) -> None:
    me = identify(os.getpid())
    assert me is not None
    assert ProcessId.from_json(me.as_json() | {"heartbeat": 1.5}) == me
    assert is_alive(me.as_json())
    assert not is_alive(me.as_json() | {"boot": "another"})
    assert not is_alive(me.as_json() | {"start": me.start - 1})
    process = sleeper()
    process.kill()
    until(lambda: (read_stat(process.pid) or me).state == "Z", "the end")  # type: ignore[union-attr]
    assert identify(process.pid) is None  # a zombie is not alive
    assert process.pid in process_table()


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)))
def test_whatever_stands_in_a_file_is_an_identity_or_none(value: Any) -> None:
    for data in (value, {"pid": value, "start": value, "boot": value}, {"pid": 1, "start": 1, "boot": value}):
        found = ProcessId.from_json(data)
        assert found is None or (0 < found.pid < 1 << 31 and isinstance(found.boot, str))
        is_alive(data if isinstance(data, dict) else None)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"processes": 3}', '{"processes": [1, {}, {"pid": "x"}]}'])
def test_damaged_lists_of_processes_are_empty(tmp_path: Path, content: str) -> None:
    (tmp_path / "processes.json").write_text(content)
    assert known_processes(tmp_path) == []
    assert family(tmp_path) == {}


def test_the_tree_holds_descendants_and_nobody_else(sleeper: Callable[[], subprocess.Popen[bytes]]) -> None:
    process = sleeper()
    assert process.pid in tree()
    assert os.getpid() not in tree()
    assert os.getppid() not in tree()
    assert tree(process.pid) == {}


@pytest.fixture
def runaways(toy: Toy) -> Toy:
    """A run with descendants that hide."""
    toy.start("--job", "pipeline", "--spec", "toy.yaml", "--set", "stages.use.mode=runaways")
    for name in NAMES:
        toy.until(f"runs/*/runaways/{name}.there")
    assert len(alive(toy.last().path / "runaways")) >= len(NAMES)
    return toy


def test_cancel_ends_every_descendant(runaways: Toy) -> None:
    run = runaways.last()
    assert cancel(run)
    assert runaways.started[0].wait(60) == 130
    assert alive(run.path / "runaways") == []
    assert run.state()["status"] == "cancelled"
    assert not any("cannot be ended" in str(event["data"]) for event in runaways.events())


def test_what_outlives_a_killed_supervisor_is_ended_by_the_next(runaways: Toy) -> None:
    run = runaways.last()
    folder = run.path / "runaways"
    supervisor = ProcessId.from_json(run.supervisor())
    assert supervisor is not None
    bare = [pid for pid in alive(folder) if not Path(f"/proc/{pid}/environ").read_bytes()]
    assert len(bare) == 1
    until(lambda: bare[0] in {process.pid for process in known_processes(run.path)}, "the heartbeat")
    assert send_signal(supervisor, signal.SIGKILL)
    assert runaways.started[0].wait(60) == 1
    # Nothing ties it to the run any more but what the dead supervisor wrote down.
    assert bare[0] in alive(folder)
    assert runaways.call("runs", "resume", "last").returncode == 0
    assert alive(folder) == []


def test_what_outlives_a_killed_supervisor_can_be_cancelled(runaways: Toy) -> None:
    run = runaways.last()
    folder = run.path / "runaways"
    supervisor = ProcessId.from_json(run.supervisor())
    assert supervisor is not None
    bare = [pid for pid in alive(folder) if not Path(f"/proc/{pid}/environ").read_bytes()]
    until(lambda: bare[0] in {process.pid for process in known_processes(run.path)}, "the heartbeat")
    assert sweep(run) == [], "somebody looks after them"
    assert send_signal(supervisor, signal.SIGKILL)
    assert runaways.started[0].wait(60) == 1
    assert bare[0] in alive(folder)
    cancelled = runaways.call("runs", "cancel", "last", "--json")
    assert cancelled.returncode == 0, cancelled.stderr
    said = json.loads(cancelled.stdout)
    assert said["status"] == "interrupted"
    assert bare[0] in said["ended"]
    assert alive(folder) == []
    again = runaways.call("runs", "cancel", "last")
    assert (again.returncode, "is not running; it is interrupted" in again.stderr) == (2, True)
    assert runaways.call("runs", "resume", "last").returncode == 0


def test_orphans_are_reaped_while_the_stage_runs(toy: Toy) -> None:
    # Without a guard, which would be a child as well.
    unguarded = ("--set", "stages.use.mode=orphans", "--set", "watchdog.on=false")
    toy.start("--job", "pipeline", "--spec", "toy.yaml", *unguarded)
    toy.until("runs/*/orphaned")
    run = toy.last()
    supervisor = (run.supervisor() or {})["pid"]

    def children() -> list[str]:
        return [stat.state for stat in process_table().values() if stat.parent == supervisor]

    # One is left: the stage itself.
    until(lambda: len(children()) == 1 and "Z" not in children(), "the end of the orphans")
    assert run.state()["stages"]["use"]["status"] == "running"


def test_a_hang_up_does_not_end_a_run_and_it_has_a_session_of_its_own(toy: Toy) -> None:
    toy.start("--job", "pipeline", "--spec", "toy.yaml", "--set", "stages.make.part_s=0.3")
    toy.until("stages/make-*/part-0")
    run = toy.last()
    supervisor = ProcessId.from_json(run.supervisor())
    assert supervisor is not None
    stat = read_stat(supervisor.pid)
    assert stat is not None
    assert stat.session == stat.group == supervisor.pid
    assert send_signal(supervisor, signal.SIGHUP)
    assert toy.started[0].wait(60) == 0
    # What the run has started can still be hung up: the supervisor's own choice is not passed on.
    assert run.state()["status"] == "done"


def test_a_group_ends_with_its_block_and_the_rest_with_the_stage(toy: Toy) -> None:
    run = toy.job("--set", "stages.use.mode=heirs")
    assert run.returncode == 0, run.stderr
    assert "the group is ended" in run.stderr
    heirs = [int(pid) for pid in (toy.last().path / "heirs").read_text().split()]
    assert len(heirs) == 2
    assert [pid for pid in heirs if (Path(f"/proc/{pid}/cmdline").exists())] == []


def test_how_a_stage_ended_and_what_it_used_is_written_down(toy: Toy) -> None:
    command = toy.start("--job", "pipeline", "--spec", "toy.yaml", "--set", "stages.use.mode=hang")
    toy.until("stages/use-*/")
    run = toy.last()
    for process in family(run.path).values():
        send_signal(process, signal.SIGKILL)
    assert command.wait(60) == 1
    made, used = (run.state()["stages"][name] for name in ("make", "use"))
    assert (made["process_exit"], made["signal"]) == (0, None)
    assert (used["process_exit"], used["signal"]) == (None, "SIGKILL")
    assert made["usage"]["user_seconds"] + made["usage"]["system_seconds"] > 0
    assert made["usage"]["max_rss_bytes"] > 1 << 20
    assert set(made["usage"]) >= {"blocks_read", "blocks_written", "voluntary_switches", "involuntary_switches"}


def test_the_supervisor_is_sampled_with_its_run_and_marks_nobody_else(toy: Toy) -> None:
    toy.start("--job", "pipeline", "--spec", "toy.yaml", "--set", "stages.use.mode=child")
    toy.until("runs/*/child.pid")
    run = toy.last()
    supervisor = (run.supervisor() or {})["pid"]
    trees = ProcessTrees(marked=True)
    found = {record["pid"]: record for record in trees.read() if record["run"] == run.run_id}
    trees.close()
    assert "eagle3ops.supervisor" in found[supervisor]["cmd"]
    # All that it looks after stands below it.
    assert {record["root"] for record in found.values()} == {supervisor}
    assert set(left_behind(run.path)) <= set(found)
    for pid in left_behind(run.path):
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        assert SUPERVISOR_VARIABLE.encode() not in environment
    assert supervisor not in left_behind(run.path), "it must not end itself with what is left of the run"


def test_when_memory_runs_out_the_supervisor_is_spared_and_stages_are_not(toy: Toy) -> None:
    program = "import pathlib; pathlib.Path('/proc/self/oom_score_adj').write_text('-500')"
    if subprocess.run([sys.executable, "-S", "-c", program], capture_output=True).returncode:
        pytest.skip("lowering the score is not permitted here (CAP_SYS_RESOURCE)")
    before = Path("/proc/self/oom_score_adj").read_text().strip()
    toy.start("--job", "pipeline", "--spec", "toy.yaml", "--set", "stages.use.mode=child")
    child = toy.until("runs/*/child.pid")
    run = toy.last()
    scores = {pid: Path(f"/proc/{pid}/oom_score_adj").read_text().strip() for pid in left_behind(run.path)}
    assert child.exists()
    assert set(scores.values()) == {before}
    supervisor = (run.supervisor() or {})["pid"]
    assert Path(f"/proc/{supervisor}/oom_score_adj").read_text().strip() == "-500"
