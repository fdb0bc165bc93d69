"""In which state is a subject? Told what samples, logs and probes say, it judges; it asks nothing itself.

All time comes from the arguments: what was recorded gives, played again, the same readings.

    counters              accuse, once they have looked wrong for as long as `assets/states.toml` says
    a failed probe, a missed deadline, a fact that needs no interpretation     convict
    a gap in the samples  stops all clocks for as long as it lasted; until a whole window was seen: `unknown`
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

from eagle3ops.watchdog.judge.asked import DECIDING, Asked
from eagle3ops.watchdog.judge.deadlines import Deadlines
from eagle3ops.watchdog.judge.phases import PHASES, STARTING, PhaseReader
from eagle3ops.watchdog.judge.rules import faults, healthy
from eagle3ops.watchdog.judge.signals import Window
from eagle3ops.watchdog.judge.states import FACTS, STATES
from eagle3ops.watchdog.judge.told import signals_of, title_of
from eagle3ops.watchdog.judge.values import number
from eagle3ops.watchdog.judge.view import WORKING, Fact, Finding, View
from eagle3ops.watchdog.state import Probe, Reading, Signal, Standing

Expect = Literal["server", "work", "any"]

YOUNG_S = 60.0
"""A process older than this when it is first seen is not starting."""
PATIENCE = 3.0
"""A phase whose counters still move is given so many times its limit before it is convicted."""
_PATIENT = frozenset({"starting", "importing", "loading", "allocating", "compiling"})
"""Phases of a start in which movement counts; the others may move for ever without getting anywhere."""
_STAGES = {"generate": "generating", "extract": "extracting", "train": "training", "checkpoint": "checkpointing"}
_LEAST_S = 5.0
_ALIKE = frozenset({"deadlock", "overdue", "spin", "unresponsive"})
"""What a probe or a deadline shows goes by one of these; which, may waver at a threshold, and is kept as it was."""
_BETWEEN_STEPS = frozenset({"deadlock", "spin", "stale_lock", "disk_wait"})
"""What looks like these between two steps of work is none of them."""


class Watch:
    """What is held of one subject. Not for several threads.

    Args:
        subject_name: for people.
        deadlines: limits of phases; what passes well is learnt into it.
        expect: `server` answers requests, `work` goes on by itself, `any`: nothing is known, so quiet is no fault.
        gpus: numbers of its GPUs, where a lease says so; None: found by its processes on them.
        size_bytes: what it has to load, where known.
    """

    def __init__(
        self,
        subject_name: str,
        *,
        deadlines: Deadlines | None = None,
        expect: Expect = "any",
        gpus: Iterable[int] | None = None,
        size_bytes: float | None = None,
    ) -> None:
        self.name = subject_name
        self.deadlines = deadlines or Deadlines()
        # Who says how long work may be silent says that it is work.
        self._given = expect == "any" and bool(self.deadlines.given.get("working"))
        self.expect: Expect = "work" if self._given else expect
        self.size_bytes = size_bytes
        self.window = Window(gpus)
        self.reader = PhaseReader()
        self.asked = Asked()
        self._facts: dict[str, Fact] = {}
        self._stands: dict[str, float] = {}
        self._state = ("", 0.0)
        self._moved_at: float | None = None
        self._well = False
        self._held: tuple[str, Standing] | None = None
        self._progress_at: float | None = None
        self._server = False
        self._silent: set[str] = set()
        """Logs of programs that have ended: their last words begin no phase."""

    def sample(self, sample: Mapping[str, Any], members: frozenset[int]) -> None:
        """One look at the machine, and the ids of the processes that belong to the subject now."""
        known = self.window.seen
        self.window.take(sample, members)
        if known or not self.window.seen or self.window.at is None:
            return
        if self.expect != "any" and not self._given and self.reader.phase is None:
            ages = [self.window.at - track.start for track in self.window.tracks.values() if track.start > 0]
            if ages and 0 <= max(ages) <= YOUNG_S:
                self.reader.enter("starting", self.window.at - max(ages))

    def line(self, log: str, text: str, at: float) -> None:
        """A whole line of one of its logs."""
        self._follow(at, lambda: self.reader.take(log, text, at))
        if log in self._silent and self.reader.phase is not None and self.reader.phase.log == log:
            self.reader.leave()

    def progress(self, what: str, at: float) -> None:
        """Somebody who knows says that work was done; a stage's name in it is its phase."""
        phase = next((phase for word, phase in _STAGES.items() if word in what.lower()), "")
        before = self.reader.phase
        if phase and (before is None or PHASES[before.name].order < PHASES["stopping"].order):
            self.enter(phase, at)
        if self._progress_at is not None and self._well and before is not None and before.name == phase:
            self.deadlines.learn(phase, self.window.elapsed(self._progress_at, at))
        self._progress_at = at
        self.reader.went_on(at, what[:300])

    def turned(self, kind: str, log: str, at: float) -> None:
        """Something else begins: what was said of the phase so far says nothing about that.

        Args:
            kind: `done`: a stage is through with what it counts; `began`, `ended`: a program of it has.
            log: of that program.
            at: when.
        """
        phase = self.reader.phase
        self._silent.discard(log)
        over = phase is not None and phase.name in WORKING and phase.since <= at
        if kind == "ended":
            self._silent.add(log)
            # The next server is another one, and has not been asked anything.
            self.asked = Asked()
            of_it = phase is not None and not phase.log and phase.name not in WORKING and phase.since <= at
            over = phase is not None and (of_it or phase.log == log)
        if over:
            self.reader.leave()
            self._moved_at = self._progress_at = None

    def serves(self, at: float) -> None:
        """A server of it was started: it has not said yet that it is up."""
        self._server = True
        self.enter("starting", at)

    def enter(self, phase: str, at: float) -> None:
        """Somebody who knows says that a phase (assets/phases.toml) has begun."""
        self._follow(at, lambda: self.reader.enter(phase, at))

    def probe(self, probe: Probe) -> None:
        """The answer to a question, or that none came."""
        self.asked.take(probe)
        phase = self.reader.phase
        if probe.ok is not True or probe.name not in DECIDING or (phase and phase.name not in STARTING):
            return
        # Where its log has said nothing, an answer is as good; else only the whole way through it is.
        if phase is None or phase.name == "starting" or probe.name == "generate":
            self.enter("serving", probe.at + probe.seconds)

    def fact(self, name: str, words: str, at: float, *, convicts: bool = True) -> None:
        """Something that somebody else found: a name in `states.FACTS`; others are passed over."""
        state = FACTS.get(name)
        if state is not None and len(self._facts) < 64:
            self._facts[state] = Fact(words[:500], at, convicts)

    def judge(self, now: float) -> Reading:
        """How it stands.

        Args:
            now: monotonic seconds, the clock of the samples.
        """
        now = self.window.at or 0.0 if number(now) is None else float(now)
        if self.window.seen and self._all_gone():
            return self._reading(now, Finding("ended"), Standing.HEALTHY)
        blind = self.window.blind(now)
        if not blind and not any(track.seen_at == self.window.at for track in self.window.tracks.values()):
            blind = "none of its processes is in the samples"
        if blind:
            self._well = False
            return self._reading(now, Finding("unknown", (Signal("blind", blind),)), Standing.UNKNOWN)
        view = self._view(now)
        if view.moving:
            self._moved_at = now
        if view.phase == "starting" and self.expect == "work" and self.reader.spoke_at is None and view.working_gpus:
            # It has no log that is read here, and is past its start.
            self.enter("working", now)
            view.phase = "working"
        due, deadline = self._due(view)
        finding, standing = self._judged(view, due)
        if self._held is not None and self._held[1] is standing and {finding.state, self._held[0]} <= _ALIKE:
            finding = replace(finding, state=self._held[0])
        self._held = None if standing is Standing.HEALTHY else (finding.state, standing)
        self._well = standing is Standing.HEALTHY
        return self._reading(now, finding, standing, view=view, deadline=deadline)

    def _all_gone(self) -> bool:
        if not self.window.members:
            return True
        here = [track for track in self.window.tracks.values() if track.seen_at == self.window.at]
        return bool(here) and all(track.state in ("Z", "X") for track in here)

    def _view(self, now: float) -> View:
        return View(
            now=now,
            window=self.window,
            reader=self.reader,
            asked=self.asked,
            phase=self.reader.phase.name if self.reader.phase else "",
            expect=self.expect,
            facts=self._facts,
            short=self.window.rates(10.0, now),
            long=self.window.rates(30.0, now),
        )

    def _judged(self, view: View, due: str) -> tuple[Finding, Standing]:
        found = list(faults(view))
        names = {one.state for one in found}
        self._stands = {state: since for state, since in self._stands.items() if state in names}
        worked = self.reader.progress_at
        for one in found:
            since = self._stands.setdefault(one.state, view.now)
            if one.state in _BETWEEN_STEPS and worked is not None and since < worked <= view.now:
                self._stands[one.state] = worked
        wrong = [one for one in found if STATES[one.state].kind == "fault"]
        stood = {one.state: view.ago(self._since(one)) for one in found}
        hard = any(
            stood[one.state] >= _LEAST_S for one in wrong if STATES[one.state].convict_s is not None and not one.mild
        )
        starting = view.phase in STARTING or view.phase == "stopping"
        asked = "" if starting else self.asked.verdict(view.now, still=view.still, stands=hard)
        by_another = "convict" in (asked, due)
        for one in wrong:
            kind = STATES[one.state]
            by_itself = kind.convict_s is not None and not one.mild
            long_enough = by_itself and stood[one.state] >= self._scaled(kind.convict_s or 0.0)
            if one.convicts or long_enough or (by_another and stood[one.state] >= min(_LEAST_S, kind.accuse_s or 0.0)):
                return one, Standing.CONVICTED
        if by_another:
            return self._unexplained(view, asked), Standing.CONVICTED
        for one in found:
            accuse = STATES[one.state].accuse_s
            if accuse is not None and stood[one.state] >= self._scaled(accuse):
                return one, Standing.ACCUSED
        if asked == "accuse":
            return self._unexplained(view, asked), Standing.ACCUSED
        if due == "accuse":
            return Finding("overdue", (self._overdue_words(view),)), Standing.ACCUSED
        hindered = next((one for one in found if STATES[one.state].kind == "hindered"), None)
        return hindered or healthy(view), Standing.HEALTHY

    def _unexplained(self, view: View, asked: str) -> Finding:
        """A probe failed or a deadline was missed, and no other fault has stood for long."""
        why = []
        if asked:
            last = self.asked.last.get(self.asked.deciding)
            words = (last.words if last else "") or "no answer"
            why.append(Signal("probe", f"{self.asked.deciding}, {self.asked.missed} x: {words[:300]}"))
        else:
            why.append(self._overdue_words(view))
        if view.still:
            return Finding("deadlock", tuple(why))
        if asked:
            return Finding("unresponsive", tuple(why))
        return Finding("spin" if view.spins else "overdue", tuple(why))

    def _overdue_words(self, view: View) -> Signal:
        limit = self._limit(view.phase or "working")
        name = view.phase or "work"
        return Signal("deadline", f"{name} has a limit of {limit or 0.0:.0f} s, and that is over", limit)

    def _since(self, finding: Finding) -> float:
        return self._stands[finding.state] if finding.since is None else finding.since

    def _scaled(self, seconds: float) -> float:
        return max(min(seconds, _LEAST_S), seconds * self.deadlines.scale)

    def _limit(self, phase: str) -> float | None:
        return self.deadlines.of(phase).seconds

    def _due(self, view: View) -> tuple[str, float | None]:
        """`accuse` or `convict` where a limit is over, and when it is, on the clock of the samples."""
        phase = self.reader.phase
        name = phase.name if phase else "working" if self.expect == "work" else ""
        kind, limit = PHASES.get(name), self._limit(name)
        begun = phase.since if phase else self.window.first_at
        if kind is None or begun is None:
            return "", None
        if name == "starting" and self.expect == "any" and not self._server:
            return "", None
        ceiling = self.deadlines.ceiling(name)
        if name == "loading" and self.size_bytes is not None:
            ceiling = self.deadlines.of("loading", size_bytes=self.size_bytes).seconds
        if ceiling is not None and view.ago(begun) > ceiling:
            return "convict", begun + ceiling
        if limit is None:
            return "", None
        since = begun
        if kind.measured == "progress":
            since = max(begun, self.reader.progress_at or begun)
        elif kind.measured == "movement":
            since = max(begun, self._moved_at or begun, self.reader.spoke_at or begun)
        over = view.ago(since)
        deadline = view.now + limit - over
        if over <= limit:
            return "", deadline
        # Work that burns a core may be at something long; only what shows nothing at all is surely lost.
        patient = (name in _PATIENT and view.moving) or (kind.measured == "progress" and not view.still)
        return ("accuse" if patient and over <= PATIENCE * limit else "convict"), deadline

    def _follow(self, at: float, change: Any) -> None:
        """Make a change that may begin another phase; how long the last one took is learnt."""
        before = self.reader.phase
        change()
        after = self.reader.phase
        if before is None or after is None or before.name == after.name:
            return
        self._moved_at = None
        kind = PHASES[before.name]
        onward = PHASES[after.name].order > kind.order and after.name != "stopping"
        if self._well and onward and kind.measured == "start":
            self.deadlines.learn(before.name, self.window.elapsed(before.since, at))

    def _reading(
        self,
        now: float,
        finding: Finding,
        standing: Standing,
        *,
        view: View | None = None,
        deadline: float | None = None,
    ) -> Reading:
        state, since = self._state
        if state != finding.state:
            state = finding.state
            since = min(now, finding.since) if finding.since is not None else self._stands.get(state, now)
            self._state = (state, since)
        phase = self.reader.phase
        return Reading(
            state=state,
            standing=standing,
            phase=phase.name if phase else "",
            since=since,
            at=now,
            deadline=deadline,
            signals=(*finding.signals, *(signals_of(view) if view is not None else ())),
            suspects=finding.suspects,
            title=title_of(self.name, finding, standing, max(0.0, now - since), phase.name if phase else ""),
        )
