"""What do the signals look like? All faults that they may mean, and the healthy state that they mean otherwise.

Nothing here convicts but facts that need no interpretation; how long something must stand is in `assets/states.toml`,
and what a probe or a deadline makes of it in `watch`.
"""

from collections.abc import Iterator

from eagle3ops.watchdog.judge.gpu_rules import gpu_faults
from eagle3ops.watchdog.judge.phases import PHASES
from eagle3ops.watchdog.judge.signals import Track
from eagle3ops.watchdog.judge.values import mapping, number
from eagle3ops.watchdog.judge.view import GREW_BYTES, MOVING_BYTES_S, STILL_BYTES_S, Finding, View
from eagle3ops.watchdog.state import Signal
from eagle3ops.words import human_bytes

GOOD_LOAD_S = 50e6
_BATCH_S = 15.0
_FULL_BYTES = 16 << 20
_BATON = (8.0, 12.5)
"""Wake-ups a second of torch's `FileBaton.wait` and its like, that look ten times a second."""


def faults(view: View) -> Iterator[Finding]:
    """All that may be wrong, what is surest first."""
    yield from _told(view)
    yield from _process_faults(view)
    yield from gpu_faults(view)
    yield from _space(view)
    yield from _disk_wait(view)
    yield from _stale_lock(view)
    if view.still and view.expected and view.phase != "stopping":
        yield Finding("deadlock", (_waits(view),), _stillest(view))
    yield from _slow_load(view)


def _told(view: View) -> Iterator[Finding]:
    for state, fact in view.facts.items():
        if not view.overcome(fact.at):
            yield Finding(state, (Signal("fact", fact.words),), since=fact.at, convicts=fact.convicts)
    for state, alarm in view.reader.alarms.items():
        if not view.overcome(alarm.at):
            words = f"{alarm.words}: {alarm.line[:160]}"
            yield Finding(state, (Signal("log", words),), since=alarm.at, convicts=alarm.convicts)
    at = view.window.oom_at
    if at is not None and view.ago(at) <= 120.0 and not view.overcome(at):
        gone = view.window.gone_at
        ours = gone is not None and abs(gone - at) <= 10.0
        words = "the control group's count of processes ended for want of memory rose"
        yield Finding("host_oom", (Signal("oom_kill", words),), since=at, convicts=ours)


def _process_faults(view: View) -> Iterator[Finding]:
    living = view.window.living()
    engine = [track for track in living if not track.helper]
    halted = [track for track in engine if track.state in ("T", "t")]
    if halted:
        since = min(track.state_since for track in halted)
        words = f"{_names(halted)} in state {halted[0].state} for {view.ago(since):.0f} s"
        # Others may still answer, as the ranks of other replicas do; to be stopped is not normal all the same.
        mild = view.overcome(since)
        yield Finding("stopped", (Signal("state", words),), _pids(halted), since, mild=mild)
    blocked = [track for track in engine if track.family == "pipe_write" and track.state == "S"]
    blocked = [track for track in blocked if _rests(view, track)]
    if blocked:
        since = min(track.family_since for track in blocked)
        words = f"{_names(blocked)} has waited for room in a pipe for {view.ago(since):.0f} s"
        yield Finding("blocked_pipe", (Signal("wchan", words),), _pids(blocked), since)
    here = {track.pid for track in living}
    zombies = [
        track
        for track in view.window.tracks.values()
        if track.state == "Z" and track.seen_at == view.window.at and track.ppid in here and _mattered(track)
    ]
    zombies = [track for track in zombies if not view.overcome(track.state_since + 5.0)]
    if zombies and view.phase != "stopping":
        since = min(track.state_since for track in zombies)
        words = f"{_names(zombies)} has ended and its parent {zombies[0].ppid} goes on, for {view.ago(since):.0f} s"
        yield Finding("half_dead", (Signal("zombie", words),), _pids(zombies), since)


def _rests(view: View, track: Track) -> bool:
    """It has done next to nothing for some seconds; being looked at by a debugger is next to nothing."""
    rates = view.window.of(track.pid, 10.0)
    return rates is not None and rates.cpu < 1.0 and (rates.wakeups or 0.0) < 2.0


def _mattered(track: Track) -> bool:
    if track.helper or track.compiler:
        return False
    return track.was_alive or (track.last is not None and track.last.cpu >= 1.0)


def _space(view: View) -> Iterator[Finding]:
    shm = mapping(view.window.host.get("shm"))
    total, free = number(shm.get("total")), number(shm.get("free"))
    if total and free is not None and free < min(_FULL_BYTES, 0.02 * total):
        yield Finding("shm_full", (Signal("shm_free", f"/dev/shm has {human_bytes(free)} left", free),))
    for path, disk in mapping(view.window.host.get("disks")).items():
        facts = mapping(disk)
        total, free, inodes = (number(facts.get(name)) for name in ("total", "free", "inodes_free"))
        full = bool(total) and free is not None and free < min(_FULL_BYTES, 0.02 * (total or 0.0))
        if full or (inodes == 0 and number(facts.get("inodes"))):
            words = f"{str(path)[:200]}: {human_bytes(free or 0) if full else 'no inode'} left"
            yield Finding("disk_full", (Signal("disk_free", words, free),))


