"""How is the wiring of a run put into lines? Verdict, layer map of all sides, fingerprints, layers by every name."""

import textwrap
from collections.abc import Collection, Mapping, Sequence

from rich.cells import cell_len, chop_cells

from eagle3ops.screens.feeds.watching import age
from eagle3ops.screens.widgets.cells import Line, cell
from eagle3ops.screens.widgets.glyphs import Glyphs
from eagle3ops.screens.widgets.signs import Signs, signs_of
from eagle3ops.screens.wiring.view import CHECKED, Judged, Segment, Side, WiringView
from eagle3ops.words import outcome_word, plain

WIDE = 130
"""From this width on map and fingerprints stand side by side."""
GAP = 4
MAP = 91
"""Cells of a map with all names written out."""
PRINTS = 61
"""Cells of a row of fingerprints, its word at the end; the map gives way to it."""
LOW = 30
"""In a pane of fewer rows the reason is put briefly."""
LEAST_MAP = 8
"""Rows that a map takes at least before it is folded."""


def wiring_lines(
    view: WiringView, width: int, height: int, glyphs: Glyphs, now: float, *, unfolded: bool = False
) -> list[Line]:
    """The whole room for a pane of `width` by `height` cells; more rows than that only where folding does not help."""
    signs = signs_of(glyphs)
    width = max(20, width)
    top = verdict_lines(view, width, signs, now, short=height < LOW and width < WIDE)
    if width >= WIDE:
        most = width - GAP - PRINTS
        left = min(MAP, most) if most >= MAP - 4 else min((width - GAP) * 11 // 20, most)
        below = max(LEAST_MAP, height - len(top) - 1)
        map_ = map_lines(view, left, 10_000 if unfolded else below, glyphs)
        room = width - GAP - left
        right = [*fingerprint_lines(view, room, signs, glyphs), *needed_lines(view, room), ()]
        checks = check_lines(view, room, signs, glyphs)
        right += [*checks, ()] if checks else []
        return [*top, (), *beside(map_, [*right, *name_lines(view, room, glyphs)], left, GAP)]
    prints = fingerprint_lines(view, width, signs, glyphs)
    checks = check_lines(view, width, signs, glyphs)
    names = [*checks, *([()] if checks else []), *name_lines(view, width, glyphs), (), *needed_lines(view, width)]
    rest = height - len(top) - len(prints) - 2
    map_ = map_lines(view, width, 10_000 if unfolded else max(LEAST_MAP, rest), glyphs)
    return [*top, (), *map_, (), *prints, (), *names]


def wrapped(text: str, width: int) -> list[str]:
    """The text in lines of at most `width` cells."""
    lines = textwrap.wrap(plain(text), max(1, width), break_long_words=True) or [""]
    return [
        piece for line in lines for piece in (chop_cells(line, max(1, width)) if cell_len(line) > width else [line])
    ]


def beside(left: Sequence[Line], right: Sequence[Line], width: int, gap: int) -> list[Line]:
    """Two columns; the first one is `width` cells wide."""
    lines: list[Line] = []
    for at in range(max(len(left), len(right))):
        one, other = (side[at] if at < len(side) else () for side in (left, right))
        room = width - sum(cell_len(text) for text, _ in one)
        lines.append((*one, (" " * (max(0, room) + gap), "plain"), *other) if other else one)
    return lines


def verdict_lines(view: WiringView, width: int, signs: Signs, now: float, *, short: bool = False) -> list[Line]:
    """PASS, FAIL or UNDECIDED, why, when, and what to do."""
    mark, look = _marked(view.verdict, signs) if view.verdict else (f"{signs.said} no verdict", "warn")
    since = f", judged {age(max(0.0, now - view.judged))} ago" if view.judged is not None else ""
    lines: list[Line] = [((mark, look), (f"  wiring{since}", "dim"))]
    for reason in _briefly(view) if short else view.reason.split("; "):
        lines += _hanging("  ", reason, width, "plain") if reason else []
    for advice in view.advice:
        lines += _hanging(f"{signs.arrow} ", advice, width, "head" if view.verdict in ("FAIL", "UNDECIDED") else "dim")
    return lines


def _marked(verdict: str, signs: Signs) -> tuple[str, str]:
    """A verdict with its mark, and its look."""
    known = {"PASS": (signs.yes, "good"), "FAIL": (signs.no, "bad"), "UNDECIDED": ("?", "warn")}
    mark, look = known.get(verdict, ("-", "dim"))
    return f"{mark} {verdict}", look


def check_lines(view: WiringView, width: int, signs: Signs, glyphs: Glyphs) -> list[Line]:
    """What was compared beside the layers: a line each, and the whole reason of what is no PASS."""
    if not view.checks:
        return []
    lines: list[Line] = [((cell("Beside the layers", width, glyphs).rstrip(), "head"),)]
    for check in sorted(view.checks, key=lambda one: CHECKED.index(one.verdict)):
        mark, look = _marked(check.verdict, signs)
        sides = " and ".join(check.between)
        told = f"  {check.name}" + (f" ({sides})" if sides else "")
        lines.append(((mark, look), (cell(told, max(1, width - cell_len(mark)), glyphs).rstrip(), "plain")))
        if check.verdict != "PASS":
            lines += _hanging("  ", check.reason, width, "dim" if check.verdict == "not made" else "plain")
    return lines


def _briefly(view: WiringView) -> list[str]:
    """The reason in few words, where it is that other layers were found."""
    wrong = [(side, [segment for segment in side.segments if not segment.passed]) for side in view.sides]
    wrong = [(side, segments) for side, segments in wrong if segments]
    if not wrong or any(segment.served == segment.trained for _, segments in wrong for segment in segments):
        return view.reason.split("; ")
    return [
        f"{side.name}: boundary " + ", ".join(f"{_id(one.served)} instead of {_id(one.trained)}" for one in segments)
        for side, segments in wrong
    ]


def _hanging(mark: str, text: str, width: int, look: str) -> list[Line]:
    indent = cell_len(mark)
    pieces = wrapped(text, width - indent)
    return [((mark if at == 0 else " " * indent, look), (piece, look)) for at, piece in enumerate(pieces)]


def fold(count: int, wanted: Collection[int], budget: int) -> list[range]:
    """The rows 0 to `count - 1` in order: ranges of one are shown, longer ones are folded into a row each.

    All `wanted` rows are shown, with as many neighbours as fit into `budget` rows.
    """
    if count <= budget:
        return [range(at, at + 1) for at in range(count)]
    wanted = {at for at in wanted if 0 <= at < count}
    best = _folded(count, wanted)
    for distance in range(1, count):
        grown = {at for middle in wanted for at in range(middle - distance, middle + distance + 1) if 0 <= at < count}
        rows = _folded(count, grown)
        if len(rows) > budget:
            break
        best = rows
        if len(grown) == count:
            break
    return best


def _folded(count: int, shown: Collection[int]) -> list[range]:
    rows: list[range] = []
    start = 0
    for at in [*sorted(shown), count]:
        if at > start:
            rows.append(range(start, at))
        if at < count:
            rows.append(range(at, at + 1))
        start = at + 1
    return rows


def map_lines(view: WiringView, width: int, budget: int, glyphs: Glyphs) -> list[Line]:
    """One row a boundary, embedding first: its name by every convention, and which side reads it as which segment."""
    if view.layers is None:
        return [((cell(view.target or "The target's layers are not known yet.", width, glyphs).rstrip(), "dim"),)]
    signs = signs_of(glyphs)
    wide = width >= MAP - 4
    columns = [_column(view.stored, view.of_stored, view, signs, "stored", wide=wide),
               {k: (f"{signs.said} {_seg(at, wide=wide)}", "plain") for at, k in enumerate(view.trained.boundaries)},
               _column(view.served, view.of_engine, view, signs, "served", wide=wide)]  # fmt: skip
    wanted = {0, view.layers}.union(*columns)
    hf, name = (17, 18) if wide else (5, 15)
    side = max(8, (width - name - hf - 19) // 3)
    engine = view.served.label if cell_len(view.served.label) <= side else "engine"
    heads = ["stored", "drafter", engine]
    head = f"{'':2}{'bound.':>6} {cell('what it is', name, glyphs)} "
    head += f"{cell('HF hidden_states' if wide else 'HF', hf, glyphs)} {'out':>4}  "
    head += " ".join(cell(text, side, glyphs) for text in heads)
    lines: list[Line] = [
        ((cell(view.target, width, glyphs).rstrip(), "plain"),),
        ((cell(head, width, glyphs), "head"),),
    ]
    for row in fold(view.layers + 1, wanted, max(1, budget - len(lines))):
        if len(row) > 1:
            told = f"{row[0]} to {row[-1]}: {len(row)} boundaries that nobody reads"
            lines.append(((cell(f"{signs.fold}{'':5} {told}", width, glyphs).rstrip(), "dim"),))
            continue
        lines.append(_map_row(row[0], view.layers, columns, (name, hf, side), glyphs, wide=wide))
    return lines


_Cells = Mapping[int, tuple[str, str]]


def _map_row(
    k: int, layers: int, columns: Sequence[_Cells], widths: tuple[int, int, int], glyphs: Glyphs, *, wide: bool
) -> Line:
    name, hf, side = widths
    tower = signs_of(glyphs).top if k == 0 else glyphs.last if k == layers else glyphs.branch
    what = "embedding" if k == 0 else f"after layer {k - 1}"
    if k == layers:
        what = "final, before norm" if name >= 18 else "final, pre-norm"
    index = "none: post-norm" if wide else "none"
    if k < layers:
        index = f"hidden_states[{k}]" if wide else f"[{k}]"
    read = any(k in column for column in columns)
    front = f"{tower}{k:>6} {cell(what, name, glyphs)} {cell(index, hf, glyphs)} {k - 1:>4}  "
    line: list[tuple[str, str]] = [(front, "plain" if read else "dim")]
    for column in columns:
        text, look = column.get(k, ("", "plain"))
        if cell_len(text) > side:
            # What is wrong is said in a narrow column, too: `not served` becomes `not`, rather than `not s...`.
            text = " ".join(text.split()[:2])
        line.append((cell(text, side, glyphs), look))
        line.append((" ", "plain"))
    return tuple(line[:-1])


def _seg(at: int, *, wide: bool) -> str:
    return f"segment {at}" if wide else f"seg {at}"


def _column(
    side: Side, judged: Judged | None, view: WiringView, signs: Signs, verb: str, *, wide: bool
) -> dict[int, tuple[str, str]]:
    """By boundary, what a side holds there: measured where there is a verdict, else as it says itself."""
    found: dict[int, tuple[str, str]] = {}
    if judged is None or not judged.segments:
        for at, k in enumerate(side.boundaries):
            expected = view.trained.boundaries
            differs = bool(expected) and (at >= len(expected) or expected[at] != k)
            found[k] = (f"{'!' if differs else signs.said} {_seg(at, wide=wide)}", "warn" if differs else "plain")
        return found
    for segment in judged.segments:
        if not segment.passed and segment.trained is not None:
            found.setdefault(segment.trained, (f"{signs.no} not {verb}", "bad"))
    for segment in judged.segments:
        if segment.served is None:
            continue
        mark, look = (signs.yes, "good") if segment.passed else (signs.no, "bad")
        if segment.passed is None or (not segment.passed and segment.served == segment.trained):
            mark, look = "?", "warn"
        found[segment.served] = (f"{mark} {_seg(segment.number, wide=wide)}", look)
    return found


def fingerprint_lines(view: WiringView, width: int, signs: Signs, glyphs: Glyphs) -> list[Line]:
    """One row a segment and side, the differing ones marked; then what is needed to pass."""
    if not view.sides:
        return [((cell(f"No fingerprints: {view.reason or 'there is no verdict'}", width, glyphs).rstrip(), "dim"),)]
    # How far it is to the next best, in rows of 80 cells as well.
    head = f"{'seg':>3} {'trained':>7} {'found':>6} {'error':>8} {'margin':>8} {'next':>5} {'cosine':>8} "
    lines: list[Line] = [((cell(head, width, glyphs), "head"),)]
    for side in view.sides:
        mark, look = _marked(outcome_word(side.passed), signs)
        name = cell(side.name or "side", max(1, width - cell_len(mark) - 2), glyphs).rstrip()
        lines.append(((name, "plain"), (f"  {mark}", look)))
        for segment in side.segments:
            figures = (
                (str(segment.number), 3),
                (_id(segment.trained), 7),
                (_id(segment.served), 6),
                (_figure(segment.error), 8),
                (_margin(segment), 8),
                (_id(segment.runner_up), 5),
                (_cosine(segment.cosine), 8),
            )
            cells = [cell(text, room, glyphs, right=True) for text, room in figures]
            word = f"{signs.yes} same" if segment.passed else f"{signs.no} differs"
            if segment.passed is None or (not segment.passed and segment.served == segment.trained):
                word = "? unclear"
            lines.append(
                (
                    (" ".join(cells), "plain" if segment.passed else "bad"),
                    (f" {word}", "good" if segment.passed else "bad"),
                )
            )
    if view.agreement is not None:
        enough = view.least_agreement is None or view.agreement >= view.least_agreement
        least = "" if view.least_agreement is None else f" (at least {view.least_agreement:.0%})"
        told = f"{view.agreement:.1%} of the stored final states predict the engine's own token{least}"
        lines += _hanging(f"{signs.yes if enough else signs.no} ", told, width, "good" if enough else "bad")
    return lines


def needed_lines(view: WiringView, width: int) -> list[Line]:
    """What the figures mean, and which of them pass."""
    if not view.sides:
        return []
    told = (
        "error: relative, to the nearest boundary of the reference model; margin: how many times farther the next is."
    )
    if view.most_error is not None and view.least_margin is not None:
        told += f" A segment passes up to {view.most_error:.2g} and from {view.least_margin:.2g} x."
    if view.probes is not None and view.probe_tokens is not None:
        told += f" {view.probes} probes of up to {view.probe_tokens} tokens."
    return [((piece, "dim"),) for piece in wrapped(told, width)]


def _cosine(value: float | None) -> str:
    """Five places; what no cosine can be is not spelled out."""
    return "-" if value is None else f"{value:.5f}" if abs(value) <= 1.001 else "?"


def _id(value: int | None) -> str:
    return "-" if value is None else str(value)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.4f}"[:8]


def _margin(segment: Segment) -> str:
    if segment.margin is None:
        return "exact" if segment.error == 0 else "-"
    return "> 1e6 x" if segment.margin > 1e6 else f"{segment.margin:.1f} x"


def name_lines(view: WiringView, width: int, glyphs: Glyphs) -> list[Line]:
    """The layers of every side, as each convention writes them."""
    sides = (view.stored, view.trained, view.served)
    label = min(max(cell_len(side.label) for side in sides), max(8, width // 3)) + 1
    each = max(6, (width - label - 3) // 3)
    hf = "HF hidden_states" if each >= 16 else "HF states"
    heads = (("boundary", "boundary"), (hf, "hf_hidden_states"), ("layer outputs", "layer_outputs"))
    head = " ".join(
        [
            cell("by its own account" if label > 18 else "by itself", label, glyphs),
            *(cell(text, each, glyphs) for text, _ in heads),
        ]
    )
    lines: list[Line] = [((cell(head, width, glyphs), "head"),)]
    for side in sides:
        if not side.boundaries:
            told = side.words or "nothing is known"
            lines.append(
                ((cell(side.label, label, glyphs), "plain"), (" " + cell(told, width - label - 1, glyphs), "dim"))
            )
            continue
        ids = [", ".join(map(str, side.names[key])) if key in side.names else "none" for _, key in heads]
        wrong = side.boundaries != view.trained.boundaries and bool(view.trained.boundaries)
        text = " ".join([cell(side.label, label, glyphs), *(cell(one, each, glyphs) for one in ids)])
        lines.append(((text, "warn" if wrong else "plain"),))
        if side.words:
            lines += _hanging("  ", side.words, width, "warn")
    told = "boundary: EAGLE, vLLM, speculators. layer outputs: SpecForge, ModelOpt, SGLang's eagle_config."
    return [*lines, *[((piece, "dim"),) for piece in wrapped(told, width)]]
