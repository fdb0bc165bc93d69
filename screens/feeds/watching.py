"""What is there to show of a root and of one run? Made from what an agent answers, without a terminal."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eagle3ops.narration import lines
from eagle3ops.runs.events import Event
from eagle3ops.screens.feeds.series import SeriesBook
from eagle3ops.words import UNDECIDED, outcome_of, plain

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
    """`running`, `done`, `failed`, `cancelled`, `interrupted`, `verdict FAIL`, or `verdict UNDECIDED`."""
    since: float
    """When it ended, or else started, in seconds since 1970."""
    cause: str = ""
    """Why it failed or stopped."""
    exit_code: int | None = None


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
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What `state.json` says of it besides, as it stands there."""

    @property
    def attempt(self) -> int:
        """Above 1 where the watchdog had it started again."""
        return int(min(1e6, max(1.0, _number(self.facts.get("attempt")) or 1.0)))

    @property
    def root(self) -> Mapping[str, Any]:
        """The line of a log that says why it failed; empty where none is known."""
        found = self.facts.get("root")
        return found if isinstance(found, Mapping) and self.status == "failed" else {}

    @property
    def left(self) -> float | None:
        """Seconds to go at the present rate."""
        if self.status != "running" or not self.rate or self.total is None or self.done is None:
            return None
        # A stage that still runs though all that it counts is done, does something else: nobody knows how long.
        return (self.total - self.done) / self.rate if self.done < self.total else None


@dataclass(slots=True)
class RunDetail:
    """Everything about the selected run."""

    row: RunRow
    path: str
    job: str
    stages: list[StageRow]
    verdicts: list[tuple[str, bool | None, str]]
    """Name, passed (None is UNDECIDED), reason."""
    tail: list[tuple[float, str, str]]
    """Time, kind, text; oldest first."""
    cause: str | None = None
    remedy: str | None = None
    last_event: float | None = None


def run_rows(summaries: Sequence[Mapping[str, Any]]) -> list[RunRow]:
    """The rows of `runs.list`, newest first."""
    return [
        _row(str(run.get("run_id")), str(run.get("status")), run)
        for run in reversed(summaries)
        if isinstance(run, Mapping)
    ]


def status_of_verdicts(cause: str | None) -> str:
    """Of a run that is done, and not all of whose verdicts are PASS; `cause` as it says itself."""
    undecided = (cause or "").startswith(f"verdict {UNDECIDED}")
    return f"verdict {UNDECIDED}" if undecided else "verdict FAIL"


def _row(run_id: str, status: str, state: Mapping[str, Any]) -> RunRow:
    if status == "done" and state.get("exit_code") == 3:
        status = status_of_verdicts(_text(state.get("cause")))
    parts = run_id.split("-", 2)
    name = parts[2] if len(parts) == 3 else run_id
    since = _number(state.get("ended")) or _number(state.get("started")) or _number(state.get("created")) or time.time()
    code = state.get("exit_code")
    return RunRow(
        run_id,
        plain(name),
        plain(status),
        since,
        _text(state.get("cause")) or "",
        code if isinstance(code, int) and not isinstance(code, bool) else None,
    )


@dataclass(slots=True)
class _Pace:
    """First and last progress report of a stage's present attempt."""

    first: tuple[float, float]
    last: tuple[float, float]
    total: float | None
    unit: str


@dataclass(slots=True)
class RunWatch:
    """What is known of one run, from the events that it is given."""

    run_id: str
    last_seq: int = 0
    """Number of the last event taken."""
    _paces: dict[str, _Pace] = field(default_factory=dict)
    _verdicts: dict[tuple[str, str], tuple[bool | None, str]] = field(default_factory=dict)
    _tail: "deque[tuple[float, str, str]]" = field(default_factory=lambda: deque(maxlen=TAIL))
    _last: float | None = None
    series: SeriesBook = field(default_factory=SeriesBook)
    """How its figures went on."""
    evidence: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    """(stage, name) of a verdict -> what it rests on."""
    processes: int = 0
    """Events about processes so far; changes when one was started or has ended."""
    artifacts: int = 0
    """Events about artifacts so far."""

    def detail(self, found: Mapping[str, Any]) -> RunDetail:
        """How the run stands, given the answer of `runs.state`."""
        known = found.get("state")
        state = known if isinstance(known, dict) else {}
        stages = state.get("stages")
        named = stages if isinstance(stages, dict) else {}
        row = _row(self.run_id, str(found.get("status", "")), state)
        rows = [self._stage(str(name), value, row.status) for name, value in named.items()]
        verdicts = [(f"{stage}/{name}", *outcome) for (stage, name), outcome in self._verdicts.items()]
        return RunDetail(
            row=row,
            path=plain(found.get("path", "")),
            job=plain(state.get("job") or ""),
            stages=rows,
            verdicts=verdicts,
            tail=list(self._tail),
            cause=_text(found.get("interruption")) or _text(state.get("cause")),
            remedy=_text(state.get("remedy")),
            last_event=self._last,
        )

    def take(self, event: Event) -> None:
        """Learn from one event."""
        self._last, self.last_seq = event.ts, event.seq
        stage, data = event.stage or "", event.data
        self.series.take(event)
        self.processes += event.kind == "process"
        self.artifacts += event.kind == "artifact"
        if event.kind == "progress":
            self._advance(stage, event)
            return
        if event.kind == "stage" and data.get("status") == "running":
            self._paces.pop(stage, None)
        if event.kind == "verdict":
            self._verdicts[stage, plain(data.get("name", ""))] = (
                outcome_of(data),
                plain(data.get("reason", "")),
            )
            rests = data.get("data")
            self.evidence[stage, plain(data.get("name", ""))] = rests if isinstance(rests, Mapping) else {}
        told = lines(event)
        if told:
            # With its root cause a failure is still one event.
            self._tail.append((event.ts, event.kind, "; ".join(part.strip() for part in told)))

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
        row = StageRow(plain(name), status, _number(facts.get("seconds")), facts=facts)
        pace = self._paces.get(name)
        if pace is not None:
            (began, before), (ended, done) = pace.first, pace.last
            row.done, row.total, row.unit, row.read = done, pace.total, pace.unit, ended
            row.rate = (done - before) / (ended - began) if ended > began and done > before else None
        return row


def age(seconds: float) -> str:
    """A span in one unit: "4 s", "12 min", "3 h", "5 d"; what a clock cannot mean is not spelled out."""
    if seconds > 36500 * 86400:
        return "over 100 years"
    for limit, size, unit in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h")):
        if seconds < limit:
            return f"{max(0, seconds) / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def _number(value: object) -> float | None:
    finite = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if finite else None  # type: ignore[arg-type]


def _text(value: object) -> str | None:
    return plain(value) if value else None
