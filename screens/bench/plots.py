"""How does one see where drafts are accepted, and which settings are worth a look? Bars and a scatter of lines."""

from collections.abc import Sequence

from rich.cells import cell_len

from eagle3ops.screens.bench.model import MOST_POSITIONS, AcceptFacts, BenchFacts, SettingRow
from eagle3ops.screens.bench.tables import figure
from eagle3ops.screens.widgets.cells import ABSENT, Line, cell
from eagle3ops.screens.widgets.glyphs import Glyphs, bar
from eagle3ops.screens.widgets.wrapping import wrapped

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def accept_lines(accept: AcceptFacts, width: int, glyphs: Glyphs) -> list[Line]:
    """Accept length served and predicted, the acceptance of each position, and how many drafts were correct."""
    lines = [*_accept_words(accept, width), *alarm_lines(accept, width)]
    lines += _bars("draft position", accept.by_position, accept.predicted_by_position, 1, width, glyphs)
    served, predicted = _shares(accept.histogram), _shares(accept.predicted_histogram)
    lines += _bars("correct drafts", served, predicted, 0, width, glyphs)
    return lines


def _accept_words(accept: AcceptFacts, width: int) -> list[Line]:
    rest = "no prediction to hold it against"
    if accept.gap is not None and accept.predicted is not None:
        rest = f"predicted {figure(accept.predicted)}, gap {max(-9.99, min(9.99, accept.gap)):+.1%}"
    known = accept.steps is not None and 0 <= accept.steps < 1e12
    steps = f", {accept.steps:,.0f} steps" if known else ""
    head, rest = f"served {figure(accept.served)} tokens a step at {accept.setting}", rest + steps
    if cell_len(head) + 2 + cell_len(rest) <= width:
        return [((head, "head"), (f", {rest}", "plain"))]
    return [((head, "head"),), *(((piece, "plain"),) for piece in wrapped(rest, width))]


def alarm_lines(accept: AcceptFacts, width: int) -> list[Line]:
    """The alarm: where the gap starts, what the wiring measured again says, who is left to suspect, and the text."""
    alarm, text = accept.alarm, accept.diversity
    lines: list[Line] = []
    if alarm is not None and alarm.fired:
        lines += _painted(f"✗ ALARM  {alarm.words}", "bad", width, most=5)
        for at in alarm.positions:
            mark = "▸" if at.position == alarm.start else " "
            told = (
                f"{mark} position {at.position:.0f}: {100 * (at.served - at.predicted):+.1f} points "
                f"({100 * at.low:+.1f} to {100 * at.high:+.1f}), {at.tokens:+.2f} tokens"
            )
            lines.append(((told[:width], "bad" if mark == "▸" else "plain"),))
        word, look = {True: ("✓ PASS", "good"), False: ("✗ FAIL", "bad"), None: ("· no verdict", "warn")}[alarm.wiring]
        lines += _painted(f"{word}  wiring, measured again: {alarm.wiring_reason or 'not yet'}", look, width, most=4)
        for name, state, why, look_at in alarm.suspects:
            if state in ("likely", "possible") and name != "wiring":
                end = f"; {look_at}" if look_at else ""
                lines += _painted(f"? {name}, {state}: {why}{end}", "warn", width, most=3)
    elif alarm is not None and alarm.kind == "unclear":
        lines += _painted(f"· {alarm.words}", "warn", width, most=4)
    if text is not None:
        lines += _painted(f"{'·' if text.passed else '✗ ALARM '} text: {text.words}",
                          "plain" if text.passed else "bad", width, most=4)  # fmt: skip
    return lines


def _painted(text: str, look: str, width: int, *, most: int) -> list[Line]:
    return [((piece, look),) for piece in wrapped(text, width, indent=2, most=most)]


