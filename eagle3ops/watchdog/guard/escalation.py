"""What follows from a judgement? Evidence, in two steps, an incident that people see, and then a decision.

An accusation has the free evidence collected, once; a conviction the intrusive one, once; only then is whoever guards
asked what to do. A further incident needs another state, or a healthy moment between.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eagle3ops.runs.redact import redact, redact_data
from eagle3ops.watchdog.evidence import collect as collect_evidence
from eagle3ops.watchdog.guard.aside import call_aside
from eagle3ops.watchdog.incidents.incident import MOST, Evidence, Incident, Remedy, from_json, incident_id, remedy_from
from eagle3ops.watchdog.judge.states import STATES
from eagle3ops.watchdog.state import Reading, Standing, Subject

ACCUSED_AGAIN_S = 600.0
"""One state that comes and goes is not collected for more often than this."""
MAX_INCIDENTS = 40
"""Of one guard; after so many the folder has enough of them."""
_SPARE_S = 15.0

Collect = Callable[..., Any]
"""`evidence.collect(subject, folder, *, reading, sample, intrusive, limit_s) -> Dossier`; called in a thread."""
OnIncident = Callable[[Incident, Path], object]
OnConviction = Callable[[Reading, Any], Awaitable[object] | object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a guard may do by itself. Acting on a conviction is `on_conviction`'s business."""

    collect: bool = True
    """Collect evidence at all."""
    intrusive: bool = True
    """On a conviction, also what stops the processes for a moment (stacks of their threads)."""
    limit_s: float = 60.0
    """Seconds that collecting may take."""


@dataclass(slots=True)
class _Open:
    """An incident that stands."""

    number: int
    state: str
    first: float
    """Seconds since 1970."""
    folder: Path
    accused: bool = False
    convicted: bool = False
    reading: Reading | None = None
    findings: tuple[Evidence, ...] = ()
    count: int = 1
    dossier: Any = None


