"""In which state is a group of processes, how sure is that, and what shows it?

Counters accuse; a failed probe or a missed deadline of a phase convicts; a watcher that was blind says `unknown`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from eagle3ops.runs.processes import ProcessId


class Standing(StrEnum):
    """How sure a judgement is."""

    HEALTHY = "healthy"
    ACCUSED = "accused"
    """Counters look wrong: cheap evidence is taken, nothing is done."""
    CONVICTED = "convicted"
    """Shown by a probe that failed, a deadline that was missed, or a fact that needs no interpretation."""
    UNKNOWN = "unknown"
    """The watcher was asleep, starved or blind; nothing may be concluded."""


@dataclass(frozen=True, slots=True)
class Signal:
    """One thing that was seen, and that led to the state."""

    name: str
    """For programs: `cpu`, `wakeups`, `gpu_util`, `log_silent`, `probe` ..."""
    words: str
    """For people, with unit and window: `0.0 % of a core over 30 s, all 3 processes`."""
    value: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is held of a group of processes at one moment."""

    state: str
    """A name in `states.STATES`."""
    standing: Standing
    phase: str = ""
    """What the work was doing by its own words: `loading`, `serving` ...; empty when it does not say."""
    since: float
    """Monotonic seconds of the samples: when this state began."""
    at: float
    """The same clock: when this was judged."""
    deadline: float | None = None
    """When the phase should be over, the same clock; None where it has none."""
    signals: tuple[Signal, ...] = ()
    suspects: tuple[int, ...] = ()
    """Process ids that stand out; empty when none does."""
    title: str = ""
    """One line for people: what, where, for how long."""

    def as_json(self) -> dict[str, Any]:
        """As it is sent and stored."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Probe:
    """The answer, or its absence, to a question that only a working server answers."""

    name: str
    """`health`, `generate`, `counters` ..."""
    at: float
    """Monotonic seconds when it was asked."""
    ok: bool | None
    """None while no answer has come and the time for it is not over."""
    seconds: float
    """So long it took, or has taken until now."""
    words: str = ""
    """What was answered or went wrong, for people."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """Counters that it brought: `forward_passes`, `running`, `queued` ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is watched: a group of processes with what belongs to it. Found anew at every look, as ranks come and go."""

    name: str
    """For people: `run 2026...-demo, stage serve`, `pid 4711`."""
    processes: tuple[ProcessId, ...]
    roles: Mapping[int, str] = field(default_factory=dict)
    """Process id -> role or rank, where it is known."""
    logs: tuple[Path, ...] = ()
    log_starts: Mapping[Path, int] = field(default_factory=dict)
    """Log -> byte at which its own part begins, where an earlier attempt has written into the same file."""
    url: str | None = None
    """Where it answers HTTP, if it does."""
    run_dir: Path | None = None
    stage: str = ""
    caches: tuple[Path, ...] = ()
    """Folders in which locks of compilations may lie; empty: the usual ones of this user."""
    flight_records: Path | None = None
    """Folder into which NCCL's flight recorder writes."""