def _bars(
    title: str, served: Sequence[float], predicted: Sequence[float], first: int, width: int, glyphs: Glyphs
) -> list[Line]:
    """One row a position: a bar for what was served and one for what was predicted, each with its share."""
    if not served and not predicted:
        return []
    two = bool(predicted)
    room = max(4, (width - 15 - 8 * (1 + two) - 2 * two) // (1 + two))
    head = cell(title, 15, glyphs) + cell("served", room + 8, glyphs) + ("  predicted" if two else "")
    lines: list[Line] = [((cell(head, width, glyphs), "head"),)]
    count = max(len(served), len(predicted))
    for at in range(min(count, MOST_POSITIONS)):
        parts: list[tuple[str, str]] = [(f"{at + first:>13}  ", "plain")]
        for number, shares in enumerate((served, predicted)[: 1 + two]):
            share = shares[at] if at < len(shares) else None
            told = ABSENT if share is None else f"{share:.1%}"
            parts += [(("  " if number else "") + bar(share, room, glyphs), "history"), (f"{told:>8}", "plain")]
        lines.append(tuple(parts))
    if count > MOST_POSITIONS:
        lines.append(((f"{count - MOST_POSITIONS} more are not shown", "dim"),))
    return lines


def _shares(histogram: Sequence[float]) -> tuple[float, ...]:
    total = sum(histogram)
    return tuple(count / total for count in histogram) if total > 0 else ()


def pareto_lines(facts: BenchFacts, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Throughput against accept length, a letter for each setting: capital where no other setting is better in both.

    Args:
        facts: the benchmark.
        width: cells.
        height: rows of the plot itself.
        glyphs: what to draw with.
    """
    points = [row for row in facts.settings if row.tokens_per_s is not None and row.accept_length is not None]
    points = points[: len(LETTERS)]
    if len(points) < 2 or width < 30 or height < 3:
        return []
    xs, ys = [row.tokens_per_s or 0.0 for row in points], [row.accept_length or 0.0 for row in points]
    room = width - 9
    grid = [[" "] * room for _ in range(height)]
    for at, row in enumerate(points):
        x, y = _place(xs[at], xs, room), height - 1 - _place(ys[at], ys, height)
        grid[y][x] = _letter(at, row) if grid[y][x] == " " else "*"
    lines: list[Line] = [((cell("accept length (tokens a step) over tokens/s", width, glyphs), "head"),)]
    for y, cells in enumerate(grid):
        label = f"{max(ys):.2f}" if y == 0 else f"{min(ys):.2f}" if y == height - 1 else ""
        lines.append((((f"{label:>7} " if len(label) <= 7 else " " * 8) + "│", "dim"), ("".join(cells), "history")))
    low, high = f"{min(xs):.0f}", f"{max(xs):.0f} tokens/s"
    lines.append(((" " * 8 + "└" + "─" * room, "dim"),))
    lines.append(((cell(" " * 9 + low + high.rjust(max(0, room - len(low))), width, glyphs), "dim"),))
    return [*lines, *_legend(points, width, glyphs)]


def _place(value: float, values: Sequence[float], cells: int) -> int:
    low, high = min(values), max(values)
    share = (value - low) / (high - low) if high > low else 0.5
    return min(cells - 1, max(0, round(share * (cells - 1))))


def _letter(at: int, row: SettingRow) -> str:
    return LETTERS[at].lower() if row.dominated_by else LETTERS[at]


def _legend(points: Sequence[SettingRow], width: int, glyphs: Glyphs) -> list[Line]:
    """Which letter is which setting, and by which other one it is outdone."""
    told = []
    for at, row in enumerate(points):
        words = f"{_letter(at, row)} {row.label}" + (f" (under {row.dominated_by})" if row.dominated_by else "")
        told.append((words, "dim" if row.dominated_by else "plain"))
    broad = max(len(words) for words, _ in told) + 2
    across = max(1, width // broad)
    return [
        tuple((cell(words, min(broad, width), glyphs), look) for words, look in told[at : at + across])
        for at in range(0, len(told), across)
    ]