def _disk_wait(view: View) -> Iterator[Finding]:
    waiting = [
        track
        for track in view.window.living()
        if track.state == "D" and min(view.ago(track.state_since), view.ago(track.still_since)) >= 5.0
    ]
    if waiting:
        since = min(max(track.state_since, track.still_since) for track in waiting)
        words = f"{_names(waiting)} in state D for {view.ago(since):.0f} s, no byte comes"
        yield Finding("disk_wait", (Signal("state", words),), _pids(waiting), since)


def _stale_lock(view: View) -> Iterator[Finding]:
    """Somebody looks ten times a second whether a file is gone, and nothing else happens.

    A launcher looks after its ranks as often; it has living children.
    """
    rates = view.short
    if rates is None or rates.seconds < 8.0 or view.compiling or rates.cpu > 3.0 or not view.expected:
        return
    living = view.window.living()
    parents = {track.ppid for track in living if not track.helper}
    found = []
    for track in living:
        one = view.window.of(track.pid, 10.0)
        if track.helper or track.pid in parents or one is None or one.wakeups is None or track.family != "sleep":
            continue
        if _BATON[0] <= one.wakeups <= _BATON[1] and one.cpu < 2.0 and (one.read or 0.0) < STILL_BYTES_S:
            found.append((track, one.wakeups))
    if found:
        tracks = [track for track, _ in found]
        words = f"{_names(tracks)} wakes {found[0][1]:.0f} times a second, no compiler runs"
        yield Finding("stale_lock", (Signal("wakeups", words, found[0][1]),), _pids(tracks))


def _slow_load(view: View) -> Iterator[Finding]:
    whole = view.window.whole_since
    if view.phase != "loading" or whole is None or view.now - whole < 20.0 or view.still:
        return
    phase = view.reader.phase
    if phase is not None and view.ago(phase.since) < 30.0:
        return
    rate = view.bytes_s
    if STILL_BYTES_S <= rate < GOOD_LOAD_S:
        yield Finding("slow_load", (Signal("load_rate", f"{human_bytes(rate)} a second come in, over 30 s", rate),))


def healthy(view: View) -> Finding:
    """What it does while nothing is wrong."""
    name = view.phase
    rates = view.short
    if name and name not in ("serving", "starting"):
        return Finding(PHASES[name].state)
    gpu = view.window.gpus.util(5.0)
    if name == "serving":
        told = view.reader.progress_at
        recent = told is not None and told != view.reader.ready_at and view.now - told <= 10.0
        recent = recent and not view.asked.caused(told or 0.0)
        if view.asked.idle(view.now) and not recent:
            return Finding("idle")
        if gpu is not None and view.window.gpus.all and not view.asked.busy(view.now):
            return Finding("serving" if gpu >= 3.0 or recent else "idle")
        cpu = rates is not None and rates.cpu >= 5.0
        if view.reader.batch_at is not None and view.asked.running is None:
            # It logs its batches: a scheduler that burns a core between them only polls.
            cpu = view.now - view.reader.batch_at <= _BATCH_S and not view.asked.caused(view.reader.batch_at)
        return Finding("serving" if recent or cpu or view.asked.busy(view.now) else "idle")
    if view.compiling and rates is not None and rates.cpu >= 20.0:
        return Finding("compiling")
    read = 0.0 if rates is None else rates.read or 0.0
    # Imports read some 30 MB/s.
    fetches = read >= (20e6 if not name else 100e6) or view.window.gpus.grew(30.0) >= GREW_BYTES
    if name == "starting":
        return Finding("loading" if fetches and view.reader.spoke_at is None else "starting")
    gone, came = view.window.gone_at, view.window.came_at
    ending = gone is not None and view.now - gone <= 15.0 and (came is None or came < gone)
    ending |= any(track.state == "Z" and _mattered(track) for track in view.window.tracks.values())
    if ending and (rates is None or rates.cpu < 5.0) and (gpu is None or gpu < 5.0):
        return Finding("stopping")
    if gpu is not None and gpu >= 3.0:
        return Finding("serving" if view.expect == "server" else "working")
    if fetches:
        return Finding("loading")
    if rates is not None and rates.cpu >= 5.0:
        # A scheduler that polls burns a core whatever it does; only its GPU shows work.
        polls = view.expect == "server" and gpu is not None and (rates.read or 0.0) < MOVING_BYTES_S
        return Finding("idle" if polls else "working")
    return Finding("idle")


def _waits(view: View) -> Signal:
    """What the processes wait for in the kernel."""
    kinds: dict[str, int] = {}
    for track in view.window.living():
        if not track.helper:
            kinds[track.family or "running"] = kinds.get(track.family or "running", 0) + 1
    words = ", ".join(f"{count} in {kind}" for kind, count in sorted(kinds.items(), key=lambda one: -one[1]))
    return Signal("wchan", f"main threads: {words or 'none'}")


def _stillest(view: View) -> tuple[int, ...]:
    """Processes that wait for a lock while others wait otherwise."""
    living = [track for track in view.window.living() if not track.helper]
    locked = [track for track in living if track.family in ("futex", "lock")]
    return _pids(locked) if 0 < len(locked) < len(living) else ()


def _pids(tracks: list[Track]) -> tuple[int, ...]:
    return tuple(sorted(track.pid for track in tracks))[:64]


def _names(tracks: list[Track]) -> str:
    shown = ", ".join(f"{track.name or 'process'} {track.pid}" for track in tracks[:3])
    return f"{shown} and {len(tracks) - 3} more" if len(tracks) > 3 else shown
