"""What is done about a fault, how often, and when is it given up? A ladder with a budget, kept in the run's own events.

notify -> restart -> restart with something left out (bisecting) -> give up. One fault is met with no step twice unless
the stage got further in between than it ever was. Nothing here ends a process: a step is a decision.
"""

import hashlib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from eagle3ops.runs.events import Event

NOTIFY, RESTART, BISECT, GIVE_UP = "notify", "restart", "bisect", "give_up"
STEPS = (NOTIFY, RESTART, BISECT, GIVE_UP)

MOST = 12
"""Restarts of one stage without any progress, whatever the faults look like."""

_FRAMES = ("deadlock", "spin", "stale_lock")
"""Faults that stand in one place of the program; others are met wherever it happens to be."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What a run allows; the section `watchdog` of its pipeline file."""

    action: str = NOTIFY
    restarts: int = 1
    bisect: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One thing to leave out."""

    name: str
    words: str
    engine: str
    states: tuple[str, ...]
    phases: tuple[str, ...] = ()
    since: str = ""
    until: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    source: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """What is to be done."""

    kind: str
    """One of `STEPS`."""
    words: str
    """Why, for people."""
    rung: Rung | None = None
    """With what left out, where it bisects."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A restart that was made."""

    fingerprint: str
    rung: str = ""
    """Name of what was left out; empty for a plain restart."""


def fingerprint(stage: str, state: str, phase: str, frames: Sequence[str] = ()) -> str:
    """16 hex digits for what counts as the same fault: state, phase, stage, and where it stands when that is known.

    Args:
        stage: name of the stage.
        state: of the watchdog.
        phase: what the work was doing by its own words.
        frames: the innermost frames of most of its processes, functions without line numbers.
    """
    where = tuple(frames[:3]) if state in _FRAMES else ()
    return hashlib.sha256("\0".join((stage, state, phase, *where)).encode(errors="replace")).hexdigest()[:16]


def history(events: Iterable[Event], stage: str) -> list[Taken]:
    """The restarts of a stage since it last got further than ever, or since somebody started the run.

    Further: a report of progress above the highest before it, in the same unit, or a later step of the same metric. So
    what a restarted stage does over again is no progress.
    """
    taken: list[Taken] = []
    furthest: dict[str, float] = {}
    for event in events:
        data = event.data
        if event.kind == "run" and data.get("status") == "running":
            taken = []
        if event.stage != stage:
            continue
        if event.kind == "remedy" and data.get("step") in (RESTART, BISECT):
            taken.append(Taken(str(data.get("fingerprint", "")), str(data.get("rung") or "")))
        reached = _reached(event)
        if reached is not None:
            name, value = reached
            if value > furthest.get(name, 0.0):
                furthest[name] = value
                taken = []
    return taken


def _reached(event: Event) -> tuple[str, float] | None:
    """How far a stage is by one event."""
    name, value = {
        "progress": (f"progress {event.data.get('unit')}", event.data.get("done")),
        "metric": (f"metric {event.data.get('name')}", event.data.get("step")),
    }.get(event.kind, ("", None))
    sound = isinstance(value, int | float) and not isinstance(value, bool)
    return (name, float(value)) if sound else None  # type: ignore[arg-type]


class Ladder:
    """Which step comes next?

    Args:
        policy: what the run allows.
        taken: the restarts of this stage that count, as `history` finds them.
    """

    def __init__(self, policy: Policy, taken: Sequence[Taken] = ()) -> None:
        self.policy = policy
        self.taken = list(taken)

    def next(self, fault: str, rungs: Sequence[Rung] = ()) -> Step:
        """The next step for a fault.

        Args:
            fault: its `fingerprint`.
            rungs: what could be left out, in the order in which to try it.
        """
        if self.policy.action != RESTART:
            return Step(NOTIFY, "the pipeline file allows no more than to tell of it (watchdog.action: notify)")
        same = [one for one in self.taken if one.fingerprint == fault]
        plain = sum(not one.rung for one in same)
        if len(self.taken) >= MOST:
            return Step(GIVE_UP, f"restarted {len(self.taken)} times without getting any further")
        if plain < self.policy.restarts:
            return Step(RESTART, f"restart {plain + 1} of {self.policy.restarts} for this fault")
        left = [rung for rung in rungs if rung.name not in {one.rung for one in self.taken}]
        if self.policy.bisect and left:
            return Step(BISECT, f"again, {left[0].words}", left[0])
        tried = sum(bool(one.rung) for one in same)
        also = f", and {tried} times with something left out" if tried else ""
        if not plain and not tried:
            return Step(GIVE_UP, "the pipeline file allows no restart (watchdog.restarts: 0)")
        return Step(GIVE_UP, f"the same fault again, without progress since it was restarted {plain} times{also}")


def rungs_for(engine: str, version: str, state: str, phase: str) -> tuple[Rung, ...]:
    """What could be left out for a fault of an engine; a version that is not known rules nothing out."""
    return tuple(
        rung
        for rung in all_rungs()
        if rung.engine in ("any", engine)
        and (rung.engine != "any" or engine != "reference")
        and state in rung.states
        and (not rung.phases or phase in rung.phases)
        and _between(version, rung.since, rung.until)
    )


@cache
def all_rungs() -> tuple[Rung, ...]:
    """The table `assets/bisect.toml`."""
    text = resources.files("eagle3ops.assets").joinpath("bisect.toml").read_text(encoding="utf-8")
    return tuple(_rung(entry) for entry in tomllib.loads(text)["rung"])


def _rung(entry: Mapping[str, Any]) -> Rung:
    lists = {name: tuple(entry[name]) for name in ("states", "phases", "arguments")}
    return Rung(**{**entry, **lists})


def _between(version: str, since: str, until: str) -> bool:
    known = _numbers(version)
    if not known:
        return True
    return (not since or _numbers(since) <= known) and (not until or known < _numbers(until))


def _numbers(version: str) -> tuple[int, ...]:
    """`0.5.14.post1+cu130` as (0, 5, 14)."""
    numbers = []
    for part in version.split("+")[0].split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)
