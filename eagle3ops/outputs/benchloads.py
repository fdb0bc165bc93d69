"""What does a `bench.json` say of its further loads? Ladder, arrivals of tokens, categories, prompt lengths, in doubt.

Files of before these loads were measured hold none; then there are no rows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from eagle3ops.outputs.values import count, mapping, number

MAX_LOADS = 64
MAX_ROWS = 16


@dataclass(frozen=True, slots=True)
class LoadRow:
    """One server under one load; times in seconds, None where not measured."""

    label: str
    tokens_per_s: float | None
    low: float | None
    high: float | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    accept_length: float | None
    ttft_p50: float | None = None
    ttft_p99: float | None = None
    itl_p50: float | None = None
    itl_p99: float | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """One load that all servers were put under."""

    kind: str
    """`ladder`, `latency`, `categories`, `lengths` or `bench_serving`."""
    name: str
    """Of the category or bucket; empty for others."""
    concurrency: int | None
    natural_stop: bool | None
    prompts: int | None
    tokens: int | None
    """New tokens of an answer at most, or exactly where the length was forced."""
    rows: tuple[LoadRow, ...]

    @property
    def words(self) -> str:
        """`8 in flight, natural stop`; or the name of the category or bucket."""
        flight = "" if self.concurrency is None else f"{self.concurrency} in flight"
        stop = {True: "natural stop", False: f"forced to {self.tokens or '?'} tokens", None: ""}[self.natural_stop]
        return self.name or ", ".join(part for part in (flight, stop) if part)

    @property
    def best(self) -> LoadRow | None:
        """The fastest row that was held against the baseline."""
        held = [row for row in self.rows if row.speedup is not None]
        return max(held, key=lambda row: row.speedup or 0.0, default=None)


def parse_loads(record: object) -> tuple[Load, ...]:
    """The further loads of a `bench.json`; none for an older file. Raises nothing."""
    data = mapping(record)
    found: list[Load] = []
    for kind in ("ladder", "latency", "categories", "lengths"):
        listed = data.get(kind)
        found += [_load(kind, mapping(one)) for one in (listed if isinstance(listed, list) else [])[:MAX_LOADS]]
    return tuple(load for load in [*found, *_tool(mapping(data.get("bench_serving")))] if load.rows)


def _load(kind: str, one: Mapping[Any, Any]) -> Load:
    rows = list(mapping(one.get("settings")).items())[:MAX_ROWS]
    name = one.get("name")
    stop = one.get("natural_stop")
    return Load(
        kind=kind,
        name=name[:40] if isinstance(name, str) else "",
        concurrency=count(one.get("concurrency")),
        natural_stop=stop if isinstance(stop, bool) else None,
        prompts=count(one.get("prompts")),
        tokens=count(one.get("max_new_tokens")),
        rows=tuple(_row(str(label)[:40], mapping(row)) for label, row in rows),
    )


def _row(label: str, row: Mapping[Any, Any]) -> LoadRow:
    ratio, first, gap = mapping(row.get("speedup")), mapping(row.get("ttft_s")), mapping(row.get("itl_s"))
    value, low, high = (_number(ratio.get(name)) for name in ("value", "low", "high"))
    if value is None or low is None or high is None or not low <= high:
        value = low = high = None
    return LoadRow(
        label=label,
        tokens_per_s=_number(row.get("tokens_per_s")),
        low=_number(row.get("low")),
        high=_number(row.get("high")),
        speedup=value,
        speedup_low=low,
        speedup_high=high,
        accept_length=_number(row.get("accept_length")),
        ttft_p50=_number(first.get("p50")),
        ttft_p99=_number(first.get("p99")),
        itl_p50=_number(gap.get("p50")),
        itl_p99=_number(gap.get("p99")),
    )


def _tool(data: Mapping[Any, Any]) -> Iterable[Load]:
    """`sglang.bench_serving`: one load for each concurrency, from lists by label."""
    grouped: dict[int | None, list[LoadRow]] = {}
    for label, runs in list(data.items())[:MAX_ROWS]:
        for run in (runs if isinstance(runs, list) else [])[:MAX_ROWS]:
            one = mapping(run)
            row = _row(str(label)[:40], {**one, "tokens_per_s": one.get("output_throughput"), "speedup": None})
            grouped.setdefault(count(one.get("asked_concurrency")), []).append(row)
    for concurrency, rows in grouped.items():
        yield Load("bench_serving", "", concurrency, None, None, None, tuple(rows))


def _number(value: object) -> float | None:
    found = number(value)
    return found if found is not None and found >= 0 else None
