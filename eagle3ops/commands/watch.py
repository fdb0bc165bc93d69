"""What does `eagle3ops watch` print? A line when the state changes; at a conviction what shows it and what to do."""

import asyncio
import json as jsonlib
import os
import shlex
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from eagle3ops import locations
from eagle3ops.commands.output import when, write
from eagle3ops.errors import Eagle3opsError, ExitCode, RequestError
from eagle3ops.runs.directory import find_run
from eagle3ops.runs.redact import redact, redact_data
from eagle3ops.watchdog.guard.aside import StillBusy, call_aside
from eagle3ops.watchdog.guard.guard import Guard
from eagle3ops.watchdog.guard.logs import Tails
from eagle3ops.watchdog.guard.probes import Prober
from eagle3ops.watchdog.guard.subject import Finder, PidFinder, RunFinder, Told, UrlFinder
from eagle3ops.watchdog.incidents.incident import Incident
from eagle3ops.watchdog.judge.deadlines import Deadlines
from eagle3ops.watchdog.judge.phases import PHASES
from eagle3ops.watchdog.judge.watch import Expect, Watch
from eagle3ops.watchdog.state import Reading, Standing, Subject
from eagle3ops.words import human_seconds, plain

TOKEN_VARIABLE = "EAGLE3OPS_WATCH_TOKEN"
"""Holds the key of a server that wants one; never an argument, which everybody on the machine could read."""
_FIND_S = 30.0
SETTLED_S = 10.0
"""After so long something should be known."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asks for."""

    deadlines: Mapping[str, float]
    logs: tuple[Path, ...]
    evidence: Path | None
    until: float | None
    probe: bool
    json: bool


def watch(args: Namespace, root: str | None, *, json: bool) -> int:
    """`eagle3ops watch (--pid N | --url URL | --run RUN [--stage NAME]) ...`. Ends nothing and nobody.

    Returns 4 when something was convicted and still stands at the end, else 0.

    Raises:
        RequestError: there is no such process, server or run, or an option is wrong.
    """
    if args.watch_stage and not args.watch_run:
        raise RequestError("--stage goes with --run")
    asked = Asked(
        deadlines=_deadlines(args.watch_deadline),
        logs=tuple(Path(log).absolute() for log in args.watch_log),
        evidence=Path(args.watch_evidence).absolute() if args.watch_evidence else None,
        until=time.monotonic() + args.watch_seconds if args.watch_seconds else None,
        probe=args.watch_probe,
        json=json,
    )
    if args.watch_run:
        run = find_run(locations.root(root), args.watch_run).path
        return asyncio.run(_watch_run(asked, run, args.watch_stage))
    return asyncio.run(_watch_processes(asked, args.watch_pid, args.watch_url))


def _deadlines(given: list[str]) -> dict[str, float]:
    """`PHASE=SECONDS` ...

    Raises:
        RequestError: it is no such thing, or there is no such phase.
    """
    found: dict[str, float] = {}
    for text in given:
        phase, _, number = text.partition("=")
        try:
            seconds = float(number)
        except ValueError:
            seconds = -1.0
        if phase not in PHASES or not 0 <= seconds < 1e8:
            raise RequestError(
                f"--deadline {plain(text)!r}: it takes a phase and seconds, such as loading=1800",
                remedy=f"phases: {', '.join(PHASES)}",
            )
        found[phase] = seconds
    return found


async def _watch_processes(asked: Asked, pid: int | None, url: str | None) -> int:
    def find() -> tuple[PidFinder, Subject]:
        finder = UrlFinder(url) if url is not None else PidFinder(pid or 0)
        return finder, finder()

    finder, subject = await _aside(find)
    evidence = asked.evidence or locations.state_folder() / "watch" / f"{finder.root.pid}-{finder.root.start}"
    return await _guard(asked, finder, subject, evidence, expect="server" if subject.url else "any")


