"""Does the real guard name a real fault, and leave alone what is well?

A drill's processes are started and guarded as a stranger's would be: found by their number, judged by what procfs, the
GPUs, their log and their answers say. Nothing of what the drill knows about itself reaches the guard, but where it
answers.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from eagle3ops.drills.drill import READY_S, Drill, Running
from eagle3ops.drills.score import GRACE_S, Outcome, Score
from eagle3ops.errors import Eagle3opsError
from eagle3ops.watchdog.guard.guard import Guard
from eagle3ops.watchdog.guard.logs import Tails
from eagle3ops.watchdog.guard.probes import Prober
from eagle3ops.watchdog.guard.samples import own_samples
from eagle3ops.watchdog.guard.subject import PidFinder
from eagle3ops.watchdog.incidents.incident import Incident
from eagle3ops.watchdog.judge.deadlines import Deadlines
from eagle3ops.watchdog.judge.watch import Watch
from eagle3ops.watchdog.state import Reading, Standing

LEAD_S = 8.0
"""So long a server is well before it breaks."""
EVIDENCE_S = 120.0
"""Collecting has limits of its own; after so long it is not waited for any more."""
_LOOK_S = 0.2

OnChange = Callable[[float | None, Reading], object]


def deadline_of(drill: Drill, deadlines: Deadlines) -> float:
    """So long a fault may go without a name, s: what the drill says, else the limit of its phase.

    Raises:
        Eagle3opsError: neither says anything.
    """
    limit = deadlines.of(drill.phase).seconds if drill.within_s is None else drill.within_s
    if limit is None:
        raise Eagle3opsError(f"drill {drill.name}: the phase {drill.phase} has no limit, and the drill names none")
    return limit


def rehearse(
    drill: Drill,
    folder: Path,
    *,
    scale: float = 1.0,
    for_s: float = 60.0,
    lead: float = LEAD_S,
    on_change: OnChange | None = None,
) -> Outcome:
    """Hold one drill. Everything that it starts has ended when this returns, however it returns.

    Args:
        folder: an existing, empty one, for its log, its files and the evidence.
        scale: factor on the deadlines of phases.
        for_s: how long something healthy is watched, s.
        lead: seconds for which a server is well before it breaks.
        on_change: called when another thing is held of it: (seconds after the fault or None before, reading).

    Raises:
        Skipped: it cannot be held here.
        Eagle3opsError: its processes did not do what they should.
    """
    with drill.launch(folder, lead=lead) as running:
        return asyncio.run(_rehearse(running, Deadlines(scale=scale), scale, for_s, lead, on_change))


async def _rehearse(
    running: Running, deadlines: Deadlines, scale: float, for_s: float, lead: float, on_change: OnChange | None
) -> Outcome:
    drill = running.drill
    deadline_s = 0.0 if drill.healthy else deadline_of(drill, deadlines)
    score = Score(drill, deadline_s, lambda: running.fault_at)
    seen = _Seen(running, score, on_change)
    if drill.serves or drill.scope == "member":
        await _until(lambda: running.look() or running.url is not None, READY_S + lead, running)
    find = PidFinder(running.subject, name=f"drill {drill.name}", url=running.url)
    guard = Guard(
        find,
        Watch(find.name, deadlines=deadlines, expect="server" if running.url else "work"),
        Prober(running.url, scale=scale) if running.url else None,
        Tails(),
        on_reading=seen.reading,
        evidence=running.folder / "evidence",
        on_incident=seen.incident,
        on_conviction=seen.conviction,
        samples=own_samples(find().processes, paths=(running.folder / drill.mount[0],)) if drill.mount else None,
        say=seen.troubles.append,
    )
    guarding = asyncio.create_task(guard.run())
    try:
        await _until(running.look, READY_S + lead, running)
        began = time.monotonic()
        # Never for ever, should the guard fall silent; it says itself when it is late.
        longest = for_s if drill.healthy else deadline_s + 2 * GRACE_S
        while not score.decided and time.monotonic() - began < longest:
            # Wakes at once when the guard leaves, because there is nothing left to watch.
            if (await asyncio.wait([guarding], timeout=_LOOK_S))[0]:
                break
        if seen.named_at is not None and not guarding.done():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(seen.collected.wait(), EVIDENCE_S)
    finally:
        guarding.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await guarding
    outcome = score.outcome(evidence=seen.evidence, findings=seen.findings)
    return replace(outcome, troubles=tuple(seen.troubles))


class _Seen:
    """What the guard told."""

    def __init__(self, running: Running, score: Score, on_change: OnChange | None) -> None:
        self._running = running
        self._score = score
        self._on_change = on_change
        self._before: tuple[str, Standing] | None = None
        self.troubles: list[str] = []
        self.evidence = ""
        self.findings: tuple[str, ...] = ()
        self.named_at: float | None = None
        self.collected = asyncio.Event()

    def reading(self, reading: Reading) -> None:
        self._score.take(reading)
        if reading.standing is Standing.CONVICTED and self.named_at is None:
            self.named_at = reading.at
        now = (reading.state, reading.standing)
        if self._on_change is not None and now != self._before:
            fault = self._running.fault_at
            self._on_change(None if fault is None or self._running.drill.healthy else reading.at - fault, reading)
        self._before = now

    def incident(self, incident: Incident, folder: Path) -> None:
        if folder != Path():
            self.evidence = str(folder)

    def conviction(self, reading: Reading, dossier: Any) -> None:
        self.evidence = str(getattr(dossier, "folder", "") or self.evidence)
        self.findings = tuple(str(one.what) for one in getattr(dossier, "findings", ()))
        self.collected.set()


async def _until(done: Callable[[], bool], seconds: float, running: Running) -> None:
    """Wait for what the program does.

    Raises:
        Eagle3opsError: it has ended, or it has not done it after so many seconds.
    """
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise Eagle3opsError(f"drill {running.drill.name}: its program did not come so far in {seconds:.0f} s")
        await asyncio.sleep(_LOOK_S / 4)
