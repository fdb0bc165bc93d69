"""How are several curves drawn with characters, with a scale that a person can read? Pure text, no terminal.

Dots of braille, two by four in a cell, where the terminal has them; otherwise the sign of each curve. One curve stands
out, the others are dim: a colour for each would cost bytes in every cell, and say nothing to those who cannot see it.
Each curve is named at its right end.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from eagle3ops.screens.widgets.cells import Line, cell
from eagle3ops.screens.widgets.glyphs import Glyphs
from eagle3ops.words import human_bytes, human_seconds

_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Of a braille cell: column, then row from above."""
SMALLEST = (16, 3)
"""Cells that the curves need; there is no plot below that."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One curve."""

    sign: str
    """One character that names it."""
    points: Sequence[tuple[float, float | None]]
    """In order of x; None is a gap."""


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to dots."""

    low: float
    high: float
    log: bool

    def placer(self, cells: int) -> Callable[[float], int]:
        """From a value to one of so many cells: 0 at the lower end of the scale; ends are not passed over."""
        low, high = (_log(one) if self.log else one for one in (self.low, self.high))
        # Halved, as the span itself may be beyond what a float holds.
        half, start, top = high / 2 - low / 2, low / 2, cells - 1
        by = top / half if half > 0 else math.inf
        if not math.isfinite(by) or not math.isfinite(half):
            return lambda value: top // 2
        if self.log:
            return lambda value: min(top, max(0, int((_log(value) / 2 - start) * by + 0.5)))
        return lambda value: min(top, max(0, int((value / 2 - start) * by + 0.5)))


def _log(value: float) -> float:
    return math.log10(value) if value > 0 else -300.0


def figure(value: float | None, unit: str, *, whole: bool = False) -> str:
    """`5.213`, `47.1 %`, `1.2 GiB`, `12 s`, `1.31 x`; `-` for what is not known, and never longer than 12 cells.

    Args:
        value: a finite number.
        unit: as `series.unit_of` says; `nats` and the like are not repeated with every number.
        whole: for ticks: no more digits than needed.
    """
    if value is None:
        return "-"
    if unit == "share":
        return f"{100 * value:.{0 if whole else 1}f} %" if abs(value) < 1e6 else f"{value:.2e}"
    if unit == "bytes" and 0 <= value < 1e18:
        return human_bytes(value)
    if unit == "s" and 10 <= value < 1e7:
        return human_seconds(value)
    short = f" {unit}" if unit in ("s", "x", "%") else ""
    if value != 0 and not 1e-3 <= abs(value) < 1e7:
        return f"{value:.2e}{short}"
    if abs(value) >= 1000:
        return f"{value:,.0f}{short}"
    text = f"{value:.4g}" if not whole else f"{value:.6g}"
    return text + short


def ticks(scale: Scale, count: int) -> list[float]:
    """At most `count` round values within a scale."""
    low, high = scale.low, scale.high
    if count < 1 or not high / 2 - low / 2 > 0:
        return [low]
    if scale.log and low > 0:
        first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
        by = max(1, -(-(last - first + 1) // count))
        if last > first:
            return [10.0**power for power in range(first, last + 1, by)]
    rough = (high / count) - (low / count)
    power = math.floor(math.log10(rough))
    for factor in (1, 2, 5, 10, 20):
        step = factor * 10.0**power
        if step <= 0 or not math.isfinite(step):
            return [low, high]
        first = math.ceil(low / step - 1e-9)
        last = math.floor(high / step + 1e-9)
        if last - first + 1 <= count:
            return [number * step for number in range(int(first), int(last) + 1)] or [low]
    return [low, high]


def plot(
    curves: Sequence[Curve],
    width: int,
    height: int,
    glyphs: Glyphs,
    *,
    chosen: int = 0,
    unit: str = "",
    across: str = "step",
    log: bool = False,
) -> list[Line]:
    """The curves in `height` lines of at most `width` cells; fewer lines, with words, where nothing can be drawn."""
    values = [y for curve in curves for _, y in curve.points if y is not None]
    places = [x for curve in curves for x, y in curve.points if y is not None]
    if not values:
        return [((cell("No value that is a number yet.", width, glyphs).rstrip(), "dim"),)]
    log = log and min(values) > 0
    scale, along = _scale(values, log=log, share=unit == "share"), Scale(min(places), max(places), log=False)
    rows = height - 1
    marks = {}
    for tick in ticks(scale, max(2, rows // 2 if rows < 12 else rows // 3)):
        marks[_row(scale, tick, rows)] = figure(tick, unit, whole=True)
    left = max(cell_len(text) for text in marks.values())
    # An axis at the left, and at the right a blank and the signs of the curves, two with a comma: 1 and 0 are not 10.
    room = width - left - 2 - 4
    if room < SMALLEST[0] or rows < SMALLEST[1]:
        return [((cell("No room for a plot.", width, glyphs).rstrip(), "dim"),)]
    canvas = _draw(curves, room, rows, scale, along, dots=bool(glyphs.dots))
    ends = _ends(curves, rows, scale, chosen)
    lines: list[Line] = []
    for row in range(rows):
        label = marks.get(row, "").rjust(left)
        lines.append(
            (
                (f"{label} {glyphs.through[0]}", "dim"),
                *_row_of(canvas, row, room, curves, chosen, glyphs),
                *ends.get(row, ()),
            )
        )
    lines.append(((" " * (left + 1) + _feet(along, room + 1, across, glyphs), "dim"),))
    return lines


def _scale(values: Sequence[float], *, log: bool, share: bool) -> Scale:
    low, high = min(values), max(values)
    if share and low >= 0 and high <= 1:
        # A share near nothing must not look like one that fills the scale.
        low = 0.0 if low < 0.5 * high or high - low < 0.02 else low
    if high - low <= 1e-12 * max(abs(high), abs(low)):
        pad = abs(high) * 0.1 or 1.0
        return Scale(low - pad if not log else low / 2, high + pad if not log else high * 2, log)
    return Scale(low, high, log)


def _row(scale: Scale, value: float, rows: int) -> int:
    return rows - 1 - scale.placer(rows)(value)


Canvas = dict[tuple[int, int], dict[int, int]]
"""(row, column) -> curve -> bits of a braille cell; any bits where dots are not used."""


def _draw(curves: Sequence[Curve], room: int, rows: int, scale: Scale, along: Scale, *, dots: bool) -> Canvas:
    across, down = (2, 4) if dots else (1, 1)
    wide, high = room * across, rows * down
    canvas: Canvas = {}
    across_of, up_of = along.placer(wide), scale.placer(high)

    def dot(number: int, x: int, y: int) -> None:
        bits = canvas.setdefault((y // down, x // across), {})
        bits[number] = bits.get(number, 0) | (_BITS[x % 2][y % 4] if dots else 1)

    for number, curve in enumerate(curves):
        before: tuple[int, int] | None = None
        for x, y in _columns(curve.points, across_of):
            if y is None:
                before = None
                continue
            at = x, high - 1 - up_of(y)
            for point in _between(before, at) if before is not None else [at]:
                dot(number, *point)
            before = at
    return canvas


def _columns(
    points: Sequence[tuple[float, float | None]], column_of: Callable[[float], int]
) -> list[tuple[int, float | None]]:
    """One value for each column of dots, the mean of those that fall into it: noise would blot the curves out."""
    sums: dict[int, tuple[float, int]] = {}
    for x, y in points:
        column = column_of(x)
        total, count = sums.get(column, (0.0, 0))
        sums[column] = (total, count) if y is None else (total + y, count + 1)
    return [(column, total / count if count else None) for column, (total, count) in sorted(sums.items())]


def _between(one: tuple[int, int], other: tuple[int, int]) -> list[tuple[int, int]]:
    """The dots of a straight line."""
    (x, y), (to_x, to_y) = one, other
    steps = max(abs(to_x - x), abs(to_y - y))
    if steps == 0:
        return [one]
    return [(x + (to_x - x) * step // steps, round(y + (to_y - y) * step / steps)) for step in range(steps + 1)]


def _row_of(
    canvas: Canvas, row: int, room: int, curves: Sequence[Curve], chosen: int, glyphs: Glyphs
) -> list[tuple[str, str]]:
    """One row of the curves, in as few parts as it has changes of look."""
    parts: list[tuple[str, str]] = []
    text, look = "", "dim"
    for column in range(room):
        bits = canvas.get((row, column))
        if bits is None:
            text += " "
            continue
        wanted = "history" if chosen in bits else "dim"
        if glyphs.dots:
            character = chr(ord(glyphs.dots) + _or(bits.values()))
        else:
            character = curves[chosen if chosen in bits else min(bits)].sign
        if wanted != look and text.strip():
            parts.append((text, look))
            text = ""
        look = wanted
        text += character
    parts.append((text, look))
    return parts


def _or(values: object) -> int:
    found = 0
    for value in values:  # type: ignore[attr-defined]
        found |= value
    return found


def _ends(curves: Sequence[Curve], rows: int, scale: Scale, chosen: int) -> dict[int, Line]:
    """The names of the curves at the height of their last values: two in a row at most, the chosen one always."""
    found: dict[int, list[tuple[str, str]]] = {}
    order = sorted(range(len(curves)), key=lambda number: number != chosen)
    for number in order:
        last = next((y for _, y in reversed(curves[number].points) if y is not None), None)
        if last is None:
            continue
        at = _row(scale, last, rows)
        for row in sorted(range(rows), key=lambda row: abs(row - at))[:3]:
            there = found.setdefault(row, [])
            if len(there) < (2 if row == at else 1):
                there += [(",", "dim")] if there else []
                there.append((curves[number].sign, "history" if number == chosen else "dim"))
                break
    return {row: ((" ", "dim"), *signs) for row, signs in found.items() if signs}


def _feet(along: Scale, room: int, across: str, glyphs: Glyphs) -> str:
    """What stands below: where x begins and ends, and what it counts."""
    first, last = figure(along.low, across, whole=True), figure(along.high, across, whole=True)
    word = "" if across == "s" else across
    rest = room - cell_len(first) - cell_len(last)
    middle = f" {word} ".center(rest) if rest >= len(word) + 2 else " " * max(1, rest)
    return first + middle + last if rest > 0 else cell(first, room, glyphs)
