"""Which processes are watched: one and its children, whoever listens at a URL, or those of a run?

A finder is asked again and again, as ranks come and go. It remembers whom it has found: a process that loses its parent
and is adopted by another stays a member as long as it lives. Everything here reads procfs, which can hang for a process
in an uninterruptible call: call it aside (see `aside`), never in an event loop.
"""

import os
import re
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Protocol

from eagle3ops.errors import RequestError
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.events import Event
from eagle3ops.runs.family import descendants, family
from eagle3ops.runs.processes import ProcessId, Stat, boot_id, identify, process_table
from eagle3ops.watchdog.guard.listening import Address, address_of, listener
from eagle3ops.watchdog.guard.traces import MAX_LOGS, logs_of, looks_after, program_of, roles_of, served_at
from eagle3ops.watchdog.state import Subject

_URL_EVERY_S = 5.0
_SCAN_EVERY_S = 5.0
"""Reading the marks of all processes of a machine takes 0.1 s where there are thousands; children are found at once."""
QUIET_S = 60.0
"""A stage that reported progress so recently shows by itself that its server works."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a stage of a run has reported."""

    what: str
    at: float
    """Seconds since 1970."""
    kind: Literal["progress", "done", "began", "ended"] = "progress"
    """`done`: all that it counts; `began`, `ended`: a program of its own."""
    log: str = ""
    """Name of that program's log."""


class Finder(Protocol):
    """Finds the subject, anew at every call."""

    def __call__(self) -> Subject:
        """The subject as it is now; without processes once it has ended."""
        ...

    def over(self) -> bool:
        """Has it ended for good, as of the last call?"""
        ...


def find_pid(pid: int | ProcessId) -> Subject:
    """A process and all its descendants.

    Raises:
        RequestError: there is no such process.
    """
    return PidFinder(pid)()


def find_url(url: str) -> Subject:
    """The server of this machine that listens there, with all its processes.

    Raises:
        RequestError: it is no such URL, nothing listens there, or who does cannot be seen.
    """
    return UrlFinder(url)()


def find_run(run_dir: Path, stage: str = "") -> Subject:
    """The processes of a run's stage, by default of the one that runs now.

    Raises:
        RequestError: it is not a run's folder, or it has no such stage.
    """
    return RunFinder(run_dir, stage)()


class PidFinder:
    """A tree of processes under one root.

    Args:
        pid: the root, by number (its identity is taken now) or by identity.
        name: for people.
        url: where it answers HTTP; by default as `served_at` finds it.

    Raises:
        RequestError: there is no such process.
    """

    def __init__(self, pid: int | ProcessId, *, name: str = "", url: str | None = None) -> None:
        root = identify(pid) if isinstance(pid, int) else pid
        if root is None or identify(root.pid) != root:
            number = pid if isinstance(pid, int) else pid.pid
            raise RequestError(f"there is no process {number}", remedy="ps shows those that there are")
        self.root = root
        self.name = name or f"pid {root.pid} ({program_of(root.pid)})"
        self._url = url
        self._looked_for_url = float("-inf")
        self._known: set[ProcessId] = {root}
        self._over = False

    def __call__(self) -> Subject:
        """The tree as it is now."""
        table, boot = process_table(), boot_id()
        members = grow(table, boot, self._known)
        self._known = members
        alive = tuple(sorted(members, key=lambda member: (member.start, member.pid)))
        self._over = all(table[member.pid].state in "ZX" for member in alive)
        now = time.monotonic()
        if self._url is None and now - self._looked_for_url >= _URL_EVERY_S:
            # Not at every look: it means reading all their descriptors.
            self._looked_for_url = now
            self._url = served_at(alive)
        return Subject(
            name=self.name,
            processes=alive,
            roles=roles_of(alive),
            logs=logs_of(alive),
            url=self._url,
        )

    def over(self) -> bool:
        """Has every process of it ended?"""
        return self._over


