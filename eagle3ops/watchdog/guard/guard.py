"""Who watches all the time? One loop, once a second, for all users: the command `watch`, a run's guard, the drills.

It finds the subject, reads its logs, asks its server, takes the samples and has them judged. An accusation has the free
evidence collected once, a conviction the intrusive one, and then whoever guards decides what is done. It knows when it
was late or blind itself, and no failure of a part ends it. It never ends or signals what it watches.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from eagle3ops.runs.processes import ProcessId, identify
from eagle3ops.runs.redact import Secrets, redact
from eagle3ops.watchdog.evidence.procfs import secrets_of
from eagle3ops.watchdog.guard.aside import Aside, StillBusy
from eagle3ops.watchdog.guard.escalation import Collect, Escalation, OnConviction, OnIncident, Policy
from eagle3ops.watchdog.guard.logs import Line, Tails
from eagle3ops.watchdog.guard.probes import Prober
from eagle3ops.watchdog.guard.rounds import Rounds
from eagle3ops.watchdog.guard.samples import own_samples, sees_marks, shared_samples
from eagle3ops.watchdog.guard.subject import Told
from eagle3ops.watchdog.state import Probe, Reading, Signal, Standing, Subject

INTERVAL_S = 1.0
LATE = 2.5
"""A look that comes so many intervals after the one before was late: what was not seen meanwhile is not judged."""
BLIND_S = 6.0
"""Without a sample for so long nothing is known."""
_PATIENCE_S = 0.5
_MAX_WAITING = 120


class Watching(Protocol):
    """As much of `watch.Watch` as is used: it judges, and has neither a clock nor I/O of its own."""

    def sample(self, sample: Mapping[str, Any], members: frozenset[int]) -> None:
        """One sample, and which processes belong to the subject."""

    def line(self, log: str, text: str, at: float) -> None:
        """A line of a log."""

    def progress(self, what: str, at: float) -> None:
        """The work itself has reported progress."""

    def turned(self, kind: str, log: str, at: float) -> None:
        """Something else begins: what it counts is done, or a program (whose log that is) began or ended."""

    def serves(self, at: float) -> None:
        """A server of it was started."""

    def probe(self, probe: Probe) -> None:
        """A question to the server and its answer."""

    def fact(self, name: str, words: str, at: float) -> None:
        """Something that needs no interpretation, found by somebody else."""

    def judge(self, now: float) -> Reading:
        """What is held of it all."""
        ...


@dataclass(slots=True)
class _Seen:
    """What one look at the subject gave."""

    subject: Subject
    over: bool
    progress: list[Told]


class Guard:
    """Watches one subject until it has ended.

    Args:
        find: finds the subject, anew at every look (see `subject.Finder`). What it has besides is used: `over()` says
            whether the subject has ended (by default: none of its processes lives), `progress()` what the work
            reported.
        watch: who judges (`watch.Watch`).
        prober: questions to its server, or None; or a function that makes one, once the subject has a URL.
        tails: its logs; those that the subject names are added.
        on_reading: called with every judgement, once a second; it should take no time.
        evidence: folder in which each incident gets one of its own.
        policy: what is collected; see `escalation.Policy`.
        on_incident: called when an incident begins, is judged anew, or is over: (incident, its folder).
        on_conviction: awaited once per conviction, after the evidence is there: (reading, dossier or None).
        samples: where the samples come from; by default see `samples`.
        collect: collects the evidence; by default `evidence.collect`.
        until: monotonic seconds at which it leaves although the subject lives.
        say: told, once for each, which of its parts fails.
        clock: monotonic seconds, the clock of the samples.
    """

    def __init__(
        self,
        find: Callable[[], Subject],
        watch: Watching,
        prober: Prober | Callable[[str], Prober] | None,
        tails: Tails,
        *,
        on_reading: Callable[[Reading], object],
        evidence: Path,
        policy: Policy | None = None,
        on_incident: OnIncident | None = None,
        on_conviction: OnConviction | None = None,
        samples: AsyncGenerator[dict[str, Any], None] | None = None,
        collect: Collect | None = None,
        until: float | None = None,
        say: Callable[[str], object] = lambda words: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.watch = watch
        self.tails = tails
        self.subject: Subject | None = None
        self.reading: Reading | None = None
        """The last judgement."""
        self.ended = False
        """The subject has ended; else it was left because time was up."""
        self._find = find
        self._rounds = Rounds(prober) if isinstance(prober, Prober) else None
        self._prober = None if isinstance(prober, Prober) else prober
        self._asked_url = ""
        self._urls: set[str] = set()
        self._on_reading = on_reading
        self._given_samples = samples
        self._until = until
        self._say = say
        self._said: set[str] = set()
        self._clock = clock
        self._waiting: deque[dict[str, Any]] = deque(maxlen=_MAX_WAITING)
        self._sample: dict[str, Any] | None = None
        self._sampled_at: float | None = None
        self._looked_at: float | None = None
        self._was_late = False
        self._ended_at: float | None = None
        self._logs: tuple[Path, ...] = ()
        self._log_starts: Mapping[Path, int] = {}
        self._secrets = Secrets()
        """What the subject's processes were given as such, which no word about them is to hold."""
        self._met: set[ProcessId] = set()
        self._finding = Aside(self._find_now, "looking for its processes")
        self._reading_logs = Aside(self._read_logs, "reading its logs")
        self._escalation = Escalation(
            evidence,
            policy or Policy(),
            on_incident=on_incident,
            on_conviction=on_conviction,
            collect=collect,
            fact=lambda name, words: self._try("the judge", watch.fact, name, words, self._clock()),
            say=self._trouble,
        )

    async def run(self) -> Reading | None:
        """Watch. Returns the last reading, or None where there was none, once the subject has ended or time is up."""
        feed: asyncio.Task[None] | None = None
        try:
            due = self._clock()
            while True:
                await self._look()
                if feed is None and self.subject is not None:
                    feed = asyncio.create_task(self._feed(self.subject))
                if self._has_ended() or (self._until is not None and self._clock() >= self._until):
                    break
                due = max(due + INTERVAL_S, self._clock())
                wake = due if self._until is None else min(due, self._until)
                await asyncio.sleep(max(0.0, wake - self._clock()))
            # What has begun to be collected is worth waiting for: it is what a person will look at.
            await self._escalation.settle()
            return self.reading
        finally:
            await self._wind_up(feed)

    def leave(self) -> None:
        """Let `run` return at the next look."""
        self._until = self._clock()

    def _has_ended(self) -> bool:
        """Has it, and was that judged by a sample in which nothing of it is left?"""
        if not self.ended:
            self._ended_at = None
            return False
        now = self._clock()
        self._ended_at = self._ended_at if self._ended_at is not None else now
        seen = self._sampled_at is not None and self._sampled_at > self._ended_at
        return seen or now - self._ended_at > BLIND_S / 2

    async def _wind_up(self, feed: "asyncio.Task[None] | None") -> None:
        self._finding.close()
        self._reading_logs.close()
        self._escalation.close()
        if feed is not None:
            feed.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await feed
        if self._rounds is not None:
            await self._rounds.close()

    async def _look(self) -> None:
        now = self._clock()
        if self._looked_at is not None and now - self._looked_at > LATE * INTERVAL_S:
            self._was_late = True
        self._looked_at = now
        seen, lines = await asyncio.gather(
            self._ask(self._finding, "its processes"), self._ask(self._reading_logs, "its logs")
        )
        if seen is not None:
            self.subject, self.ended = seen.subject, seen.over
            self._logs, self._log_starts = seen.subject.logs, seen.subject.log_starts
            url = seen.subject.url
            if seen.subject.stage and url is not None and url not in self._urls:
                # Of another subject a URL is known only once it listens.
                self._urls.add(url)
                self._try("the judge", self.watch.serves, now)
            ago = time.time() - self._clock()
            for one in seen.progress:
                at = min(one.at - ago, now)
                if one.kind == "progress":
                    self._try("the judge", self.watch.progress, one.what, at)
                else:
                    self._try("the judge", self.watch.turned, one.kind, one.log, at)
        for name, text, at in lines or ():
            # Before anything is cut out of it: half a secret is not recognised as one.
            self._try("the judge", self.watch.line, name, redact(self._secrets.mask(text)), at)
        if self.subject is None:
            return
        self._give_samples(self.subject)
        if self._prober is not None and (self.subject.url or "") != self._asked_url:
            # A server that is started again may listen somewhere else, and one that has ended nowhere.
            await self._ask_there(self.subject.url or "")
        if self._rounds is not None and not self.ended:
            self._try("the probes", self._probe)
        reading = self._judge()
        if reading is None:
            return
        self.reading = reading
        self._try("the report", self._on_reading, reading)
        self._try("the evidence", self._escalation.take, reading, self._sample, self.subject)

    async def _ask_there(self, url: str) -> None:
        assert self._prober is not None
        self._asked_url = url
        if self._rounds is not None:
            await self._rounds.close()
            self._rounds = None
        if not url:
            return
        try:
            self._rounds = Rounds(self._prober(url))
        except Exception as error:  # noqa: BLE001  (it is watched without questions)
            self._trouble("the probes", error)

    def _probe(self) -> None:
        assert self._rounds is not None
        accused = self.reading is not None and self.reading.standing is Standing.ACCUSED
        for probe in self._rounds.tick(self._clock(), hurry=accused):
            self.watch.probe(probe)

    def _give_samples(self, subject: Subject) -> None:
        """All samples that have come, with the processes that are still those that were found."""
        while self._waiting:
            sample = self._waiting.popleft()
            if self._was_late and not self._waiting:
                sample = {**sample, "late": True}
                self._was_late = False
            starts = {record.get("pid"): record.get("start_ticks") for record in sample.get("procs") or ()}
            members = frozenset(p.pid for p in subject.processes if starts.get(p.pid, p.start) == p.start)
            self._sample, self._sampled_at = sample, self._clock()
            self._try("the judge", self.watch.sample, sample, members)

    def _judge(self) -> Reading | None:
        now = self._clock()
        try:
            reading = self.watch.judge(now)
        except Exception as error:  # noqa: BLE001  (a guard that dies of one odd sample guards nobody)
            self._trouble("the judge", error)
            return None
        since = self._sampled_at if self._sampled_at is not None else self._looked_at
        if not self.ended and since is not None and now - since > BLIND_S:
            blind = Signal("blind", f"no sample of the machine for {now - since:.0f} s", now - since)
            return replace(
                reading, state="unknown", standing=Standing.UNKNOWN, signals=(blind,), suspects=(), title=blind.words
            )
        return reading

    async def _feed(self, subject: Subject) -> None:
        """Take samples as they come."""
        while True:
            samples = self._given_samples or self._samples(subject)
            try:
                async with aclosing(samples):
                    async for sample in samples:
                        self._waiting.append(sample)
            except Exception as error:  # noqa: BLE001  (without samples the readings say that they are blind)
                self._trouble("the samples", error)
            if self._given_samples is not None:
                return
            await asyncio.sleep(5 * INTERVAL_S)

    def _samples(self, subject: Subject) -> AsyncGenerator[dict[str, Any], None]:
        if subject.run_dir is not None and sees_marks(subject.processes):
            return shared_samples(lambda words: self._trouble("the samples", words), paths=(subject.run_dir,))
        return own_samples(subject.processes, paths=[subject.run_dir] if subject.run_dir is not None else [])

    async def _ask(self, aside: "Aside[Any]", part: str) -> Any:
        """What an aside gives; None while it does not come back, and when it fails."""
        try:
            return await aside.ask(_PATIENCE_S if part not in self._said else 0.02)
        except StillBusy as error:
            if error.seconds > BLIND_S:
                self._trouble(part, error)
        except Exception as error:  # noqa: BLE001  (a part that fails is told once, and tried again)
            self._trouble(part, error)
        return None

    def _find_now(self) -> _Seen:
        subject = self._find()
        for process in set(subject.processes) - self._met:
            self._secrets.know(secrets_of(process.pid))
        self._met = set(subject.processes)
        over = getattr(self._find, "over", None)
        progress = getattr(self._find, "progress", None)
        ended = over() if over is not None else not any(identify(p.pid) == p for p in subject.processes)
        return _Seen(subject, bool(ended), list(progress()) if progress is not None else [])

    def _read_logs(self) -> list[Line]:
        self.tails.follow(self._logs, self._log_starts)
        lines = self.tails.read()
        for name, reason in self.tails.reasons.items():
            self._trouble(f"the log {name}", f"{reason}; it is tried again")
        return lines

    def _try(self, part: str, work: Callable[..., object], *arguments: object) -> None:
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001  (a part that fails is told once, and tried again)
            self._trouble(part, error)

    def _trouble(self, part: str, error: BaseException | str) -> None:
        if part not in self._said:
            self._said.add(part)
            words = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
            with suppress(Exception):
                self._say(f"{part}: {words}")
