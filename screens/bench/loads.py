"""How do the further loads of a benchmark look? One line a load: the best setting there, and what it gains."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3ops.screens.feeds.values import mapping, number
from eagle3ops.screens.widgets.cells import ABSENT, Line, cell
from eagle3ops.screens.widgets.glyphs import Glyphs
from eagle3ops.words import plain

MOST_LOADS = 24
_NAMES = {"ladder": "", "categories": "", "lengths": "prompts of ", "bench_serving": "bench_serving, "}


@dataclass(frozen=True, slots=True)
class LoadFacts:
    """One server under one load, as it is shown: the fastest one, or for arrivals each of them."""

    kind: str
    words: str
    label: str
    tokens_per_s: float | None
    speedup: tuple[float, float, float] | None
    accept_length: float | None
    arrivals: tuple[float | None, ...] = ()
    """Seconds: first token median and 99 %, between tokens median and 99 %."""


def load_facts(loads: object) -> tuple[LoadFacts, ...]:
    """From the `loads` of an answer of `runs.bench`, whatever they hold. Raises nothing."""
    found: list[LoadFacts] = []
    for one in listed(loads)[:MOST_LOADS]:
        load = mapping(one)
        rows = [mapping(row) for row in listed(load.get("rows"))[:16]]
        if load.get("kind") == "latency":
            found += [_facts(load, row) for row in rows]
        elif rows:
            found.append(_facts(load, max(rows, key=lambda row: _ratio(row)[0])))
    return tuple(found)


def listed(value: object) -> Sequence[Any]:
    """The list; an empty one in place of anything else."""
    return value if isinstance(value, list | tuple) else ()


def _facts(load: Mapping[Any, Any], row: Mapping[Any, Any]) -> LoadFacts:
    value, low, high = _ratio(row)
    return LoadFacts(
        kind=plain(str(load.get("kind", "")))[:20],
        words=_words(load),
        label=plain(str(row.get("label", "")))[:20],
        tokens_per_s=number(row.get("tokens_per_s")),
        speedup=(value, low, high) if value > 0 else None,
        accept_length=number(row.get("accept_length")),
        arrivals=tuple(number(row.get(name)) for name in ("ttft_p50", "ttft_p99", "itl_p50", "itl_p99")),
    )


def _ratio(row: Mapping[Any, Any]) -> tuple[float, float, float]:
    found = tuple(number(row.get(name)) or 0.0 for name in ("speedup", "speedup_low", "speedup_high"))
    value, low, high = found
    return (value, low, high) if 0 <= low <= high < 1e6 and 0 <= value < 1e6 else (0.0, 0.0, 0.0)


def _words(load: Mapping[Any, Any]) -> str:
    name, flight, stop = load.get("name"), number(load.get("concurrency")), load.get("natural_stop")
    if isinstance(name, str) and name:
        return _NAMES.get(str(load.get("kind")), "") + plain(name)[:40]
    told = [f"{flight:.0f} in flight" if flight is not None else "", "forced length" if stop is False else ""]
    return _NAMES.get(str(load.get("kind")), "") + ", ".join(part for part in told if part)


def load_lines(loads: Iterable[LoadFacts], width: int, glyphs: Glyphs) -> list[Line]:
    """Speed under every load, then arrivals of tokens; empty where nothing but the first load was measured."""
    found = list(loads)
    speed = [one for one in found if one.kind != "latency"]
    arrivals = [one for one in found if one.kind == "latency"]
    room = max(10, width - 48)
    lines: list[Line] = []
    if len(speed) > 1:
        head = cell("load", room, glyphs) + cell("best", 10, glyphs) + f"{'tokens/s':>9}{'times':>7}"
        lines.append(((cell(head + f"{'95 % interval':>14}{'accept':>8}", width, glyphs), "head"),))
        lines += [_speed_line(one, room, width, glyphs) for one in speed]
    if arrivals:
        head = cell("arrivals, ms", room, glyphs) + cell("setting", 10, glyphs) + f"{'first':>8}{'99 %':>9}"
        lines.append(((cell(head + f"{'each':>10}{'99 %':>9}", width, glyphs), "head"),))
        lines += [_arrival_line(one, room, width, glyphs) for one in arrivals]
    return lines


def _speed_line(one: LoadFacts, room: int, width: int, glyphs: Glyphs) -> Line:
    times = interval = ABSENT
    look = "plain"
    if one.speedup is not None:
        value, low, high = one.speedup
        times, interval = f"{value:.2f}x", f"{low:.2f} to {high:.2f}" if high < 1000 else "not known"
        look = "good" if low > 1.0 else "bad" if high < 1.0 else "warn"
    head = cell(one.words, room, glyphs) + cell(one.label, 10, glyphs) + f"{_short(one.tokens_per_s, 0):>9}"
    told = f"{times:>7}{interval:>14}{_short(one.accept_length, 2):>8}"
    return ((cell(head, min(width, len(head)), glyphs), "plain"), (cell(told, max(0, width - len(head)), glyphs), look))


def _arrival_line(one: LoadFacts, room: int, width: int, glyphs: Glyphs) -> Line:
    figures = [_short(None if value is None else value * 1000, 1) for value in one.arrivals]
    text = cell(one.words, room, glyphs) + cell(one.label, 10, glyphs) + f"{figures[0]:>8}{figures[1]:>9}"
    return ((cell(text + f"{figures[2]:>10}{figures[3]:>9}", width, glyphs), "plain"),)


def _short(value: float | None, places: int) -> str:
    return ABSENT if value is None or not 0 <= value < 1e7 else f"{value:.{places}f}"
