"""Which processes does a run have, however they tried to get away, and how are they ended?

A descendant can leave its session and group (setsid), its parent (a double fork) and its environment (`env -i`). It
cannot leave the tree below the supervisor, which adopts orphans as long as it lives. What it sees there it writes down
in `processes.json`, so that the next supervisor finds it after a SIGKILL of the first.
"""

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from eagle3ops.runs.files import read_json, write_json
from eagle3ops.runs.processes import RUN_VARIABLE, ProcessId, Stat, boot_id, identify, process_table, signal_all

KNOWN = "processes.json"

SWEEP_S = 10.0
"""How long SIGKILL is repeated; a process in an uninterruptible call ends only when that returns."""
TRACKER_S = 2.0
"""How long a resource tracker has to tidy up after those that were killed."""
_TRACKER = b"multiprocessing.resource_tracker"


def known_processes(run_dir: Path) -> list[ProcessId]:
    """What a supervisor of this run has seen below it and written down."""
    listed = (read_json(run_dir / KNOWN) or {}).get("processes")
    found = map(ProcessId.from_json, listed if isinstance(listed, list) else [])
    return [process for process in found if process is not None]


def remember(run_dir: Path, processes: Iterable[ProcessId]) -> None:
    """Write down what has been seen."""
    listed = [process.as_json() for process in sorted(processes, key=lambda process: process.pid)]
    write_json(run_dir / KNOWN, {"processes": listed}, sync=False)


def descendants(table: Mapping[int, Stat], ancestors: Collection[int]) -> set[int]:
    """Numbers of all processes below the given ones, without these."""
    children: dict[int, list[int]] = {}
    for stat in table.values():
        children.setdefault(stat.parent, []).append(stat.pid)
    found: set[int] = set()
    pending = list(ancestors)
    while pending:
        for child in children.get(pending.pop(), ()):
            if child not in found:
                found.add(child)
                pending.append(child)
    return found - set(ancestors)


def tree(pid: int | None = None) -> dict[int, ProcessId]:
    """All living descendants of a process, by default this one."""
    table, boot = process_table(), boot_id()
    below = descendants(table, {pid or os.getpid()})
    return {pid: ProcessId(pid, table[pid].start, boot) for pid in below if table[pid].state not in "ZX"}


def family(run_dir: Path) -> dict[int, ProcessId]:
    """All living processes of the run, except this one.

    They are: those whose environment carries the run's mark, those written down earlier, everything below this process
    if it is the run's supervisor, and what descends from or shares a session with any of these.
    """
    table, boot, me = process_table(), boot_id(), os.getpid()
    members = {pid for pid in table if _marked(pid, run_dir)}
    members |= {p.pid for p in known_processes(run_dir) if p.boot == boot and _start(table, p.pid) == p.start}
    if (read_json(run_dir / "supervisor.json") or {}).get("pid") == me:
        members |= descendants(table, {me})
    members.discard(me)
    mine = table[me].session if me in table else 0
    while True:
        # A session is joined only by being born into it; so whoever shares a member's session is a relative, unless
        # it is the session of this process itself, which may be a person's shell.
        sessions = {table[pid].session for pid in members} - {0, 1, mine}
        grown = members | descendants(table, members) | {s.pid for s in table.values() if s.session in sessions}
        grown -= {me, 1}
        if grown == members:
            break
        members = grown
    return {pid: ProcessId(pid, table[pid].start, boot) for pid in members if table[pid].state not in "ZX"}


def _start(table: Mapping[int, Stat], pid: int) -> int | None:
    return table[pid].start if pid in table else None


def _marked(pid: int, run_dir: Path) -> bool:
    mark = f"{RUN_VARIABLE}={run_dir}".encode()
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        environment = file.read()
        return mark in environment and mark in environment.split(b"\0")
    return False


def spared(processes: Mapping[int, ProcessId]) -> dict[int, ProcessId]:
    """All but the resource trackers of Python's multiprocessing.

    A tracker unlinks the shared memory and the semaphores of processes that could not, as soon as these are gone, and
    ends. Killed with them it leaves hundreds of megabytes in /dev/shm for every hard end of an engine.
    """
    return {pid: process for pid, process in processes.items() if not _is_tracker(pid)}


def kill(processes: Mapping[int, ProcessId], began: float) -> None:
    """SIGKILL, as often as it takes; for trackers only once they had their time.

    Args:
        processes: what is to end.
        began: when it was first called for them, by `time.monotonic`.
    """
    in_time = time.monotonic() < began + TRACKER_S
    signal_all(spared(processes) if in_time else processes, signal.SIGKILL)


def _is_tracker(pid: int) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return _TRACKER in file.read()
    return False


def left_behind(run_dir: Path) -> list[int]:
    """Numbers of the living processes of a run, except this one."""
    return sorted(family(run_dir))


def end_left_behind(run_dir: Path, *, grace: float = 2.0, reap: bool = False) -> list[int]:
    """End what is left of a run: SIGTERM, `grace` seconds, SIGKILL until nothing is left. Returns their numbers.

    The caller has to look whether something is left: a process inside an uninterruptible call cannot be ended.

    Args:
        run_dir: the run's folder.
        grace: seconds between the polite signal and the other one.
        reap: this process is the supervisor: take note of the end of all its children.
    """
    rest = family(run_dir)
    ended = set(rest)
    signal_all(rest, signal.SIGTERM)
    # A stopped process would keep the signal for later.
    signal_all(rest, signal.SIGCONT)
    deadline = time.monotonic() + grace
    while not _is_empty(run_dir, reap=reap) and time.monotonic() < deadline:
        time.sleep(0.02)
    began = time.monotonic()
    while not _is_empty(run_dir, reap=reap) and time.monotonic() < began + SWEEP_S:
        # Again and again: what forks as fast as it is killed is caught when its parents are gone.
        rest = (_children() if reap else {}) | family(run_dir)
        ended |= set(rest)
        kill(rest, began)
        if reap:
            # At once, before what forks and leaves can do so again: it is our child by now.
            kill(_children(), began)
        time.sleep(0.005)
    return sorted(ended)


def _is_empty(run_dir: Path, *, reap: bool) -> bool:
    """Is nothing left? The process table is not read in one instant, so it is asked twice.

    A supervisor knows better: as long as it has a child, something is left.
    """
    if reap and not reap_adopted():
        return False
    return not family(run_dir) and not family(run_dir) and (not reap or reap_adopted())


def _children() -> dict[int, ProcessId]:
    """The children of this process, by the kernel's own list, which is quicker to read than the process table."""
    try:
        numbers = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    except OSError:
        return {}
    found = {int(number): identify(int(number)) for number in numbers}
    return {pid: process for pid, process in found.items() if process is not None}


def reap_adopted(keep: int | None = None) -> bool:
    """Take note of the end of adopted orphans, so that they do not stay as zombies; says whether no child is left.

    Args:
        keep: a child whose end somebody else waits for.
    """
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return True
        if ended is None or ended.si_pid == keep:
            return False
        with contextlib.suppress(ChildProcessError):
            os.waitpid(ended.si_pid, os.WNOHANG)
