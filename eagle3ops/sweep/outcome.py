"""What did a sweep find? Its table with the Pareto front, its winner, and whether that beats baseline and default."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from eagle3ops.bench.paired import Ratio, Sample, throughput
from eagle3ops.sweep.measurement import BASELINE, accept_of, blocks, speedup
from eagle3ops.sweep.points import LeftOut, Point, Setting
from eagle3ops.sweep.race import Race

SCHEMA = 1
TOLERANCE = 0.02
"""Relative difference that counts as none on the Pareto front: two equal servers differ by a little memory."""


def outcome(race: Race, left_out: Sequence[LeftOut], launch: Mapping[Setting, str]) -> dict[str, Any]:
    """Everything that `sweep.json` says.

    Args:
        race: after it ran.
        left_out: combinations that are no points.
        launch: the launch line of every setting.
    """
    decisive = race.points[0].concurrency
    base = {str(c): _baseline(race, c) for c in sorted({point.concurrency for point in race.points})}
    rows = [_row(race, point, base[str(point.concurrency)], launch) for point in race.points]
    _mark_front(rows)
    return {
        "schema": SCHEMA,
        "decisive_concurrency": decisive,
        "default": race.default.setting.label,
        "halving": asdict(race.rules.halving),
        "final_pairs": race.rules.final_pairs,
        "baseline": base,
        "points": rows,
        "left_out": [{"why": one.why, "labels": list(one.labels)} for one in left_out],
        "rungs": [[asdict(one) for one in decisions] for decisions in race.decisions],
        "failures": race.book.failures,
        "winners": [found for c in base if (found := _winner(race, int(c), launch)) is not None],
        "lanes": [{"name": lane.name, "gpus": list(lane.gpus), "room": lane.room} for lane in race.lanes],
        "server_starts": sum(lane.starts for lane in race.lanes),
    }


def _baseline(race: Race, concurrency: int) -> dict[str, Any]:
    """What the baselines of all lanes did at a concurrency, over every pair of the sweep."""
    rows = [row for row in race.book.measured.values() if row["concurrency"] == concurrency]
    samples: list[Sample] = blocks(rows, BASELINE)
    return {
        "tokens_per_s": throughput(samples) if samples else None,
        "latency_s": median(row["latency_s"][BASELINE] for row in rows) if rows else None,
        "token_s": _median([row["token_s"][BASELINE] for row in rows]),
        "memory": _memory(rows, BASELINE),
        "pairs": len(samples),
    }


def _row(race: Race, point: Point, base: Mapping[str, Any], launch: Mapping[Setting, str]) -> dict[str, Any]:
    rows = race.rows(point)
    found: dict[str, Any] = {
        "label": point.label,
        "setting": point.setting.label,
        "speculation": point.setting.speculation,
        "choices": dict(point.setting.choices),
        "concurrency": point.concurrency,
        "state": _state(race, point, len(rows)),
        "why": _why(race, point),
        "rungs": len(rows),
        "launch_line": launch[point.setting],
        "front": False,
    }
    if rows:
        ratio, accept = speedup(rows, point.label), accept_of(rows, point.label)
        found |= {
            "speedup": asdict(ratio),
            # As fast as the baseline of the whole sweep is, times the paired ratio: figures of different minutes, and
            # of different GPUs, can be compared only so.
            "tokens_per_s": ratio.value * base["tokens_per_s"],
            "latency_s": base["latency_s"] * median(_ratios(rows, point.label, "latency_s")),
            "token_s": _scaled(base["token_s"], _ratios(rows, point.label, "token_s")),
            "accept_length": None if accept is None else accept.accept_length,
            "accept_rate": None if accept is None else accept.accept_rate,
            "memory": _memory(rows, point.label),
            "same_output": sum(row["same_output"][point.label] for row in rows),
            "requests": sum(row["requests"] for row in rows),
        }
    return found


def _ratios(rows: Sequence[Mapping[str, Any]], label: str, what: str) -> list[float]:
    """A figure of the point over that of its own baseline, for each measurement."""
    return [row[what][label] / row[what][BASELINE] for row in rows if row[what][label] and row[what][BASELINE]]


def _scaled(base: float | None, ratios: Sequence[float]) -> float | None:
    return base * median(ratios) if base is not None and ratios else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return median(known) if known else None


def _memory(rows: Sequence[Mapping[str, Any]], label: str) -> dict[str, Any] | None:
    """The most that its server held, and of what."""
    found = [row["memory"][label] for row in rows if row["memory"].get(label, {}).get("bytes")]
    return max(found, key=lambda one: one["bytes"], default=None)


def _state(race: Race, point: Point, rungs: int) -> str:
    if race.given_up(point) is not None:
        return "failed"
    return "finished" if rungs == race.rules.halving.rungs else "dropped"


def _why(race: Race, point: Point) -> str:
    """Why it failed, or went no further."""
    if (reason := race.given_up(point)) is not None:
        return reason
    last = [one for decisions in race.decisions for one in decisions if one.label == point.label]
    return last[-1].why if last else ""


def _mark_front(rows: Sequence[dict[str, Any]]) -> None:
    """The Pareto front over throughput, time to a token, accept length and memory, at all concurrencies together."""
    measured = [row for row in rows if "speedup" in row and row["state"] != "failed"]
    for row in measured:
        row["front"] = not any(dominates(_merits(other), _merits(row)) for other in measured if other is not row)


def _merits(row: Mapping[str, Any]) -> tuple[float, ...]:
    """Positive figures of which more is better; 1 for what is not known of any."""
    memory = (row["memory"] or {}).get("bytes")
    token_s = row["token_s"]
    return (
        row["tokens_per_s"],
        1.0 / token_s if token_s else 1.0,
        row["accept_length"] or 1.0,
        1.0 / memory if memory else 1.0,
    )


def dominates(one: Sequence[float], other: Sequence[float], tolerance: float = TOLERANCE) -> bool:
    """Whether `one` is nowhere worse than `other` by more than the tolerance, and somewhere better by more."""
    pairs = list(zip(one, other, strict=True))
    return all(a >= b * (1.0 - tolerance) for a, b in pairs) and any(a > b * (1.0 + tolerance) for a, b in pairs)


def _winner(race: Race, concurrency: int, launch: Mapping[Setting, str]) -> dict[str, Any] | None:
    """The best point of a concurrency, by the final alone: its prompts chose nobody."""
    row = race.final(concurrency)
    if row is None:
        return None
    label = str(row["winner"])
    point = next((one for one in race.points if one.label == label), None)
    if point is None:
        return None
    default = Point(race.default.setting, concurrency).label
    over_base = speedup([row], label)
    over_default: Ratio | None = speedup([row], label, over=default) if default in row["blocks"] else None
    accept = accept_of([row], label)
    return {
        "label": label,
        "setting": point.setting.label,
        "concurrency": concurrency,
        "tokens_per_s": throughput(blocks([row], label)),
        "baseline_tokens_per_s": throughput(blocks([row], BASELINE)),
        "speedup": asdict(over_base),
        "is_default": label == default,
        "over_default": None if over_default is None else asdict(over_default),
        "accept_length": None if accept is None else accept.accept_length,
        "fresh_prompts": bool(row.get("fresh")),
        "better_than_baseline": over_base.beyond_noise,
        "better_than_default": None if over_default is None else over_default.beyond_noise,
        "launch_line": launch[point.setting],
    }
