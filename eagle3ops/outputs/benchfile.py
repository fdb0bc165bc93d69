"""What does a `bench.json` say? Read with every number in doubt, as it may be torn, edited or of another version."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from eagle3ops.bench.accept import conditional_acceptance
from eagle3ops.bench.gap import Position
from eagle3ops.outputs.benchloads import Load, parse_loads
from eagle3ops.outputs.values import count, flag, mapping, number, numbers, text

BASELINE = "baseline"
MAX_SETTINGS = 64
MAX_REQUESTS = 200
MAX_POSITIONS = 129
MAX_ITEMS = 20
_SETTING = re.compile(r"(\d{1,3})/(\d{1,3})/(\d{1,3})")


@dataclass(frozen=True, slots=True)
class Speedup:
    """Throughput over the baseline's, with its 95 % interval."""

    value: float
    low: float
    high: float
    pairs: int | None

    @property
    def words(self) -> str:
        """`1.34x of the baseline, 95 % interval 1.21 to 1.47`."""
        return f"{self.value:.2f}x of the baseline, 95 % interval {self.low:.2f} to {self.high:.2f}"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of speculative decoding as it was timed; the baseline is one of them."""

    label: str
    """`3/1/4`: steps, topk, draft tokens; or `baseline`."""
    tokens_per_s: float | None
    per_request: tuple[float, ...] = ()
    """Tokens a second of each timed request, at most `MAX_REQUESTS` of them."""
    speedup: Speedup | None = None
    accept_length: float | None = None
    """Tokens per verification step in the timed requests; 1 for the baseline."""
    dominated_by: str | None = None
    """Another setting with no less of either throughput and accept length, and more of one."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """What served against predicted came to, and what was found out because of it."""

    kind: str
    """`as predicted`, `unclear`, or an alarm: `short`, `above`."""
    fired: bool
    words: str
    start: int | None
    """The first draft position that differs beyond noise."""
    positions: tuple[Position, ...]
    wiring: bool | None = None
    """Measured again because of the alarm; None where it was not, or gave no verdict."""
    wiring_reason: str = ""
    suspects: tuple[tuple[str, str, str, str], ...] = ()
    """Name, state (`likely`, `possible`, `cleared`), why, and what to do."""


@dataclass(frozen=True, slots=True)
class Diversity:
    """Whether what was served is text, or loops."""

    passed: bool
    words: str
    looping: float | None
    """Share of the answers with a loop."""
    at_limit: float | None
    distinct: tuple[float, ...]
    """Distinct 1- to 4-grams over all of an answer, mean."""
    data_distinct: tuple[float, ...]
    """The same of the data's own answers."""
    without_loops: float | None
    """Accept length over the answers without a loop."""


@dataclass(frozen=True, slots=True)
class Accept:
    """How many tokens a verification step yields, served and as predicted in training."""

    setting: str
    served: float | None
    accept_rate: float | None
    verify_steps: int | None
    predicted: float | None
    gap: float | None
    """Served over predicted, less one."""
    histogram: tuple[float, ...]
    """`histogram[k]`: verification steps in which k drafts were correct."""
    predicted_histogram: tuple[float, ...]
    by_position: tuple[float, ...]
    """Acceptance of draft position i given that all before it were accepted."""
    predicted_by_position: tuple[float, ...]
    alarm: Alarm | None = None
    diversity: Diversity | None = None


