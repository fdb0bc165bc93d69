"""What does a `sweep.json` say? Read with every number in doubt, as it may be torn, edited or of another version."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from eagle3ops.outputs.benchfile import BASELINE, Bench, Setting, Speedup
from eagle3ops.outputs.values import count, mapping, number, text

SCHEMA = 1
MOST_POINTS = 512
STATES = ("finished", "dropped", "failed")
_LABEL, _LINE = 120, 8192


@dataclass(frozen=True, slots=True)
class SweptPoint:
    """One setting under one load."""

    label: str
    """`3/4/16 attention=triton @8`."""
    setting: str
    concurrency: int
    state: str
    """`finished`: it went to the last rung; `dropped`: before; `failed`: its server died or hung again and again."""
    why: str
    rungs: int
    speedup: Speedup | None
    tokens_per_s: float | None
    """The baseline's of the whole sweep times the paired ratio."""
    latency_s: float | None
    """Of the median request, likewise."""
    token_s: float | None
    """Seconds that a client waits for a token, likewise."""
    accept_length: float | None
    memory_bytes: int | None
    memory_of: str
    """`gpu` or `host`."""
    front: bool
    """On the Pareto front."""
    launch_line: str


@dataclass(frozen=True, slots=True)
class Winner:
    """The best point of one concurrency, measured once more beside the default and the baseline."""

    label: str
    setting: str
    concurrency: int
    speedup: Speedup
    is_default: bool
    over_default: Speedup | None
    tokens_per_s: float | None
    accept_length: float | None
    launch_line: str
    fresh: bool = True
    """Its final was on prompts that had no part in choosing it; of others the best of many is partly lucky."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Everything that a sweep measured."""

    decisive: int
    """The concurrency that decides."""
    default: str
    """The setting that is served without a sweep."""
    baseline: Mapping[int, float | None]
    """Tokens a second of the target alone, by concurrency."""
    points: tuple[SweptPoint, ...]
    winners: tuple[Winner, ...]
    combinations_left_out: int
    failures: int
    """Servers that died or hung, also those that went on after a restart."""
    server_starts: int | None
    seconds: float | None

    @property
    def winner(self) -> Winner | None:
        """The one at the concurrency that decides."""
        return next((one for one in self.winners if one.concurrency == self.decisive), None)

    @property
    def why(self) -> str:
        """What came out, in a sentence."""
        won = self.winner
        if won is None:
            return "no point reached the final"
        told = f"{won.label} reaches {won.speedup.words}"
        if won.over_default is not None:
            over = won.over_default
            told += f", and {over.value:.2f}x ({over.low:.2f} to {over.high:.2f}) of the default {self.default}"
        if won.is_default:
            told += "; it is the default"
        return told if won.speedup.low > 1.0 else f"no point is faster beyond noise; the best, {told}"


def parse_sweep(data: object) -> Sweep | None:
    """The sweep in the content of a `sweep.json`; None when it holds none. Raises nothing."""
    record = mapping(data)
    listed = record.get("points")
    points = tuple(_points(listed[:MOST_POINTS])) if isinstance(listed, list) else ()
    if record.get("schema") != SCHEMA or not points:
        return None
    winners = record.get("winners")
    left_out = record.get("left_out")
    failures = record.get("failures")
    return Sweep(
        decisive=count(record.get("decisive_concurrency")) or points[0].concurrency,
        default=text(record.get("default"), _LABEL),
        baseline={
            int(name): number(mapping(row).get("tokens_per_s"))
            for name, row in list(mapping(record.get("baseline")).items())[:64]
            if isinstance(name, str) and name.isascii() and name.isdecimal() and len(name) < 7
        },
        points=points,
        winners=tuple(_winners(winners[:64])) if isinstance(winners, list) else (),
        combinations_left_out=sum(len(_list(mapping(one).get("labels"))) for one in _list(left_out)[:MOST_POINTS]),
        failures=len(_list(failures)),
        server_starts=count(record.get("server_starts")),
        seconds=number(record.get("seconds")),
    )


def as_bench(sweep: Sweep, bench: Bench | None) -> Bench:
    """What was swept at the concurrency that decides, in the terms of a benchmark.

    Args:
        sweep: what was swept.
        bench: a benchmark of the same drafter, whose accept length and equality still hold; None where there is none.
    """
    won = sweep.winner
    settings = [Setting(BASELINE, sweep.baseline.get(sweep.decisive), accept_length=1.0)]
    for point in sweep.points:
        if point.concurrency == sweep.decisive and point.speedup is not None and point.state != "failed":
            final = won is not None and point.label == won.label
            settings.append(
                Setting(
                    point.setting,
                    point.tokens_per_s,
                    speedup=won.speedup if final and won is not None else point.speedup,
                    accept_length=point.accept_length,
                )
            )
    worth_it = won is not None and won.speedup.low > 1.0
    found = bench or Bench("", "", False, None, None, None, (), None, None, None)
    return replace(
        found,
        recommended=won.setting if won is not None and worth_it else BASELINE,
        worth_it=worth_it,
        batch=sweep.decisive,
        prompts=None,
        settings=tuple(settings),
        left_out=0,
        winner=won.setting if won is not None else "",
    )


def _points(rows: list[Any]) -> list[SweptPoint]:
    found = []
    for row in rows:
        point = mapping(row)
        label, setting, concurrency = (
            text(point.get("label"), _LABEL),
            text(point.get("setting"), _LABEL),
            count(point.get("concurrency")),
        )
        if not label or not setting or not concurrency or point.get("state") not in STATES:
            continue
        memory = mapping(point.get("memory"))
        found.append(
            SweptPoint(
                label=label,
                setting=setting,
                concurrency=concurrency,
                state=text(point.get("state")),
                why=text(point.get("why"), 600),
                rungs=count(point.get("rungs")) or 0,
                speedup=_speedup(point.get("speedup")),
                tokens_per_s=number(point.get("tokens_per_s")),
                latency_s=number(point.get("latency_s")),
                token_s=number(point.get("token_s")),
                accept_length=number(point.get("accept_length")),
                memory_bytes=count(memory.get("bytes")),
                memory_of=text(memory.get("of"), 10),
                front=point.get("front") is True,
                launch_line=text(point.get("launch_line"), _LINE),
            )
        )
    return found


def _winners(rows: list[Any]) -> list[Winner]:
    found = []
    for row in rows:
        won = mapping(row)
        speedup, concurrency = _speedup(won.get("speedup")), count(won.get("concurrency"))
        if speedup is None or not concurrency:
            continue
        found.append(
            Winner(
                label=text(won.get("label"), _LABEL),
                setting=text(won.get("setting"), _LABEL),
                concurrency=concurrency,
                speedup=speedup,
                is_default=won.get("is_default") is True,
                over_default=_speedup(won.get("over_default")),
                tokens_per_s=number(won.get("tokens_per_s")),
                accept_length=number(won.get("accept_length")),
                launch_line=text(won.get("launch_line"), _LINE),
                fresh=won.get("fresh_prompts") is not False,
            )
        )
    return found


def _speedup(data: object) -> Speedup | None:
    ratio = mapping(data)
    value, low, high = (number(ratio.get(name)) for name in ("value", "low", "high"))
    if value is None or low is None or high is None or not 0 <= low <= high:
        return None
    return Speedup(value, low, high, count(ratio.get("pairs")))


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
