"""What is known of a subject at one moment, and what follows from it at once?"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from eagle3ops.watchdog.judge.asked import Asked
from eagle3ops.watchdog.judge.phases import STARTING, PhaseReader
from eagle3ops.watchdog.judge.signals import Rates, Window
from eagle3ops.watchdog.state import Signal

STILL_PERCENT = 2.0
"""Of a core over all processes: less is nothing. Seen: up to 1.2 % of a server whose start was held, by its polls."""
STILL_BYTES_S = 256e3
MOVING_PERCENT = 5.0
"""Of a core: so much is left to one of a dozen that compute on the same core."""
MOVING_BYTES_S = 1e6
_CHANGED_S = 15.0
_SPOKE_S = 8.0
RECEIVED_S = 50e6
IMPORT_BYTES_S = 20e3
GREW_BYTES = 64 << 20
POLLING = frozenset({"warming_up", "serving", "stopping"})
"""A scheduler burns a core in these whatever it does."""
WORKING = frozenset({"training", "checkpointing", "extracting", "generating", "working"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that the signals may mean."""

    state: str
    signals: tuple[Signal, ...] = ()
    suspects: tuple[int, ...] = ()
    since: float | None = None
    """When it began, where that is known; else when it was first found."""
    convicts: bool = False
    mild: bool = False
    """However long it stands, it convicts only together with a probe or a deadline."""


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that somebody else found."""

    words: str
    at: float
    convicts: bool = True


@dataclass(slots=True, kw_only=True)
class View:
    """All that is known at one moment."""

    now: float
    window: Window
    reader: PhaseReader
    asked: Asked
    phase: str
    """The phase by its own words, or as far as one was told; empty for none."""
    expect: str
    facts: Mapping[str, Fact] = field(default_factory=dict)
    short: Rates | None = None
    """What it did over the last 10 s."""
    long: Rates | None = None
    """Over the last 30 s."""

    @property
    def ago(self) -> Callable[[float], float]:
        """Seconds since a moment, without those in which nobody looked."""
        return lambda since: self.window.elapsed(since, self.now)

    @property
    def compiling(self) -> bool:
        """A compiler has run for it within the last half minute."""
        at = self.window.compiled_at
        return at is not None and self.now - at <= 30.0

    @property
    def still(self) -> bool:
        """Nothing moves: no CPU, no bytes, no GPU, no compiler, no word."""
        rates = self.short
        if rates is None or rates.seconds < 8.0 or self.compiling:
            return False
        util = self.window.gpus.util(10.0)
        changed = max(self.window.gone_at or 0.0, self.window.came_at or 0.0)
        return (
            # What a process did that is gone is not in the sums, nor is one that lived between two looks.
            self.now - changed > _CHANGED_S
            and (self.reader.spoke_at is None or self.now - self.reader.spoke_at > _SPOKE_S)
            and rates.cpu < STILL_PERCENT
            and (rates.read or 0.0) < STILL_BYTES_S
            and (rates.written or 0.0) < STILL_BYTES_S
            and (util is None or util <= 2.0)
            and self.window.gpus.grew(20.0) < GREW_BYTES
        )

    @property
    def bytes_s(self) -> float:
        """Bytes that come in by any way: read, or into the GPUs' memory."""
        rates = self.long or self.short
        read = 0.0 if rates is None else rates.read or 0.0
        seconds = 30.0
        received = self.window.gpus.received(10.0)
        # Kernels of a server that idles were seen to be fetched at up to 26 MB/s.
        return max(read, self.window.gpus.grew(seconds) / seconds, received if received >= RECEIVED_S else 0.0)

    @property
    def moving(self) -> bool:
        """Something shows that this phase goes on, other than the time that it burns."""
        rates = self.long or self.short
        if self.window.gpus.grew(60.0) >= GREW_BYTES or self.compiling:
            return True
        if rates is None:
            return False
        if self.phase in ("", "starting", "compiling", "working") and rates.cpu >= MOVING_PERCENT:
            return True
        if self.phase in WORKING and self.working_gpus:
            return True
        spoke = self.reader.spoke_at
        if self.phase in STARTING and spoke is not None and self.now - spoke <= _SPOKE_S:
            return True
        return self.bytes_s >= (IMPORT_BYTES_S if self.phase == "importing" else MOVING_BYTES_S)

    @property
    def working_gpus(self) -> bool:
        """Its GPUs do more than wait."""
        gpus = self.window.gpus
        return (gpus.util(10.0) or 0.0) >= 5.0 and not gpus.spinning(10.0)

    @property
    def spins(self) -> bool:
        """It burns a core and does nothing that shows."""
        rates = self.short
        if (
            rates is None
            or self.compiling
            or self.phase in POLLING
            or rates.cpu < 80.0
            or (rates.read or 0.0) > STILL_BYTES_S
            or self.working_gpus
        ):
            return False
        return rates.wakeups is None or rates.wakeups < 50.0

    @property
    def expected(self) -> bool:
        """Something ought to move."""
        if self.phase in STARTING:
            return self.phase != "starting" or self.expect != "any"
        if self.phase in WORKING or (not self.phase and self.expect == "work"):
            return True
        return self.asked.missed > 0 or self.asked.stuck(self.now, self.window.elapsed)

    def overcome(self, at: float) -> bool:
        """Work came out at the other end after that: an answer, a step. A batch in a scheduler's log is none."""
        if self.asked.missed:
            return False
        told = self.reader.done_at
        answered = self.asked.ok_at.get("generate")
        return (told is not None and told > at + 5.0) or (answered is not None and answered > at + 5.0)