class UrlFinder(PidFinder):
    """The server that listens at a URL of this machine.

    The root is the listener, or the highest of its ancestors that is in the same process group and runs the same
    program: servers fork their HTTP workers, and a shell that started the server is not the server.
    """

    def __init__(self, url: str) -> None:
        where = address_of(url)
        super().__init__(_root_of(where), name=f"{where.host}:{where.port}", url=where.url)


class RunFinder:
    """What a run's supervisor has started for one stage.

    Args:
        run_dir: the run's folder.
        stage: by default the stage that runs at each look.

    Raises:
        RequestError: it is not a run's folder, or it has no such stage.
    """

    def __init__(self, run_dir: Path, stage: str = "") -> None:
        self.run = RunDirectory(run_dir)
        stages = self.run.request()["stages"]
        if stage and stage not in stages:
            raise RequestError(
                f"{self.run.run_id} has no stage {stage!r}", remedy=f"it has: {', '.join(map(str, stages))}"
            )
        self._asked = stage
        self._reader = self.run.reader()
        self._spawned: dict[str, list[Mapping[str, Any]]] = {}
        self._told: list[Told] = []
        self._progress_at = time.monotonic()
        self._over = False
        self._known: set[ProcessId] = set()
        self._scanned_at = float("-inf")

    def __call__(self) -> Subject:
        """The processes of the stage as they are now; none while it does not run."""
        for event in self._reader.read():
            self._take(event)
        state = self.run.state()
        running = [name for name, facts in state["stages"].items() if facts.get("status") == "running"]
        stage = self._asked or (running[0] if running else "")
        self._over = not self.run.alive()
        members = self._members() if stage in running else ()
        spawned = self._spawned.get(stage, [])
        name = f"run {self.run.run_id}" + (f", stage {stage}" if stage else "")
        return Subject(
            name=name,
            processes=members,
            roles=roles_of(members) | _roles(spawned, members),
            logs=self._logs(stage, spawned),
            log_starts=self._log_starts(spawned),
            url=_url_of(spawned, members),
            run_dir=self.run.path,
            stage=stage,
        )

    def over(self) -> bool:
        """Does nobody look after the run any more?"""
        return self._over

    def progress(self) -> list[Told]:
        """What its stages have reported since the last call."""
        told, self._told = self._told, []
        return told

    def quiet(self) -> bool:
        """Has the stage reported no progress for a while, so that its server may be asked for a token?"""
        return time.monotonic() - self._progress_at > QUIET_S

    def _take(self, event: Event) -> None:
        stage = event.stage or ""
        if event.kind in ("progress", "metric", "artifact"):
            self._tell(Told(f"{stage}: {event.kind}", event.ts))
            self._progress_at = time.monotonic()
            if event.kind == "progress" and _complete(event.data):
                # What follows, such as a last measurement, may take as long as it wants.
                self._tell(Told(f"{stage}: all done", event.ts, "done"))
        elif event.kind == "stage" and event.data.get("status") == "running":
            # Another attempt: what the one before has logged and reported says nothing about this one.
            self._spawned[stage] = []
            self._told = []
            self._progress_at = time.monotonic()
        elif event.kind == "process" and event.stage is not None:
            state, role = event.data.get("state"), str(event.data.get("role"))
            if state == "started":
                self._spawned.setdefault(stage, []).append(event.data)
                self._scanned_at = float("-inf")
                self._tell(Told(f"{stage}: {role} began", event.ts, "began", f"{role}.log"))
            elif state == "ended" and role != stage:
                self._tell(Told(f"{stage}: {role} ended", event.ts, "ended", f"{role}.log"))

    def _tell(self, one: Told) -> None:
        # Of a long log only the last is of use: it says that there was progress, and when.
        self._told = [*self._told[-255:], one]

    def _members(self) -> tuple[ProcessId, ...]:
        table, boot = process_table(), boot_id()
        now = time.monotonic()
        if now - self._scanned_at >= _SCAN_EVERY_S:
            self._scanned_at = now
            self._known = self._scan(table)
        self._known = grow(table, boot, self._known)
        return tuple(sorted(self._known, key=lambda member: (member.start, member.pid)))

    def _scan(self, table: Mapping[int, Stat]) -> set[ProcessId]:
        me, found = os.getpid(), family(self.run.path)
        # The supervisor and who else guards the run are not the stage, and neither is what looks at it.
        own = ProcessId.from_json(self.run.supervisor())
        watchers = {me, *([own.pid] if own is not None else [])}
        watchers |= {pid for pid in found if pid in table and looks_after(pid)}
        below = descendants(table, watchers - {own.pid if own is not None else 0})
        return {process for pid, process in found.items() if pid not in watchers and pid not in below}

    def _log_starts(self, spawned: Iterable[Mapping[str, Any]]) -> dict[Path, int]:
        """Where this attempt begins in logs that an earlier one has written into as well."""
        starts: dict[Path, int] = {}
        for one in spawned:
            offset = one.get("offset")
            if isinstance(offset, int) and not isinstance(offset, bool) and offset >= 0:
                starts.setdefault(self.run.path / str(one.get("log")), offset)
        return starts

    def _logs(self, stage: str, spawned: Iterable[Mapping[str, Any]]) -> tuple[Path, ...]:
        names = [f"logs/{stage}.log"] if stage else []
        names += [str(one.get("log")) for one in spawned]
        # What stands in the events was written by the run itself, but stays below its folder all the same.
        sound = [name for name in dict.fromkeys(names) if re.fullmatch(r"logs/[^/\0]{1,200}", name)]
        return tuple(self.run.path / name for name in sound[:MAX_LOGS])


