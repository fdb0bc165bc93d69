"""What does a host say of a run's processes, their environments and the run's artifacts? Read from its answers.

Answers come from another machine and perhaps another version: what is of the wrong kind is absent.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eagle3ops.screens.feeds.machine import ProcessRow, Snapshot
from eagle3ops.screens.feeds.values import mapping, number
from eagle3ops.words import plain


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEntry:
    """One process that the run has started."""

    event: int
    """Number of the event that says so; the same as long as the run is there."""
    stage: str
    role: str
    rank: str
    pid: int | None
    argv: tuple[str, ...]
    argv_left_out: int
    """Arguments that were too many to be sent."""
    log: str
    """Relative to the folder of logs; empty when it has none."""
    offset: int
    environment: str
    """Name of its environment; empty when none was written down."""
    started: float | None
    ended: float | None
    state: str
    """`running`, `ended` or `lost`."""
    code: int | None

    @property
    def command(self) -> str:
        """As a shell would take it, on one line."""
        return shlex.join(self.argv)

    @property
    def killed_by(self) -> str:
        """The signal that ended it; empty when none did."""
        if self.code is None or self.code >= 0:
            return ""
        import signal

        try:
            return signal.Signals(-self.code).name
        except ValueError:
            return f"signal {-self.code}"


@dataclass(frozen=True, slots=True)
class Environment:
    """The variables of a process."""

    name: str
    variables: Mapping[str, str]
    compared: bool
    """Whether the supervisor's were known, to compare them with."""
    changed: Mapping[str, tuple[str, str | None]]
    removed: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """Something that a stage made and named."""

    path: str
    stage: str
    note: str
    reused: bool
    named: float | None
    exists: bool
    kind: str
    size: float | None
    files: int | None
    modified: float | None
    why: str
    """Why it cannot be looked at, where that is not its absence."""
    inside: tuple[tuple[str, float], ...] = ()
    """The first of its files and their sizes."""


@dataclass(frozen=True, slots=True)
class Live:
    """What the machine's samples say of the processes of a run now."""

    by_pid: Mapping[int, ProcessRow] = field(default_factory=dict)
    cpu: float | None = None
    """% of a core, all processes of the run together."""
    rss: float | None = None
    gpu_memory: float | None = None


def read_processes(answer: Mapping[str, Any]) -> tuple[list[ProcessEntry], int]:
    """The processes, those that run first and then the newest, and how many were left out."""
    found = []
    listed = answer.get("processes")
    for one in listed if isinstance(listed, list) else []:
        row = mapping(one)
        argv = row.get("argv")
        found.append(
            ProcessEntry(
                event=_whole(row.get("event")) or 0,
                stage=_text(row.get("stage")),
                role=_text(row.get("role")) or "?",
                rank=_text(row.get("rank")),
                pid=_whole(row.get("pid")),
                argv=tuple(map(str, argv)) if isinstance(argv, list) else (),
                argv_left_out=_whole(row.get("argv_left_out")) or 0,
                log=_text(row.get("log")).removeprefix("logs/"),
                offset=max(0, _whole(row.get("offset")) or 0),
                environment=_text(row.get("environment")),
                started=number(row.get("started")),
                ended=number(row.get("ended")),
                state=_text(row.get("state")) or "lost",
                code=_whole(row.get("code")),
            )
        )
    # The ranks of one start stand together, the lowest first, and count as started when the first of them was.
    began: dict[tuple[str, bool], float] = {}
    for entry in found:
        if entry.rank:
            key = entry.stage, entry.state == "running"
            began[key] = min(began.get(key, math.inf), entry.started or 0.0)

    def place(entry: ProcessEntry) -> tuple[bool, float, int, int]:
        running = entry.state == "running"
        if not entry.rank:
            return running, entry.started or 0.0, 0, entry.event
        rank = int(entry.rank) if entry.rank.isdecimal() and len(entry.rank) < 9 else 0
        return running, began[entry.stage, running], -rank, entry.event

    found.sort(key=place, reverse=True)
    return found, max(0, _whole(answer.get("left_out")) or 0)


