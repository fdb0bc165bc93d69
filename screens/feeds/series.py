"""How did each figure of a run go on, in bounded memory? Made from its events, without a terminal."""

import math
import re
from dataclasses import dataclass, field

from eagle3ops.runs.events import Event
from eagle3ops.words import plain

POINTS = 512
"""Points kept of a series; twice as many are halved by taking the mean of two at a time."""
SERIES = 400
"""Series kept of a run; a program that names its figures by the step would have no end of them."""

_NUMBERED = re.compile(r"(.+?)[_-](\d{1,4})")


@dataclass(slots=True)
class _Bucket:
    """So many values in a row."""

    x: float
    """Of the first of them."""
    total: float = 0.0
    finite: int = 0
    taken: int = 0


@dataclass(slots=True)
class Series:
    """One figure over steps or seconds."""

    last: float | None = None
    """None as long as nothing but NaN was seen."""
    last_ts: float = 0.0
    """When the last value was read, seconds since 1970."""
    low: float = math.inf
    high: float = -math.inf
    taken: int = 0
    bad: int = 0
    """Values that were no number: NaN and infinities."""
    bad_last: bool = False
    """Whether the last value was one of them."""
    _buckets: list[_Bucket] = field(default_factory=list)
    _stride: int = 1

    def add(self, x: float, value: float | None, ts: float) -> None:
        """One more value; None is one that was no number. An `x` that was there before takes the place of what follows:
        the stage was taken up again at an earlier point."""
        while self._buckets and self._buckets[-1].x >= x:
            self._buckets.pop()
        if not self._buckets or self._buckets[-1].taken >= self._stride:
            self._buckets.append(_Bucket(x))
        bucket = self._buckets[-1]
        bucket.taken += 1
        self.taken += 1
        self.last_ts, self.bad_last = ts, value is None
        if value is None:
            self.bad += 1
        else:
            bucket.total += value
            bucket.finite += 1
            self.last, self.low, self.high = value, min(self.low, value), max(self.high, value)
        if len(self._buckets) >= 2 * POINTS:
            self._halve()

    def _halve(self) -> None:
        pairs = zip(self._buckets[::2], self._buckets[1::2], strict=False)
        self._buckets = [
            _Bucket(one.x, one.total + other.total, one.finite + other.finite, one.taken + other.taken)
            for one, other in pairs
        ]
        self._stride *= 2

    def points(self) -> list[tuple[float, float | None]]:
        """Place and mean value, in order; None where nothing was a number."""
        return [(one.x, one.total / one.finite if one.finite else None) for one in self._buckets]


@dataclass(slots=True)
class Group:
    """Figures that belong into one plot: `loss_0` to `loss_6`."""

    stage: str
    name: str
    across: str
    """What `x` counts: `step`, or `s` since the first value."""
    members: dict[str, Series] = field(default_factory=dict)
    """By number, in order; an only one without a number is called by the empty text."""
    began: float = 0.0

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.stage}: {self.name}" if self.stage else self.name

    @property
    def points(self) -> int:
        """Of the member with most of them."""
        return max((series.taken for series in self.members.values()), default=0)

    @property
    def unit(self) -> str:
        """See `unit_of`."""
        return unit_of(self.name)


def unit_of(name: str) -> str:
    """The unit of a figure, as far as its name says; `share` is one between 0 and 1 that is shown in %."""
    words = re.split(r"[_/ ]", name)
    if name.endswith("/s"):
        return name
    if "loss" in words:
        return "nats"
    if "acc" in words or words[-1] in ("share", "agreement", "coverage") or "coverage" in words:
        return "share"
    if "length" in words:
        return "tokens"
    for word, unit in (("bytes", "bytes"), ("tokens", "tokens"), ("s", "s"), ("speedup", "x"), ("percent", "%")):
        if words[-1] == word:
            return unit
    return ""


@dataclass(slots=True)
class SeriesBook:
    """All series of one run, from its events."""

    groups: dict[tuple[str, str], Group] = field(default_factory=dict)
    left_out: int = 0
    """Values of series beyond `SERIES`."""
    version: int = 0
    """Grows with every value."""
    _count: int = 0
    _paces: dict[str, tuple[float, float, str]] = field(default_factory=dict)
    _known: dict[tuple[str | None, str], tuple[Group, Series]] = field(default_factory=dict)
    """Stage and name, as an event has them -> where its value goes: long runs have millions of them."""

    def take(self, event: Event) -> None:
        """Learn from one event; of the kinds `metric`, `progress` and `stage`."""
        if event.kind == "metric":
            self._metric(event)
        elif event.kind == "progress":
            self._progress(event)
        elif event.kind == "stage" and event.data.get("status") == "running":
            self._paces.pop(plain(event.stage or ""), None)

    def _metric(self, event: Event) -> None:
        raw, value, step = event.data.get("name", ""), _finite(event.data.get("value")), _finite(event.data.get("step"))
        known = self._known.get((event.stage, raw)) if isinstance(raw, str) else None
        if known is not None:
            group, series = known
            series.add(event.ts - group.began if step is None else step, value, event.ts)
            self.version += 1
            return
        stage, name = plain(event.stage or ""), plain(raw)[:80]
        name = name.removeprefix(f"{stage}/")
        found = _NUMBERED.fullmatch(name)
        base, member = (found[1], found[2]) if found else (name, "")
        self._add(stage, base, member, "s" if step is None else "step", step, value, event.ts)
        group_made = self.groups.get((stage, base))
        room = len(self._known) < 2 * SERIES
        if room and isinstance(raw, str) and group_made is not None and member in group_made.members:
            self._known[event.stage, raw] = group_made, group_made.members[member]

    def _progress(self, event: Event) -> None:
        """How fast the stage was since its last report."""
        stage, unit = plain(event.stage or ""), plain(event.data.get("unit", ""))[:40]
        done = _finite(event.data.get("done"))
        if done is None:
            return
        before, self._paces[stage] = self._paces.get(stage), (event.ts, done, unit)
        if before is None or before[2] != unit or done < before[1] or event.ts <= before[0]:
            return
        self._add(stage, f"{unit}/s", "", "s", None, (done - before[1]) / (event.ts - before[0]), event.ts)

    def _add(
        self, stage: str, base: str, member: str, across: str, x: float | None, value: float | None, ts: float
    ) -> None:
        key = stage, base
        group = self.groups.get(key)
        if group is None or member not in group.members:
            if self._count >= SERIES:
                self.left_out += 1
                return
            self._count += 1
        if group is None:
            group = self.groups[key] = Group(stage, base, across, began=ts)
        if member not in group.members:
            group.members[member] = Series()
            group.members = dict(sorted(group.members.items(), key=lambda item: (len(item[0]), item[0])))
        group.members[member].add(ts - group.began if x is None else x, value, ts)
        self.version += 1


def _finite(value: object) -> float | None:
    finite = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if finite else None  # type: ignore[arg-type]
