"""How are the artifacts and verdicts of a run put into lines of a given width?"""

from collections.abc import Mapping

from eagle3ops.screens.run.parts import Artifact
from eagle3ops.screens.run.tables import clock_time, wrapped
from eagle3ops.screens.widgets.cells import ABSENT, Line, cell, size
from eagle3ops.screens.widgets.glyphs import Glyphs
from eagle3ops.screens.widgets.status_marks import outcome_mark
from eagle3ops.words import plain

MOST_EVIDENCE = 200
"""Lines of what a verdict rests on."""


def artifact_head(width: int, glyphs: Glyphs) -> Line:
    """The heading of the artifacts."""
    name, note = _artifact_widths(width)
    cells = [cell("stage", 9, glyphs), cell("there", 9, glyphs), cell("what", name, glyphs)]
    cells += [cell("size", 10, glyphs, right=True), cell("files", 7, glyphs, right=True)]
    return ((" ".join([*cells, cell("note", note, glyphs)]), "head"),)


def _artifact_widths(width: int) -> tuple[int, int]:
    rest = width - 9 - 9 - 10 - 7 - 5
    name = max(10, min(26, rest // 2))
    return name, max(0, rest - name)


def artifact_line(artifact: Artifact, width: int, glyphs: Glyphs) -> Line:
    """One artifact."""
    name, note = _artifact_widths(width)
    there, look = ("✓ there", "good") if artifact.exists else ("✗ gone", "bad")
    if artifact.why:
        there, look = "? unread", "warn"
    last = plain(artifact.path.rstrip("/").rpartition("/")[2]) + ("/" if artifact.kind == "folder" else "")
    files = ABSENT if artifact.files is None else f"{artifact.files:,}"
    rest = [
        cell(last, name, glyphs),
        cell(size(artifact.size), 10, glyphs, right=True),
        cell(files, 7, glyphs, right=True),
    ]
    return (
        (cell(artifact.stage, 9, glyphs) + " ", "plain"),
        (cell(there, 9, glyphs), look),
        (" " + " ".join(rest), "plain"),
        (" " + cell(artifact.note, note, glyphs), "dim"),
    )


def artifact_detail(artifact: Artifact, width: int) -> list[Line]:
    """All about one artifact."""
    lines: list[Line] = [((part, "plain"),) for part in wrapped(artifact.path, width)]
    if artifact.note:
        lines += [((part, "dim"),) for part in wrapped(artifact.note, width)]
    if artifact.why:
        lines += [((part, "warn"),) for part in wrapped(f"It cannot be looked at: {artifact.why}", width)]
    elif not artifact.exists:
        lines.append((("It is not there any more: deleted, or moved.", "bad"),))
    facts = [f"changed {clock_time(artifact.modified)}"] if artifact.modified is not None else []
    facts += ["made by an earlier run, and used again"] if artifact.reused else []
    if artifact.kind == "folder" and artifact.files is None:
        facts.append("too large to be counted here")
    if facts:
        lines += [((part, "dim"),) for part in wrapped(", ".join(facts), width)]
    if artifact.inside:
        lines.append((("", "plain"),))
        lines += [((f"{size(length):>11}  ", "plain"), (name, "plain")) for name, length in artifact.inside]
        if artifact.files is not None and artifact.files > len(artifact.inside):
            lines.append(((f"{'':>11}  and {artifact.files - len(artifact.inside):,} more", "dim"),))
    return lines


def verdict_line(name: str, passed: bool | None, reason: str, width: int, glyphs: Glyphs) -> Line:
    """One verdict; None is UNDECIDED."""
    told, look = outcome_mark(passed)
    room = min(24, max(8, width // 3))
    return (
        (told + "  ", look),
        (cell(name, room, glyphs), "plain"),
        ("  " + cell(reason, max(0, width - room - len(told) - 4), glyphs), "dim" if passed else "plain"),
    )


def verdict_detail(
    name: str, passed: bool | None, reason: str, evidence: Mapping[str, object], width: int
) -> list[Line]:
    """The whole reason, and what it rests on."""
    told, look = outcome_mark(passed)
    lines: list[Line] = [((told, look), (f"  {name}", "head"))]
    lines += [((part, "plain"),) for part in wrapped(reason, width)]
    flat = list(_flat(evidence, ""))
    for key, value in flat[:MOST_EVIDENCE]:
        lines += [((part, "dim"),) for part in wrapped(f"{key}: {value}", width, "  ")]
    if len(flat) > MOST_EVIDENCE:
        lines.append(((f"and {len(flat) - MOST_EVIDENCE} more in the stage's output", "dim"),))
    return lines


def _flat(value: object, prefix: str, depth: int = 0) -> list[tuple[str, str]]:
    """Key path and value, to a bounded depth."""
    inner: list[tuple[object, object]] = []
    if isinstance(value, Mapping):
        inner = list(value.items())
    elif isinstance(value, list) and any(isinstance(one, Mapping | list) for one in value):
        inner = list(enumerate(value, 1))
    if inner and depth < 5:
        found = []
        for key, one in inner[: MOST_EVIDENCE + 1]:
            found += _flat(one, f"{prefix}.{plain(key)}" if prefix else plain(key), depth + 1)
        return found
    if not prefix:
        return []
    words = {True: "yes", False: "no"}
    text = words[value] if isinstance(value, bool) else f"{value:.6g}" if isinstance(value, float) else plain(value)
    return [(prefix, text if len(text) <= 300 else f"{text[:300]} ...")]