def read_environment(answer: Mapping[str, Any]) -> Environment:
    """The variables; texts are as they are, to be copied: who shows them makes them plain."""
    changed = {}
    for name, pair in mapping(answer.get("changed")).items():
        if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str):
            changed[str(name)] = (pair[0], pair[1] if isinstance(pair[1], str) else None)
    return Environment(
        _text(answer.get("environment")),
        _strings(answer.get("variables")),
        answer.get("compared") is True,
        changed,
        _strings(answer.get("removed")),
    )


def read_artifacts(answer: Mapping[str, Any]) -> tuple[list[Artifact], int]:
    """The artifacts in the order in which the stages named them, and how many were left out."""
    found = []
    listed = answer.get("artifacts")
    for one in listed if isinstance(listed, list) else []:
        row = mapping(one)
        if not isinstance(row.get("path"), str):
            continue
        inside = row.get("inside")
        found.append(
            Artifact(
                path=row["path"],
                stage=_text(row.get("stage")),
                note=_text(row.get("note")),
                reused=row.get("reused") is True,
                named=number(row.get("named")),
                exists=row.get("exists") is True,
                kind=_text(row.get("kind")),
                size=number(row.get("bytes")),
                files=_whole(row.get("files")),
                modified=number(row.get("modified")),
                why=_text(row.get("why")),
                inside=tuple(_named(inside)) if isinstance(inside, list) else (),
            )
        )
    return found, max(0, _whole(answer.get("left_out")) or 0)


def live_of(snapshot: Snapshot | None, run_id: str) -> Live:
    """The processes of a run in a sample of the machine; the run is known by its folder."""
    rows = [row for row in snapshot.processes if _belongs(row, run_id)] if snapshot is not None else []
    return Live(
        {row.pid: row for row in rows},
        _total([row.cpu for row in rows]),
        _total([row.rss for row in rows]),
        _total([row.gpu_memory for row in rows]),
    )


def _belongs(row: ProcessRow, run_id: str) -> bool:
    return row.run.rstrip("/").rpartition("/")[2] == run_id


def command_lines(argv: Sequence[str], width: int) -> list[str]:
    """A command line over several lines of a shell, broken between arguments; an option keeps its value beside it."""
    groups: list[str] = []
    for argument in argv:
        quoted = shlex.quote(argument)
        option = bool(groups) and groups[-1].startswith("-") and " " not in groups[-1] and "=" not in groups[-1]
        if option and not argument.startswith("-"):
            groups[-1] += " " + quoted
        else:
            groups.append(quoted)
    lines: list[str] = []
    line = ""
    for group in groups:
        if line and len(line) + 1 + len(group) > width - 2:
            lines.append(line + " \\")
            line = "    " + group
        else:
            line = f"{line} {group}" if line else group
    return [*lines, line] if line else []


def reproducing(entry: ProcessEntry, environment: Environment | None) -> str:
    """A command for a shell that starts the program again, with the variables that were changed for it."""
    from eagle3ops.runs.redact import GONE

    words = []
    if environment is not None:
        words += [f"-u {shlex.quote(name)}" for name in environment.removed]
        words += [
            f"{shlex.quote(name)}={shlex.quote(value)}"
            for name, (value, _) in environment.changed.items()
            if GONE not in value
        ]
    return " ".join(["env", *words, entry.command] if words else [entry.command])


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) if known else None


def _strings(value: object) -> dict[str, str]:
    return {str(name): text for name, text in mapping(value).items() if isinstance(text, str)}


def _named(inside: Sequence[object]) -> list[tuple[str, float]]:
    return [
        (plain(one[0]), number(one[1]) or 0.0)
        for one in inside
        if isinstance(one, list) and len(one) == 2 and isinstance(one[0], str)
    ]


def _text(value: object) -> str:
    return plain(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""


def _whole(value: object) -> int | None:
    found = number(value)
    return None if found is None or not math.isfinite(found) else int(found)
