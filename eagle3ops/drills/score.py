"""Was the right thing said of a drill, and in time? A pure function of the readings."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from eagle3ops.drills.drill import Drill
from eagle3ops.watchdog.state import Reading, Standing
from eagle3ops.words import human_seconds

GRACE_S = 15.0
"""So long after the deadline a fault has to be named at the latest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What was held of it from a moment on."""

    after_s: float
    """Seconds after the fault began; negative before."""
    state: str
    standing: str
    phase: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a drill went."""

    name: str
    healthy: bool
    expected: tuple[str, ...]
    said: str
    """The state that it was named as in the end; of a healthy one the last state."""
    right: bool
    seconds: float | None
    """After so long it was named; None when it was not."""
    deadline_s: float | None
    """So long it might have taken, without the grace."""
    watched_s: float
    story: tuple[Said, ...]
    """What was held of it, each time that it changed."""
    false_alarms: int = 0
    """Convictions of what is healthy, or before the fault."""
    suspicions: int = 0
    """Accusations of what is healthy: nothing is done about them, but they are told."""
    evidence: str = ""
    """The folder with what was collected; empty when nothing was."""
    findings: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()
    """What the guard said of its own parts."""
    skipped: str = ""
    """Why it was not held."""

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {"type": "drill", **asdict(self)}

    @property
    def words(self) -> str:
        """One line for people."""
        if self.skipped:
            return f"{self.name}: skipped: {self.skipped}"
        if self.healthy:
            alarms = f"{self.false_alarms} false alarms" if self.false_alarms else "no false alarm"
            seen = ", ".join(dict.fromkeys(f"{one.state}" for one in self.story)) or "nothing"
            suspected = f", suspected {self.suspicions} times" if self.suspicions else ""
            return f"{self.name}: {alarms} in {human_seconds(self.watched_s)}{suspected}; said: {seen}"
        wanted = " or ".join(self.expected)
        if self.seconds is None:
            limit = f" within {human_seconds(self.deadline_s + GRACE_S)}" if self.deadline_s is not None else ""
            return f"{self.name}: expected {wanted}, was not named{limit}; last said: {self.said or 'nothing'}"
        allowed = f", allowed {self.deadline_s + GRACE_S:.0f} s" if self.deadline_s is not None else ""
        sure = "rightly named" if self.right else f"expected {wanted}, was named"
        early = f"; {self.false_alarms} convictions before the fault" if self.false_alarms else ""
        return f"{self.name}: {sure} {self.said} after {self.seconds:.0f} s{allowed}{early}"


def skipped(drill: Drill, reason: str) -> Outcome:
    """Of a drill that could not be held."""
    return Outcome(
        name=drill.name,
        healthy=drill.healthy,
        expected=tuple(sorted(drill.expect)),
        said="",
        right=False,
        seconds=None,
        deadline_s=None,
        watched_s=0.0,
        story=(),
        skipped=reason,
    )


class Score:
    """Keeps the score of one drill.

    Args:
        deadline_s: a fault has to be named so many seconds after it began, and `GRACE_S`.
        fault_at: asks when it began, monotonic seconds of the samples; None while it has not.
    """

    def __init__(self, drill: Drill, deadline_s: float, fault_at: Callable[[], float | None]) -> None:
        self._drill = drill
        self._deadline_s = deadline_s
        self._fault_at = fault_at
        self._said: list[tuple[float, Reading]] = []
        self._began: float | None = None
        self._last = 0.0
        self._named: Reading | None = None
        self._alarms = self._suspicions = 0

    def take(self, reading: Reading) -> None:
        """One more reading."""
        if self._began is None:
            self._began = reading.at
        self._last = max(self._last, reading.at)
        before = self._said[-1][1] if self._said else None
        now = (reading.state, reading.standing)
        changed = before is None or (before.state, before.standing) != now
        if changed and len(self._said) < 1000:
            self._said.append((reading.at, reading))
        fault = None if self._drill.healthy else self._fault_at()
        if fault is None or reading.at < fault:
            self._alarms += changed and reading.standing is Standing.CONVICTED
            self._suspicions += changed and reading.standing is Standing.ACCUSED
        elif self._named is None and self._names(reading):
            self._named = reading

    def _names(self, reading: Reading) -> bool:
        """A conviction is an answer, right or wrong; where there need not be one, the right name."""
        if reading.standing is Standing.CONVICTED:
            return True
        return not self._drill.convicts and reading.state in self._drill.expect

    @property
    def decided(self) -> bool:
        """Nothing that may come changes the outcome."""
        if self._named is not None:
            return True
        fault = None if self._drill.healthy else self._fault_at()
        return fault is not None and self._last - fault > self._deadline_s + GRACE_S

    def outcome(self, *, evidence: str = "", findings: tuple[str, ...] = ()) -> Outcome:
        """As it stands."""
        fault = self._fault_at()
        zero = fault if fault is not None and not self._drill.healthy else (self._began or 0.0)
        seconds = self._named.at - zero if self._named is not None else None
        last = self._said[-1][1].state if self._said else ""
        if self._drill.healthy:
            right = self._began is not None and not self._alarms
        else:
            in_time = seconds is not None and seconds <= self._deadline_s + GRACE_S
            named = self._named is not None and self._named.state in self._drill.expect
            right = in_time and named and not self._alarms
        return Outcome(
            name=self._drill.name,
            healthy=self._drill.healthy,
            expected=tuple(sorted(self._drill.expect)),
            said=self._named.state if self._named is not None else last,
            right=right,
            seconds=None if seconds is None else round(seconds, 1),
            deadline_s=None if self._drill.healthy else self._deadline_s,
            watched_s=round(self._last - (self._began or self._last), 1),
            story=tuple(
                Said(
                    after_s=round(at - zero, 1),
                    state=one.state,
                    standing=one.standing.value,
                    phase=one.phase,
                    title=one.title,
                )
                for at, one in self._said
            ),
            false_alarms=self._alarms,
            suspicions=self._suspicions,
            evidence=evidence,
            findings=findings,
        )
