"""How are runs, events, hosts and what waits for a person put into lines of a given width?"""

import shlex
import textwrap
import time
from collections.abc import Sequence

from rich.cells import cell_len, chop_cells

from eagle3ops.hosts.link import LinkState
from eagle3ops.screens.feeds.watching import QUIET_S, RunDetail, RunRow, age
from eagle3ops.screens.overview.attention import Matter
from eagle3ops.screens.overview.graph import cut
from eagle3ops.screens.widgets.cells import Line, cell
from eagle3ops.screens.widgets.glyphs import Glyphs
from eagle3ops.screens.widgets.status_marks import mark
from eagle3ops.words import plain

_LINK = {
    "connected": ("●", "good"),
    "connecting": ("◌", "warn"),
    "waiting": ("◌", "warn"),
    "stopped": ("✗", "bad"),
    "closed": ("■", "dim"),
    "idle": ("·", "dim"),
}
_EVENT_LOOKS = {"warn": "warn", "error": "bad"}
_MATTER_MARKS = {"bad": "✗", "warn": "▴", "head": "●", "plain": "·"}


def run_lines(rows: Sequence[RunRow], width: int, glyphs: Glyphs, now: float, *, stale: bool) -> list[Line]:
    """One line a run: mark, name, state, and how long ago it ended or began."""
    states = max((cell_len(row.status) for row in rows), default=0)
    lines: list[Line] = []
    for row in rows:
        sign, look = mark(row.status)
        since = age(now - row.since)
        tail = f" {cell(row.status, min(12, states), glyphs)} {since:>6}"
        name = cell(row.name, max(0, width - 2 - cell_len(tail)), glyphs)
        parts: Line = ((f"{sign} ", look), (name, "plain"), (tail, "dim" if look == "good" else look))
        lines.append(cut(tuple((text, "stale") for text, _ in parts) if stale else parts, width))
    return lines


def hosts_line(
    name: str, state: LinkState, way: str, read: float | None, others: Sequence[str], width: int, glyphs: Glyphs
) -> Line:
    """The host that is looked at, how the line to it stands, when it was read, and which others there are.

    Args:
        name: the host's name.
        state: of the line to it.
        way: its kind, or another word for a line that stands and brings nothing.
        read: seconds since the runs were last read; None when they never were.
        others: names of the hosts that one could switch to.
        width: cells.
        glyphs: for what is cut.
    """
    sign, look = _LINK.get(way, _LINK["waiting"])
    word = way if way != "waiting" else "not connected"
    age_told = "" if read is None or read < 3.0 else f", read {age(read)} ago"
    front: Line = ((f"{sign} ", look), (plain(name), "head"), (f" {word}{age_told}", look))
    why = f": {plain(state.why)}" if state.why and state.kind != "connected" else ""
    left = width - sum(cell_len(text) for text, _ in front)
    offer = f"   {len(others)} other host{'s' if len(others) != 1 else ''}: {', '.join(others)}   H switches"
    if not others:
        offer = ""
    if cell_len(why) + cell_len(offer) > left:
        offer = "   H: other hosts" if others else ""
    room = max(0, left - cell_len(offer))
    told = cell(why, min(room, cell_len(why)), glyphs)
    return cut((*front, (told, "plain"), (offer, "dim")), width)


def status_line(detail: RunDetail, now: float, width: int, glyphs: Glyphs) -> Line:
    """How the selected run stands, and why."""
    sign, look = mark(detail.row.status)
    parts: list[tuple[str, str]] = [(f"{sign} {detail.row.status}", look)]
    if detail.job and detail.job != "pipeline":
        parts.append((f"  job {detail.job}", "plain"))
    if detail.row.status == "running" and detail.last_event is not None:
        silence = now - detail.last_event
        parts.append((f"  last event {age(silence)} ago", "warn" if silence > QUIET_S else "dim"))
    elif detail.row.status != "running":
        # When it was interrupted nobody was left to say; its last word is the nearest.
        silent = detail.row.status == "interrupted" and detail.last_event is not None
        since = detail.last_event if silent and detail.last_event is not None else detail.row.since
        parts.append((f"  {'last event ' if silent else ''}{age(now - since)} ago", "dim"))
    left = width - sum(cell_len(text) for text, _ in parts)
    if detail.cause and left > 4:
        # `interrupted: its supervisor was killed` has the word that stands there already.
        why = cell(f"  {detail.cause.removeprefix(f'{detail.row.status}: ')}", left, glyphs).rstrip()
        parts.append((why, "plain" if detail.row.status == "cancelled" else "bad"))
    return cut(tuple(parts), width)


