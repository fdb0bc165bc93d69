"""Does the ladder never take one step twice for one fault, and is a lock that somebody holds never touched?"""

import fcntl
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.runs.events import Event
from eagle3ops.runs.processes import ProcessId, identify
from eagle3ops.spec.models import Phase
from eagle3ops.watchdog.judge.phases import PHASES
from eagle3ops.watchdog.judge.states import STATES
from eagle3ops.watchdog.remedies.ladder import (
    BISECT,
    GIVE_UP,
    MOST,
    NOTIFY,
    RESTART,
    Ladder,
    Policy,
    Taken,
    all_rungs,
    fingerprint,
    history,
    rungs_for,
)
from eagle3ops.watchdog.remedies.lock_release import file_system_of, parse_locks, release_lock

FAULT = fingerprint("serve", "deadlock", "capturing")
RUNGS = rungs_for("sglang", "0.5.14", "deadlock", "capturing")


def climb(policy: Policy, faults: list[str]) -> list[str]:
    """The steps for faults that come one after another without progress between."""
    taken: list[Taken] = []
    steps = []
    for fault in faults:
        step = Ladder(policy, taken).next(fault, RUNGS)
        steps.append(step.kind)
        if step.kind not in (RESTART, BISECT):
            break
        taken.append(Taken(fault, step.rung.name if step.rung else ""))
    return steps


def test_the_ladder_goes_up_and_ends() -> None:
    assert climb(Policy(), [FAULT] * 9) == [NOTIFY]
    assert climb(Policy("restart"), [FAULT] * 9) == [RESTART, GIVE_UP]
    assert climb(Policy("restart", restarts=0), [FAULT] * 9) == [GIVE_UP]
    assert climb(Policy("restart", restarts=2), [FAULT] * 9) == [RESTART, RESTART, GIVE_UP]
    steps = climb(Policy("restart", bisect=True), [FAULT] * 30)
    assert steps == [RESTART, *[BISECT] * len(RUNGS), GIVE_UP]
    assert len(RUNGS) == 5


@given(st.lists(st.sampled_from("abcdefgh"), min_size=MOST * 2, max_size=60), st.integers(0, 10), st.booleans())
def test_no_step_is_taken_twice_and_there_is_always_an_end(faults: list[str], restarts: int, bisect: bool) -> None:
    steps = climb(Policy("restart", restarts, bisect), faults)
    assert steps[-1] == GIVE_UP
    assert len(steps) <= MOST + 1
    assert steps.count(BISECT) <= len(RUNGS) * bisect


def test_a_fault_is_known_by_state_phase_and_stage_and_by_where_it_stands_only_when_that_stands() -> None:
    assert fingerprint("serve", "deadlock", "loading") != FAULT
    assert fingerprint("serve", "deadlock", "capturing", ("wait (a.py)",)) != FAULT
    assert fingerprint("serve", "stopped", "", ("f",)) == fingerprint("serve", "stopped", "", ("g",))


def event(seq: int, kind: str, stage: str | None = "use", **data: object) -> Event:
    return Event(seq, float(seq), stage, kind, data)


def test_only_getting_further_than_ever_starts_the_count_anew() -> None:
    restart = {"step": "restart", "fingerprint": FAULT, "rung": ""}
    events = [
        event(1, "progress", done=3, total=9, unit="shards"),
        event(2, "remedy", **restart),
        event(3, "progress", done=3, total=9, unit="shards"),
        event(4, "progress", done="4", total=9, unit="shards"),
        event(5, "remedy", "other", **restart),
        event(6, "remedy", step="notify", fingerprint=FAULT),
    ]
    assert history(events, "use") == [Taken(FAULT)]
    assert history([*events, event(7, "progress", done=4, total=9, unit="shards")], "use") == []
    assert history([*events, event(7, "metric", name="loss", value=1.0, step=9)], "use") == []
    assert history([*events, event(7, "run", None, status="running")], "use") == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["remedy", "progress", "metric", "run", "stage"]),
            st.dictionaries(
                st.sampled_from(["step", "done", "unit", "name", "fingerprint", "rung", "status"]), json_values
            ),
        ),
        max_size=8,
    )
)
def test_odd_events_do_not_disturb_the_count(events: list[tuple[str, dict[str, object]]]) -> None:
    history([Event(n, 0.0, "use", kind, data) for n, (kind, data) in enumerate(events)], "use")


def test_what_can_be_left_out_depends_on_engine_version_state_and_phase() -> None:
    assert [rung.name for rung in RUNGS] == [
        "nccl-p2p", "nccl-cumem", "custom-all-reduce", "flashinfer-fusion", "cuda-graphs",
    ]  # fmt: skip
    assert "flashinfer-fusion" not in {rung.name for rung in rungs_for("sglang", "0.5.9", "deadlock", "capturing")}
    assert rungs_for("sglang", "", "deadlock", "capturing") == RUNGS
    assert rungs_for("reference", "", "deadlock", "capturing") == ()
    assert rungs_for("sglang", "", "host_oom", "capturing") == ()
    for rung in all_rungs():
        assert rung.source
        assert rung.environment or rung.arguments
        assert rung.engine in ("any", "sglang", "vllm")


