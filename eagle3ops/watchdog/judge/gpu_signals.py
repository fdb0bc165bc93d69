"""What did the GPUs of a subject do over the last seconds, and is that work or waiting?

Utilisation is the share of time in which any kernel was there; one that only waits counts as well. Power tells them
apart: waiting draws what idling draws. What idling draws is learnt for each GPU, and for one of the same kind that
idles right now; a constant would be wrong on every other machine.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from eagle3ops.watchdog.judge.states import XIDS_THAT_CONVICT
from eagle3ops.watchdog.judge.values import entries, number, text

KEEP_S = 130.0
_IDLE_S = 5.0
_SHORT_GAP_S = 5.0
SPIN_UTIL = 95.0
SPIN_MARGIN_W = 10.0
"""So much above idling is still no work. Seen: idle 121 to 124 W, waiting 123 to 126 W, the smallest work 137 W."""
_THROTTLES = ("hardware slowdown", "thermal", "power brake")
_MOST = 64


@dataclass(slots=True)
class _Look:
    at: float
    util: float | None
    memory_util: float | None
    power: float | None
    used: float | None
    received: float | None


@dataclass(slots=True)
class Gpu:
    """One GPU over time."""

    index: int
    name: str = ""
    state: str = "ok"
    state_since: float = 0.0
    looks: deque[_Look] = field(default_factory=deque)
    idle_w: float | None = None
    """The least that it drew over some seconds without a kernel, awake."""
    idle_since: float | None = None
    asleep: bool = False
    """It has lowered its clocks because nothing is there."""
    most_w: float = 0.0
    pids: frozenset[int] = frozenset()
    foreign: frozenset[int] = frozenset()
    throttled_since: float | None = None
    throttle: str = ""

    def mean(self, what: str, seconds: float, *, until: float | None = None) -> float | None:
        """The mean of `util`, `memory_util`, `power`, `used` or `received` over the last seconds."""
        if not self.looks:
            return None
        end = self.looks[-1].at if until is None else until
        values: list[float] = []
        for look in reversed(self.looks):
            if look.at < end - seconds:
                break
            if look.at <= end and (value := getattr(look, what)) is not None:
                values.append(value)
        return fmean(values) if values else None

    def span(self) -> float:
        """For so many seconds it has been looked at."""
        return self.looks[-1].at - self.looks[0].at if self.looks else 0.0

    def low_power(self, seconds: float, reference: float | None) -> bool:
        """It draws what idling draws; False where that is not known."""
        power = self.mean("power", seconds)
        return power is not None and reference is not None and power < reference + SPIN_MARGIN_W


class Gpus:
    """All GPUs that a sample told of, and which of them are the subject's.

    Args:
        own: their numbers, where they are known; None: found by the processes on them, else all of them.
    """

    def __init__(self, own: frozenset[int] | None = None) -> None:
        self.own = own
        self.all: dict[int, Gpu] = {}
        self.xids: deque[tuple[float, int, int]] = deque(maxlen=32)
        """(when, which GPU, number)."""
        self._visible = False
        self._touched: set[int] = set()

    def take(
        self, found: Iterable[Mapping[str, Any]], xids: Iterable[Mapping[str, Any]], members: frozenset[int], at: float
    ) -> None:
        """Look at one sample."""
        for entry in found:
            index = number(entry.get("i"))
            if index is None or (int(index) not in self.all and len(self.all) >= _MOST):
                continue
            gpu = self.all.setdefault(int(index), Gpu(int(index), state_since=at))
            self._look(gpu, entry, members, at)
        for event in xids:
            index, code = number(event.get("gpu")), number(event.get("xid"))
            if code is not None:
                self.xids.append((at, -1 if index is None else int(index), int(code)))

    def missed(self, seconds: float) -> None:
        """Nobody looked for so long. Looks are no counters: those before a short gap still count."""
        for gpu in self.all.values():
            gpu.idle_since = None
            if seconds > _SHORT_GAP_S:
                gpu.looks.clear()
                gpu.throttled_since = None

    def used(self) -> list[Gpu]:
        """Those of the subject, as far as that is known; else all."""
        if self.own is not None:
            return [gpu for index, gpu in self.all.items() if index in self.own]
        if self._visible:
            return [gpu for index, gpu in self.all.items() if index in self._touched]
        return list(self.all.values())

    @property
    def certain(self) -> bool:
        """It is known which GPUs are the subject's."""
        return self.own is not None or bool(self._touched)

    def util(self, seconds: float) -> float | None:
        """The mean over its GPUs, %; None where there is none."""
        values = [value for gpu in self.used() if (value := gpu.mean("util", seconds)) is not None]
        return fmean(values) if values else None

    def grew(self, seconds: float) -> float:
        """So many bytes of memory came to be used on its GPUs (on all, while it is not known which are its)."""
        total = 0.0
        for gpu in self.used() if self.certain else self.all.values():
            used = [look.used for look in gpu.looks if look.used is not None and look.at >= gpu.looks[-1].at - seconds]
            if used:
                total += max(0.0, used[-1] - used[0])
        return total

    def received(self, seconds: float) -> float:
        """Bytes a second over PCIe into its GPUs."""
        return sum((gpu.mean("received", seconds) or 0.0) * 1024 for gpu in self.used())

    def reference(self, gpu: Gpu) -> float | None:
        """What idling draws there: of one of its kind that idles awake right now, else what was learnt."""
        peers = [
            power
            for other in self.all.values()
            if other is not gpu
            and other.name == gpu.name
            and other.idle_since is not None
            and not other.asleep
            and other.looks
            and other.looks[-1].at - other.idle_since >= _IDLE_S
            and (power := other.mean("power", _IDLE_S)) is not None
        ]
        known = [*peers, *([gpu.idle_w] if gpu.idle_w is not None else [])]
        return max(known, default=None)

    def spinning(self, seconds: float) -> list[Gpu]:
        """Those of its GPUs that are fully used and draw what idling draws."""
        return [gpu for gpu in self.used() if self._spins(gpu, seconds)]

    def idling(self, seconds: float) -> list[Gpu]:
        """Those of its GPUs on which hardly a kernel ran."""
        return [gpu for gpu in self.used() if gpu.span() >= seconds * 0.9 and (gpu.mean("util", seconds) or 0.0) <= 2.0]

    def broken(self) -> list[Gpu]:
        """Those of its GPUs that the driver does not reach."""
        return [gpu for gpu in self.used() if gpu.state != "ok"]

    def errors(self, since: float) -> list[tuple[float, int, int, bool]]:
        """(when, which GPU, Xid, whether that convicts) of its GPUs since then."""
        own = {gpu.index for gpu in self.used()} | {-1}
        return [(at, i, code, code in XIDS_THAT_CONVICT) for at, i, code in self.xids if at >= since and i in own]

    def _spins(self, gpu: Gpu, seconds: float) -> bool:
        if gpu.span() < seconds * 0.9 or (gpu.mean("util", seconds) or 0.0) < SPIN_UTIL:
            return False
        return (gpu.mean("memory_util", seconds) or 0.0) <= 1.0 and gpu.low_power(seconds, self.reference(gpu))

    def _look(self, gpu: Gpu, entry: Mapping[str, Any], members: frozenset[int], at: float) -> None:
        state = text(entry.get("state")) or "ok"
        if state != gpu.state:
            gpu.state, gpu.state_since = state[:40], at
        gpu.name = (text(entry.get("name")) or gpu.name)[:80]
        util, power = _percent(entry.get("util")), number(entry.get("power_w"))
        if power is not None and not 0 < power < 5000:
            power = None
        look = _Look(
            at,
            util,
            _percent(entry.get("util_mem")),
            power,
            number(entry.get("mem_used")),
            number(entry.get("pcie_rx_kbs")),
        )
        gpu.looks.append(look)
        while gpu.looks[0].at < at - KEEP_S:
            gpu.looks.popleft()
        raw = entry.get("reason_names")
        reasons = [one.lower() for one in raw if isinstance(one, str)] if isinstance(raw, list | tuple) else []
        gpu.asleep = "gpu idle" in reasons
        gpu.most_w = max(gpu.most_w, power or 0.0)
        self._learn_idle(gpu, look)
        why = next((one for one in reasons if any(word in one for word in _THROTTLES)), "")
        gpu.throttled_since = None if not why else gpu.throttled_since if gpu.throttled_since is not None else at
        gpu.throttle = why
        if isinstance(entry.get("procs"), list):
            on_it = {int(pid) for one in entries(entry["procs"]) if (pid := number(one.get("pid"))) is not None}
            gpu.pids, gpu.foreign = frozenset(on_it & members), frozenset(on_it - members)
            if gpu.pids:
                self._touched.add(gpu.index)
            # Inside of a container the driver's numbers are the host's, and say nothing.
            self._visible |= bool(gpu.pids) or any(one.get("visible") is True for one in entries(entry["procs"]))

    @staticmethod
    def _learn_idle(gpu: Gpu, look: _Look) -> None:
        if look.util is None or look.util > 0 or gpu.asleep:
            gpu.idle_since = None
            return
        gpu.idle_since = look.at if gpu.idle_since is None else gpu.idle_since
        # Power follows a second after; the first seconds tell of the work before.
        if look.at - gpu.idle_since >= _IDLE_S + 2.0:
            power = gpu.mean("power", _IDLE_S)
            if power is not None:
                gpu.idle_w = power if gpu.idle_w is None else min(gpu.idle_w, power)


def _percent(value: object) -> float | None:
    found = number(value)
    return found if found is not None and 0 <= found <= 100 else None