def event_lines(tail: Sequence[tuple[float, str, str]], width: int, most: int) -> list[Line]:
    """The events, newest first; a long one goes on in further lines, `most` in all."""
    lines: list[Line] = []
    room = max(8, width - 9)
    for ts, kind, text in reversed(tail):
        look = _EVENT_LOOKS.get(kind, "plain")
        words = textwrap.wrap(text[:2000], room, drop_whitespace=True) or [""]
        pieces = [piece for part in words for piece in chop_cells(part, room)] or [""]
        clock = time.strftime("%H:%M:%S ", time.localtime(ts)) if 0 <= ts < 1e11 else " " * 9
        for at, piece in enumerate(pieces[:6]):
            lines.append(((clock if at == 0 else " " * 9, "dim"), (piece, look)))
        if len(lines) >= most:
            break
    return lines[:most]


def matter_lines(found: Sequence[Matter], width: int, glyphs: Glyphs) -> list[Line]:
    """One line for each thing that waits: what, about what, and the key that goes on."""
    if not found:
        return [((cell("✓ nothing waits for you", width, glyphs).rstrip(), "good"),)]
    lines: list[Line] = []
    for matter in found:
        sign = _MATTER_MARKS.get(matter.look, "·")
        hint = f"  {matter.hint}" if matter.hint and width >= cell_len(matter.hint) + 34 else ""
        front = f"{sign} {matter.word} "
        room = max(0, width - cell_len(front) - cell_len(hint))
        lines.append(
            cut(
                (
                    (front, matter.look),
                    (cell(matter.text, min(room, cell_len(matter.text)), glyphs), "plain"),
                    (hint, "head"),
                ),
                width,
            )
        )
    return lines


def no_runs_lines(name: str, where: str, rooted: bool, width: int) -> list[Line]:
    """What to do where there is no run yet."""
    host = "" if name == "local" else f" --host {name}"
    root = f" --root {shlex.quote(where)}" if rooted else ""
    on = "" if name == "local" else f" on {name}"
    told: list[tuple[str, str]] = [
        (f"No runs in {where}{on} yet.", "head"),
        ("", "plain"),
        (
            "0 opens Launch, where a pipeline is filled in and started. Or start the demonstration in another "
            "terminal; it takes some minutes and appears here:",
            "plain",
        ),
        ("", "plain"),
        (f"  eagle3ops --job pipeline{host}{root}", "head"),
        ("", "plain"),
        (f"What it would do, with forecasts:  eagle3ops plan{host}{root}", "plain"),
        (f"What the machine has and lacks:    eagle3ops doctor{host}", "plain"),
    ]
    return _wrapped(told, width)


def unread_lines(what: str, remedy: str, width: int) -> list[Line]:
    """Why the runs of a host that answers cannot be read, and what to do."""
    told = [("The runs cannot be read.", "bad"), ("", "plain"), (what, "plain")]
    if remedy:
        told += [("", "plain"), (f"→ {remedy}", "head")]
    return _wrapped(told, width)


def link_lines(name: str, state: LinkState, width: int) -> list[Line]:
    """What stands in the way of seeing anything, and what to do."""
    told = [(f"{name}: {plain(state)}", "bad" if state.kind == "stopped" else "plain")]
    if state.remedy:
        told += [("", "plain"), (f"→ {plain(state.remedy)}", "head")]
    if state.kind == "stopped":
        told += [("", "plain"), ("Trying again is of no use until that is put right; then press ctrl+l.", "plain")]
    return _wrapped(told, width)


def _wrapped(told: Sequence[tuple[str, str]], width: int) -> list[Line]:
    """Prose in words; what is no prose, such as a command, as it is."""
    lines: list[Line] = []
    for text, look in told:
        prose = textwrap.wrap(text, max(8, width), break_on_hyphens=False) if not text.startswith(" ") else [text]
        lines += [((piece, look),) for part in prose or [""] for piece in chop_cells(part, max(8, width)) or [""]]
    return lines
