"""Which processes belong to the trees that are watched, and what does each of them do?

A process is told apart by (pid, start). Once it is in a tree it stays there, also when its parent dies and it gets
another one. A child whose parent came and went between two looks is found only by the run mark in its environment.
"""

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3ops.telemetry.procfs import (
    PAGE_BYTES,
    TICKS_PER_S,
    Stat,
    parse_cmdline,
    parse_io,
    parse_mark,
    parse_stat,
    parse_switches,
    parse_word,
    read_at,
    read_threads,
)

RUN_MARK = "EAGLE3OPS_RUN_DIR"
"""Set for everything that a run starts; its value is the run directory."""
SUPERVISOR_MARK = "EAGLE3OPS_SUPERVISES"
"""Set for the process that looks after a run, and for no other; its value is the run directory, too."""

MAX_PROCESSES = 400
"""So many processes are watched at most; how many were left out is said."""
DETAILS_PER_SAMPLE = 40
"""So many processes have their I/O, switches, wchan and system call read at one look, those read longest ago first, and
every process that is new."""
QUIET_LOOKS = 4
"""A process that slept and used no CPU at so many looks is looked at every other time."""
SCAN_EVERY_S = 0.4
YOUNG_S = 2.0
"""A process that has just forked still shows its parent's environment and command line."""
_VERIFIED_PER_SCAN = 16

Clock = Callable[[], float]


@dataclass(slots=True)
class _Known:
    """A process of this machine, watched or not."""

    ppid: int
    start_ticks: int
    seen_at: float
    mark: str | None
    run: str | None


@dataclass(slots=True)
class _Watched:
    pid: int
    start_ticks: int
    root: int
    since: float
    stat_fd: int | None
    run: str | None
    """Of the process under which it was found: its own mark may be gone."""
    cmd: str | None = None
    name: str = ""
    record: dict[str, Any] = field(default_factory=dict)
    quiet: int = 0
    details: dict[str, Any] = field(default_factory=dict)
    detail_mono: float | None = None


