"""How do the ledger's rows, one run and the comparison of two read in lines of a given width?"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import cell_len, chop_cells

from eagle3ops.screens.feeds.values import mapping, number
from eagle3ops.screens.feeds.watching import age
from eagle3ops.screens.ledger.book import LedgerRow
from eagle3ops.screens.widgets.cells import ABSENT, Line, cell
from eagle3ops.screens.widgets.glyphs import Glyphs
from eagle3ops.screens.widgets.status_marks import mark, outcome_mark
from eagle3ops.screens.widgets.wrapping import wrapped
from eagle3ops.words import human_seconds, plain

SHORT = {"verdict FAIL": "FAIL", "verdict UNDECIDED": "UNDECIDED"}
"""Where the whole word does not fit."""
NARROW = 70
"""Below this width a run's name is worth more than how long it took."""
WIDE = 120
"""From this width on there is room for more columns."""
SECTIONS = {
    "spec": "asked for (pipeline file)",
    "outcome": "outcome",
    "metrics": "figures",
    "verdicts": "verdicts",
    "versions": "versions",
    "keys": "stages by key (it changes with settings, inputs and the code that matters)",
}
"""What they are called, in the order in which they are shown."""


def table_head(width: int, glyphs: Glyphs) -> Line:
    """The heading over the rows."""
    return ((" ".join(_columns(["", "status", "run", "ended", "took", "accept", "speedup", "wiring"],
                               ["created", "job", "verdicts", "notes"], width, glyphs)), "head"),)  # fmt: skip