@dataclass(slots=True)
class Escalation:
    """The incidents of one guard."""

    evidence: Path
    policy: Policy
    on_incident: OnIncident | None
    on_conviction: OnConviction | None
    collect: Collect | None
    fact: Callable[[str, str], object]
    """Told of what the evidence shows beyond doubt: (name, words)."""
    say: Callable[[str, BaseException | str], None]
    open: _Open | None = None
    _made: int = 0
    _accused_at: dict[str, float] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _order: asyncio.Lock = field(default_factory=asyncio.Lock)

    def take(self, reading: Reading, sample: Mapping[str, Any] | None, subject: Subject) -> None:
        """A judgement. What takes time goes on by itself."""
        if reading.standing is Standing.UNKNOWN:
            return
        if reading.standing is Standing.HEALTHY:
            if self.open is not None:
                self._tell(self.open, subject, over=True)
                self.open = None
            return
        convicted = reading.standing is Standing.CONVICTED
        if self.open is not None and self.open.convicted and convicted and reading.state != self.open.state:
            self.open = None
        if self.open is None and not self._begin(reading):
            return
        incident = self.open
        assert incident is not None
        if incident.reading is None or (convicted and not incident.convicted):
            incident.reading = reading
        elif reading.state == incident.state and (convicted or not incident.convicted):
            # What it is accused of besides does not change what it was convicted of; what led to that stays as it was:
            # later signals show how the evidence was taken, too.
            incident.reading = replace(reading, signals=incident.reading.signals)
        if convicted and not incident.convicted:
            incident.convicted, incident.state = True, reading.state
            self._tell(incident, subject)
            self._start(self._convict(incident, reading, sample, subject))
        elif not convicted and not incident.accused and not incident.convicted:
            incident.accused = True
            self._tell(incident, subject)
            self._start(self._accuse(incident, reading, sample, subject))

    async def settle(self) -> None:
        """Wait for what is being collected and decided."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def close(self) -> None:
        """Give up what is under way."""
        for task in self._tasks:
            task.cancel()

    def _begin(self, reading: Reading) -> bool:
        now = time.monotonic()
        if reading.standing is Standing.ACCUSED:
            before = self._accused_at.get(reading.state)
            if before is not None and now - before < ACCUSED_AGAIN_S:
                return False
            self._accused_at[reading.state] = now
        if self._made >= MAX_INCIDENTS:
            self.say("the evidence", f"{MAX_INCIDENTS} incidents so far; no further one is collected for")
            return False
        self._made += 1
        began = time.time() - max(0.0, reading.at - reading.since)
        self.open = _Open(self._made, reading.state, began, Path())
        return True

    def _start(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accuse(
        self, incident: _Open, reading: Reading, sample: Mapping[str, Any] | None, subject: Subject
    ) -> None:
        async with self._order:
            await self._gather(incident, reading, sample, subject, intrusive=False, into="accused")
            if not incident.convicted and incident is self.open:
                self._tell(incident, subject)

    async def _convict(
        self, incident: _Open, reading: Reading, sample: Mapping[str, Any] | None, subject: Subject
    ) -> None:
        async with self._order:
            await self._gather(incident, reading, sample, subject, intrusive=self.policy.intrusive)
            self._tell(incident, subject)
            if self.on_conviction is None:
                return
            try:
                decided = self.on_conviction(reading, incident.dossier)
                if isinstance(decided, Awaitable):
                    await decided
            except Exception as error:  # noqa: BLE001  (the guard goes on whatever the decision came to)
                self.say("the decision", error)

    async def _gather(
        self,
        incident: _Open,
        reading: Reading,
        sample: Mapping[str, Any] | None,
        subject: Subject,
        *,
        intrusive: bool,
        into: str = "",
    ) -> None:
        limit = self.policy.limit_s
        try:
            if incident.folder == Path():
                incident.folder = await call_aside(lambda: _new_folder(self.evidence), "the evidence folder", 10.0)
            if not self.policy.collect:
                return
            collect = self.collect or collect_evidence
            # What was seen at the accusation stays beside what is seen at the conviction.
            folder = incident.folder / into
            incident.dossier = await call_aside(
                lambda: collect(subject, folder, reading=reading, sample=sample, intrusive=intrusive, limit_s=limit),
                "collecting the evidence",
                limit + _SPARE_S,
            )
            self._learn(incident)
        except Exception as error:  # noqa: BLE001  (a conviction stands without evidence as well)
            self.say("the evidence", error)

    def _learn(self, incident: _Open) -> None:
        findings = getattr(incident.dossier, "findings", ())
        incident.findings = tuple(one for one in findings if isinstance(one, Evidence))
        for lock in getattr(incident.dossier, "locks", ()):
            if getattr(lock, "stale", False):
                self.fact("file_lock", f"{getattr(lock, 'path', '')}: {getattr(lock, 'proof', '')}")

    def _tell(self, incident: _Open, subject: Subject, *, over: bool = False) -> None:
        if self.on_incident is None or incident.reading is None:
            return
        told = replace(
            incident_of(incident.reading, subject, first=incident.first, over=over, more=incident.findings),
            id=incident_id(subject.name, incident.number, int(incident.first)),
            severity="error" if incident.convicted else "info" if over else "warn",
        )
        if incident.folder != Path():
            where = Remedy(f"the evidence is in {incident.folder}", "evidence")
            told = replace(told, remedies=(*told.remedies[: MOST - 1], where), folder=str(incident.folder))
        try:
            self.on_incident(told, incident.folder)
        except Exception as error:  # noqa: BLE001  (whoever listens must not end the guard)
            self.say("the report", error)


def incident_of(
    reading: Reading,
    subject: Subject,
    *,
    first: float,
    over: bool = False,
    more: tuple[Evidence, ...] = (),
) -> Incident:
    """A judgement as an incident, without secrets.

    Args:
        reading: an accusation or a conviction.
        subject: whom it is about.
        first: when it began, seconds since 1970.
        over: it no longer stands.
        more: what collecting the evidence has shown; it comes first.
    """
    kind = STATES.get(reading.state)
    run = subject.run_dir.name if subject.run_dir is not None else ""
    shown = (*more, *(Evidence(signal.words) for signal in reading.signals if signal.words))
    pids = " ".join(map(str, reading.suspects[:MOST])) or "PID"
    words = [one.replace(" PID`", f" {pids}`") for one in kind.remedies] if kind is not None else []
    remedies = tuple(map(remedy_from, words))
    incident = Incident(
        id=incident_id(subject.name, reading.state, int(first)),
        kind=reading.state,
        severity="error" if reading.standing is Standing.CONVICTED else "warn",
        title=redact(reading.title or f"{subject.name}: {reading.state}"),
        first=first,
        last=max(first, time.time()),
        run=run,
        stage=subject.stage,
        over=over,
        explanation=kind.explanation if kind is not None else "",
        evidence=shown[:MOST],
        remedies=remedies[: MOST - 1],
    )
    # Words of logs and of command lines may be in it.
    clean = from_json(redact_data(incident.as_json()))
    assert clean is not None
    return clean


def _new_folder(evidence: Path) -> Path:
    """`incident-N`, the next that is free; private."""
    evidence.mkdir(parents=True, exist_ok=True)
    taken = [int(path.name[9:]) for path in evidence.glob("incident-*") if path.name[9:].isdecimal()]
    for number in range(max(taken, default=0) + 1, max(taken, default=0) + 1000):
        folder = evidence / f"incident-{number}"
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder
    raise FileExistsError(f"{evidence}: no free incident-N")
