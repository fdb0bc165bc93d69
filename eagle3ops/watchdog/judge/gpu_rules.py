"""What may be wrong with a subject's GPUs, or on them?"""

from collections.abc import Iterator

from eagle3ops.watchdog.judge.gpu_signals import Gpu
from eagle3ops.watchdog.judge.states import XID_S
from eagle3ops.watchdog.judge.view import Finding, View
from eagle3ops.watchdog.state import Signal

_SPIN_S = 20.0
_THROTTLED_S = 60.0
_NO_ANSWER_S = 60.0
"""A driver that is busy answers again; one that has lost a GPU says so."""
_IDLE_RANK_PERCENT = 20.0
_SAME_SIZE = 4.0
"""Ranks of one job use memory alike; a GPU with much less on it is none of its own."""


def gpu_faults(view: View) -> Iterator[Finding]:
    """Lost, in error, spinning; and what hinders: a slow rank, somebody else, heat."""
    gpus = view.window.gpus
    for gpu in gpus.broken():
        if gpu.state == "no answer" and view.ago(gpu.state_since) < _NO_ANSWER_S:
            continue
        words = f"GPU {gpu.index}: {gpu.state} for {view.ago(gpu.state_since):.0f} s"
        yield Finding("gpu_lost", (Signal("gpu_state", words),), _on([gpu]), gpu.state_since)
    for at, index, code, convicts in gpus.errors(view.now - 900.0):
        if view.overcome(at) or (not convicts and view.ago(at) > XID_S):
            continue
        where = f"GPU {index}" if index >= 0 else "a GPU"
        signal = Signal("xid", f"Xid {code} on {where}, {view.ago(at):.0f} s ago", float(code))
        yield Finding("xid", (signal,), since=at, convicts=convicts)
        break
    yield from _waiting(view)
    for gpu in gpus.used():
        since = gpu.throttled_since
        if since is not None and view.ago(since) >= _THROTTLED_S and (gpu.mean("util", _THROTTLED_S) or 0.0) >= 50.0:
            words = f"GPU {gpu.index}: {gpu.throttle} for {view.ago(since):.0f} s"
            yield Finding("throttled", (Signal("clocks", words),), since=since)
            break


def _waiting(view: View) -> Iterator[Finding]:
    gpus = view.window.gpus
    busy = [gpu for gpu in gpus.used() if (gpu.mean("util", 10.0) or 0.0) >= 50.0 and gpu.span() >= 5.0]
    own_rest = view.asked.idle(view.now) or (
        gpus.certain and view.short is not None and view.short.cpu < 5.0 and any(gpu.foreign for gpu in busy)
    )
    if busy and own_rest and not view.asked.missed:
        words = f"GPU {busy[0].index} at {busy[0].mean('util', 10.0) or 0.0:.0f} % while nothing is asked of this one"
        yield Finding("foreign_gpu_use", (Signal("gpu_util", words),), tuple(sorted(busy[0].foreign))[:64])
        return
    spinning = gpus.spinning(_SPIN_S)
    if not spinning:
        yield from _uneven(view)
        return
    idle = [gpu for gpu in gpus.idling(_SPIN_S) if gpus.certain or _alike(gpu, spinning[0])]
    suspects = _on(idle) or _quiet_ranks(view)
    first = spinning[0]
    words = (
        f"GPU {', '.join(str(gpu.index) for gpu in spinning)} at {first.mean('util', _SPIN_S) or 0.0:.0f} % "
        f"and {first.mean('power', _SPIN_S) or 0.0:.0f} W; idling draws {gpus.reference(first) or 0.0:.0f} W"
    )
    signals = [Signal("gpu_power", words, first.mean("power", _SPIN_S))]
    if idle:
        signals.append(Signal("gpu_idle", f"GPU {', '.join(str(gpu.index) for gpu in idle)} idles meanwhile"))
        if _works(view, suspects):
            yield Finding("straggler", tuple(signals), suspects)
            return
    if view.expected or idle or view.asked.missed:
        yield Finding("spin", tuple(signals), suspects)


def _uneven(view: View) -> Iterator[Finding]:
    """The fast ranks wait half of the time for one that hardly uses its GPU."""
    gpus = view.window.gpus
    used = [gpu for gpu in gpus.used() if gpu.span() >= 55.0]
    if len(used) < 2 or not gpus.certain:
        return
    by_use = sorted(used, key=lambda gpu: gpu.mean("util", 60.0) or 0.0)
    slow, fast = by_use[0], by_use[-1]
    low, high = slow.mean("util", 60.0) or 0.0, fast.mean("util", 60.0) or 0.0
    if high >= 30.0 and low <= 5.0 and fast.low_power(60.0, gpus.reference(fast)):
        words = f"GPU {slow.index} at {low:.0f} %, GPU {fast.index} at {high:.0f} % and idle power: it waits"
        yield Finding("straggler", (Signal("gpu_util", words),), _on([slow]))


def _on(gpus: list[Gpu]) -> tuple[int, ...]:
    return tuple(sorted({pid for gpu in gpus for pid in gpu.pids}))[:64]


def _alike(one: Gpu, other: Gpu) -> bool:
    mine, its = one.mean("used", 5.0), other.mean("used", 5.0)
    return mine is not None and its is not None and its / _SAME_SIZE <= mine <= its * _SAME_SIZE


def _quiet_ranks(view: View) -> tuple[int, ...]:
    """Of processes with one parent, those that rest while others burn a core."""
    families: dict[int | None, list[tuple[int, float]]] = {}
    for track in view.window.living():
        rates = view.window.of(track.pid, _SPIN_S)
        if rates is not None and not track.helper and not track.compiler:
            families.setdefault(track.ppid, []).append((track.pid, rates.cpu))
    quiet: list[int] = []
    for ranks in families.values():
        if any(cpu >= 80.0 for _, cpu in ranks):
            quiet += [pid for pid, cpu in ranks if cpu < _IDLE_RANK_PERCENT]
    return tuple(sorted(quiet))[:64]


def _works(view: View, pids: tuple[int, ...]) -> bool:
    """The ranks that keep the others waiting do something: they are slow, not lost."""
    for pid in pids:
        rates = view.window.of(pid, _SPIN_S)
        if rates is None:
            continue
        if rates.cpu >= _IDLE_RANK_PERCENT or (rates.written or 0.0) + (rates.read or 0.0) > 1e6:
            return True
    return False