def grow(table: Mapping[int, Stat], boot: str, known: Collection[ProcessId]) -> set[ProcessId]:
    """Those of `known` that are still there, and all their descendants; zombies too, as they tell of a death."""
    here = {p.pid for p in known if p.boot == boot and p.pid in table and table[p.pid].start == p.start}
    return {ProcessId(pid, table[pid].start, boot) for pid in here | descendants(table, here)}


def _root_of(where: Address) -> ProcessId:
    pid = listener(where)
    table = process_table()
    program = _program(pid)
    while pid in table and (parent := table.get(table[pid].parent)) is not None:
        if parent.pid <= 1 or parent.group != table[pid].group or program is None or _program(parent.pid) != program:
            break
        pid = parent.pid
    root = identify(pid)
    if root is None:
        raise RequestError(f"the process that listened at {where.url} has just ended")
    return root


def _program(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return None


def _roles(spawned: Iterable[Mapping[str, Any]], members: Collection[ProcessId]) -> dict[int, str]:
    roles = {}
    for one in spawned:
        process = ProcessId.from_json(one)
        if process is not None and process in members:
            rank = f", rank {one['rank']}" if isinstance(one.get("rank"), str) and one["rank"].isdecimal() else ""
            roles[process.pid] = f"{one.get('role')}{rank}"
    return roles


def _complete(data: Mapping[str, Any]) -> bool:
    done, total = data.get("done"), data.get("total")
    return isinstance(done, int | float) and isinstance(total, int | float) and done >= total


def _url_of(spawned: Iterable[Mapping[str, Any]], members: Collection[ProcessId]) -> str | None:
    """Where the newest of the living processes was told to listen."""
    for one in reversed(list(spawned)):
        argv = one.get("argv")
        if ProcessId.from_json(one) not in members or not isinstance(argv, list):
            continue
        options = dict(pairwise(map(str, argv)))
        port, host = options.get("--port", ""), options.get("--host", "127.0.0.1")
        if port.isdecimal() and 0 < int(port) < 65536 and re.fullmatch(r"[A-Za-z0-9.:-]{1,253}", host):
            host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
            return f"http://{host}:{port}"
    return None
