"""What does the host's answer about a benchmark hold? Typed for painting, with whatever makes no sense left out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eagle3ops.screens.bench.loads import LoadFacts, load_facts
from eagle3ops.screens.bench.sweep import SweepFacts, sweep_facts
from eagle3ops.screens.feeds.values import mapping, number
from eagle3ops.screens.widgets.status_marks import outcome_mark
from eagle3ops.words import UNDECIDED, plain

BASELINE = "baseline"
PROMOTED = "◆"
VERDICTS = {
    "wiring": "wiring",
    "equal_output": "equal output",
    "accept_length": "accept length",
    "divergence": "divergence",
    "wiring_again": "wiring again",
    "output_diversity": "diversity",
}
OPTIONAL = ("wiring_again", "output_diversity")
"""Verdicts that are not missed where they were not made."""
SUSPECTS = 12
MOST_POSITIONS = 16


@dataclass(frozen=True, slots=True)
class Interval:
    """A speed-up over the baseline with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def look(self) -> str:
        """Whether the interval lies above 1, below it, or around it."""
        return "good" if self.low > 1.0 else "bad" if self.high < 1.0 else "warn"


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One timed setting."""

    label: str
    tokens_per_s: float | None
    speedup: Interval | None
    accept_length: float | None
    dominated_by: str


@dataclass(frozen=True, slots=True)
class PositionFacts:
    """One draft position: served less predicted, with its interval, and what it makes of the gap."""

    position: float
    served: float
    predicted: float
    low: float
    high: float
    tokens: float


@dataclass(frozen=True, slots=True)
class AlarmFacts:
    """Served against predicted, and what was found out because of it."""

    kind: str
    fired: bool
    words: str
    start: float | None
    positions: tuple[PositionFacts, ...]
    wiring: bool | None
    wiring_reason: str
    suspects: tuple[tuple[str, str, str, str], ...]
    """Name, state, why, what to do."""


@dataclass(frozen=True, slots=True)
class DiversityFacts:
    """Text or loops."""

    passed: bool
    words: str


@dataclass(frozen=True, slots=True)
class AcceptFacts:
    """Served against predicted."""

    setting: str
    served: float | None
    predicted: float | None
    gap: float | None
    steps: float | None
    by_position: tuple[float, ...]
    predicted_by_position: tuple[float, ...]
    histogram: tuple[float, ...]
    predicted_histogram: tuple[float, ...]
    alarm: AlarmFacts | None = None
    diversity: DiversityFacts | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """One verdict; `passed` is None where it was not made, or is UNDECIDED, which its reason says."""

    name: str
    passed: bool | None
    reason: str

    @property
    def words(self) -> tuple[str, str]:
        """Glyph and word, and their look."""
        if self.passed is None and not self.reason.startswith(UNDECIDED):
            return "· not made", "dim"
        return outcome_mark(self.passed)


@dataclass(frozen=True, slots=True)
class Gate:
    """Whether a setting may be promoted."""

    refusals: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """A promotion that holds, or held before."""

    run: str
    setting: str
    when: float | None
    by: str
    speedup: Interval | None
    forced: bool
    reason: str
    launch_line: str

    @property
    def words(self) -> str:
        """`RUN at 3/1/4`."""
        return f"{self.run} at {self.setting}"


@dataclass(frozen=True, slots=True)
class Drafter:
    """One row of the list of drafters."""

    run: str
    target: str
    fingerprint: str
    dtype: str
    setting: str
    speedup: Interval | None
    tokens_per_s: float | None
    accept_length: float | None
    """At `setting`."""
    gap: float | None
    """Between served and predicted accept length, at the setting that was served."""
    checks: tuple[Check, ...]
    promoted: str
    """The setting at which it is promoted; empty when it is not."""
    measured: float | None

    @property
    def words(self) -> tuple[str, str]:
        """What the verdicts come to, and its look."""
        return self.told(short=False)

    def told(self, *, short: bool) -> tuple[str, str]:
        """The same; `short` counts them instead of naming them."""
        failed = [VERDICTS[check.name] for check in self.checks if check.passed is False]
        absent = [VERDICTS[check.name] for check in self.checks if check.passed is None]
        if short and failed and failed != ["wiring"]:
            return f"✗ {len(failed)} of {len(self.checks)} FAIL", "bad"
        if short and not failed and absent:
            return f"· {len(absent)} not made", "warn"
        elsewhere = self.promoted not in ("", self.setting)
        if short and elsewhere and not failed:
            return f"✓ PASS {PROMOTED}{self.promoted}", "good"
        at = f"{PROMOTED} {self.promoted}, " if elsewhere else ""
        if failed:
            return f"{at}✗ FAIL {', '.join(failed)}", "bad"
        return (f"{at}· {', '.join(absent)} not made", "warn") if absent else (f"{at}✓ PASS", "good")


@dataclass(frozen=True, slots=True)
class BenchFacts:
    """Everything in an answer of `runs.bench`."""

    run: str = ""
    absent: str = ""
    """Why there is no benchmark; empty when there is one."""
    why: str = ""
    """Why this is recommended."""
    target: str = ""
    fingerprint: str = ""
    conditions: str = ""
    """On what it was measured."""
    measured: float | None = None
    served: str = ""
    recommended: str = ""
    chosen: str = ""
    """The setting that the host would promote."""
    settings: tuple[SettingRow, ...] = ()
    left_out: int = 0
    loads: tuple[LoadFacts, ...] = ()
    accept: AcceptFacts | None = None
    checks: tuple[Check, ...] = ()
    differ: tuple[str, ...] = ()
    """Prompts whose greedy output differs."""
    gate: Mapping[str, Gate] = field(default_factory=dict)
    generation: int = 0
    current: Decision | None = None
    previous: Decision | None = None
    history: tuple[tuple[float | None, str], ...] = ()
    """The last decisions about the target, the newest first: when, and what in words."""
    damaged: str = ""
    """Why it is not known what is promoted; empty when it is."""
    sweep: SweepFacts | None = None
    """The points, where the run is a sweep."""

    @property
    def worth_it(self) -> bool:
        """Whether a drafter is recommended."""
        return self.recommended not in ("", BASELINE)

    @property
    def timed(self) -> tuple[str, ...]:
        """Labels of the settings that could be promoted."""
        return tuple(row.label for row in self.settings if row.speedup is not None)


def bench_facts(answer: object) -> BenchFacts:
    """The facts in an answer of `runs.bench`, whatever it holds. Raises nothing."""
    found = mapping(answer)
    target, promoted = mapping(found.get("target")), mapping(found.get("promoted"))
    shared: dict[str, Any] = {
        "run": word(found.get("run")),
        "why": word(found.get("why"), 600),
        "target": word(target.get("name")),
        "fingerprint": word(target.get("fingerprint")),
        "generation": _count(promoted.get("generation")),
        "current": _decision(promoted.get("current")),
        "previous": _decision(promoted.get("previous")),
        "history": tuple(_history(promoted.get("history"))),
        "damaged": word(found.get("promoted_damaged"), 600),
    }
    if found.get("state") != "ready":
        return BenchFacts(**shared, absent=shared["why"] or "the host says nothing about it")
    bench = mapping(found.get("bench"))
    equality = mapping(bench.get("equality"))
    return BenchFacts(
        **shared,
        sweep=sweep_facts(found.get("sweep")),
        conditions=_conditions(found, bench),
        measured=number(found.get("measured")),
        served=word(bench.get("served")),
        recommended=word(bench.get("recommended")),
        chosen=word(found.get("chosen")),
        settings=tuple(_setting(row) for row in listed(bench.get("settings"))[:64] if isinstance(row, Mapping)),
        left_out=_count(bench.get("left_out")),
        loads=load_facts(bench.get("loads")),
        accept=_accept(bench.get("accept")),
        checks=tuple(_check(row) for row in listed(found.get("verdicts"))[:16] if isinstance(row, Mapping)),
        differ=_differ(equality),
        gate={
            word(label): Gate(_words(mapping(one).get("refusals")), _words(mapping(one).get("cautions")))
            for label, one in list(mapping(found.get("gate")).items())[:64]
        },
    )


def drafters(answer: object) -> list[Drafter]:
    """The rows in an answer of `drafters.list`, the fastest first. Raises nothing."""
    rows = [_drafter(row) for row in listed(mapping(answer).get("drafters"))[:500] if isinstance(row, Mapping)]
    return sorted(rows, key=lambda row: -(row.speedup.value if row.speedup else 0.0))


def _drafter(row: Mapping[Any, Any]) -> Drafter:
    target, checks = mapping(row.get("target")), mapping(row.get("verdicts"))
    return Drafter(
        run=word(row.get("run")),
        target=word(target.get("name")),
        fingerprint=word(target.get("fingerprint")),
        dtype=word(row.get("dtype"), 20) or "-",
        setting=word(row.get("setting")) or "-",
        speedup=_interval(row.get("speedup")),
        tokens_per_s=number(row.get("tokens_per_s")),
        accept_length=number(row.get("accept_length")),
        gap=number(mapping(row.get("served")).get("gap")),
        checks=tuple(
            Check(name, _flag(checks.get(name)), "") for name in VERDICTS if name in checks or name not in OPTIONAL
        ),
        promoted=word(row.get("promoted")),
        measured=number(row.get("measured")),
    )


def _conditions(found: Mapping[Any, Any], bench: Mapping[Any, Any]) -> str:
    prompts, batch = number(bench.get("prompts")), number(bench.get("batch"))
    told = [
        word(found.get("dtype"), 20),
        f"batch {batch:.0f}" if batch is not None else "",
        f"{prompts:.0f} held-out prompts" if prompts is not None else "",
        {True: "to their natural end", False: "at a forced length"}.get(_flag(bench.get("natural_stop")), ""),  # type: ignore[arg-type]
    ]
    return ", ".join(part for part in told if part)


def _setting(row: Mapping[Any, Any]) -> SettingRow:
    return SettingRow(
        word(row.get("label"), 120) or "-",
        number(row.get("tokens_per_s")),
        _interval(row.get("speedup")),
        number(row.get("accept_length")),
        word(row.get("dominated_by"), 20),
    )


def _interval(value: object) -> Interval | None:
    found = mapping(value)
    middle, low, high = (number(found.get(name)) for name in ("value", "low", "high"))
    if middle is None or low is None or high is None or not 0 <= low <= high < 1e6 or not 0 <= middle < 1e6:
        return None
    return Interval(middle, low, high)


def _accept(value: object) -> AcceptFacts | None:
    if not isinstance(value, Mapping):
        return None
    return AcceptFacts(
        setting=word(value.get("setting"), 20),
        served=number(value.get("served")),
        predicted=number(value.get("predicted")),
        gap=number(value.get("gap")),
        steps=number(value.get("verify_steps")),
        by_position=_rates(value.get("by_position")),
        predicted_by_position=_rates(value.get("predicted_by_position")),
        histogram=_counts(value.get("histogram")),
        predicted_histogram=_counts(value.get("predicted_histogram")),
        alarm=_alarm(value.get("alarm")),
        diversity=_diversity(value.get("diversity")),
    )


def _alarm(value: object) -> AlarmFacts | None:
    if not isinstance(value, Mapping):
        return None
    suspects = [listed(one)[:4] for one in listed(value.get("suspects"))[:SUSPECTS]]
    return AlarmFacts(
        kind=word(value.get("kind"), 40),
        fired=value.get("fired") is True,
        words=word(value.get("words"), 1000),
        start=number(value.get("start")),
        positions=tuple(_positions(value.get("positions"))),
        wiring=_flag(value.get("wiring")),
        wiring_reason=word(value.get("wiring_reason"), 1000),
        suspects=tuple(
            (word(one[0], 40), word(one[1], 40), word(one[2], 600), word(one[3], 300))
            for one in suspects if len(one) == 4
        ),
    )  # fmt: skip


def _positions(value: object) -> Iterable[PositionFacts]:
    for row in listed(value)[:MOST_POSITIONS]:
        found = [
            number(mapping(row).get(name)) for name in ("position", "served", "predicted", "low", "high", "tokens")
        ]
        known = [one for one in found if one is not None and abs(one) < 1e6]
        if len(known) == len(found):
            yield PositionFacts(*known)


def _diversity(value: object) -> DiversityFacts | None:
    if not isinstance(value, Mapping):
        return None
    return DiversityFacts(value.get("passed") is True, word(value.get("words"), 1000))


def _rates(value: object) -> tuple[float, ...]:
    return tuple(min(1.0, max(0.0, number(one) or 0.0)) for one in listed(value)[:256])


def _counts(value: object) -> tuple[float, ...]:
    return tuple(min(1e12, max(0.0, number(one) or 0.0)) for one in listed(value)[:256])


def _check(row: Mapping[Any, Any]) -> Check:
    return Check(word(row.get("name"), 40), _flag(row.get("passed")), word(row.get("reason"), 600))


def _differ(equality: Mapping[Any, Any]) -> tuple[str, ...]:
    pairs = [pair for pair in listed(equality.get("differ"))[:5] if isinstance(pair, list) and len(pair) == 2]
    return tuple(f"{word(name, 60)} at token {number(at) or 0:.0f}" for name, at in pairs)


def _decision(value: object) -> Decision | None:
    if not isinstance(value, Mapping):
        return None
    return Decision(
        run=word(value.get("run")),
        setting=word(value.get("setting"), 20),
        when=number(value.get("ts")),
        by=word(value.get("by"), 80),
        speedup=_interval(value.get("speedup")),
        forced=value.get("forced") is True,
        reason=word(value.get("reason"), 600),
        launch_line=word(value.get("launch_line"), 4096),
    )


def _history(value: object) -> Iterable[tuple[float | None, str]]:
    for entry in reversed(listed(value)[-10:]):
        found = mapping(entry)
        if found.get("action") == "rollback":
            what = f"rolled back from #{_count(found.get('from'))} to "
            what += f"#{_count(found.get('to'))}" if _count(found.get("to")) else "no drafter"
        else:
            what = f"promoted {word(found.get('run'))} at {word(found.get('setting'), 20)}"
            what += " by force" if found.get("forced") is True else ""
        reason = word(found.get("reason"), 600)
        told = f"#{_count(found.get('number'))} {what}, {word(found.get('by'), 80)}"
        yield number(found.get("ts")), told + (f": {reason}" if reason else "")


def _words(value: object) -> tuple[str, ...]:
    return tuple(word(one, 600) for one in listed(value)[:10])


def _count(value: object) -> int:
    found = number(value)
    return int(found) if found is not None and 0 <= found < 1e9 else 0


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def listed(value: object) -> Sequence[Any]:
    """The list, or an empty one in place of anything else."""
    return value if isinstance(value, list) else []


def word(value: object, most: int = 200) -> str:
    """A text from outside that cannot steer the terminal; empty in place of anything else."""
    return plain(value[:most]) if isinstance(value, str) else ""
