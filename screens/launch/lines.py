"""How is the form drawn? One line a field, and below it all about the selected one."""

from collections.abc import Sequence

from rich.cells import cell_len

from eagle3ops.screens.launch.form import JOB, Form, Problem, Row, as_typed
from eagle3ops.screens.launch.marks import NOTHING, marks_of
from eagle3ops.screens.launch.plan import wrapped
from eagle3ops.screens.launch.yaml_text import look_up
from eagle3ops.screens.widgets.cells import Line, cell
from eagle3ops.screens.widgets.glyphs import Glyphs
from eagle3ops.words import plain

LABEL = 24


def form_lines(form: Form, rows: Sequence[Row], folded: set[tuple[str, ...]], width: int, glyphs: Glyphs) -> list[Line]:
    """One line for each row, `width` cells each."""
    return [
        _section_line(form, row, row.section.path in folded, width, glyphs)
        if row.field is None
        else _field_line(form, row, width, glyphs)
        for row in rows
    ]


def _section_line(form: Form, row: Row, folded: bool, width: int, glyphs: Glyphs) -> Line:
    marks = marks_of(glyphs)
    section = row.section
    fields = [*section.fields, *form.unknown(section)]
    changed = sum(form.changed(one.path) for one in fields)
    own = form.problems_at(row)
    wrong = sum(bool(form.problems_at(Row(section, one))) for one in fields) + len(own)
    mark = marks.folded if folded else marks.unfolded
    title = f"{mark} {section.name}"
    told: list[tuple[str, str]] = [(title, "head")]
    if wrong:
        told.append((f"  {marks.bad} {wrong} wrong", "bad"))
    if changed:
        told.append((f"  {marks.changed} {changed} changed", "warn"))
    used = sum(cell_len(text) for text, _ in told)
    many = f"{len(fields)} setting{'s' if len(fields) != 1 else ''}" if fields else "nothing to set"
    told.append((cell(f"  {many}", max(0, width - used), glyphs), "dim"))
    return tuple(told)


def _field_line(form: Form, row: Row, width: int, glyphs: Glyphs) -> Line:
    marks = marks_of(glyphs)
    of = row.field
    assert of is not None
    _, stands = form.value(of)
    wrong, changed = bool(form.problems_at(row)), form.changed(of.path)
    missing = of.required and not stands
    if wrong or missing or row.unknown:
        mark, look = marks.bad, "bad"
    elif changed:
        mark, look = marks.changed, "warn"
    else:
        mark, look = " ", "plain" if stands else "dim"
    label = min(LABEL, max(8, width // 3))
    if wrong and form.problems_at(row):
        note = "wrong"
    elif row.unknown:
        note = "unknown"
    elif missing:
        note = "wanted"
    elif changed:
        note = "changed" if stands else "taken out"
    else:
        note = "" if stands else "default"
    room = max(4, width - label - 4 - cell_len(note) - 1)
    value = plain(form.shown(of)) or (NOTHING if stands or of.has_default else "")
    return (
        (f" {mark} ", look if look in ("bad", "warn") else "plain"),
        (cell(of.label, label, glyphs), "plain"),
        (" ", "plain"),
        (cell(value, room, glyphs), look),
        (" " + note, look if note else "plain"),
    )


def about_lines(form: Form, row: Row | None, width: int, glyphs: Glyphs) -> list[Line]:
    """All about the selected line: what it does, what it takes, what it was, and what is wrong with it."""
    marks = marks_of(glyphs)
    if form.broken:
        return [
            *wrapped(f"{marks.bad} The text is no YAML that can be shown as a form: {form.broken}", width, "bad"),
            *wrapped(f"{marks.arrow} mend it in the text (v)", width, "plain", "  "),
        ]
    if row is None:
        return [(("Nothing here has these words.", "dim"),)]
    lines: list[Line] = []
    for problem in form.problems_at(row):
        lines += problem_lines(problem, width, glyphs)
    if row.field is None:
        return [*lines, *wrapped(row.section.words or row.section.name, width, "plain")]
    of = row.field
    name = "job" if of.path == JOB else ".".join(map(plain, of.path))
    lines += wrapped(f"{name}: {of.takes}" if of.takes else name, width, "head")
    if of.words:
        lines += wrapped(of.words, width, "plain")
    told = []
    if of.has_default:
        told.append(f"default {plain(as_typed(of, of.default)) or NOTHING}")
    if form.changed(of.path):
        stood, before = (True, form.origin.job) if of.path == JOB else look_up(form.start, of.path)
        told.append(f"at the start {plain(as_typed(of, before)) or NOTHING}" if stood else "not there at the start")
    if told:
        lines += wrapped("; ".join(told), width, "dim")
    return lines


def problem_lines(problem: Problem, width: int, glyphs: Glyphs) -> list[Line]:
    """What is wrong, in red, and what to do."""
    marks = marks_of(glyphs)
    lines = wrapped(f"{marks.bad} {problem.what}", width, "bad")
    return [*lines, *wrapped(f"{marks.arrow} {problem.remedy}", width, "plain", "  ")] if problem.remedy else lines


def text_problems(form: Form, width: int, glyphs: Glyphs) -> list[Line]:
    """What is wrong with the text, with the lines where it is; else what the keys do."""
    marks = marks_of(glyphs)
    if form.broken:
        return wrapped(f"{marks.bad} {form.broken}", width, "bad")
    lines: list[Line] = []
    for problem in form.problems:
        at = f"line {problem.line}: " if problem.line is not None else ""
        lines += wrapped(f"{marks.bad} {at}{problem.what}", width, "bad")
        if problem.remedy:
            lines += wrapped(f"{marks.arrow} {problem.remedy}", width, "plain", "  ")
    return lines or wrapped("Everything that is typed counts at once. Escape goes back to the form.", width, "dim")


def form_title(form: Form) -> str:
    """Where it came from, and how far one is from there."""
    if form.broken:
        return f"{form.origin.label}: no YAML"
    count = len(form.changes()) + (form.job != form.origin.job)
    wrong, label = len(form.problems), form.origin.label or "a new pipeline"
    told = [f"{count} changed"] if count else []
    told += [f"{wrong} wrong"] if wrong else []
    # A long name is cut at its end; how far one is from it is not.
    return f"{', '.join(told)}: {label}" if told else f"{label}, unchanged"
