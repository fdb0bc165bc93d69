"""How is a sweep carried out? Rung by rung over all lanes; what dies or hangs is tried once more and then left out."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from eagle3ops.bench.load import ServerFailed
from eagle3ops.bench.paired import Ratio
from eagle3ops.engines.client import Sampling
from eagle3ops.errors import Eagle3opsError, first_failure
from eagle3ops.sweep.book import Book
from eagle3ops.sweep.halving import Decision, Halving, decide
from eagle3ops.sweep.lane import Lane
from eagle3ops.sweep.measurement import BASELINE, accept_of, block_prompts, measured, speedup
from eagle3ops.sweep.memory import memory_of
from eagle3ops.sweep.points import Point, Setting
from eagle3ops.sweep.schedule import prompts_needed

FINAL = "final"
_REASON_CHARACTERS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How points are measured and when one is given up."""

    halving: Halving
    final_pairs: int
    """Pairs of the last measurement, of the winner beside the default and the baseline."""
    sampling: Sampling
    warmup: int
    deadline_s: float
    """The longest wait for one answer; a server that takes longer counts as hung."""
    retries: int = 1
    """How often a point whose server failed is tried again."""
    baseline_restarts: int = 3
    """How often the baseline of one lane may fail before the sweep is given up."""


@dataclass(slots=True)
class Told:
    """Where news go."""

    progress: Callable[[int, int], None] = lambda done, total: None
    info: Callable[[str], None] = lambda text: None
    warn: Callable[[str], None] = lambda text: None