@dataclass(frozen=True, slots=True)
class Equality:
    """Greedy output with and without the drafter, in the exact dtype."""

    equal: bool
    prompts: int | None
    tokens: int | None
    dtype: str
    differ: tuple[tuple[str, int | None], ...]
    """Prompts whose outputs part, and at which token."""
    differing: int
    """How many there are; more than stand in `differ` where those are too many."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """First divergences in the served dtype, held against what rounding explains."""

    passed: bool
    prompts: int | None
    noise: float | None
    bound: float | None
    widest: float | None
    """The largest logit gap at a divergence."""
    found: int


@dataclass(frozen=True, slots=True)
class Bench:
    """Everything that a bench measured."""

    served: str
    recommended: str
    worth_it: bool
    batch: int | None
    natural_stop: bool | None
    prompts: int | None
    settings: tuple[Setting, ...]
    accept: Accept | None
    equality: Equality | None
    divergence: Divergence | None
    left_out: int = 0
    """Settings beyond `MAX_SETTINGS`."""
    loads: tuple[Load, ...] = ()
    """Further loads; none in files of before they were measured."""
    engine: str = ""
    """Which one was measured; empty in older files."""
    winner: str = ""
    """The setting that a sweep's final chose; empty for a benchmark, which has none."""

    def setting(self, label: str) -> Setting | None:
        """The setting with this label."""
        return next((found for found in self.settings if found.label == label), None)

    @property
    def best(self) -> Setting | None:
        """The fastest setting that is not the baseline."""
        drafted = [found for found in self.settings if found.speedup is not None]
        return max(drafted, key=lambda found: found.speedup.value if found.speedup else 0.0, default=None)

    @property
    def chosen(self) -> Setting | None:
        """What was recommended where that is a drafter, else a sweep's winner, else the fastest.

        Of many points of a sweep the fastest is often one that was lucky in two pairs and then dropped.
        """
        found = self.setting(self.recommended if self.worth_it else self.winner)
        return found if found is not None and found.speedup is not None else self.best

    @property
    def why(self) -> str:
        """Why this is recommended."""
        best = self.chosen
        if best is None or best.speedup is None:
            return "no setting was timed against the baseline"
        if best.speedup.low > 1.0:
            return f"{best.speedup.words}: all of it above 1"
        return f"no setting is faster beyond noise; the best, {best.label}, reaches {best.speedup.words}"


def parse_setting(label: str) -> tuple[int, int, int] | None:
    """`3/1/4` -> steps, topk, draft tokens; None for what is no such label."""
    found = _SETTING.fullmatch(label)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def parse_bench(data: object) -> Bench | None:
    """The bench in the content of a `bench.json`; None when it holds no timed settings. Raises nothing."""
    record, timing = mapping(data), mapping(mapping(data).get("timing"))
    rows = [(label, mapping(row)) for label, row in mapping(timing.get("settings")).items() if isinstance(row, Mapping)]
    settings = _with_dominated([_setting(str(label)[:40], row) for label, row in rows[:MAX_SETTINGS]])
    if not settings:
        return None
    return Bench(
        served=text(record.get("served")),
        recommended=text(timing.get("recommended")),
        worth_it=timing.get("worth_it") is True,
        batch=count(timing.get("batch")),
        natural_stop=flag(timing.get("natural_stop")),
        prompts=count(timing.get("prompts")),
        settings=settings,
        accept=_accept(record.get("accept")),
        equality=_equality(record.get("equality")),
        divergence=_divergence(record.get("divergence")),
        left_out=max(0, len(rows) - MAX_SETTINGS),
        loads=parse_loads(record),
        engine=text(record.get("engine"), 20),
    )


def _setting(label: str, row: Mapping[Any, Any]) -> Setting:
    ratio = mapping(row.get("speedup"))
    value, low, high = (number(ratio.get(name)) for name in ("value", "low", "high"))
    speedup = None
    if label != BASELINE and value is not None and low is not None and high is not None and 0 <= low <= high:
        speedup = Speedup(value, low, high, count(ratio.get("pairs")))
    accept = 1.0 if label == BASELINE else number(row.get("accept_length"))
    return Setting(
        label, number(row.get("tokens_per_s")), numbers(row.get("per_request"), MAX_REQUESTS), speedup, accept
    )


def _with_dominated(settings: Sequence[Setting]) -> tuple[Setting, ...]:
    return tuple(replace(one, dominated_by=_better(one, settings)) for one in settings)


