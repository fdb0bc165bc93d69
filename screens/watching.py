"""What is there to show of a root and of one run? Read from run directories, without a terminal."""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3ops.narration import line, plain
from eagle3ops.runs.directory import RunDirectory, list_runs, runs_folder
from eagle3ops.runs.events import Event

NEWEST = 200
"""Runs listed at most; older ones are reached with `eagle3ops runs list`."""
TAIL = 200
"""Event lines kept of the selected run."""
QUIET_S = 30.0
"""A running stage that has said nothing for so long looks stale."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run in the list."""

    run_id: str
    name: str
    status: str
    """`running`, `done`, `failed`, `cancelled`, `interrupted`, or `verdict FAIL`."""
    since: float
    """When it ended, or else started, in seconds since 1970."""


@dataclass(slots=True)
class StageRow:
    """One stage of the selected run."""

    name: str
    status: str
    seconds: float | None = None
    done: float | None = None
    total: float | None = None
    unit: str = ""
    rate: float | None = None
    """Units per second since the stage began to report."""
    read: float | None = None
    """When the stage last reported."""

    @property
    def left(self) -> float | None:
        """Seconds to go at the present rate."""
        if self.status != "running" or not self.rate or self.total is None or self.done is None:
            return None
        return max(0.0, (self.total - self.done) / self.rate)


@dataclass(slots=True)
class RunDetail:
    """Everything about the selected run."""

    row: RunRow
    path: Path
    job: str
    stages: list[StageRow]
    verdicts: list[tuple[str, bool, str]]
    """Name, passed, reason."""
    tail: list[tuple[float, str, str]]
    """Time, kind, text; oldest first."""
    cause: str | None = None
    remedy: str | None = None
    last_event: float | None = None


def read_runs(root: Path) -> list[RunRow]:
    """The newest runs, newest first; one that vanishes meanwhile is left out."""
    rows = []
    for run_id in reversed(list_runs(root)[-NEWEST:]):
        run = RunDirectory(runs_folder(root) / run_id)
        if run.path.is_dir():
            rows.append(_row(run, run.state()))
    return rows


def _row(run: RunDirectory, state: Mapping[str, Any]) -> RunRow:
    status = run.status()
    if status == "done" and state.get("exit_code") == 3:
        status = "verdict FAIL"
    parts = run.run_id.split("-", 2)
    name = parts[2] if len(parts) == 3 else run.run_id
    since = _number(state.get("ended")) or _number(state.get("started")) or _changed(run.path)
    return RunRow(run.run_id, plain(name), plain(status), since)


@dataclass(slots=True)
class _Pace:
    """First and last progress report of a stage's present attempt."""

    first: tuple[float, float]
    last: tuple[float, float]
    total: float | None
    unit: str


@dataclass(slots=True)
class RunWatch:
    """Follows one run's events, reading only what has been added."""

    run: RunDirectory
    _paces: dict[str, _Pace] = field(default_factory=dict)
    _verdicts: dict[tuple[str, str], tuple[bool, str]] = field(default_factory=dict)
    _tail: "deque[tuple[float, str, str]]" = field(default_factory=lambda: deque(maxlen=TAIL))
    _reader: Any = None
    _last: float | None = None

    def read(self) -> RunDetail:
        """How the run stands now."""
        if self._reader is None:
            self._reader = self.run.reader()
        for event in self._reader.read():
            self._take(event)
        state = self.run.state()
        stages = state.get("stages")
        named = stages if isinstance(stages, dict) else {}
        row = _row(self.run, state)
        rows = [self._stage(str(name), value, row.status) for name, value in named.items()]
        verdicts = [(f"{stage}/{name}", *outcome) for (stage, name), outcome in self._verdicts.items()]
        return RunDetail(
            row=row,
            path=self.run.path,
            job=plain(state.get("job") or ""),
            stages=rows,
            verdicts=verdicts,
            tail=list(self._tail),
            cause=_text(state.get("cause")),
            remedy=_text(state.get("remedy")),
            last_event=self._last,
        )

    def _take(self, event: Event) -> None:
        self._last = event.ts
        stage, data = event.stage or "", event.data
        if event.kind == "progress":
            self._advance(stage, event)
            return
        if event.kind == "stage" and data.get("status") == "running":
            self._paces.pop(stage, None)
        if event.kind == "verdict":
            self._verdicts[stage, plain(data.get("name", ""))] = (
                bool(data.get("passed")),
                plain(data.get("reason", "")),
            )
        told = line(event)
        if told:
            self._tail.append((event.ts, event.kind, told))

    def _advance(self, stage: str, event: Event) -> None:
        done = _number(event.data.get("done"))
        if done is None:
            return
        point, unit = (event.ts, done), plain(event.data.get("unit", ""))
        pace = self._paces.get(stage)
        if pace is None or pace.unit != unit or done < pace.last[1]:
            # Another kind of work within the stage: its rate starts afresh.
            self._paces[stage] = _Pace(point, point, _number(event.data.get("total")), unit)
        else:
            pace.last, pace.total = point, _number(event.data.get("total"))

    def _stage(self, name: str, value: object, run_status: str) -> StageRow:
        facts = value if isinstance(value, dict) else {}
        status = plain(facts.get("status", "waiting"))
        if status == "running" and run_status != "running":
            status = run_status
        row = StageRow(plain(name), status, _number(facts.get("seconds")))
        pace = self._paces.get(name)
        if pace is not None:
            (began, before), (ended, done) = pace.first, pace.last
            row.done, row.total, row.unit, row.read = done, pace.total, pace.unit, ended
            row.rate = (done - before) / (ended - began) if ended > began and done > before else None
        return row


def age(seconds: float) -> str:
    """A span in one unit: "4 s", "12 min", "3 h", "5 d"."""
    for limit, size, unit in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h")):
        if seconds < limit:
            return f"{max(0, seconds) / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def _number(value: object) -> float | None:
    finite = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if finite else None  # type: ignore[arg-type]


def _text(value: object) -> str | None:
    return plain(value) if value else None


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return time.time()