class ProcessTrees:
    """The processes under some roots, looked at again and again.

    Roots are `pids` (numbers, or (pid, start ticks)), with `marked` every process that carries the mark of a run or of
    its supervisor, and the processes that `read` is given. `labels` names roots for people.
    """

    def __init__(
        self,
        pids: Iterable[int | tuple[int, int]] = (),
        *,
        marked: bool = False,
        labels: Mapping[int, str] | None = None,
        limit: int = MAX_PROCESSES,
        clock: Clock = time.monotonic,
    ) -> None:
        self._asked = [(pid, None) if isinstance(pid, int) else pid for pid in pids]
        self._marked = marked
        self._labels = dict(labels or {})
        self._limit = limit
        self._clock = clock
        self._known: dict[int, _Known] = {}
        self._watched: dict[int, _Watched] = {}
        self._unwatched: set[int] = set()
        self._to_verify: list[int] = []
        self._scanned_at: float | None = None
        self._looks = 0
        self._keep_open = _descriptors_to_spare() // 2

    @property
    def left_out(self) -> int:
        """Processes that belong to the trees but are not watched, for there are too many."""
        return len(self._unwatched)

    @property
    def run_dirs(self) -> set[str]:
        """Run directories that the watched processes name."""
        return {known.mark for pid in self._watched if (known := self._known.get(pid)) and known.mark}

    def close(self) -> None:
        """Give the descriptors back."""
        for pid in list(self._watched):
            self._drop(pid)

    def read(self, *, more: Collection[int] = (), threads: bool = False) -> list[dict[str, Any]]:
        """One look at every process of the trees, by process id; see `sampler` for the fields.

        Args:
            more: further roots, such as the processes on the GPUs.
            threads: also `task`, the busiest threads of each (see `procfs.read_threads`): costly.
        """
        now = self._clock()
        if self._scanned_at is None or now - self._scanned_at >= SCAN_EVERY_S:
            self._scan(now, more)
        found: list[tuple[_Watched, dict[str, Any]]] = []
        self._looks += 1
        for watched in list(self._watched.values()):
            if watched.quiet >= QUIET_LOOKS and (self._looks + watched.pid) % 2:
                found.append((watched, watched.record.copy()))
                continue
            stat = _read_stat(watched)
            if stat is None or stat.start_ticks != watched.start_ticks:
                self._drop(watched.pid)
                self._known.pop(watched.pid, None)
            else:
                record = self._record(watched, stat, now)
                _note_quiet(watched, record)
                found.append((watched, record.copy()))
        never = sum(watched.detail_mono is None for watched, _ in found)
        due = sorted(found, key=lambda entry: entry[0].detail_mono or 0.0)
        for watched, record in due[: max(never, DETAILS_PER_SAMPLE)]:
            self._read_details(watched, record)
        for watched, record in found:
            record.update(watched.details)
            record["cmd"] = watched.cmd
            record["detail_mono"] = watched.detail_mono
            if threads:
                record["task"] = read_threads(watched.pid)
        return sorted((record for _, record in found), key=lambda record: int(record["pid"]))

    def _record(self, watched: _Watched, stat: Stat, now: float) -> dict[str, Any]:
        if stat.name != watched.name:
            watched.name, watched.cmd = stat.name, parse_cmdline(read_at(f"/proc/{watched.pid}/cmdline"))
        known = self._known.get(watched.pid)
        run = (known and known.run) or watched.run
        return {
            "pid": watched.pid,
            "ppid": stat.ppid,
            "start": stat.start_ticks / TICKS_PER_S,
            "start_ticks": stat.start_ticks,
            "root": watched.root,
            "label": self._labels.get(watched.root, run),
            "run": run,
            "name": stat.name,
            "state": stat.state,
            "utime": stat.user_ticks / TICKS_PER_S,
            "stime": stat.system_ticks / TICKS_PER_S,
            "threads": stat.threads,
            "rss": stat.rss_pages * PAGE_BYTES,
            "majflt": stat.majflt,
            "stat_mono": now,
        }

    def _read_details(self, watched: _Watched, record: Mapping[str, Any]) -> None:
        folder = f"/proc/{watched.pid}/"
        now = self._clock()
        if now - watched.since < YOUNG_S:
            watched.cmd = parse_cmdline(read_at(folder + "cmdline"))
        voluntary, involuntary = parse_switches(read_at(folder + "status") or b"")
        watched.details = {
            **parse_io(read_at(folder + "io")),
            "vcs": voluntary,
            "nvcs": involuntary,
            "wchan": parse_word(read_at(folder + "wchan")),
            "syscall": parse_word(read_at(folder + "syscall")),
            "detail_majflt": record["majflt"],
        }
        watched.detail_mono = now

    def _scan(self, now: float, more: Collection[int]) -> None:
        self._scanned_at = now
        alive = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        for pid in self._known.keys() - alive:
            del self._known[pid]
            self._drop(pid)
        self._unwatched &= alive
        fresh = alive - self._known.keys()
        fresh.update(pid for pid, known in self._known.items() if now - known.seen_at < YOUNG_S)
        fresh.update(self._verify())
        for pid in fresh:
            self._learn(pid, now)
        for pid, start in self._asked:
            if pid in self._known and start in (None, self._known[pid].start_ticks):
                self._adopt_tree(pid, now)
        for pid in more:
            self._adopt_tree(pid, now)
        # Parents before their children.
        for pid in sorted(fresh & self._known.keys(), key=lambda pid: (self._known[pid].start_ticks, pid)):
            known = self._known[pid]
            if known.ppid in self._watched:
                self._adopt(pid, self._watched[known.ppid].root, now)
            elif known.mark is not None:
                self._adopt(pid, pid, now)

    def _verify(self) -> list[int]:
        """Some known numbers that are looked at again: they may belong to another process by now."""
        if not self._to_verify:
            self._to_verify = list(self._known)
        some, self._to_verify = self._to_verify[:_VERIFIED_PER_SCAN], self._to_verify[_VERIFIED_PER_SCAN:]
        return some

    def _learn(self, pid: int, now: float) -> None:
        stat = parse_stat(read_at(f"/proc/{pid}/stat") or b"")
        if stat is None:
            self._known.pop(pid, None)
            return
        before = self._known.get(pid)
        same = before is not None and before.start_ticks == stat.start_ticks
        if before is not None and same and now - before.seen_at >= YOUNG_S:
            before.ppid = stat.ppid
            return
        # A mark that was seen stays: a program that clears its environment still belongs to the run.
        mark = before.mark if before is not None and same else None
        if self._marked and mark is None and not stat.kernel_thread:
            environment = read_at(f"/proc/{pid}/environ", limit=1 << 20)
            mark = parse_mark(environment, RUN_MARK) or parse_mark(environment, SUPERVISOR_MARK)
        seen_at = before.seen_at if before is not None and same else now
        self._known[pid] = _Known(stat.ppid, stat.start_ticks, seen_at, mark, mark and os.path.basename(mark))

    def _adopt_tree(self, root: int, now: float) -> None:
        """Watch a process that may have been known for long, and all its descendants."""
        if root in self._watched or root not in self._known:
            return
        children: dict[int, list[int]] = {}
        for pid, known in self._known.items():
            children.setdefault(known.ppid, []).append(pid)
        queue = [root]
        while queue:
            pid = queue.pop()
            self._adopt(pid, root, now)
            queue.extend(child for child in children.get(pid, ()) if child not in self._watched)

    def _adopt(self, pid: int, root: int, now: float) -> None:
        if pid in self._watched:
            return
        if len(self._watched) >= self._limit:
            self._unwatched.add(pid)
            return
        stat_fd = None
        if len(self._watched) < self._keep_open:
            with contextlib.suppress(OSError):
                stat_fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        self._unwatched.discard(pid)
        known, parent = self._known[pid], self._watched.get(self._known[pid].ppid)
        run = known.run or (parent.run if parent is not None else None)
        self._watched[pid] = _Watched(pid, known.start_ticks, root, now, stat_fd, run)

    def _drop(self, pid: int) -> None:
        watched = self._watched.pop(pid, None)
        if watched is not None and watched.stat_fd is not None:
            os.close(watched.stat_fd)


def _read_stat(watched: _Watched) -> Stat | None:
    if watched.stat_fd is None:
        data = read_at(f"/proc/{watched.pid}/stat")
    else:
        try:
            # An open descriptor stays with its process: a later one of the same number cannot be read through it.
            data = os.pread(watched.stat_fd, 4096, 0)
        except OSError:
            return None
    return parse_stat(data or b"")


def _note_quiet(watched: _Watched, record: dict[str, Any]) -> None:
    before, watched.record = watched.record, record
    same = _stands_for(record) == _stands_for(before) if before else False
    watched.quiet = watched.quiet + 1 if same and record["state"] != "R" else 0


def _stands_for(record: dict[str, Any]) -> tuple[Any, ...]:
    return record["utime"], record["stime"], record["state"], record["threads"], record["majflt"]


def _descriptors_to_spare() -> int:
    try:
        import resource
    except ImportError:
        return 0
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 2048 if soft == resource.RLIM_INFINITY else min(soft, 2048)


def available() -> bool:
    """Is there a procfs? Elsewhere `PortableTrees` does the reading."""
    return os.path.exists("/proc/self/stat")