def _columns(short: Sequence[str], more: Sequence[str], width: int, glyphs: Glyphs) -> list[str]:
    """The cells of one row; those of `more` where there is room for them."""
    sign, status, run, when, took, accept, speedup, wiring = short
    created, job, verdicts, notes = more
    fixed = [
        cell(when, 10, glyphs, right=True),
        *([cell(took, 11, glyphs, right=True)] if width >= NARROW else []),
        cell(accept, 6, glyphs, right=True),
        cell(speedup, 7, glyphs, right=True),
        cell(wiring, 6, glyphs),
    ]
    left = [cell(sign, 1, glyphs), cell(status, 14 if width >= WIDE else 13, glyphs)]
    if width >= WIDE:
        fixed = [cell(created, 16, glyphs), *fixed, cell(verdicts, 10, glyphs)]
        left.append(cell(job, 9, glyphs))
    used = sum(map(cell_len, [*left, *fixed])) + len(left) + len(fixed) + 1
    room = max(4, width - used)
    if width < WIDE:
        return [*left, cell(run, room, glyphs), *fixed]
    name = min(room // 2, 44)
    return [*left, cell(run, name, glyphs), *fixed, cell(notes, max(0, room - name - 1), glyphs)]


def table_line(row: LedgerRow, width: int, glyphs: Glyphs, when: str, *, marked: bool, chosen: bool) -> Line:
    """One run in the table; `when` as `when_words` says."""
    glyph, look = mark(row.status)
    wiring = {"PASS": "✓ PASS", "FAIL": "✗ FAIL", "UNDECIDED": "? open"}.get(row.wiring, ABSENT)
    count = len(row.verdicts)
    verdicts = f"{count - len(row.failed)}/{count} PASS" if count else ABSENT
    note = row.note.get("outcome") or row.note.get("change") or row.note.get("hypothesis") or ""
    notes = f"{row.notes}: {note}" if row.notes else ""
    count_words = f" ({row.notes})" if row.notes and width < WIDE else ""
    cells = _columns(
        [
            "*" if marked else "",
            f"{glyph} {row.status if width >= WIDE else SHORT.get(row.status, row.status)}",
            ("> " if chosen else "") + row.name + count_words,
            when,
            human_seconds(row.took) if row.took is not None else ABSENT,
            figure(row.accept_length, "", 2),
            figure(row.speedup, "x", 2),
            wiring,
        ],
        [_stamp(row.created or row.started), row.job, verdicts, notes],
        width,
        glyphs,
    )
    faded = "dim" if row.status == "deleted" else "plain"
    parts: list[tuple[str, str]] = [(f"{cells[0]} ", "warn" if marked else faded), (f"{cells[1]} ", look)]
    at = 9 if width >= WIDE else 7 if width >= NARROW else 6
    if row.wiring == "FAIL":
        parts += [(" ".join(cells[2:at]) + " ", faded), (cells[at], "bad")]
        if rest := cells[at + 1 :]:
            parts.append((" " + " ".join(rest), faded))
    else:
        parts.append((" ".join(cells[2:]), faded))
    return tuple(parts)


def when_words(row: LedgerRow, now: float) -> str:
    """How long ago it ended, or since when it runs."""
    if row.status == "running" and row.started is not None:
        return f"for {age(now - row.started)}"
    return f"{age(now - row.when)} ago" if row.when else ABSENT


def _stamp(seconds: float | None) -> str:
    if seconds is None or not 0 <= seconds < 4e9:
        return ABSENT
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def figure(value: float | None, unit: str, places: int) -> str:
    """`1.23x`; `-` for what is not known."""
    return ABSENT if value is None else f"{value:.{places}f}{unit}" if abs(value) < 1e6 else f"{value:.1e}{unit}"


def number_words(value: object) -> str:
    """A figure as short as it can be read; `-` for what is absent."""
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and abs(value) < 1e15:
        return f"{value:,.0f}" if value == int(value) and abs(value) >= 1000 else f"{value:.5g}"
    return f"{value:,}" if isinstance(value, int) and abs(value) < 10**15 else plain(value)[:2000]


def detail_lines(row: LedgerRow, notes: Sequence[Mapping[str, Any]] | None, width: int, glyphs: Glyphs) -> list[Line]:
    """Everything that the ledger knows of one run.

    Args:
        row: the run.
        notes: all its notes, oldest first; None when only the last words are known.
        width: of the lines.
        glyphs: to draw with.
    """
    glyph, look = mark(row.status)
    said = f"  job {row.job}" if row.job else ""
    said += f"  created {_stamp(row.created)}" if row.created else ""
    said += f"  took {human_seconds(row.took)}" if row.took is not None else ""
    lines: list[Line] = [
        ((f"{glyph} {row.status}", look), (cell(said, max(0, width - len(row.status) - 2), glyphs), "plain"))
    ]
    if row.cause:
        lines += _wrapped(row.cause, width, "bad" if row.status in ("failed", "damaged", "verdict FAIL") else "plain")
    if row.stages:
        lines += _flow([(f"{mark(status)[0]} {name}", mark(status)[1]) for name, status in row.stages], width, 2)
    lines += _note_lines(row, notes, width)
    if row.verdicts:
        told = [(outcome_mark(passed), name) for name, passed in row.verdicts.items()]
        lines += _flow([(f"{word} {name}", look) for (word, look), name in told], width)
    if row.patches:
        lines += _flow([(f"± {recipe} {standing}", "warn") for recipe, standing in row.patches.items()], width)
    if row.figures:
        lines += _pairs([(name, number_words(value)) for name, value in row.figures.items()], width, glyphs)
    return lines


def patch_lines(answer: Mapping[str, Any], width: int, glyphs: Glyphs) -> list[Line]:
    """The patches of this host's engines: what stands now and how, then what was done, the newest first."""
    standing = [mapping(one) for one in _listed(answer.get("standing"))]
    deeds = [mapping(one) for one in _listed(answer.get("deeds"))]
    if not deeds:
        return [(("No engine was ever patched from here: eagle3ops patch list shows what there is.", "dim"),)]
    lines: list[Line] = []
    for one in standing:
        how = _words(one.get("standing"))
        look = {"applied": "good", "drifted": "bad"}.get(how, "warn")
        told = f"{_words(one.get('recipe'))}  since {_since(one.get('applied'))}  {_words(one.get('site'))}"
        lines.append(((cell(how, 9, glyphs), look), (f" {told}"[: max(0, width - 9)], "plain")))
        for file in _listed(one.get("drifted"))[:5]:
            text = f"{_words(file)} is neither the patched nor the original file"
            lines += _wrapped(text, width, "bad")
    if not standing:
        lines.append((("No patch stands now.", "dim"),))
    head = f"{cell('when', 16, glyphs)} {cell('what', 10, glyphs)} {cell('recipe', 30, glyphs)} "
    head += f"{cell('engine', 12, glyphs)} files"
    lines.append(((cell(head, width, glyphs), "head"),))
    for one in deeds[:100]:
        files = _listed(one.get("files"))
        names = ", ".join(_words(file).rpartition("/")[2] for file in files[:4])
        front = f"{cell(_since(one.get('at')), 16, glyphs)} {cell(_words(one.get('what')), 10, glyphs)} "
        front += f"{cell(_words(one.get('recipe')), 30, glyphs)} {cell(_words(one.get('version')) or '-', 12, glyphs)} "
        lines.append(((cell(front + names, width, glyphs), "plain"),))
    left_out = answer.get("left_out")
    if isinstance(left_out, int) and left_out > 0:
        lines.append(((f"{left_out} older ones: eagle3ops patch log", "dim"),))
    return lines


def _listed(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else []


def _words(value: object) -> str:
    return plain(value)[:300] if isinstance(value, str) else ""


def _since(value: object) -> str:
    return _stamp(number(value))


def _note_lines(row: LedgerRow, notes: Sequence[Mapping[str, Any]] | None, width: int) -> list[Line]:
    told: Sequence[Mapping[str, Any]] = [row.note] if notes is None and row.note else notes or []
    lines: list[Line] = []
    for note in reversed(told):
        ts = mapping(note).get("ts")
        stamp = f"{_stamp(float(ts))}  " if isinstance(ts, int | float) and not isinstance(ts, bool) else ""
        for name in ("hypothesis", "change", "outcome"):
            text = mapping(note).get(name)
            if isinstance(text, str) and text:
                lines += _wrapped(f"{stamp}{name}: {plain(text)}", width, "plain", first=len(stamp) + len(name) + 1)
                stamp = " " * len(stamp)
    return lines


def _wrapped(text: str, width: int, look: str, *, first: int = 0) -> list[Line]:
    """A text over as many lines as it takes, its first `first` characters as a heading."""
    lines: list[Line] = [((piece, look),) for piece in chop_cells(text, max(1, width))[:20]]
    if first and lines and len(lines[0][0][0]) >= first:
        head = lines[0][0][0]
        lines[0] = ((head[:first], "head"), (head[first:], look))
    return lines


def _flow(pieces: Sequence[tuple[str, str]], width: int, gap: int = 3) -> list[Line]:
    """Pieces beside each other, over as many lines as it takes."""
    lines: list[Line] = []
    line: list[tuple[str, str]] = []
    room = width
    for text, look in pieces:
        if line and cell_len(text) > room:
            lines.append(tuple(line))
            line, room = [], width
        line += [(text, look), (" " * gap, "plain")]
        room -= cell_len(text) + gap
    return [*lines, tuple(line)] if line else lines


def _pairs(pairs: Sequence[tuple[str, str]], width: int, glyphs: Glyphs) -> list[Line]:
    """Names and values in as many columns as fit."""
    broad = min(width, max(cell_len(name) for name, _ in pairs) + 14)
    across = max(1, width // (broad + 2))
    rows = -(-len(pairs) // across)
    lines: list[Line] = []
    for at in range(rows):
        line: list[tuple[str, str]] = []
        for name, value in pairs[at::rows]:
            text = cell(name, max(1, broad - 13), glyphs)
            line += [(text + " ", "dim"), (cell(value, 12, glyphs, right=True) + "  ", "plain")]
        lines.append(tuple(line))
    return lines


def comparison_lines(answer: Mapping[str, Any], width: int, glyphs: Glyphs, *, unfolded: bool) -> list[Line]:
    """What differs between two runs and, unfolded, what does not.

    Args:
        answer: of `runs.compare`.
        width: of the lines.
        glyphs: to draw with.
        unfolded: show what is equal too.
    """
    runs = [mapping(run) for run in _list(answer.get("runs"))][:2]
    names = [plain(run.get("run_id", "?"))[:200] for run in runs] + ["?"] * (2 - len(runs))
    third = max(8, (width - 2) // 4)
    first = max(8, width - 2 * third - 4)
    # Where the whole id does not fit, the name is worth more than the date.
    names = [name if cell_len(name) <= third else name.split("-", 2)[-1] for name in names]
    lines: list[Line] = [((_row("", names[0], names[1], first, third, glyphs), "head"),)]
    known = [mapping(section) for section in _list(answer.get("sections"))]
    order = list(SECTIONS)
    for facts in sorted(known, key=lambda one: order.index(one["name"]) if one.get("name") in order else len(order)):
        name = plain(facts.get("name", ""))[:60]
        different = [entry for entry in _list(facts.get("different")) if isinstance(entry, list) and len(entry) == 3]
        equal = [entry for entry in _list(facts.get("equal")) if isinstance(entry, list) and len(entry) == 2]
        if not different and not equal:
            continue
        count = f"{len(different)} differ" if len(different) != 1 else "1 differs"
        title = f"{SECTIONS.get(name, name)}: {count if different else 'nothing differs'}, {len(equal)} equal"
        left_out = facts.get("left_out")
        if isinstance(left_out, int) and left_out > 0:
            title += f", {left_out} left out"
        lines.append(((cell(title, width, glyphs).rstrip(), "head" if different else "dim"),))
        for key, one, two in different:
            lines += _difference(plain(key), one, two, first, third, glyphs, gains=name == "metrics")
        if unfolded:
            for key, value in equal:
                text = cell(f"  {plain(key)}", first, glyphs) + " " + cell(number_words(value), 2 * third + 1, glyphs)
                lines.append(((text.rstrip(), "dim"),))
    for at, run in enumerate(runs):
        for note in _list(run.get("notes"))[-20:]:
            for kind in ("hypothesis", "change", "outcome"):
                if said := mapping(note).get(kind):
                    lines += _wrapped(f"{names[at]} {kind}: {plain(said)}", width, "plain", first=len(names[at]))
    return lines


def _difference(
    key: str, one: object, two: object, first: int, third: int, glyphs: Glyphs, *, gains: bool
) -> list[Line]:
    """One entry; long values go on below."""
    told = [number_words(one), number_words(two)]
    gain = _gain(one, two) if gains else ""
    pieces = [wrapped(text, third, most=4) for text in told]
    rows = max(map(len, pieces))
    lines: list[Line] = []
    for at in range(rows):
        cells = [piece[at] if at < len(piece) else "" for piece in pieces]
        name = f"  {key}" if at == 0 else ""
        if at == 0 and gain and cell_len(name) + cell_len(gain) < first:
            name += " " * (first - cell_len(name) - cell_len(gain)) + gain
        head = cell(name, first, glyphs) + " "
        lines.append(
            ((head, "plain"), (cell(cells[0], third, glyphs) + " ", "dim"), (cell(cells[1], third, glyphs), "warn"))
        )
    return lines


def _gain(one: object, two: object) -> str:
    """By how much a figure changed, in %."""
    numbers = [value for value in (one, two) if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < 2 or not numbers[0] or not all(abs(value) < 1e300 for value in numbers):
        return ""
    share = (numbers[1] - numbers[0]) / abs(numbers[0])
    return f"{share:+.1%}" if abs(share) < 100 else ""


def _row(key: str, one: str, two: str, first: int, third: int, glyphs: Glyphs) -> str:
    return f"{cell(key, first, glyphs)} {cell(one, third, glyphs)} {cell(two, third, glyphs)}"


def _list(value: object) -> list[Any]:
    return value[:1000] if isinstance(value, list) else []
