"""How is a benchmark put into lines of a given width? Intervals against 1, verdicts, what is recommended and why."""

import time
from collections.abc import Iterable, Sequence

from rich.cells import cell_len

from eagle3ops.screens.bench.model import (
    BASELINE,
    PROMOTED,
    VERDICTS,
    BenchFacts,
    Decision,
    Drafter,
    Gate,
    Interval,
    SettingRow,
)
from eagle3ops.screens.widgets.cells import ABSENT, WIDE, Line, cell
from eagle3ops.screens.widgets.glyphs import Glyphs
from eagle3ops.screens.widgets.wrapping import wrapped

LEFT, DASH, RIGHT, POINT, ONE = "├", "─", "┤", "●", "│"
"""Of an interval: its ends, the line between them, the value, and the place of 1."""

CHOSEN = "▸"


class Axis:
    """Where on a row of cells does a speed-up stand? From a little below the least to a little above the greatest."""

    def __init__(self, intervals: Iterable[Interval], width: int) -> None:
        known = list(intervals)
        low = min([1.0, *(one.low for one in known), *(one.value for one in known)])
        high = max([1.0, *(one.high for one in known), *(one.value for one in known)])
        pad = max(0.05, (high - low) * 0.06)
        self.low, self.high, self.width = max(0.0, low - pad), high + pad, max(0, width)

    def at(self, value: float) -> int:
        """The cell of a speed-up."""
        share = (value - self.low) / (self.high - self.low)
        return min(self.width - 1, max(0, round(share * (self.width - 1))))

    def heading(self) -> str:
        """The ends of the axis, and where 1 is."""
        row = [" "] * self.width
        marks = [(f"{self.low:.2f}x", 0), (f"{self.high:.2f}x", self.width - 5)]
        one = self.at(1.0) if self.width else 0
        for text, start in [("1x", one), *marks]:
            start = min(max(0, start), max(0, self.width - len(text)))
            if all(character == " " for character in row[max(0, start - 1) : start + len(text) + 1]):
                row[start : start + len(text)] = text
        return "".join(row[: self.width])

    def row(self, interval: Interval | None) -> str:
        """The interval as a bar with whiskers, the mark at 1 behind it; the baseline is a point there."""
        if self.width < 3:
            return " " * self.width
        row = [" "] * self.width
        row[self.at(1.0)] = ONE
        if interval is None:
            row[self.at(1.0)] = POINT
            return "".join(row)
        left, right = self.at(interval.low), self.at(interval.high)
        for place in range(left, right + 1):
            row[place] = DASH
        row[left], row[right] = LEFT, RIGHT
        row[self.at(interval.value)] = POINT
        return "".join(row)


def recommended_lines(facts: BenchFacts, width: int) -> list[Line]:
    """What is recommended, and why."""
    if facts.worth_it:
        return _told(f"✓ recommended: {facts.recommended}", "good", facts.why, width)
    return _told("✗ no drafter is recommended", "warn", facts.why, width)


def standing_lines(facts: BenchFacts, chosen: str, width: int, *, read_only: bool) -> list[Line]:
    """What is promoted, whether the chosen setting may be, and on what that was measured."""
    lines = promoted_lines(facts, width)
    gate, now = facts.gate.get(chosen), facts.current
    if gate is not None and (now is None or (now.run, now.setting) != (facts.run, chosen)):
        lines += gate_lines(chosen, gate, facts.why, width, read_only=read_only)
    when = f"at {stamp(facts.measured)}" if facts.measured is not None else ""
    told = ", ".join(part for part in (facts.conditions, when) if part)
    return [*lines, *(((piece, "dim"),) for piece in wrapped(f"Measured {told}.", width))] if told else lines


def promoted_lines(facts: BenchFacts, width: int) -> list[Line]:
    """What the target is served with."""
    if facts.damaged:
        return _told("✗ what is promoted is not known", "bad", facts.damaged, width)
    name = facts.target or "this target"
    now = facts.current
    if now is None:
        return _told("· nothing promoted", "dim", f"{name} is served without a drafter", width)
    mine = now.run == facts.run
    rest = [f"for {name}", *([f"since {stamp(now.when)}"] if now.when is not None else []), f"by {now.by}"]
    if now.forced:
        rest[-1] += f", by force: {now.reason}"
    head = f"{PROMOTED} promoted: " + (f"this drafter at {now.setting}" if mine else now.words)
    look = "warn" if now.forced else "good" if mine else "head"
    return _told(head, look, " ".join(rest), width)


