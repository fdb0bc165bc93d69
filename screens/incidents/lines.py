"""How do incidents, and the evidence and remedies of one, read in lines of a given width?"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells

from eagle3ops.screens.feeds.watching import age
from eagle3ops.screens.widgets.cells import Line, cell
from eagle3ops.screens.widgets.glyphs import Glyphs
from eagle3ops.watchdog.incidents.incident import Evidence, Incident, Remedy
from eagle3ops.words import plain

SEVERITY = {"error": ("✗ error", "bad"), "warn": ("▲ warn", "warn"), "info": ("● info", "plain")}
WIDE = 110
ACTION_WORDS = {
    "resume": "resume the run",
    "cancel": "cancel the run; asks first",
    "run": "open the room Run",
    "logs": "open the logs",
    "gpus": "open the room GPUs",
    "wiring": "open the room Wiring",
    "bench": "open the room Bench",
    "ledger": "open the room Ledger",
    "evidence": "open its files",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """One line below an incident that something can be done with."""

    evidence: Evidence | None = None
    remedy: Remedy | None = None


def choices_of(incident: Incident) -> list[Choice]:
    """What can be chosen: evidence first, then remedies."""
    return [*(Choice(evidence=one) for one in incident.evidence), *(Choice(remedy=one) for one in incident.remedies)]


def timeline_head(width: int, glyphs: Glyphs) -> Line:
    """The heading over the timeline."""
    return ((" ".join(_cells(["when", "", "", "run", "what"], width, glyphs)), "head"),)


def _cells(texts: Sequence[str], width: int, glyphs: Glyphs) -> list[str]:
    when, severity, stands, run, what = texts
    first = 16 if width >= WIDE else 10
    name = 28 if width >= WIDE else 14
    room = max(1, width - first - 7 - 4 - name - 4)
    return [
        cell(when, first, glyphs, right=width < WIDE),
        cell(severity, 7, glyphs),
        cell(stands, 4, glyphs),
        cell(run, name, glyphs),
        cell(what, room, glyphs),
    ]


def timeline_line(incident: Incident, width: int, glyphs: Glyphs, now: float) -> Line:
    """One incident in the timeline."""
    mark, look = SEVERITY.get(incident.severity, SEVERITY["info"])
    when = stamp(incident.last) if width >= WIDE else f"{age(now - incident.last)} ago"
    run = incident.run.split("-", 2)[-1] if incident.run else "the machine"
    title = incident.title + (f"  ({incident.count} times)" if incident.count > 1 else "")
    cells = _cells([when, mark, "over" if incident.over else "open", run, title], width, glyphs)
    if incident.over:
        return ((" ".join(cells), "dim"),)
    return ((cells[0] + " ", "plain"), (f"{cells[1]} {cells[2]} ", look), (" ".join(cells[3:]), "plain"))


def stamp(seconds: float) -> str:
    """`11-30 08:01:37`, by this machine's clock zone."""
    if not 0 < seconds < 4e9:
        return "-"
    return time.strftime("%m-%d %H:%M:%S", time.localtime(seconds))


def cut_evidence(choices: Sequence[Choice], at: int, width: int) -> str:
    """The evidence under the cursor, or else the first, where its line in the list does not hold all of it."""
    here = choices[at].evidence if at < len(choices) else None
    shown = here or next((choice.evidence for choice in choices if choice.evidence is not None), None)
    if shown is None:
        return ""
    room = width - 2 - (cell_len(f"Enter: {shown.log}") + 2 if shown.log else 0)
    return shown.what if cell_len(shown.what) > room else ""


def about_lines(incident: Incident, width: int, now: float, told: str = "") -> list[Line]:
    """What happened, when, and what that means; `told` is evidence that the list below has no room for."""
    mark, look = SEVERITY.get(incident.severity, SEVERITY["info"])
    lines: list[Line] = [((piece, look if not incident.over else "plain"),)
                         for piece in _wrap(f"{mark}: {incident.title}", width)]  # fmt: skip
    said = told.partition(": ")[2] or told
    if told and said not in incident.title:
        lines += [((piece, "plain"),) for piece in _wrap(told, width)]
    times = f"first {stamp(incident.first)}, " if stamp(incident.first) != stamp(incident.last) else ""
    times += f"last {stamp(incident.last)} ({age(now - incident.last)} ago)"
    if incident.count > 1:
        times += f", {incident.count} times"
    if incident.over:
        times += "; it is over"
    lines += [((piece, "dim"),) for piece in _wrap(times, width)]
    if incident.explanation:
        lines += [((piece, "plain"),) for piece in _wrap(incident.explanation, width)]
    return lines


def _wrap(text: str, width: int) -> list[str]:
    """At blanks where that is possible."""
    rows: list[str] = []
    row = ""
    for word in text.split(" "):
        if row and cell_len(row) + 1 + cell_len(word) > width:
            rows.append(row)
            row = word
        else:
            row = f"{row} {word}" if row else word
    return [piece for line in [*rows, row] for piece in chop_cells(line, max(1, width))][:12]


def choice_line(choice: Choice, width: int, glyphs: Glyphs, *, read_only: bool) -> Line:
    """One piece of evidence or one remedy, with what Enter does to it."""
    if choice.evidence is not None:
        text = f"  {choice.evidence.what}"
        does = f"Enter: {plain(choice.evidence.log)}" if choice.evidence.log else ""
    else:
        assert choice.remedy is not None
        text = f"→ {choice.remedy.words}"
        does = _does(choice.remedy, read_only=read_only)
    if not does:
        return ((cell(text, width, glyphs), "plain"),)
    room = max(8, width - min(cell_len(does), width // 2) - 2)
    told = cell(does, max(0, width - room - 2), glyphs)
    return ((cell(text, room, glyphs) + "  ", "plain" if choice.evidence else "good"), (told, "dim"))


def _does(remedy: Remedy, *, read_only: bool) -> str:
    if remedy.action in ACTION_WORDS and not (read_only and remedy.action in ("resume", "cancel")):
        return f"Enter: {ACTION_WORDS[remedy.action]}"
    return f"Enter copies: {remedy.command}" if remedy.command else ""