@dataclass
class Found:
    """A lock as the evidence describes it."""

    path: Path
    kind: str = "existence"
    holders: tuple[ProcessId, ...] = ()
    stale: bool = True
    proof: str = "made by a process that has ended"


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    folder = tmp_path / "cache" / "torch_extensions" / "op"
    folder.mkdir(parents=True)
    path = folder / "lock"
    path.touch()
    os.utime(path, (1e9, 1e9))
    return path


def test_a_stale_lock_is_moved_and_kept(lock: Path, tmp_path: Path) -> None:
    done = release_lock(Found(lock), tmp_path / "evidence")
    assert done.released, done.why
    assert not lock.exists()
    assert Path(done.to).parent == tmp_path / "evidence"
    assert Path(done.to).stat().st_mtime == 1e9
    assert str(lock) in Path(f"{done.to}.json").read_text()
    again = release_lock(Found(lock), tmp_path / "evidence")
    assert not again.released
    assert "not there any more" in again.why


def test_a_lock_without_proof_is_left(lock: Path, tmp_path: Path) -> None:
    me = identify(os.getpid())
    assert me is not None
    for found, words in [
        (Found(lock, kind="flock"), "the kernel keeps this lock"),
        (Found(lock, holders=(me,)), "not proven"),
        (Found(lock, stale=False), "not proven"),
    ]:
        done = release_lock(found, tmp_path / "evidence")
        assert not done.released
        assert words in done.why
    os.utime(lock)
    assert "younger than 600 s" in release_lock(Found(lock), tmp_path / "evidence").why
    link = lock.with_name("link.lock")
    link.symlink_to(lock)
    assert "not a plain file" in release_lock(Found(link), tmp_path / "evidence").why
    assert lock.exists()


@pytest.mark.parametrize("how", ["open", "cwd", "argument"])
def test_a_lock_is_left_while_a_living_process_has_to_do_with_it(lock: Path, tmp_path: Path, how: str) -> None:
    """The evidence said that it is stale, and meanwhile somebody came."""
    program = "import sys; file = open(sys.argv[1]); print('up', flush=True); sys.stdin.read()"
    argument = {"open": str(lock), "cwd": os.devnull, "argument": "/dev/null"}[how]
    argv = [sys.executable, "-c", program, argument, *([f"-I{lock.parent}"] if how == "argument" else [])]
    with subprocess.Popen(
        argv, cwd=lock.parent if how == "cwd" else "/", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        done = release_lock(Found(lock), tmp_path / "evidence")
        assert not done.released
        assert f"process {process.pid} " in done.why
        if how == "cwd":
            # Those that wait for it may do so anywhere.
            assert release_lock(Found(lock), tmp_path / "evidence", waiting=(process.pid,)).released
    assert lock.exists() or how == "cwd"


def test_a_lock_of_the_kernel_on_it_counts(lock: Path, tmp_path: Path) -> None:
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        why = release_lock(Found(lock), tmp_path / "evidence").why
    assert "lock of the kernel" in why or f"process {os.getpid()} has it open" in why


def test_the_kind_of_a_file_system_is_that_of_the_deepest_mount() -> None:
    table = (
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "30 22 0:40 / /home rw shared:1 - nfs4 server:/home rw\n"
        "31 22 0:41 / /home/my\\040disk rw - xfs /dev/sdb rw\n"
    )
    assert file_system_of("/var/cache", table) == "ext4"
    assert file_system_of("/home/ann", table) == "nfs4"
    assert file_system_of("/home/my disk/x", table) == "xfs"
    assert file_system_of("/homes", table) == "ext4"
    assert file_system_of("/x", "") is None


@given(st.text(max_size=200), st.text(max_size=200))
def test_odd_tables_of_the_kernel_are_no_trouble(locks: str, mounts: str) -> None:
    parse_locks(locks)
    file_system_of("/x/y", mounts)
    file_system_of("/x/y", f"1 2 3 4 {mounts} - {locks}")


def test_the_kernel_names_locked_files_by_device_and_inode() -> None:
    text = "1: FLOCK  ADVISORY  WRITE 708 08:01:262170 0 EOF\n1: -> FLOCK ADVISORY WRITE 709 08:01:262170 0 EOF\n"
    assert parse_locks(text) == {(os.makedev(8, 1), 262170)}


def test_a_pipeline_file_knows_the_phases_and_the_ladder_the_states_that_there_are() -> None:
    assert set(get_args(Phase)) == set(PHASES)
    assert {state for rung in all_rungs() for state in rung.states} <= set(STATES)
    assert {phase for rung in all_rungs() for phase in rung.phases} <= set(PHASES)