def gate_lines(chosen: str, gate: Gate, why: str, width: int, *, read_only: bool) -> list[Line]:
    """Whether a setting may be promoted, and if not, why; without the figures that stand in `why` already."""
    lines: list[Line] = []
    if gate.refusals:
        told = [
            head if (figures := refusal.partition(" reaches ")[2]) and figures in why else refusal
            for refusal in gate.refusals
            for head in [refusal.partition(": ")[0]]
        ]
        lines += _told(f"✗ {chosen} is not to be promoted", "bad", "; ".join(told), width)
    else:
        lines += _told(f"✓ {chosen} may be promoted", "good", "" if read_only else "P does it", width)
    if gate.cautions:
        lines += [((piece, "dim"),) for piece in wrapped("  but: " + "; ".join(gate.cautions), width, indent=2, most=2)]
    return lines


def _told(head: str, look: str, rest: str, width: int) -> list[Line]:
    """Words with a look, and what follows in plain ones, over as many lines as it takes."""
    lines = wrapped(f"{head}  {rest}".rstrip(), width, indent=2, most=3)
    first = lines[0]
    if first.startswith(head):
        start: Line = ((head, look), (first[len(head) :], "plain"))
    else:
        start = ((first, look),)
    return [start, *(((line, "plain"),) for line in lines[1:])]


def setting_lines(facts: BenchFacts, chosen: str, width: int, glyphs: Glyphs) -> list[Line]:
    """One line a setting: throughput, speed-up with its interval drawn against 1, accept length, and a note."""
    # Where there is no room for words, the sign alone says it.
    note = 21 if width >= 86 else 13 if width >= 63 else 1
    axis = Axis((row.speedup for row in facts.settings if row.speedup), max(0, width - 50 - note))
    names = f"{'':2}{cell('setting', 8, glyphs)}{'tokens/s':>9}{'times':>7}{'95 % interval':>14}"
    head = f"{names} {axis.heading()} {'accept':>6}  {cell('', note, glyphs)}"
    lines: list[Line] = [((cell(head, width, glyphs), "head"),)]
    lines += [_setting_line(row, facts, chosen, axis, note, glyphs) for row in facts.settings]
    if facts.left_out:
        lines.append(((f"  {facts.left_out} more settings are not shown", "dim"),))
    return lines


def _setting_line(row: SettingRow, facts: BenchFacts, chosen: str, axis: Axis, note: int, glyphs: Glyphs) -> Line:
    speedup = row.speedup
    mark = CHOSEN if row.label == chosen else " "
    ratio = f"{speedup.value:.2f}x" if speedup else "1.00x" if row.label == BASELINE else ABSENT
    interval = f"{speedup.low:.2f} to {speedup.high:.2f}" if speedup else ABSENT
    front = f"{mark} {cell(row.label, 8, glyphs)}{figure(row.tokens_per_s, 1):>9}{ratio:>7}{interval:>14} "
    told, look = _note(row, facts, short=note < 20)
    return (
        (front, "plain"),
        (axis.row(speedup), speedup.look if speedup else "dim"),
        (f" {figure(row.accept_length):>6}  ", "plain"),
        (cell(told if note > 1 else told[:1], note, glyphs), look),
    )


def setting_at(line: Line) -> str:
    """The setting that a line of the page is about; empty for another line."""
    words = line[0][0][:10].split() if line else []
    return words[-1] if words and (len(words) == 1 or words[0] == CHOSEN) else ""


def _note(row: SettingRow, facts: BenchFacts, *, short: bool) -> tuple[str, str]:
    now = facts.current
    if now is not None and (now.run, now.setting) == (facts.run, row.label):
        return f"{PROMOTED} promoted", "good"
    if row.label == facts.recommended:
        return "✓ recommended", "good"
    if row.dominated_by:
        return "· dominated" if short else f"· dominated by {row.dominated_by}", "dim"
    return ("· served", "plain") if row.label == facts.served else ("", "plain")


def check_lines(facts: BenchFacts, width: int, glyphs: Glyphs, *, most: int = 2) -> list[Line]:
    """The verdicts with their reasons."""
    lines: list[Line] = []
    for check in facts.checks:
        (told, look), name = check.words, VERDICTS.get(check.name, check.name)
        front = f" {cell(name, 14, glyphs)} "
        reasons = wrapped(check.reason, max(8, width - 10 - len(front)), most=most)
        lines.append(((cell(told, 10, glyphs), look), (front, "plain"), (reasons[0], "plain")))
        lines += [((" " * (10 + len(front)) + reason, "plain"),) for reason in reasons[1:]]
    if facts.differ:
        lines += [((piece, "bad"),) for piece in wrapped(f"outputs differ: {', '.join(facts.differ)}", width, most=2)]
    return lines


