"""What did the processes and GPUs of a subject do over the last seconds?

Samples go in one after another; what is kept of each is small, and every figure is over a stretch of at least 5 s.
Whatever a sample holds, only what is of the right kind is looked at.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3ops.watchdog.judge.gpu_signals import Gpus
from eagle3ops.watchdog.judge.process_kinds import family, is_compiler, is_helper
from eagle3ops.watchdog.judge.values import entries, mapping, number, text

WINDOW_S = 5.0
"""Nothing is concluded from less."""
KEEP_S = 130.0
_POINT_EVERY_S = 0.9
_GAP_FLOOR_S = 1.0
"""A shorter gap cannot hide a window, however often samples are wanted."""
_SUSPENDED_S = 0.5
_STARVED_PERCENT = 90.0
_SLOW_SAMPLE_MS = 2500.0
_LOST_KEPT = 500
_TRACED_S = 60.0
MOST_PROCESSES = 4096


@dataclass(slots=True)
class _Counts:
    """Counters of one process at one moment; None where they cannot be read."""

    at: float
    cpu: float
    wakeups: float | None
    read: float | None
    """Bytes: the larger of what was asked for and what came from the disk, and pages that had to be fetched."""
    written: float | None


@dataclass(slots=True)
class Track:
    """One process over time."""

    pid: int
    start: float
    ppid: int | None
    name: str
    helper: bool
    compiler: bool
    first_at: float
    seen_at: float
    state: str = ""
    state_since: float = 0.0
    family: str = ""
    family_since: float = 0.0
    was_alive: bool = False
    traced_since: float | None = None
    still_since: float = 0.0
    """Since then neither CPU, wake-ups nor bytes have moved."""
    points: deque[_Counts] = field(default_factory=deque)
    last: _Counts | None = None

    def moved(self, seconds: float, now: float) -> tuple[_Counts, _Counts] | None:
        """The counters of now and of so long ago, or as far back as is known; None for less than a window."""
        last = self.last
        if last is None:
            return None
        base = None
        for point in reversed(self.points):
            base = point
            if point.at <= now - seconds:
                break
        return None if base is None or last.at - base.at < 0.5 else (base, last)


@dataclass(frozen=True, slots=True)
class Rates:
    """What all processes together did over a stretch."""

    seconds: float
    cpu: float
    """% of one core."""
    wakeups: float | None
    """Per second, of main threads; None where it is known of none."""
    read: float | None
    """Bytes a second."""
    written: float | None
    processes: int


class Window:
    """The last two minutes of one subject.

    Args:
        gpus: numbers of the GPUs that are its own; None: found by the processes on them.
    """

    def __init__(self, gpus: Iterable[int] | None = None) -> None:
        self.gpus = Gpus(None if gpus is None else frozenset(gpus))
        self.tracks: dict[int, Track] = {}
        self.host: Mapping[str, Any] = {}
        self.at: float | None = None
        """Of the last sample."""
        self.first_at: float | None = None
        self.whole_since: float | None = None
        """Since then samples have come without a gap."""
        self.blind_why = ""
        self.seen = False
        """Some process has been seen."""
        self.gone_at: float | None = None
        """When a process that mattered was last seen to be gone while others stayed."""
        self.came_at: float | None = None
        """When one last came while others were there."""
        self.compiled_at: float | None = None
        self.oom_at: float | None = None
        self.members: frozenset[int] = frozenset()
        self._lost: deque[tuple[float, float]] = deque(maxlen=_LOST_KEPT)
        self._boot: str | None = None
        self._gaps: deque[float] = deque(maxlen=21)
        self._ooms: float | None = None

    def take(self, sample: Mapping[str, Any], members: frozenset[int]) -> None:
        """Look at one sample; one without a time, or older than the last, is passed over."""
        at = number(sample.get("mono"))
        if at is None:
            return
        boot = text(sample.get("boot"))
        if self.at is not None and (at < self.at or (boot and self._boot and boot != self._boot)):
            if boot == self._boot or not boot:
                return
            self._forget(at)
            self.gpus.missed(KEEP_S)
            self.at = None
        self._boot = boot or self._boot
        self._look_for_gap(sample, at)
        self.at = at
        self.first_at = at if self.first_at is None else self.first_at
        self.members = members
        self.host = mapping(sample.get("host")) or self.host
        if isinstance(sample.get("procs"), list):
            self._processes(entries(sample["procs"]), members, at)
        self.gpus.take(entries(sample.get("gpu")), entries(sample.get("xids")), members, at)
        ooms = number(mapping(self.host.get("cgroup")).get("oom_kills"))
        if ooms is not None:
            if self._ooms is not None and ooms > self._ooms:
                self.oom_at = at
            self._ooms = ooms

    def elapsed(self, since: float, now: float) -> float:
        """Seconds from then to now, without those in which nobody could look."""
        away = sum(max(0.0, min(end, now) - max(begin, since)) for begin, end in self._lost)
        return max(0.0, now - since - away)

    def blind(self, now: float) -> str:
        """Why nothing may be concluded now; empty when something may."""
        if self.at is None or self.whole_since is None:
            return "no sample yet"
        usual = self._usual()
        if now - self.at > max(5.0, 5 * usual):
            return f"no sample for {now - self.at:.0f} s"
        if self.at - self.whole_since < WINDOW_S and self.blind_why:
            return self.blind_why
        return ""

    def rates(self, seconds: float, now: float) -> Rates | None:
        """What the subject's processes did over the last `seconds`; None when less than a window is known."""
        if self.at is None or self.whole_since is None or self.at - self.whole_since < WINDOW_S:
            return None
        seconds = min(seconds, self.at - self.whole_since)
        cpu, wakeups, read, written = 0.0, 0.0, 0.0, 0.0
        know_wakeups = know_bytes = False
        count = 0
        for track in self.tracks.values():
            pair = track.moved(seconds, self.at)
            if pair is None or track.seen_at < self.at:
                continue
            base, last = pair
            count += 1
            cpu += max(0.0, last.cpu - base.cpu)
            if last.wakeups is not None and base.wakeups is not None:
                know_wakeups = True
                wakeups += max(0.0, last.wakeups - base.wakeups)
            if last.read is not None and base.read is not None:
                know_bytes = True
                read += max(0.0, last.read - base.read)
            if last.written is not None and base.written is not None:
                written += max(0.0, last.written - base.written)
        if not count:
            return None
        return Rates(
            seconds,
            100 * cpu / seconds,
            wakeups / seconds if know_wakeups else None,
            read / seconds if know_bytes else None,
            written / seconds if know_bytes else None,
            count,
        )

    def of(self, pid: int, seconds: float) -> Rates | None:
        """The same of one process."""
        track = self.tracks.get(pid)
        pair = None if track is None or self.at is None else track.moved(seconds, self.at)
        if pair is None or pair[1].at - pair[0].at < min(WINDOW_S, seconds):
            return None
        base, last = pair
        over = last.at - base.at

        def rate(new: float | None, old: float | None) -> float | None:
            return None if new is None or old is None else max(0.0, new - old) / over

        cpu = 100 * max(0.0, last.cpu - base.cpu) / over
        return Rates(
            over, cpu, rate(last.wakeups, base.wakeups), rate(last.read, base.read), rate(last.written, base.written), 1
        )

    def living(self) -> list[Track]:
        """Processes of the subject that are there and no zombies."""
        return [track for track in self.tracks.values() if track.seen_at == self.at and track.state not in ("Z", "X")]

    def _look_for_gap(self, sample: Mapping[str, Any], at: float) -> None:
        if self.at is None:
            self.whole_since = at
            return
        gap = at - self.at
        # A sampler that several ask may look more often than its samples are wanted here.
        interval = max(number(sample.get("interval_s")) or 0.0, self._usual())
        psi = mapping(mapping(mapping(sample.get("host")).get("psi")).get("cpu"))
        pressed = (number(mapping(psi.get("some")).get("avg10")) or 0.0) >= _STARVED_PERCENT
        told = number(sample.get("gap_s")) or 0.0
        suspended = number(sample.get("suspended_s")) or 0.0
        cost = number(sample.get("cost_ms")) or 0.0
        # A sampler may look more often than it is listened to, so that its interval measures its own gaps only.
        listened = max(interval, self._usual(), _GAP_FLOOR_S)
        times = 1.5 if pressed else 2.5
        late = sample.get("late") is True or told > times * interval or gap > times * listened
        why = ""
        if suspended > _SUSPENDED_S:
            why = f"the machine slept for {suspended:.0f} s"
        elif late and max(gap, told) > _GAP_FLOOR_S:
            why = f"nobody looked for {max(gap, told):.1f} s" + (": the machine is overloaded" if pressed else "")
        elif cost > _SLOW_SAMPLE_MS:
            why = f"looking took {cost / 1000:.1f} s"
        if why:
            self._lost.append((self.at, at))
            self._forget(at)
            self.gpus.missed(at - self.at)
            self.blind_why = why
        else:
            self._gaps.append(gap)

    def _usual(self) -> float:
        ordered = sorted(self._gaps)
        return ordered[len(ordered) // 2] if ordered else 1.0

    def _forget(self, at: float) -> None:
        """What was before a gap tells nothing about what is after it."""
        self.whole_since = at
        for track in self.tracks.values():
            track.points.clear()
            track.last = None
            track.state_since = max(track.state_since, at)
            track.family_since = max(track.family_since, at)
            track.still_since = max(track.still_since, at)

    def _processes(self, found: Iterable[Mapping[str, Any]], members: frozenset[int], at: float) -> None:
        for entry in found:
            pid = number(entry.get("pid"))
            if pid is None or int(pid) not in members or len(self.tracks) >= MOST_PROCESSES:
                continue
            self._process(int(pid), entry, at)
        for pid, track in list(self.tracks.items()):
            if track.seen_at < at:
                if not track.helper and not track.compiler and track.state not in ("Z", "X"):
                    self.gone_at = at
                del self.tracks[pid]

    def _process(self, pid: int, entry: Mapping[str, Any], at: float) -> None:
        start, name = number(entry.get("start")) or 0.0, (text(entry.get("name")) or "")[:64]
        track = self.tracks.get(pid)
        if track is None or track.start != start:
            track = Track(pid, start, None, name, False, False, at, at, state_since=at, family_since=at, still_since=at)
            self.tracks[pid] = track
        track.seen_at, track.name = at, name
        ppid = number(entry.get("ppid"))
        track.ppid = None if ppid is None else int(ppid)
        track.compiler = is_compiler(name)
        track.helper = is_helper(name, text(entry.get("cmd")) or "")
        state = (text(entry.get("state")) or "")[:1]
        if track.first_at == at and self.seen and not track.helper and not track.compiler:
            self.came_at = at
        kind = family(text(entry.get("wchan")))
        if kind == "stop" and state not in "Tt":
            kind = track.family  # from another moment than the state: a debugger, or the evidence, has looked at it
        if state == "t":
            # Looked at by a debugger, or by the evidence itself: for a while it is what it was before.
            track.traced_since = at if track.traced_since is None else track.traced_since
            if track.state and at - track.traced_since < _TRACED_S:
                state, kind = track.state, track.family
        else:
            track.traced_since = None
        if state != track.state:
            track.state, track.state_since = state, at
        if state and state not in "ZX":
            self.seen = track.was_alive = True
            if track.compiler:
                self.compiled_at = at
        if kind != track.family:
            track.family, track.family_since = kind, at
        self._count(track, entry, at)

    def _count(self, track: Track, entry: Mapping[str, Any], at: float) -> None:
        user, system = number(entry.get("utime")), number(entry.get("stime"))
        if user is None or system is None:
            return
        asked, fetched, faults = (number(entry.get(name)) for name in ("rchar", "read_bytes", "majflt"))
        read = None if asked is None and fetched is None else max(asked or 0.0, fetched or 0.0)
        if read is None and faults is not None:
            read = 4096.0 * faults
        wrote = number(entry.get("wchar"))
        now = _Counts(at, user + system, number(entry.get("vcs")), read, wrote)
        before = track.last
        if before is not None and (
            now.cpu - before.cpu > 1e-6
            or (now.wakeups or 0) != (before.wakeups or 0)
            or (now.read or 0) != (before.read or 0)
            or (now.written or 0) != (before.written or 0)
        ):
            track.still_since = at
        track.last = now
        if not track.points or at - track.points[-1].at >= _POINT_EVERY_S:
            track.points.append(now)
        while track.points and track.points[0].at < at - KEEP_S:
            track.points.popleft()