async def _watch_run(asked: Asked, run: Path, stage: str) -> int:
    """Stage after stage, as each is a piece of work of its own with its own processes and phases."""

    def begin() -> tuple[RunFinder, Subject, bool, Path]:
        finder = RunFinder(run, stage)
        # Another user's run may be looked at, but not be written into.
        kept = (
            run / "artifacts"
            if os.access(run / "artifacts", os.W_OK)
            else locations.state_folder() / "watch" / run.name
        )
        return finder, finder(), finder.over(), asked.evidence or kept

    finder, subject, over, evidence = await _aside(begin)
    if over:
        raise RequestError(
            f"run {run.name} does not go on: {finder.run.status()}", remedy=f"eagle3ops runs show {run.name}"
        )
    code, seen = int(ExitCode.DONE), False
    if not subject.processes:
        sys.stderr.write(f"waiting for {plain(subject.name)} to have processes\n")
    while not over and not (stage and seen) and sys.stdout is not None:
        if asked.until is not None and time.monotonic() >= asked.until:
            break
        if subject.processes:
            seen = True
            one = _OneStage(finder, subject.stage)
            code = await _guard(asked, one, subject, evidence, expect="any", may_ask=finder.quiet)
        else:
            await asyncio.sleep(0.5)
        subject, over = await _aside(lambda: (finder(), finder.over()))
    return code


class _OneStage:
    """A run's finder as long as one stage runs."""

    def __init__(self, finder: RunFinder, stage: str) -> None:
        self._finder, self._stage = finder, stage
        self._gone = 0

    def __call__(self) -> Subject:
        subject = self._finder()
        # Between two attempts, or while it is being started, it may have no process for a moment.
        self._gone = 0 if subject.stage == self._stage and subject.processes else self._gone + 1
        return subject

    def over(self) -> bool:
        return self._finder.over() or self._gone >= 2

    def progress(self) -> list[Told]:
        return self._finder.progress()


async def _aside(work: Callable[[], T]) -> T:
    try:
        return await call_aside(work, "looking for its processes", _FIND_S)
    except StillBusy as error:
        raise Eagle3opsError(
            f"{error}: a process, or the disk of the run, does not answer", remedy="ps -eo pid,stat,wchan | grep D"
        ) from error


async def _guard(
    asked: Asked,
    finder: Finder,
    subject: Subject,
    evidence: Path,
    *,
    expect: Expect,
    may_ask: Callable[[], bool] | None = None,
) -> int:
    deadlines = Deadlines.load(locations.state_folder() / "deadlines.json", given=asked.deadlines, job=subject.stage)
    report = _Report(asked.json)
    report.begin(subject, asked.logs, quiet_counts="working" in asked.deadlines)
    token = os.environ.get(TOKEN_VARIABLE)
    guard = Guard(
        finder,
        Watch(subject.name, deadlines=deadlines, expect=expect),
        (lambda url: Prober(url, token=token, may_ask=may_ask)) if asked.probe else None,
        Tails(asked.logs),
        on_reading=report.reading,
        on_incident=report.incident,
        evidence=evidence,
        until=asked.until,
        say=report.say,
    )
    report.leave = guard.leave
    reading = await guard.run()
    deadlines.save()
    report.end(guard)
    convicted = reading is not None and reading.standing is Standing.CONVICTED
    return int(ExitCode.WATCHDOG if convicted else ExitCode.DONE)