def history_lines(facts: BenchFacts, width: int) -> list[Line]:
    """The last decisions about the target, the newest first."""
    lines: list[Line] = []
    for when, told in facts.history:
        front = f"{stamp(when):<16}  "
        pieces = wrapped(told, max(8, width - len(front)), most=2)
        lines.append(((front, "dim"), (pieces[0], "plain")))
        lines += [((" " * len(front) + piece, "plain"),) for piece in pieces[1:]]
    return lines


def launch_lines(facts: BenchFacts, width: int) -> list[Line]:
    """The command that serves what is promoted."""
    if facts.current is None or not facts.current.launch_line:
        return []
    return [((piece, "plain"),) for piece in wrapped(facts.current.launch_line, width, indent=2, most=8)]


def drafter_lines(
    rows: Sequence[Drafter], selected: str | None, width: int, glyphs: Glyphs, *, all_targets: bool
) -> tuple[Line, list[Line]]:
    """The heading and one line a drafter, speed-ups on one axis."""
    wide = width >= WIDE
    run, target = (37 if wide else 21), (23 if all_targets and wide else 0)
    verdict = 31 if wide else 13
    fixed = 3 + run + target + 8 + 7 + (32 if wide else 0) + 8 + verdict + 3
    axis = Axis((row.speedup for row in rows if row.speedup), max(0, width - fixed))
    head = f"{'':3}{cell('run', run, glyphs)}{cell('target', target, glyphs) if target else ''}"
    head += f"{cell('dtype', 10, glyphs) if wide else ''}{cell('setting', 8, glyphs)}{'times':>7}"
    head += f"{'95 % interval' if wide else '':>{14 * wide}}"
    head += f" {axis.heading()} {'accept':>7}{'gap' if wide else '':>{8 * wide}}  {cell('verdicts', verdict, glyphs)}"
    lines = [_drafter_line(row, selected, axis, (run, target, verdict), wide, glyphs) for row in rows]
    return ((cell(head, width, glyphs), "head"),), lines


def _drafter_line(
    row: Drafter, selected: str | None, axis: Axis, widths: tuple[int, int, int], wide: bool, glyphs: Glyphs
) -> Line:
    run, target, verdict = widths
    mark = (PROMOTED if row.promoted else " ") + (CHOSEN if row.run == selected else " ") + " "
    ratio = f"{row.speedup.value:.2f}x" if row.speedup else ABSENT
    front = cell(short_run(row.run, run - 1), run, glyphs)
    front += cell(row.target, target - 1, glyphs) + " " if target else ""
    front += f"{cell(row.dtype, 10, glyphs) if wide else ''}{cell(row.setting, 8, glyphs)}{ratio:>7}"
    if wide:
        front += f"{f'{row.speedup.low:.2f} to {row.speedup.high:.2f}' if row.speedup else ABSENT:>14}"
    gap = ABSENT if row.gap is None else f"{max(-9.99, min(9.99, row.gap)):+.1%}"
    accept = f" {figure(row.accept_length):>7}{gap if wide else '':>{8 * wide}}  "
    told, look = row.told(short=not wide)
    return (
        (mark, "good" if row.promoted else "plain"),
        (front + " ", "plain"),
        (axis.row(row.speedup) if row.speedup else " " * axis.width, row.speedup.look if row.speedup else "dim"),
        (accept, "plain"),
        (cell(told, verdict, glyphs), look),
    )


def short_run(run: str, width: int) -> str:
    """A run's id, without its date where it does not fit."""
    if cell_len(run) <= width:
        return run
    parts = run.split("-", 2)
    return parts[2] if len(parts) == 3 and parts[0].isdigit() else run


def decision_words(decision: Decision | None) -> str:
    """What a promotion means, for a question."""
    if decision is None:
        return "no drafter: the target alone"
    speedup = decision.speedup
    return decision.words + (f" ({speedup.value:.2f}x, {speedup.low:.2f} to {speedup.high:.2f})" if speedup else "")


def stamp(when: float | None) -> str:
    """A time of the host, as a date."""
    try:
        return ABSENT if when is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(when))
    except (OverflowError, ValueError, OSError):
        return ABSENT


def figure(value: float | None, places: int = 3) -> str:
    """A number with so many places, right for a column of seven cells."""
    return ABSENT if value is None or abs(value) >= 1e7 else f"{value:.{places}f}"
