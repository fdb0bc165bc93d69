"""How long may a phase take?

What a person gave wins over what was learnt, which wins over the defaults of `assets/phases.toml`. Learnt is five
times the longest that this engine or job ever took, and never less than the default: a limit exists to find what
will not end, not what is slow today.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from eagle3ops.watchdog.judge.phases import PHASES

FACTOR = 5.0
"""As NVIDIA's resiliency extension does for its learnt timeouts."""
LOAD_BYTES_S = 0.3e9
"""A checkpoint that comes more slowly than this on the whole is not worth waiting for."""
LEAST_LOAD_S = 600.0
LONGEST_S = 7 * 86400.0
_FILE_BYTES = 1 << 20
_MOST = 2000


@dataclass(frozen=True, slots=True)
class Limit:
    """How long something may take."""

    seconds: float | None
    """None: as long as it wants."""
    source: str
    """Where the number comes from, for people: `given`, `5 x the longest of 12 s` ..."""


class Deadlines:
    """Limits of phases, and what was learnt about them.

    Args:
        given: seconds by phase, from the pipeline file or the command line; 0 takes the limit away.
        scale: factor on all limits that were not given, for drills.
        job: engine or job whose history counts: `sglang`, `train` ...
        learnt: job -> phase -> the longest that it took, s.
        path: where `save` writes.
    """

    def __init__(
        self,
        given: Mapping[str, float] | None = None,
        *,
        scale: float = 1.0,
        job: str = "",
        learnt: Mapping[str, Mapping[str, float]] | None = None,
        path: Path | None = None,
    ) -> None:
        self.given = {phase: seconds for phase, seconds in (given or {}).items() if _sound(seconds)}
        self.scale = scale if _sound(scale) and scale > 0 else 1.0
        self.job = job
        self._learnt = {name: dict(phases) for name, phases in (learnt or {}).items()}
        self._path = path
        self._changed = False

    @classmethod
    def load(cls, path: Path, *, given: Mapping[str, float] | None = None, scale: float = 1.0, job: str = "") -> Self:
        """With what was learnt before; a file that is missing or damaged is as good as none."""
        return cls(given, scale=scale, job=job, learnt=read_learnt(path), path=path)

    def of(self, phase: str, *, size_bytes: float | None = None) -> Limit:
        """How long a phase may take; of `loading` how long without a byte moving.

        Args:
            phase: name of a phase.
            size_bytes: what is to be loaded; then of `loading` the limit for all of it.
        """
        if phase in self.given:
            seconds = float(self.given[phase])
            return Limit(seconds or None, "given")
        if phase == "loading" and size_bytes is not None and _sound(size_bytes):
            seconds = max(LEAST_LOAD_S, size_bytes / LOAD_BYTES_S)
            return Limit(seconds * self.scale, f"{size_bytes / 1e9:.1f} GB at 0.3 GB/s")
        kind = PHASES.get(phase)
        if kind is None or not kind.seconds:
            return Limit(None, "none for this phase")
        longest = self._learnt.get(self.job, {}).get(phase)
        if longest is not None and FACTOR * longest > kind.seconds:
            return Limit(FACTOR * longest * self.scale, f"5 x the longest of {longest:.0f} s")
        return Limit(kind.seconds * self.scale, "default")

    def ceiling(self, phase: str) -> float | None:
        """How long it may take whatever moves, s; None for as long as it wants."""
        kind = PHASES.get(phase)
        if kind is None or not kind.ceiling or phase in self.given:
            return None
        return max(kind.ceiling * self.scale, self.of(phase).seconds or 0.0)

    def learn(self, phase: str, seconds: float) -> None:
        """It took so long, and all was well."""
        if phase not in PHASES or not _sound(seconds) or seconds <= 0:
            return
        phases = self._learnt.setdefault(self.job, {})
        if seconds > phases.get(phase, 0.0):
            phases[phase] = min(float(seconds), LONGEST_S / FACTOR)
            self._changed = True

    def save(self) -> None:
        """Write what was learnt; not being able to is no reason to stop watching.

        Another watcher may have learnt meanwhile: the longer of both counts.
        """
        if self._path is None or not self._changed:
            return
        from eagle3ops.runs.files import write_json

        for job, phases in read_learnt(self._path).items():
            mine = self._learnt.setdefault(job, {})
            for phase, seconds in phases.items():
                mine[phase] = max(seconds, mine.get(phase, 0.0))
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._path, {"schema": 1, "longest_s": self._learnt})
        except OSError:
            return
        self._changed = False


def read_learnt(path: Path) -> dict[str, dict[str, float]]:
    """What was learnt, as far as the file can be read."""
    try:
        with path.open("rb") as file:
            return parse_learnt(file.read(_FILE_BYTES + 1))
    except OSError:
        return {}


def parse_learnt(text: bytes) -> dict[str, dict[str, float]]:
    """Job -> phase -> seconds; whatever else is there is left out."""
    if len(text) > _FILE_BYTES:
        return {}
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    jobs = data.get("longest_s") if isinstance(data, dict) else None
    found: dict[str, dict[str, float]] = {}
    for job, phases in list(jobs.items())[:_MOST] if isinstance(jobs, dict) else ():
        sound = {
            phase: float(seconds)
            for phase, seconds in (phases.items() if isinstance(phases, dict) else ())
            if phase in PHASES and _sound(seconds) and seconds > 0
        }
        if sound:
            found[job] = sound
    return found


def _sound(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value) and 0 <= value <= LONGEST_S * 1e9
    except OverflowError:
        return False
