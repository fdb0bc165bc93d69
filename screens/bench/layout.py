"""Where on the page of a benchmark does what stand? One column where it is narrow, two where there is room."""

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

from eagle3ops.screens.bench.loads import load_lines
from eagle3ops.screens.bench.model import BenchFacts
from eagle3ops.screens.bench.plots import accept_lines, pareto_lines
from eagle3ops.screens.bench.sweep import sweep_lines
from eagle3ops.screens.bench.tables import (
    check_lines,
    history_lines,
    launch_lines,
    promoted_lines,
    recommended_lines,
    setting_lines,
    standing_lines,
)
from eagle3ops.screens.widgets.cells import WIDE, Line
from eagle3ops.screens.widgets.glyphs import Glyphs
from eagle3ops.screens.widgets.wrapping import wrapped

GAP = 3
TALL = 36
"""Rows of a terminal from which on there is room for larger plots and longer lists."""
PLOT_ROWS = (7, 11)
"""Of the scatter: where it is narrow or low, and where it is not."""


def bench_lines(
    facts: BenchFacts, chosen: str, width: int, height: int, glyphs: Glyphs, *, read_only: bool = False
) -> list[Line]:
    """The whole page.

    Args:
        facts: what there is to show.
        chosen: label of the setting that would be promoted.
        width: cells.
        height: rows that can be seen at once.
        glyphs: what to draw with.
        read_only: name no key that decides.
    """
    if width < 20:
        return []
    history = f"Decisions about {facts.target}"
    launch = "Launch line of what is promoted, y copies it"
    if facts.absent:
        words: list[Line] = [((piece, "warn"),) for piece in wrapped(f"No benchmark: {facts.absent}.", width)]
        decisions = _section(history, history_lines(facts, width), width)
        served = _section(launch, launch_lines(facts, width), width)
        return _stacked([[*words, *promoted_lines(facts, width)], decisions, served])
    top, standing = recommended_lines(facts, width), standing_lines(facts, chosen, width, read_only=read_only)
    if width < WIDE:
        sections = [
            [*top, *setting_lines(facts, chosen, width, glyphs), *standing],
            _section("Sweep", _swept(facts, width, glyphs), width),
            _section("Verdicts", check_lines(facts, width, glyphs), width),
            _section("Loads", load_lines(facts.loads, width, glyphs), width),
            _section("Accept length", accept_lines(facts.accept, width, glyphs) if facts.accept else [], width),
            _section("Pareto", pareto_lines(facts, width, PLOT_ROWS[0], glyphs), width),
            _section(history, history_lines(facts, width), width),
            _section(launch, launch_lines(facts, width), width),
        ]
        return _stacked(sections)
    left = (width - GAP) * 58 // 100
    right = width - GAP - left
    rows = PLOT_ROWS[height >= TALL]
    one = _stacked(
        [
            _section("Settings against the baseline", setting_lines(facts, chosen, left, glyphs), left),
            _section("Sweep", _swept(facts, left, glyphs), left),
            _section("Verdicts", check_lines(facts, left, glyphs, most=4), left),
            _section("Loads", load_lines(facts.loads, left, glyphs), left),
            _section(history, history_lines(facts, left), left),
            _section(launch, launch_lines(facts, left), left),
        ]
    )
    two = _stacked(
        [
            _section("Accept length", accept_lines(facts.accept, right, glyphs) if facts.accept else [], right),
            _section("Pareto", pareto_lines(facts, right, rows, glyphs), right),
        ]
    )
    return _stacked([[*top, *standing], beside(one, two, left)])


def _swept(facts: BenchFacts, width: int, glyphs: Glyphs) -> list[Line]:
    return sweep_lines(facts.sweep, width, glyphs) if facts.sweep is not None else []


def _section(title: str, lines: Sequence[Line], width: int) -> list[Line]:
    if not lines:
        return []
    return [((f"{title} ", "head"), ("─" * max(0, width - cell_len(title) - 1), "dim")), *lines]


def _stacked(sections: Sequence[Sequence[Line]]) -> list[Line]:
    found: list[Line] = []
    for section in sections:
        if section:
            found += [(), *section] if found else section
    return found


def beside(one: Sequence[Line], two: Sequence[Line], width: int) -> list[Line]:
    """Two columns; the first is `width` cells broad."""
    lines = []
    for at in range(max(len(one), len(two))):
        left = one[at] if at < len(one) else ()
        right = two[at] if at < len(two) else ()
        lines.append((*fitted(left, width), (" " * GAP, "plain"), *right) if right else left)
    return lines


def fitted(line: Line, width: int) -> Line:
    """The line in exactly `width` cells."""
    parts, used = [], 0
    for text, look in line:
        length = cell_len(text)
        if used + length > width:
            text, length = set_cell_size(text, width - used), width - used
        parts.append((text, look))
        used += length
    return (*parts, (" " * (width - used), "plain"))