@dataclass(slots=True)
class Race:
    """One sweep, from wherever its book says that it stands."""

    points: Sequence[Point]
    default: Point
    """What is served without a sweep, at the first concurrency."""
    lanes: Sequence[Lane]
    book: Book
    rules: Rules
    prompts: Sequence[Sequence[int]]
    """Held-out prompts as token ids; taken in order and from the start again where they run out."""
    told: Told = field(default_factory=Told)
    decisions: list[list[Decision]] = field(default_factory=list)
    """Of every rung."""
    _baseline_failures: dict[str, int] = field(default_factory=dict)
    _done: int = 0
    _total: int = 0

    async def run(self) -> None:
        """Measure everything that the book lacks; afterwards `book` and `decisions` hold the outcome.

        Raises:
            Eagle3opsError: the baseline fails again and again, or no point is left.
        """
        halving = self.rules.halving
        alive = list(self.points)
        try:
            for rung in range(halving.rungs):
                alive = [point for point in alive if self.given_up(point) is None]
                self._forecast(rung, len(alive))
                await self._rung(rung, alive)
                alive = self._halve(rung, alive)
                await self._end_all_but({point.setting for point in alive} | {self.default.setting})
            self.told.info("finals: the best of each concurrency beside the default and the baseline")
            for concurrency in sorted({point.concurrency for point in self.points}):
                if not self._fresh(concurrency):
                    needed = prompts_needed(halving, self.rules.final_pairs, concurrency)
                    self.told.warn(
                        f"the final at concurrency {concurrency} uses prompts that chose the point, which flatters it: "
                        f"{len(self.prompts)} are held out, {needed} would be needed (stages.generate.heldout)"
                    )
                await self._final([point for point in alive if point.concurrency == concurrency])
        finally:
            await asyncio.gather(*(lane.close() for lane in self.lanes))
        if not any(self.book.measured):
            raise Eagle3opsError(
                "no point could be measured: " + (self.given_up(self.points[0]) or "there is none"),
                remedy="the logs of their servers, logs/engine-sweep-*.log in the run's folder, say why",
            )

    def rows(self, point: Point, rungs: int | None = None) -> list[dict[str, Any]]:
        """The measurements of a point on the first so many rungs, in order; on all when left out."""
        wanted = range(self.rules.halving.rungs if rungs is None else rungs)
        found = (self.book.measured.get((point.label, str(rung))) for rung in wanted)
        return [row for row in found if row is not None]

    def estimate(self, point: Point, rung: int) -> Ratio | None:
        """Its speed-up over the baseline, over all pairs up to a rung.

        What a later rung found must not change who went on to it: a sweep that is taken up again decides the same.
        """
        rows = self.rows(point, rung + 1)
        return speedup(rows, point.label) if rows else None

    def given_up(self, point: Point) -> str | None:
        """Why a point is not tried any more; None as long as it is."""
        failures = self.book.failures_of(point.label, point.setting.label)
        last = failures[-1] if failures else None
        if last is not None and len(failures) > self.rules.retries:
            return str(last["what"])
        return None

    def final(self, concurrency: int) -> dict[str, Any] | None:
        """The last measurement at a concurrency."""
        found = [row for (_, rung), row in self.book.measured.items() if rung == FINAL]
        return next((row for row in reversed(found) if row["concurrency"] == concurrency), None)

    def _forecast(self, rung: int, points: int) -> None:
        """What is left to measure from this rung on, if nothing fails."""
        finals = len({point.concurrency for point in self.points})
        self._total = self._done + sum(self.rules.halving.field_from(rung, points)) + finals

    def _step(self) -> None:
        self._done += 1
        self.told.progress(self._done, max(self._total, self._done))

    async def _rung(self, rung: int, alive: Sequence[Point]) -> None:
        pairs = self.rules.halving.pairs(rung)
        self.told.info(f"rung {rung + 1} of {self.rules.halving.rungs}: {len(alive)} points, {pairs} pairs each")
        waiting = [point for point in alive if (point.label, str(rung)) not in self.book.measured]
        for _ in range(len(alive) - len(waiting)):
            self._step()
        with first_failure():
            async with asyncio.TaskGroup() as group:
                for lane in self.lanes:
                    group.create_task(self._work(lane, rung, waiting))

    async def _work(self, lane: Lane, rung: int, waiting: list[Point]) -> None:
        """Take points from the common list, those first whose servers are up here, until none is left."""
        while settings := self._choose(lane, waiting):
            batch = [point for point in waiting if point.setting in settings]
            for point in batch:
                waiting.remove(point)
            failed = await self._start(lane, settings)
            for point in batch:
                # Tried again after the others: servers that have to be started again are started side by side.
                again = not await self._point(lane, point, rung, failed.pop(point.setting, None))
                waiting += [point] * again

    def _choose(self, lane: Lane, waiting: Sequence[Point]) -> list[Setting]:
        """Settings for one batch: those that are up here, else a share of those that are up nowhere.

        What is up elsewhere is measured there: moving it would cost a start.
        """
        settings = list(dict.fromkeys(point.setting for point in waiting))
        mine = [one for one in settings if one in lane.servers]
        if mine:
            return mine
        free = [one for one in settings if not any(one in other.servers for other in self.lanes)]
        share = -(-len(free) // len(self.lanes))
        return free[: min(lane.room, share)]

    async def _start(self, lane: Lane, settings: Sequence[Setting]) -> dict[Setting, Eagle3opsError]:
        """Have the servers of a batch and the baseline up, started side by side; gives those that failed."""
        await lane.make_room(settings)
        wanted = [None, *settings]
        missing = [one for one in wanted if one not in lane.servers]
        if missing:
            names = ", ".join(BASELINE if one is None else one.label for one in missing)
            self.told.info(f"{lane.name}: starting {names}")
        outcomes = await asyncio.gather(*(lane.ensure(one) for one in missing), return_exceptions=True)
        failed: dict[Setting, Eagle3opsError] = {}
        for one, outcome in zip(missing, outcomes, strict=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, Eagle3opsError):
                raise outcome
            if isinstance(outcome, Eagle3opsError):
                if one is None:
                    self._baseline_failed(lane, outcome)
                else:
                    failed[one] = outcome
        return failed

    async def _point(self, lane: Lane, point: Point, rung: int, failed: Eagle3opsError | None) -> bool:
        """Measure a point at a rung, or find that it has to be given up; False: it is to be tried again."""
        if failed is not None:
            self._failed(lane, point, rung, failed, of=point.setting.label)
        pairs = self.rules.halving.pairs(rung)
        start = sum(self.rules.halving.pairs(before) for before in range(rung))
        row, failures = None, self._failures(point)
        tried = failed is not None or self.given_up(point) is not None
        while not tried and row is None and self._failures(point) == failures:
            row = await self._attempt(lane, [point], rung, start, pairs)
        if row is None and self.given_up(point) is None:
            return False
        if row is not None:
            self.book.add({"kind": "measured", "point": point.label, "rung": rung, **row})
            found = speedup([row], point.label)
            accept = accept_of([row], point.label)
            length = "" if accept is None else f", accept length {accept.accept_length:.2f}"
            self.told.info(f"{point.label}: {_interval(found)} of the baseline{length}")
        self._step()
        return True

    def _failures(self, point: Point) -> int:
        return len(self.book.failures_of(point.label, point.setting.label))

    async def _attempt(
        self, lane: Lane, points: Sequence[Point], rung: int | str, start: int, pairs: int
    ) -> dict[str, Any] | None:
        """Points beside the baseline on one lane; None when a server failed, which is written down."""
        labels: dict[str, Point | None] = {BASELINE: None, **{point.label: point for point in points}}
        clients, cold, concurrency = {}, False, points[0].concurrency
        for label, point in labels.items():
            setting = None if point is None else point.setting
            try:
                server = await lane.ensure(setting)
            except Eagle3opsError as error:
                if point is None:
                    self._baseline_failed(lane, error)
                else:
                    self._failed(lane, point, rung, error, of=point.setting.label)
                return None
            clients[label] = server.ready.result()
            cold = cold or concurrency not in server.warm
        try:
            row = await measured(
                clients,
                self._prompts(start, pairs, concurrency),
                self.rules.sampling,
                concurrency=concurrency,
                warmup=self.rules.warmup if cold else 0,
                deadline_s=self.rules.deadline_s,
            )
        except ServerFailed as error:
            culprit = labels[error.label]
            await lane.end([None if culprit is None else culprit.setting])
            if culprit is None:
                self._baseline_failed(lane, error)
            else:
                self._failed(lane, culprit, rung, error, of=culprit.label)
            return None
        for point in labels.values():
            lane.servers[None if point is None else point.setting].warm.add(concurrency)
        processes = {label: client.process for label, client in clients.items()}
        memory = await asyncio.to_thread(memory_of, processes, gpu=bool(lane.gpus))
        return {"lane": lane.name, "memory": memory, **row}

    async def _end_all_but(self, settings: set[Setting]) -> None:
        """End servers that are not needed any more: idle ones take memory, and some engines a core each."""
        await asyncio.gather(
            *(lane.end([one for one in lane.servers if one is not None and one not in settings]) for lane in self.lanes)
        )

    def _prompts(self, start: int, pairs: int, concurrency: int) -> list[Sequence[int]]:
        each = block_prompts(concurrency)
        return [self.prompts[at % len(self.prompts)] for at in range(start * each, (start + pairs) * each)]

    def _baseline_failed(self, lane: Lane, error: Eagle3opsError) -> None:
        count = self._baseline_failures[lane.name] = self._baseline_failures.get(lane.name, 0) + 1
        subject = f"{BASELINE} on {lane.name}"
        self.book.add({"kind": "failure", "subject": subject, "rung": None, "what": _reason(error)})
        if count > self.rules.baseline_restarts:
            raise Eagle3opsError(
                f"the baseline on {lane.name} failed {count} times: {error.what}",
                remedy=f"logs/{log_role(lane.name, BASELINE)}.log in the run's folder says why",
            ) from error
        self.told.warn(f"{lane.name}: the baseline failed and is started again, the pair is repeated: {_reason(error)}")

    def _failed(self, lane: Lane, point: Point, rung: int | str, error: Eagle3opsError, *, of: str) -> None:
        """Write a failure down."""
        log = f"logs/{log_role(lane.name, point.setting.label)}.log"
        self.book.add({"kind": "failure", "subject": of, "rung": rung, "what": _reason(error), "log": log})
        gone = self.given_up(point) is not None
        then = f"it is left out; its log is {log}" if gone else "it is tried again"
        self.told.warn(f"{point.label}: failed on {lane.name}, {then}: {_reason(error)}")

    def _halve(self, rung: int, alive: Sequence[Point]) -> list[Point]:
        """Who goes on, for each concurrency by itself."""
        kept, decisions = [], []
        for concurrency in sorted({point.concurrency for point in alive}):
            racing = {
                point.label: point
                for point in alive
                if point.concurrency == concurrency and (point.label, str(rung)) in self.book.measured
            }
            estimates = {
                label: found for label, point in racing.items() if (found := self.estimate(point, rung)) is not None
            }
            outcome = decide(estimates, self.rules.halving)
            decisions += outcome
            kept += [racing[one.label] for one in outcome if one.kept]
            if rung + 1 < self.rules.halving.rungs:
                for one in outcome:
                    if not one.kept:
                        self.told.info(f"{one.label} stops after rung {rung + 1}: {one.why}")
        self.decisions.append(decisions)
        return kept

    def _fresh(self, concurrency: int) -> bool:
        return prompts_needed(self.rules.halving, self.rules.final_pairs, concurrency) <= len(self.prompts)

    async def _final(self, best: Sequence[Point]) -> None:
        """The winner of one concurrency beside the default and the baseline, on prompts that chose nobody."""
        ranked = [point for point in best if self.given_up(point) is None]
        for point in ranked:
            label = f"{FINAL} {point.label}"
            if (label, FINAL) in self.book.measured:
                self._step()
                return
            default = Point(self.default.setting, point.concurrency)
            halving = self.rules.halving
            start = sum(halving.pairs(rung) for rung in range(halving.rungs))
            fresh = self._fresh(concurrency=point.concurrency)
            while self.given_up(point) is None:
                contenders = [point] if default == point or self.given_up(default) is not None else [point, default]
                lane = next((one for one in self.lanes if point.setting in one.servers), self.lanes[0])
                await lane.make_room([one.setting for one in contenders])
                row = await self._attempt(lane, contenders, FINAL, start, self.rules.final_pairs)
                if row is not None:
                    self.book.add(
                        {
                            "kind": "measured",
                            "point": label,
                            "rung": FINAL,
                            "winner": point.label,
                            "fresh": fresh,
                            **row,
                        }
                    )
                    self.told.info(
                        f"final: {point.label} reaches {_interval(speedup([row], point.label))} of the baseline"
                    )
                    self._step()
                    return


def log_role(lane: str, setting: str) -> str:
    """The role, and so the log, of a server: `engine-sweep-gpu-0-3-4-16-attention-triton`.

    Args:
        lane: its name.
        setting: its label, or `baseline`.
    """
    words = f"engine-sweep-{lane}-{setting}".lower()
    return "".join(c if c.isalnum() and c.isascii() else "-" for c in words)[:120]


def _interval(ratio: Ratio) -> str:
    return f"{ratio.value:.2f}x ({ratio.low:.2f} to {ratio.high:.2f})"


def _reason(error: Eagle3opsError) -> str:
    """The first line of what happened; the rest is the tail of a log that is kept."""
    return error.what.split("; the last lines of", 1)[0].splitlines()[0][:_REASON_CHARACTERS]
