"""What does a run's guard do with a conviction? It writes it into the run, and decides what the pipeline file allows.

It ends nothing itself: a decision goes into `watchdog.json`, and the supervisor obeys it. What it may do with its own
hands is to move a lock out of the way that nobody holds.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.events import EventLog, read_events
from eagle3ops.runs.files import log_line
from eagle3ops.runs.processes import ProcessId
from eagle3ops.spec.models import Pipeline
from eagle3ops.supervisor import decision as decisions
from eagle3ops.supervisor.decision import Decision
from eagle3ops.watchdog.incidents.incident import Incident, incident_id
from eagle3ops.watchdog.remedies.ladder import (
    BISECT,
    GIVE_UP,
    NOTIFY,
    Ladder,
    Policy,
    Step,
    fingerprint,
    history,
    rungs_for,
)
from eagle3ops.watchdog.remedies.lock_release import Release, release_lock
from eagle3ops.watchdog.state import Reading, Standing

RELEASED_S = 30.0
"""So long a stage may take to go on after a lock was moved out of its way."""
_LOCK_S = 20.0
MOST_CHANGES = 1000
"""So many changes of state of one attempt are logged."""


@dataclass(slots=True)
class Warden:
    """Incidents and decisions of one attempt at a stage."""

    run: RunDirectory
    stage: str
    attempt: ProcessId
    pipeline: Pipeline
    events: EventLog
    engine_version: str = ""
    """Empty where it is not known."""
    reading: Reading | None = None
    """The last judgement."""
    release: Callable[..., Release] = release_lock
    decided: bool = False
    """The attempt is to be ended."""
    _changes: int = 0
    _told: set[str] = field(default_factory=set)
    _incident: Incident | None = None
    _folder: Path = Path()

    def on_reading(self, reading: Reading) -> None:
        """Take note of a judgement; the log tells of each that differs from the one before."""
        before, self.reading = self.reading, reading
        key = (reading.state, reading.standing, reading.phase)
        if before is not None and key == (before.state, before.standing, before.phase):
            return
        if before is None and reading.standing is Standing.UNKNOWN:
            return  # nothing has been seen yet, which goes without saying
        self._changes += 1
        if self._changes <= MOST_CHANGES:
            shown = "; ".join(signal.words for signal in reading.signals[:3])
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
            why = f" ({shown})" if shown else ""
            log_line(f"{stamp} {self.stage}: {reading.standing}: {reading.title or reading.state}{why}")

    def on_incident(self, incident: Incident, folder: Path) -> None:
        """An incident began, was judged anew, or is over. Only a conviction is written down: an accusation is none."""
        if incident.severity == "error" and not incident.over:
            self._incident, self._folder = incident, folder
        elif incident.id not in self._told:
            return
        # Told once to people; what follows brings its evidence, or that it is over.
        again = {"again": True} if incident.id in self._told else {}
        self._told.add(incident.id)
        self.events.append("incident", incident.as_json() | again, self.stage)

    async def on_conviction(self, reading: Reading, dossier: Any) -> None:
        """Decide, once the evidence is there; returns when that is done."""
        fault = self._fault(reading, dossier)
        spec = self.pipeline.watchdog
        policy = Policy(spec.action, spec.restarts, spec.bisect)
        if spec.action != NOTIFY and await self._release(reading, dossier, fault):
            return
        engine = self.pipeline.engine.name
        rungs = rungs_for(engine, self.engine_version, reading.state, reading.phase)
        step = Ladder(policy, history(read_events(self.run.events_file), self.stage)).next(fault, rungs)
        if step.kind == NOTIFY:
            self._note(fault, step)
            return
        rung = step.rung if step.kind == BISECT else None
        # The supervisor writes down what it does about it.
        Decision(
            incident=self._id(reading),
            stage=self.stage,
            attempt=self.attempt,
            action=decisions.GIVE_UP if step.kind == GIVE_UP else decisions.RESTART,
            title=reading.title or reading.state,
            why=step.words,
            fingerprint=fault,
            rung=rung.name if rung else "",
            environment=dict(rung.environment) if rung else {},
            arguments=rung.arguments if rung else (),
            evidence="" if self._folder == Path() else str(self._folder),
        ).write(self.run.path)
        self.decided = True

    def _id(self, reading: Reading) -> str:
        known = self._incident
        if known is not None and known.kind == reading.state:
            return known.id
        return incident_id(self.run.run_id, self.stage, reading.state, self.attempt.pid, self.attempt.start)

    def _fault(self, reading: Reading, dossier: Any) -> str:
        frames: Sequence[str] = getattr(dossier, "fingerprint", ()) or ()
        return fingerprint(self.stage, reading.state, reading.phase, tuple(map(str, frames)))

    def _note(self, fault: str, step: Step, **more: Any) -> None:
        incident = self._incident.id if self._incident is not None else ""
        evidence = "" if self._folder == Path() else str(self._folder)
        data = {"step": step.kind, "incident": incident, "fingerprint": fault, "why": step.words, "evidence": evidence}
        data |= more
        self.events.append("remedy", data, self.stage)

    async def _release(self, reading: Reading, dossier: Any, fault: str) -> bool:
        """Move stale locks out of the way; True when the stage goes on after it."""
        locks = [lock for lock in getattr(dossier, "locks", ()) if getattr(lock, "stale", False)]
        if reading.state != "stale_lock" or not locks:
            return False
        into = self._folder if self._folder != Path() else self.run.artifacts / "locks"
        done: list[Release] = []
        for lock in locks[:8]:
            waiting = tuple(process.pid for process in getattr(lock, "waiters", ()))
            work = asyncio.to_thread(self.release, lock, into, waiting=waiting)
            try:
                one = await asyncio.wait_for(work, _LOCK_S)
            except (OSError, TimeoutError) as error:
                one = Release(str(lock.path), False, "", f"cannot be looked at: {error or 'no answer in time'}")
            done.append(one)
            words = f"{'moved' if one.released else 'left'} the lock {one.path}: {one.why}"
            self._note(fault, Step("release_lock", words), **one.as_json())
        if not any(one.released for one in done):
            return False
        for _ in range(int(RELEASED_S)):
            await asyncio.sleep(1.0)
            if self.reading is not None and self.reading.standing is Standing.HEALTHY:
                return True
        return False
