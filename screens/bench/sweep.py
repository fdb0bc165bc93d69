"""How is a sweep put into lines? Every point, the best first: how fast, how soon a token, how much memory, how far."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3ops.screens.feeds.values import mapping, number
from eagle3ops.screens.widgets.cells import ABSENT, Line, cell, size
from eagle3ops.screens.widgets.glyphs import Glyphs
from eagle3ops.screens.widgets.wrapping import wrapped
from eagle3ops.words import human_seconds, plain

FRONT = "*"
MOST = 128
_LOOKS = {"finished": "plain", "dropped": "dim", "failed": "bad"}


@dataclass(frozen=True, slots=True)
class PointRow:
    """One point of a sweep."""

    setting: str
    concurrency: int
    value: float | None
    low: float | None
    high: float | None
    tokens_per_s: float | None
    token_s: float | None
    accept_length: float | None
    memory: float | None
    state: str
    why: str
    front: bool


@dataclass(frozen=True, slots=True)
class SweepFacts:
    """What an answer of `runs.bench` says of a sweep."""

    points: tuple[PointRow, ...]
    launch_line: str
    """Of the winner."""
    told: str
    """What it took."""


def sweep_facts(value: object) -> SweepFacts | None:
    """The sweep in an answer; None where there is none. Raises nothing."""
    found = mapping(value)
    listed = found.get("points")
    rows = [_row(row) for row in listed[:MOST] if isinstance(row, Mapping)] if isinstance(listed, list) else []
    if not rows:
        return None
    rows.sort(key=lambda row: (row.concurrency, row.state == "failed", -(row.value or 0.0)))
    decisive, winners = found.get("decisive"), found.get("winners")
    won = [mapping(one) for one in winners] if isinstance(winners, list) else []
    line = next((str(one.get("launch_line")) for one in won if one.get("concurrency") == decisive), "")
    return SweepFacts(tuple(rows), plain(line)[:8192], _told(found, len(rows)))


def _told(found: Mapping[Any, Any], points: int) -> str:
    left_out, failures = number(found.get("combinations_left_out")), number(found.get("failures"))
    starts, seconds = number(found.get("server_starts")), number(found.get("seconds"))
    parts = [f"{points} points"]
    parts += [f"{left_out:.0f} combinations left out"] if left_out else []
    parts += [f"{starts:.0f} server starts"] if starts is not None else []
    parts += [f"{failures:.0f} server{'s' * (failures != 1)} died or hung"] if failures else []
    parts += [human_seconds(seconds)] if seconds is not None and 0 <= seconds < 1e9 else []
    return ", ".join(parts)


def _row(row: Mapping[Any, Any]) -> PointRow:
    ratio, concurrency = mapping(row.get("speedup")), number(row.get("concurrency"))
    value, low, high = (_figure(ratio.get(name)) for name in ("value", "low", "high"))
    return PointRow(
        setting=plain(row.get("setting") or ABSENT)[:120],
        concurrency=int(min(9999, max(0, concurrency or 0))),
        value=value,
        low=low,
        high=high,
        tokens_per_s=_figure(row.get("tokens_per_s")),
        token_s=_figure(row.get("token_s")),
        accept_length=_figure(row.get("accept_length")),
        memory=number(row.get("memory_bytes")),
        state=plain(row.get("state") or ABSENT)[:10],
        why=plain(row.get("why") or "")[:600],
        front=row.get("front") is True,
    )


def _figure(value: object) -> float | None:
    found = number(value)
    return found if found is not None and 0 <= found < 1e7 else None


def sweep_lines(facts: SweepFacts, width: int, glyphs: Glyphs) -> list[Line]:
    """The table, the best of each concurrency first; narrow ones leave the interval and the memory out."""
    wide = width >= 84
    name = max(8, min(32, width - (66 if wide else 44)))
    head = f"  {cell('point', name, glyphs)}{'at once':>8}{'times':>7}"
    head += f"{'95 % interval':>14}" if wide else ""
    head += f"{'tokens/s':>10}{'ms/token':>9}{'accept':>7}"
    head += f"{'memory':>10}" if wide else ""
    lines: list[Line] = [((cell(head, width, glyphs), "head"),)]
    for row in facts.points:
        told = f"{FRONT if row.front else ' '} {cell(row.setting, name, glyphs)}{row.concurrency:>8}"
        told += f"{_number(row.value, 2, 'x'):>7}"
        if wide:
            known = row.low is not None and row.high is not None
            told += f"{f'{row.low:.2f} to {row.high:.2f}' if known else ABSENT:>14}"
        per_token = None if row.token_s is None else row.token_s * 1000
        told += f"{_number(row.tokens_per_s, 1):>10}{_number(per_token, 2):>9}{_number(row.accept_length, 2):>7}"
        told += f"{size(row.memory):>10}" if wide else ""
        look = "good" if row.front and row.low is not None and row.low > 1.0 else _LOOKS.get(row.state, "warn")
        lines.append(((cell(told, width, glyphs), look),))
        if row.state == "failed":
            lines += [((piece, "bad"),) for piece in wrapped(f"    failed: {row.why}", width, indent=4, most=2)]
    told = f"{FRONT} on the Pareto front of speed, time to a token, accept length and memory. {facts.told}."
    lines += [((piece, "dim"),) for piece in wrapped(told, width)]
    if facts.launch_line:
        lines += [((piece, "plain"),) for piece in wrapped(f"winner: {facts.launch_line}", width, indent=2, most=6)]
    return lines


def _number(value: float | None, places: int, unit: str = "") -> str:
    return ABSENT if value is None else f"{value:.{places}f}{unit}"