def _better(one: Setting, settings: Sequence[Setting]) -> str | None:
    if one.tokens_per_s is None or one.accept_length is None:
        return None
    for other in settings:
        if other.tokens_per_s is None or other.accept_length is None:
            continue
        more = (other.tokens_per_s - one.tokens_per_s, other.accept_length - one.accept_length)
        if min(more) >= 0 and max(more) > 0:
            return other.label
    return None


def _accept(data: object) -> Accept | None:
    if not isinstance(data, Mapping):
        return None
    histogram = numbers(data.get("histogram"), MAX_POSITIONS)
    predicted = numbers(data.get("predicted_histogram"), MAX_POSITIONS)
    return Accept(
        setting=text(data.get("setting")),
        served=number(data.get("served")),
        accept_rate=number(data.get("accept_rate")),
        verify_steps=count(data.get("verify_steps")),
        predicted=number(data.get("predicted")),
        gap=number(data.get("gap")),
        histogram=histogram,
        predicted_histogram=predicted,
        by_position=numbers(data.get("by_position"), MAX_POSITIONS) or conditional_acceptance(histogram),
        predicted_by_position=conditional_acceptance(predicted),
        alarm=_alarm(data),
        diversity=_diversity(data.get("diversity")),
    )


def _alarm(data: Mapping[Any, Any]) -> Alarm | None:
    raw, wiring = data.get("alarm"), mapping(data.get("wiring"))
    if not isinstance(raw, Mapping):
        return None
    listed, told = raw.get("positions"), data.get("suspects")
    positions = [_position(one) for one in (listed if isinstance(listed, list) else [])[:MAX_POSITIONS]]
    suspects = [mapping(one) for one in (told if isinstance(told, list) else [])[:MAX_ITEMS]]
    return Alarm(
        kind=text(raw.get("kind"), 40),
        fired=raw.get("alarm") is True,
        words=text(raw.get("words"), 1000),
        start=count(raw.get("start")),
        positions=tuple(one for one in positions if one is not None),
        wiring=flag(wiring.get("passed")),
        wiring_reason=text(wiring.get("reason"), 1000),
        suspects=tuple(
            (
                text(one.get("name"), 40),
                text(one.get("state"), 40),
                text(one.get("why"), 600),
                text(one.get("look"), 300),
            )
            for one in suspects
        ),
    )


def _position(data: object) -> Position | None:
    found = mapping(data)
    at = count(found.get("position"))
    values = [number(found.get(name)) for name in ("served", "predicted", "low", "high", "tokens")]
    known = [one for one in values if one is not None]
    return Position(at, *known) if at is not None and len(known) == len(values) else None


def _diversity(data: object) -> Diversity | None:
    if not isinstance(data, Mapping):
        return None
    served = mapping(data.get("served"))
    return Diversity(
        passed=data.get("passed") is True,
        words=text(data.get("words"), 1000),
        looping=number(served.get("looping")),
        at_limit=number(data.get("at_limit")),
        distinct=numbers(served.get("distinct"), 4),
        data_distinct=numbers(mapping(data.get("data")).get("distinct"), 4),
        without_loops=number(data.get("without_loops")),
    )


def _equality(data: object) -> Equality | None:
    if not isinstance(data, Mapping):
        return None
    differ = mapping(data.get("differ"))
    return Equality(
        equal=data.get("equal") is True,
        prompts=count(data.get("prompts")),
        tokens=count(data.get("tokens")),
        dtype=text(data.get("dtype")),
        differ=tuple((str(name)[:80], count(at)) for name, at in list(differ.items())[:MAX_ITEMS]),
        differing=len(differ),
    )


def _divergence(data: object) -> Divergence | None:
    if not isinstance(data, Mapping):
        return None
    listed = data.get("divergences")
    found = [mapping(item) for item in listed] if isinstance(listed, list) else []
    gaps = [gap for item in found if (gap := number(item.get("gap"))) is not None]
    return Divergence(
        passed=data.get("passed") is True,
        prompts=count(data.get("prompts")),
        noise=number(data.get("noise")),
        bound=number(data.get("bound")),
        widest=max(gaps, default=None),
        found=len(found),
    )
