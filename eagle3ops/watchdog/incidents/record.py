"""What did a run record that an incident can be made of? Its events, condensed as they are read."""

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from eagle3ops.narration import REMEDIES
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.events import Event, EventReader
from eagle3ops.runs.redact import redact
from eagle3ops.words import outcome_of

T = TypeVar("T")

WARNINGS = 100
"""Different warnings of one run that are kept; the newest."""
OWN = 200
"""Incidents of one run that somebody wrote down, at most."""
TAIL_BYTES = 64 << 10
"""Of a log that are searched for the line that says what went wrong."""


@dataclass(frozen=True, slots=True)
class Warned:
    """One warning, as often as it came."""

    first: float
    last: float
    count: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A program that a stage had started, and that ended in an unusual way."""

    ts: float
    stage: str
    role: str
    pid: int | None
    code: int
    began: float = 0.0
    """When its stage began."""


@dataclass(frozen=True, slots=True)
class LogEnd:
    """How a log ends."""

    name: str
    size: int
    modified: float
    line: str = ""
    """The line that seems to say what went wrong."""
    offset: int | None = None
    """Byte at which that line begins."""


@dataclass(slots=True)
class Record:
    """What one run recorded. Everything in it was checked: texts are texts, numbers are numbers."""

    run: str
    status: str = "created"
    alive: bool = False
    exit_code: int | None = None
    cause: str = ""
    remedy: str = ""
    ended: float | None = None
    interruption: str = ""
    """Why the run stopped without a word; empty when it did not."""
    root: str = ""
    """Root of the run, where command lines have to name it; empty for the usual one."""
    created: float = 0.0
    started: float = 0.0
    last_event: float = 0.0
    stages: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """The last `stage` event of each stage, with `ts`."""
    failures: list[tuple[float, str, Mapping[str, Any]]] = field(default_factory=list)
    """Time, stage and facts of every stage that failed, in order."""
    mended: dict[str, float] = field(default_factory=dict)
    """When each stage last was done or reused."""
    begun: dict[str, float] = field(default_factory=dict)
    """When each stage last began."""
    endings: list[tuple[float, str, Mapping[str, Any]]] = field(default_factory=list)
    """Time, status and facts of every end of the run."""
    warnings: "OrderedDict[tuple[str, str], Warned]" = field(default_factory=OrderedDict)
    """(stage, text) -> how often."""
    verdicts: dict[tuple[str, str], tuple[float, bool | None, str]] = field(default_factory=dict)
    """(stage, name) -> time, passed (None is UNDECIDED), reason of the last one."""
    ended_badly: list[Ended] = field(default_factory=list)
    roles: dict[str, str] = field(default_factory=dict)
    """Role -> log, of what was started."""
    incidents: dict[str, tuple[float, str, Mapping[str, Any]]] = field(default_factory=dict)
    """Those that were written down, by id: time, stage, data."""
    done: dict[str, list[str]] = field(default_factory=dict)
    """What the watchdog did, by incident."""
    logs: dict[str, LogEnd] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        """Learn from one event."""
        data, stage = event.data, event.stage or ""
        if not 0 <= event.ts < 1e12:
            # No clock says that.
            return
        self.last_event = max(self.last_event, event.ts)
        if event.kind == "run":
            self._take_run(event.ts, data)
        elif event.kind == "stage":
            self._take_stage(event.ts, stage, data)
        elif event.kind == "warn":
            self._warn(event.ts, stage, _text(data.get("text")))
        elif event.kind == "verdict":
            name = _text(data.get("name")) or "verdict"
            self.verdicts[stage, name] = (event.ts, outcome_of(data), _text(data.get("reason")))
        elif event.kind == "process":
            self._take_process(event.ts, stage, data)
        elif event.kind == "remedy":
            self._take_remedy(data)
        elif event.kind == "incident":
            key = _text(data.get("id")) or str(event.seq)
            if key in self.incidents or len(self.incidents) < OWN:
                self.incidents[key] = (event.ts, stage, data)

    def _take_remedy(self, data: Mapping[str, Any]) -> None:
        key, step, why = (_text(data.get(name)) for name in ("incident", "step", "why"))
        if key and step and (key in self.done or len(self.done) < OWN):
            self.done.setdefault(key, []).append(f"{REMEDIES.get(step, step)}: {why}")
            del self.done[key][:-6]

    def _take_run(self, ts: float, data: Mapping[str, Any]) -> None:
        status = _text(data.get("status"))
        if status == "running":
            self.started = ts
        elif status:
            self.endings.append((ts, status, data))
            del self.endings[:-20]

    def _take_stage(self, ts: float, stage: str, data: Mapping[str, Any]) -> None:
        status = _text(data.get("status"))
        self.stages[stage] = {**data, "ts": ts}
        if status == "running":
            self.begun[stage] = ts
        elif status in ("done", "reused"):
            self.mended[stage] = ts
        elif status == "failed":
            self.failures.append((ts, stage, data))
            del self.failures[:-50]

    def _warn(self, ts: float, stage: str, text: str) -> None:
        if not text:
            return
        before = self.warnings.pop((stage, text), None)
        self.warnings[stage, text] = Warned(before.first if before else ts, ts, before.count + 1 if before else 1)
        while len(self.warnings) > WARNINGS:
            self.warnings.popitem(last=False)

    def _take_process(self, ts: float, stage: str, data: Mapping[str, Any]) -> None:
        role, log, code, pid = (data.get(name) for name in ("role", "log", "code", "pid"))
        if not isinstance(role, str):
            return
        if isinstance(log, str) and len(self.roles) < 1000:
            self.roles[role] = log.removeprefix("logs/")
        if (
            data.get("state") == "ended"
            and isinstance(code, int)
            and not isinstance(code, bool)
            and code not in _ORDERLY
        ):
            began = self.begun.get(stage, 0.0)
            self.ended_badly.append(Ended(ts, stage, role[:100], pid if isinstance(pid, int) else None, code, began))
            del self.ended_badly[:-50]


_ORDERLY = (0, -15)
"""A program that is no longer needed is ended with SIGTERM."""


class Records:
    """Reads the records of runs, each from where the last look ended. For several threads."""

    def __init__(self, most: int = 200) -> None:
        self._most = most
        self._known: OrderedDict[tuple[str, int], tuple[Record, EventReader]] = OrderedDict()
        self._lock = threading.Lock()

    def ask(self, run: RunDirectory, question: Callable[[Record], T]) -> T:
        """Put a question to what the run has recorded until now; nothing is learnt meanwhile."""
        with self._lock:
            try:
                place = run.events_file.stat().st_ino
            except OSError:
                place = 0
            key = (str(run.path), place)
            known = self._known.pop(key) if key in self._known else None
            record, reader = known or (Record(run.run_id), EventReader(run.events_file))
            for event in reader.read():
                record.take(event)
            self._known[key] = record, reader
            while len(self._known) > self._most:
                self._known.popitem(last=False)
            self._stand(record, run)
            return question(record)

    def _stand(self, record: Record, run: RunDirectory) -> None:
        """How the run stands now, and how the logs end that matter for that."""
        from eagle3ops import locations

        state = run.state()
        record.alive, record.status = run.alive(), run.status()
        record.interruption = (run.interruption() or "") if record.status == "interrupted" else ""
        code = state.get("exit_code")
        record.exit_code = code if isinstance(code, int) and not isinstance(code, bool) else None
        record.cause, record.remedy = _text(state.get("cause")), _text(state.get("remedy"))
        ended = state.get("ended")
        record.ended = float(ended) if isinstance(ended, int | float) and not isinstance(ended, bool) else None
        with contextlib.suppress(OSError):
            record.created = run.spec_file.stat().st_mtime
        record.root = "" if locations.root() == run.root else str(run.root)
        running = [stage for stage, facts in record.stages.items() if facts.get("status") == "running"]
        failed = {stage for _, stage, _ in record.failures}
        stopped = set(running) if not record.alive else set()
        told = {stage for (stage, _), (_, passed, _) in record.verdicts.items() if not passed}
        told |= {stage for stage, _ in record.warnings if stage}
        record.logs = {
            name: end
            for name in (f"{stage}.log" for stage in {*failed, *running, *told})
            if (end := log_end(run.logs / name, look=name.removesuffix(".log") in failed | stopped)) is not None
        }
        if record.alive:
            # A stage is silent only when none of its programs says anything either.
            newest = max(record.logs.values(), key=lambda end: end.modified, default=None)
            for path in run.logs.glob("*.log"):
                end = log_end(path, look=False)
                if end is not None and (newest is None or end.modified > newest.modified):
                    newest = end
            if newest is not None:
                record.logs[newest.name] = newest


def log_end(path: Path, *, look: bool) -> LogEnd | None:
    """How a log ends; with `look` the line that says what went wrong is searched for. None when there is no log."""
    try:
        stat = path.stat()
        if not look or not stat.st_size:
            return LogEnd(path.name, stat.st_size, stat.st_mtime)
        with path.open("rb") as file:
            start = max(0, stat.st_size - TAIL_BYTES)
            file.seek(start)
            tail = file.read(TAIL_BYTES)
    except OSError:
        return None
    at, line = telling_line(tail)
    return LogEnd(path.name, stat.st_size, stat.st_mtime, line, None if at is None else start + at)


def telling_line(tail: bytes) -> tuple[int | None, str]:
    """Where in the end of a log it stands what went wrong: the error under the last traceback, else the last line.

    Returns:
        The offset at which to begin to read (of a traceback its first line), and the line.
    """
    last: tuple[int, bytes] | None = None
    trace: int | None = None
    named: tuple[int, bytes] | None = None
    at = 0
    for raw in tail.split(b"\n"):
        line = raw.rstrip()
        if line:
            if line.lstrip().startswith(b"Traceback (most recent call last)"):
                trace, named = at, None
            elif trace is not None and named is None and line[:1] not in (b" ", b"\t") and b":" in line:
                named = trace, line
            last = at, line
        at += len(raw) + 1
    found = named or last
    return (None, "") if found is None else (found[0], redact(found[1].decode("utf-8", errors="replace").strip())[:300])


def _text(value: object) -> str:
    return value[:2000] if isinstance(value, str) else ""
