"""Does /proc show of each drill what the table of fingerprints says?

All are started at once, and one window is measured over all of them.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from eagle3ops.drills.catalogue import DRILLS, find
from eagle3ops.drills.drill import Drill, Running, Skipped
from eagle3ops.errors import Eagle3opsError
from eagle3ops.runs.processes import identify, process_table, read_stat

pytestmark = pytest.mark.skipif(not Path("/proc/self/wchan").exists(), reason="needs /proc")

HERE = [
    drill
    for drill in DRILLS
    # Those that need a GPU, an engine or mounts of the test's own process are held elsewhere.
    if drill.name not in ("gpu_spin", "gpu_foreign", "sglang_stuck", "disk_full", "shm_full")
]
WINDOW_S = 4.0


@dataclass
class Look:
    """One process over the window."""

    state: str
    wchan: str
    wakeups_s: float
    cpu: float
    """Of one core, 0 to 1."""
    read_bytes: int
    rchar: int
    faults: int


@dataclass
class Seen:
    running: Running
    looks: dict[int, Look]

    @property
    def top(self) -> Look:
        return self.looks[self.running.pid]

    def of(self, fact: str) -> Look:
        return self.looks[self.running.facts[fact]]


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _numbers(pid: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for task in os.listdir(f"/proc/{pid}/task"):
        for line in _text(f"/proc/{pid}/task/{task}/status").splitlines():
            if line.startswith("voluntary"):
                found["switches"] = found.get("switches", 0) + int(line.split()[1])
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if fields:
        found |= {"faults": int(fields[9]), "ticks": int(fields[11]) + int(fields[12])}
    for line in _text(f"/proc/{pid}/io").splitlines():
        name, value = line.split(":")
        found[name] = int(value)
    return found


def _pids(running: Running) -> list[int]:
    table = process_table()
    found, pending = [], [running.pid]
    while pending:
        pid = pending.pop()
        found.append(pid)
        pending += [one.pid for one in table.values() if one.parent == pid]
    return found


def _measure(every: dict[str, Running]) -> dict[str, Seen]:
    def all_numbers() -> dict[int, dict[str, int]]:
        numbers = {}
        for running in every.values():
            for pid in _pids(running):
                with contextlib.suppress(OSError):
                    numbers[pid] = _numbers(pid)
        return numbers

    began, before = time.monotonic(), all_numbers()
    time.sleep(WINDOW_S)
    after, seconds = all_numbers(), time.monotonic() - began
    seen = {}
    for name, running in every.items():
        looks = {}
        for pid in _pids(running):
            if pid not in before or pid not in after:
                continue

            def grown(what: str, pid: int = pid) -> int:
                return after[pid].get(what, 0) - before[pid].get(what, 0)

            looks[pid] = Look(
                state=_text(f"/proc/{pid}/stat").rpartition(")")[2].split()[0],
                wchan=_text(f"/proc/{pid}/wchan"),
                wakeups_s=grown("switches") / seconds,
                cpu=grown("ticks") / os.sysconf("SC_CLK_TCK") / seconds,
                read_bytes=grown("read_bytes"),
                rchar=grown("rchar"),
                faults=grown("faults"),
            )
        seen[name] = Seen(running, looks)
    return seen


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Seen]]:
    """Every drill that can be held here, measured."""
    with contextlib.ExitStack() as stack:
        every: dict[str, Running] = {}
        for drill in HERE:
            with contextlib.suppress(Skipped):
                folder = tmp_path_factory.mktemp(drill.name)
                every[drill.name] = stack.enter_context(drill.launch(folder))
        for running in every.values():
            running.await_fault(60.0)
        yield _measure(every)


def _of(seen: dict[str, Seen], name: str) -> Seen:
    if name not in seen:
        pytest.skip(str(find(name).reason()))
    return seen[name]


@pytest.mark.parametrize("name", ["deadlock", "hung_import"])
def test_a_deadlock_is_a_futex_that_never_wakes(seen: dict[str, Seen], name: str) -> None:
    top = _of(seen, name).top
    assert top.state == "S"
    assert "futex" in top.wchan
    assert top.wakeups_s == 0
    assert top.cpu == 0


def test_a_spin_runs_and_never_sleeps(seen: dict[str, Seen]) -> None:
    top = seen["spin"].top
    assert top.state == "R"
    assert top.wakeups_s == 0
    assert top.cpu > 0


def test_a_full_pipe_is_a_write(seen: dict[str, Seen]) -> None:
    of = seen["pipe"]
    assert of.top.state == "S"
    assert "pipe_write" in of.top.wchan
    assert of.top.wakeups_s == 0
    # Whoever should read is there, and does not.
    assert of.of("reader").state == "S"


def test_a_stale_lock_has_a_pulse(seen: dict[str, Seen]) -> None:
    top = seen["baton"].top
    assert "nanosleep" in top.wchan
    # Ten times a second; on a machine under load not every time.
    assert 4 < top.wakeups_s < 11
    assert top.cpu < 0.1


def test_a_held_file_lock_waits_in_the_kernels_lock_code(seen: dict[str, Seen]) -> None:
    of = seen["flock"]
    assert "lock" in of.top.wchan
    assert "futex" not in of.top.wchan
    holders = [line for line in _text("/proc/locks").splitlines() if f" {of.running.facts['holder']} " in line]
    assert any("FLOCK" in line for line in holders)


def test_a_dead_mount_is_an_uninterruptible_sleep(seen: dict[str, Seen]) -> None:
    of = seen["disk_wait"]
    reader = of.of("reader")
    assert reader.state == "D"
    assert reader.wakeups_s == 0
    if of.running.facts["how"] == "fuse":
        assert "folio_wait" in reader.wchan or "wait_on_page" in reader.wchan


def test_without_rights_vfork_is_an_uninterruptible_sleep_too() -> None:
    program = (
        "from eagle3ops.drills import dead_mount, stage\n"
        "dead_mount.by_vfork(stage.child, lambda pid, how: print(pid, how, flush=True))\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        number, how = process.stdout.readline().split()
        assert how == "vfork"
        deadline = time.monotonic() + 30
        while (stat := read_stat(number)) is not None and stat.state != "D" and time.monotonic() < deadline:
            time.sleep(0.02)
        assert stat is not None
        assert stat.state == "D"
        process.kill()
    while identify(int(number)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert identify(int(number)) is None


def test_a_server_whose_worker_was_stopped(seen: dict[str, Seen]) -> None:
    of = seen["stopped"]
    assert of.of("worker").state == "T"
    assert of.top.state == "S"


def test_a_server_whose_worker_died_keeps_a_zombie(seen: dict[str, Seen]) -> None:
    of = seen["half_dead"]
    assert of.of("worker").state == "Z"
    assert of.top.state == "S"


def test_an_idle_server_and_a_dead_one_look_the_same(seen: dict[str, Seen]) -> None:
    for name in ("idle", "dead_thread", "deaf"):
        assert all((look.state, look.cpu, look.wakeups_s) == ("S", 0, 0) for look in seen[name].looks.values()), name


def test_a_process_that_the_kernel_killed_for_memory(seen: dict[str, Seen]) -> None:
    of = _of(seen, "host_oom")
    assert of.of("killed").state == "Z"
    group = Path(of.running.facts["group"])
    counters = _text(str(group / "memory.oom_control")) + _text(str(group / "memory.events"))
    assert "oom_kill 1" in counters


def test_a_compilation_is_seen_by_the_names_of_its_processes(seen: dict[str, Seen]) -> None:
    of = seen["compile"]
    assert "wait" in of.top.wchan
    names = {_text(f"/proc/{pid}/comm").strip() for pid in _pids(of.running)}
    assert {"ninja", "cicc"} <= names


def test_loading_is_seen_by_bytes_also_through_a_mapping(seen: dict[str, Seen]) -> None:
    slow, mapped = seen["slow_load"].top, seen["slow_mmap"].top
    assert slow.rchar > 10e6
    assert mapped.rchar < 1e6
    # Where the folder is no real disk, pages come from elsewhere, and a minor fault is all there is.
    assert mapped.read_bytes > 10e6 or mapped.faults > 0 or seen["slow_load"].top.read_bytes == 0
    assert 0 < seen["slow_disk"].top.rchar < 20e6


def test_of_four_ranks_one_waits_elsewhere(seen: dict[str, Seen]) -> None:
    of = seen["odd_rank"]
    waits = [of.looks[pid].wchan for pid in of.running.facts["ranks"]]
    assert len(set(waits)) == 2
    assert waits.count(waits[0]) == 3
    assert "futex" in waits[2]
    assert b"RANK=2" in Path(f"/proc/{of.running.facts['ranks'][2]}/environ").read_bytes()


def test_a_starved_training_works_in_bursts(seen: dict[str, Seen]) -> None:
    assert 0 < seen["bursts"].top.cpu < 0.5


def test_a_crash_loop_goes_on(seen: dict[str, Seen]) -> None:
    assert seen["crash_loop"].running.log.read_text().count("died with signal 6") >= 1


def test_nothing_is_left(tmp_path: Path) -> None:
    """Not even of a stopped one, of a tree, and of what a program left lying."""
    for name in ("stopped", "pipe", "compile"):
        folder = tmp_path / name
        folder.mkdir()
        with find(name).start(folder) as running:
            everyone = running.processes()
            assert len(everyone) >= 2
        assert {path.name for path in folder.iterdir()} == {"engine.log", "ready.json"}
        assert not [one for one in everyone.values() if identify(one.pid) == one]


def test_everything_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            running = find("stopped").start(tmp_path)
            os.write(writing, " ".join(map(str, running.processes())).encode())
        finally:
            os._exit(0)
    os.close(writing)
    members = [int(word) for word in os.read(reading, 4096).split()]
    os.close(reading)
    os.waitpid(pid, 0)
    assert len(members) >= 2
    deadline = time.monotonic() + 30
    while any(identify(member) for member in members) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [member for member in members if identify(member)] == []


def test_a_program_that_fails_says_why(tmp_path: Path) -> None:
    broken = Drill(name="no_such_program", what="", expect=frozenset(), phase="")
    with pytest.raises(Eagle3opsError, match="no_such_program"):
        broken.start(tmp_path)
