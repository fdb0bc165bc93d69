"""What is an incident? Something that went wrong or is about to, with what shows it and what can be done."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

SEVERITIES = ("error", "warn", "info")
"""The worst first."""

ACTIONS = ("resume", "cancel", "run", "logs", "gpus", "wiring", "bench", "ledger", "evidence")
"""What a console can do by itself: take the run up again, end it, open a room, or the folder of the evidence."""

MOST = 12
"""Pieces of evidence and remedies of one incident at most."""
_LONGEST = 2000


@dataclass(frozen=True, slots=True)
class Evidence:
    """One thing that shows it."""

    what: str
    log: str | None = None
    """Name of the log that it stands in."""
    offset: int | None = None
    """Byte in that log at which the line begins."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """One thing that can be done."""

    words: str
    action: str = ""
    """One of `ACTIONS`, or empty."""
    command: str = ""
    """A command line for a person, or empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One incident. The watchdog writes these into a run as events of the kind `incident`, as `as_json` says."""

    id: str
    """The same however often one looks."""
    kind: str
    """What it is, in one word for programs: `failed`, `killed`, `disk-full`, `verdict`, `silent`, `xid` ..."""
    severity: str
    """One of `SEVERITIES`."""
    title: str
    first: float
    """When it began, seconds since 1970."""
    last: float
    """When it was last seen."""
    run: str = ""
    """Empty for one of the machine."""
    stage: str = ""
    over: bool = False
    """It no longer stands: a later attempt succeeded, the machine is well again."""
    count: int = 1
    """How often it was seen."""
    explanation: str = ""
    evidence: tuple[Evidence, ...] = ()
    remedies: tuple[Remedy, ...] = field(default=())
    folder: str = ""
    """In which the evidence was collected; empty where none was."""

    def as_json(self) -> dict[str, Any]:
        """As it is sent and stored."""
        return asdict(self)


def incident_id(*parts: object) -> str:
    """16 hex digits that stand for what the incident is about."""
    return hashlib.sha256("\0".join(map(str, parts)).encode(errors="replace")).hexdigest()[:16]


def from_json(data: object, *, run: str = "", stage: str = "", ts: float = 0.0) -> Incident | None:
    """An incident that somebody else wrote; None for what is none. What is missing is taken from where it stood."""
    if not isinstance(data, Mapping):
        return None
    title = _text(data.get("title")) or _text(data.get("kind"))
    if not title:
        return None
    severity, run, stage = _text(data.get("severity")), _text(data.get("run")) or run, _text(data.get("stage")) or stage
    kind = _text(data.get("kind")) or "incident"
    first = _number(data.get("first"), ts)
    return Incident(
        id=_text(data.get("id"))[:64] or incident_id(run, stage, kind, title),
        kind=kind,
        severity=severity if severity in SEVERITIES else "warn",
        title=title,
        first=first,
        last=max(first, _number(data.get("last"), ts)),
        run=run,
        stage=stage,
        over=data.get("over") is True,
        count=max(1, int(_number(data.get("count"), 1.0))),
        explanation=_text(data.get("explanation")),
        evidence=tuple(_evidence(data.get("evidence"))),
        remedies=tuple(_remedies(data.get("remedies"))),
        folder=_text(data.get("folder")),
    )


def _evidence(value: object) -> list[Evidence]:
    found = []
    for one in value[:MOST] if isinstance(value, list | tuple) else ():
        if isinstance(one, Mapping) and (what := _text(one.get("what"))):
            offset = one.get("offset")
            sound = isinstance(offset, int) and not isinstance(offset, bool) and 0 <= offset < 2**60
            found.append(Evidence(what, _text(one.get("log")) or None, offset if sound else None))
    return found


def _remedies(value: object) -> list[Remedy]:
    found = []
    for one in value[:MOST] if isinstance(value, list | tuple) else ():
        if isinstance(one, Mapping) and (words := _text(one.get("words"))):
            action = _text(one.get("action"))
            found.append(Remedy(words, action if action in ACTIONS else "", _text(one.get("command"))))
    return found


_COMMAND = re.compile(
    r"(?:^|(?<=[\s(]))(eagle3ops\s[^,;()]+?)(?=\s*(?:$|[,;()]|\bfirst\b|\bshows\b|\bsays\b|\bdoes\b|\bthen\b))"
)


def remedy_from(words: str) -> Remedy:
    """A remedy in words, with the command line that it names, if it names one."""
    found = _COMMAND.search(words)
    return Remedy(words, command=found[1].strip() if found else "")


def _text(value: object) -> str:
    return value[:_LONGEST] if isinstance(value, str) else ""


def _number(value: object, otherwise: float) -> float:
    sound = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e12
    return float(value) if sound else otherwise  # type: ignore[arg-type]
