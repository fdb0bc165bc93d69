"""How is a pipeline drawn as a graph of stages, in as many columns as there are?

The stages of a run follow one another; the arrows are the order in which they run. On a terminal with room every stage
is a box; on a low one it is two or three lines without a frame. Where one row is too short there are more.
"""

import math
from collections.abc import Sequence
from itertools import zip_longest

from rich.cells import cell_len

from eagle3ops.screens.feeds.watching import QUIET_S, StageRow, age
from eagle3ops.screens.widgets.cells import Line, cell
from eagle3ops.screens.widgets.glyphs import Glyphs, bar
from eagle3ops.screens.widgets.status_marks import mark, outcome_mark
from eagle3ops.words import human_seconds

NARROWEST = 15
"""Cells of a box or node; with fewer, `interrupted 100%` would be cut."""
WIDEST = 26
MOST = 48
"""Stages drawn at most."""


def graph_lines(stages: Sequence[StageRow], width: int, glyphs: Glyphs, *, boxed: bool) -> list[Line]:
    """The stages as boxes or as bare nodes; no line is wider than `width`."""
    if not stages or width < 4:
        return []
    shown = stages[:MOST]
    gap = 3 if boxed else 2
    broad = max(1, min(len(shown), (width + gap) // (NARROWEST + 2 * boxed + gap)))
    rows = math.ceil(len(shown) / broad)
    across = math.ceil(len(shown) / rows)
    lead = gap if rows > 1 else 0
    room = min(WIDEST, max(3, (width - lead - gap * (across - 1)) // across))
    lines: list[Line] = []
    for at in range(0, len(shown), across):
        some = shown[at : at + across]
        drawn = [_box(stage, room, glyphs) if boxed else _node(stage, room, glyphs) for stage in some]
        if boxed:
            # What no box of the row has anything to say in is left out.
            told = [row for row in range(2, 5) if any(_says(box[row]) for box in drawn)]
            drawn = [[box[row] for row in (0, 1, *told, 5)] for box in drawn]
        lines += _row(drawn, room, lead, glyphs, first=at == 0, boxed=boxed)
    if len(stages) > len(shown):
        lines.append(((cell(f"and {len(stages) - len(shown)} more stages", width, glyphs), "dim"),))
    return [cut(line, width) for line in lines]


def _says(line: Line) -> bool:
    return any(text.strip() for text, _ in line[1:-1])


def _row(drawn: Sequence[list[Line]], room: int, lead: int, glyphs: Glyphs, *, first: bool, boxed: bool) -> list[Line]:
    """Nodes side by side, with arrows between them."""
    gap = 3 if boxed else 2
    arrow = f" {glyphs.arrow} " if boxed else f"{glyphs.arrow} "
    blank: Line = ((" " * room, "plain"),)
    lines: list[Line] = []
    for row, pieces in enumerate(zip_longest(*drawn, fillvalue=blank)):
        has_arrow = row == (1 if boxed else 0)
        line: list[tuple[str, str]] = []
        for place, piece in enumerate(pieces):
            before = gap if place else lead
            if before:
                drawn_arrow = has_arrow and not (first and place == 0)
                line.append((arrow if drawn_arrow else " " * before, "dim"))
            line += piece
        lines.append(tuple(line))
    return lines


def _node(stage: StageRow, room: int, glyphs: Glyphs) -> list[Line]:
    """Two lines, and a third one while it works; each exactly `room` wide."""
    sign, look = mark(stage.status)
    lines: list[Line] = [
        ((f"{sign} ", look), (cell(stage.name, room - 2, glyphs), look if look != "good" else "plain")),
        ((cell("  " + _state(stage, room - 2), room, glyphs), look),),
    ]
    if stage.status == "running" and _share(stage) is not None:
        lines.append(_working(stage, room, glyphs, indent=2))
    return lines


def _box(stage: StageRow, room: int, glyphs: Glyphs) -> list[Line]:
    """Six lines, each exactly `room` wide."""
    sign, look = mark(stage.status)
    frame = look if stage.status in ("running", "failed", "interrupted", "verdict FAIL", "verdict UNDECIDED") else "dim"
    inner = max(0, room - 4)
    corner, side, flat = glyphs.corners, glyphs.side, glyphs.flat
    name = cell(stage.name, min(inner, cell_len(stage.name)), glyphs)
    top: Line = (
        (f"{corner[0]}{flat} ", frame),
        (name, "head" if stage.status != "waiting" else "dim"),
        (f" {flat * max(0, room - 5 - cell_len(name))}{corner[1]}", frame),
    )
    share = _share(stage)
    works = stage.status == "running"
    middle: Line = ((" " * inner, "plain"),)
    if share is not None and stage.status not in ("done", "reused", "waiting"):
        middle = ((bar(share, inner, glyphs), "history" if works else look),)
    elif works and stage.done is not None:
        middle = ((cell(f"{_count(stage.done)} {stage.unit}", inner, glyphs), "plain"),)
    pace = _left(stage) if works else ""
    if cell_len(pace) > inner:
        pace = f"{_left(stage, short=True)} left"
    inside: list[Line] = [
        ((cell(f"{sign} {_state(stage, inner - 2)}", inner, glyphs), look),),
        middle,
        ((cell(_rate(stage) if works else "", inner, glyphs), "plain"),),
        ((cell(pace, inner, glyphs), "plain"),),
    ]
    lines = [((f"{side} ", frame), *line, (f" {side}", frame)) for line in inside]
    bottom: Line = ((f"{corner[2]}{flat * max(0, room - 2)}{corner[3]}", frame),)
    return [cut(line, room) for line in (top, *lines, bottom)]


def _working(stage: StageRow, room: int, glyphs: Glyphs, *, indent: int) -> Line:
    """A bar, and the time left where there is room for both."""
    share, left = _share(stage), _left(stage, short=True)
    long = room - indent - (cell_len(left) + 1 if left else 0)
    if long < 3:
        left, long = "", max(0, room - indent)
    told: Line = ((" " * indent, "plain"), (bar(share, long, glyphs), "history"))
    return _fill((*told, (f" {left}", "plain")) if left else told, room)


def _state(stage: StageRow, room: int) -> str:
    """The word for how it stands, and how far it is or how long it took where there is room for that."""
    share, told = _share(stage), stage.status
    if stage.status == "running" and stage.attempt > 1 and cell_len(f"{told} again") <= room - 5:
        told += " again"
    if stage.status in ("running", "failed", "interrupted", "cancelled") and share is not None:
        told = f"{told} {share:.0%}"
    elif stage.seconds is not None and stage.status not in ("running", "waiting"):
        told = f"{stage.status} {human_seconds(max(0.0, stage.seconds))}"
    return told if cell_len(told) <= room else stage.status


def _share(stage: StageRow) -> float | None:
    if stage.done is None or not stage.total or stage.total <= 0:
        return None
    return min(1.0, max(0.0, stage.done / stage.total))


def _left(stage: StageRow, *, short: bool = False) -> str:
    if stage.left is None:
        return ""
    return age(stage.left) if short else f"{human_seconds(stage.left)} left"


def _rate(stage: StageRow) -> str:
    if stage.rate is None:
        return ""
    return f"{_count(stage.rate)} {stage.unit}/s"


def _count(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.1f}"


def now_line(stages: Sequence[StageRow], width: int, glyphs: Glyphs, now: float) -> Line:
    """What works at the moment, in full words; empty when nothing does."""
    stage = next((one for one in stages if one.status == "running"), None)
    if stage is None:
        return ()
    words = [f"{stage.name}, attempt {stage.attempt}:" if stage.attempt > 1 else f"{stage.name}:"]
    if stage.done is not None:
        of = f" of {_count(stage.total)}" if stage.total else ""
        words.append(f"{_count(stage.done)}{of} {stage.unit},")
    if stage.rate is not None:
        rate = f"{stage.rate:,.0f}" if stage.rate >= 100 else f"{stage.rate:.1f}"
        words.append(f"{rate} {stage.unit}/s,")
    if stage.left is not None:
        words.append(f"{human_seconds(stage.left)} left,")
    if len(words) == 1:
        words.append("no progress reported yet,")
    silence = None if stage.read is None else now - stage.read
    if silence is not None and silence > QUIET_S:
        words.append(f"said {age(silence)} ago,")
    quiet = silence is not None and silence > QUIET_S
    return ((cell(" ".join(words).rstrip(","), width, glyphs).rstrip(), "warn" if quiet else "plain"),)


def verdict_lines(
    verdicts: Sequence[tuple[str, bool | None, str]], width: int, glyphs: Glyphs, most: int
) -> list[Line]:
    """Badges side by side; those that failed come first, each with its reason in a line of its own."""
    lines: list[Line] = []
    failed = sorted((one for one in verdicts if not one[1]), key=lambda one: one[1] is None)
    for name, outcome, reason in failed[:most]:
        told, look = outcome_mark(outcome)
        room = max(0, width - len(told) - 1)
        lines.append(((told, look), (" " + cell(f"{name}  {reason}", room, glyphs).rstrip(), "plain")))
    row: list[tuple[str, str]] = []
    left = width
    for name, passed, _ in verdicts:
        if not passed:
            continue
        word = f" {name.rpartition('/')[2] or name}   "
        if cell_len(word) + 6 > left and row:
            if len(lines) + 1 >= most:
                break
            lines.append(tuple(row))
            row, left = [], width
        row += [("✓ PASS", "good"), (word, "plain")]
        left -= cell_len(word) + 6
    if row:
        lines.append(tuple(row))
    return [cut(line, width) for line in lines[:most]]


def _fill(line: Line, width: int) -> Line:
    missing = width - sum(cell_len(text) for text, _ in line)
    return (*line, (" " * missing, "plain")) if missing > 0 else cut(line, width)


def cut(line: Line, width: int) -> Line:
    """The line, no wider than `width`."""
    total = 0
    kept: list[tuple[str, str]] = []
    for text, look in line:
        size = cell_len(text)
        if total + size > width:
            while text and total + cell_len(text) > width:
                text = text[:-1]
            if text:
                kept.append((text, look))
            break
        kept.append((text, look))
        total += size
    return tuple(kept)