@dataclass(slots=True)
class _Report:
    """What is told, when."""

    json: bool
    _last: tuple[str, ...] = ()
    _logs: tuple[Path, ...] = ()
    _told: dict[tuple[str, str], int] = field(default_factory=dict)
    _signals: frozenset[str] = frozenset()
    """What was last told besides."""
    leave: Callable[[], None] = lambda: None
    """Called when nobody reads any more."""

    def begin(self, subject: Subject, logs: tuple[Path, ...], *, quiet_counts: bool) -> None:
        """Whom it is about, on standard error."""
        count = len(subject.processes)
        self.say(f"watching {subject.name}: {count} process{'es' if count != 1 else ''}")
        self._logs = (*subject.logs, *logs)
        for log in self._logs:
            self.say(f"  log {log}")
        if not self._logs:
            self.say("  no log: it writes to no file; --log FILE names one, and phases are known from it")
        if subject.url:
            self.say(f"  asked at {subject.url}")
        elif subject.run_dir is None and not quiet_counts:
            self.say("  without a phase in its log, quiet counts as idle; --deadline working=SECONDS limits it")

    def say(self, words: str) -> None:
        """For people, whatever the output is."""
        sys.stderr.write(plain(redact(words)) + "\n")

    def reading(self, reading: Reading) -> None:
        """One judgement; told when the state, the standing or the phase is another one than before."""
        key = (reading.state, reading.standing.value, reading.phase)
        if key == self._last:
            return
        unknown_s = reading.at - reading.since if reading.standing is Standing.UNKNOWN else SETTLED_S
        if not (self._last or self.json) and unknown_s < SETTLED_S:
            return  # nothing has been seen yet, which goes without saying
        self._last = key
        if self.json:
            self._write({"type": "reading", "t": round(time.time(), 3), **reading.as_json()})
            return
        what = plain(reading.state)
        if reading.standing is not Standing.HEALTHY:
            what += f"  {plain(redact(reading.title))}"
        elif reading.phase and reading.phase != reading.state:
            what += f" ({plain(reading.phase)})"
        left = ""
        if reading.deadline is not None and reading.deadline > reading.at:
            left = f", {human_seconds(reading.deadline - reading.at)} left for this phase"
        self._line(f"{when(time.time())}  {reading.standing.value}  {what}{left}")
        self._signals = frozenset(signal.words for signal in reading.signals)
        for signal in reading.signals:
            self._line(f"    {plain(signal.name)}: {plain(redact(signal.words))}")

    def incident(self, incident: Incident, folder: Path) -> None:
        """An incident that begins (what it means, what to do), was collected for (what that shows), or is over."""
        if self.json:
            where = str(folder) if folder != Path() else None
            self._write({"type": "incident", "t": round(time.time(), 3), "folder": where, **incident.as_json()})
            return
        if incident.over:
            self._line(f"{when(time.time())}  over: {plain(incident.title)}")
            return
        key = incident.id, incident.severity
        times = self._told[key] = self._told.get(key, 0) + 1
        where = f"the evidence is in {folder}"
        if incident.severity == "error" and times == 1:
            self._line(f"    {plain(incident.explanation)}")
            for remedy in incident.remedies:
                command = f": {plain(remedy.command)}" if remedy.command not in ("", remedy.words) else ""
                if remedy.words != where:
                    self._line(f"    -> {plain(remedy.words)}{command}")
        elif incident.severity == "error" and times == 2:
            for evidence in incident.evidence:
                if evidence.what not in self._signals:
                    self._line(f"    {plain(evidence.what)}")
        if times == 2 and folder != Path():
            self._line(f"    -> {plain(where)}")

    def end(self, guard: Guard) -> None:
        """Why it leaves."""
        state = f", {guard.reading.state} ({guard.reading.standing.value})" if guard.reading is not None else ""
        if not guard.ended:
            self.say(f"time is up{state}")
            return
        logs = shlex.join(log for log in map(str, self._logs) if not log.startswith("/proc/"))
        self.say(f"it has ended{f'; if it failed, this says why: eagle3ops diagnose {logs}' if logs else ''}")

    def _write(self, data: Mapping[str, Any]) -> None:
        # Names of processes and files may hold what steers a terminal, or is no text: here it stands as an escape.
        self._line(jsonlib.dumps(redact_data(data), default=str))

    def _line(self, text: str) -> None:
        if sys.stdout is None:
            return
        try:
            write(text)
        except BrokenPipeError:
            # Whoever reads has seen enough (`| head`); the interpreter must not try to flush on its way out.
            sys.stdout = None
            self.leave()
