"""What came of the questions that were put to a server, and is that a failure?"""

from collections.abc import Callable

from eagle3ops.watchdog.state import Probe

DECIDING = ("generate", "health")
"""The first of these that was ever answered or missed decides: `/health` of SGLang does not see its detokenizer."""
FRESH_S = 75.0
"""Counters that are older say nothing about now."""
MISSES = 3
"""So many in a row convict by themselves."""
MISSES_WHEN_STILL = 2
"""So many are enough where nothing moves either."""
LONGEST_S = 900.0
"""An engine that works for so long and answers nothing works for nobody."""
_LOG_LAG_S = 1.5
"""Logs have whole seconds, and are read once a second."""
_BUSY_S = 20.0
"""Passes that were seen to grow so recently: a request may wait behind others."""


class Asked:
    """Keeps what matters of all probes of one subject."""

    def __init__(self) -> None:
        self.last: dict[str, Probe] = {}
        self.misses: dict[str, int] = {}
        self.missed_since: dict[str, float] = {}
        self.ok_at: dict[str, float] = {}
        self.counted_at: float | None = None
        self.running: float | None = None
        self.queued: float | None = None
        self.passes: float | None = None
        self.passes_moved_at: float | None = None

    def take(self, probe: Probe) -> None:
        """One more; one that is still under way does not count either way."""
        if len(self.last) >= 32 and probe.name not in self.last:
            return
        self.last[probe.name] = probe
        if probe.ok is True:
            self.ok_at[probe.name] = max(probe.at + probe.seconds, self.ok_at.get(probe.name, 0.0))
            self.misses[probe.name] = 0
            self.missed_since.pop(probe.name, None)
        elif probe.ok is False:
            self.misses[probe.name] = self.misses.get(probe.name, 0) + 1
            self.missed_since.setdefault(probe.name, probe.at)
        self._count(probe)

    @property
    def deciding(self) -> str:
        """The name of the probe that decides; empty when none has come."""
        return next((name for name in DECIDING if name in self.ok_at or self.misses.get(name)), "")

    @property
    def answered_at(self) -> float | None:
        """When the deciding question was last answered well."""
        return self.ok_at.get(self.deciding)

    @property
    def missed(self) -> int:
        """How often in a row it was not."""
        return self.misses.get(self.deciding, 0)

    def idle(self, now: float) -> bool:
        """By its own counters nobody waits for it."""
        fresh = self.counted_at is not None and now - self.counted_at <= FRESH_S
        return fresh and self.running == 0 and not self.queued

    def busy(self, now: float) -> bool:
        """By its own counters it has work, and does it."""
        moved = self.passes_moved_at is not None and now - self.passes_moved_at <= _BUSY_S
        return moved and (self.running is None or self.running > 0)

    def caused(self, at: float) -> bool:
        """Was it asked something just then, so that what its log says of it is no work of others?"""
        asked = (self.last[name] for name in DECIDING if name in self.last)
        return any(-_LOG_LAG_S <= at - one.at <= one.seconds + _LOG_LAG_S for one in asked)

    def stuck(self, now: float, elapsed: Callable[[float, float], float]) -> bool:
        """By its own counters it has work, and has not done any of it for a while."""
        if not self.running or self.passes is None or self.counted_at is None or now - self.counted_at > FRESH_S:
            return False
        return self.passes_moved_at is not None and elapsed(self.passes_moved_at, now) >= _BUSY_S

    def verdict(self, now: float, *, still: bool, stands: bool) -> str:
        """`accuse`, `convict`, or empty.

        Args:
            still: no counter of the processes or GPUs moves.
            stands: something that is wrong in itself has been seen.
        """
        missed = self.missed
        if not missed:
            return ""
        long_ago = now - self.missed_since.get(self.deciding, now) >= LONGEST_S and missed >= MISSES
        if self.busy(now) and not stands and not long_ago:
            return "accuse" if missed >= MISSES else ""
        if stands or missed >= MISSES or (still and missed >= MISSES_WHEN_STILL):
            return "convict"
        return "accuse"

    def _count(self, probe: Probe) -> None:
        facts, at = probe.facts, probe.at + probe.seconds
        names = {"running", "queued", "forward_passes"} & set(facts)
        if not names:
            return
        self.counted_at = at
        self.running = facts.get("running", self.running)
        self.queued = facts.get("queued", self.queued)
        passes = facts.get("forward_passes")
        if passes is not None and passes != self.passes:
            self.passes, self.passes_moved_at = passes, at
