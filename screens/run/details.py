"""How are a process's argv and environment, and a run's figures, put into lines of a given width?"""

from collections.abc import Sequence

from rich.cells import cell_len

from eagle3ops.screens.feeds.machine import STALE_S, ProcessRow
from eagle3ops.screens.feeds.series import Group, Series
from eagle3ops.screens.run.parts import Environment, ProcessEntry, command_lines
from eagle3ops.screens.run.plot import Curve, figure, plot
from eagle3ops.screens.run.tables import clock_time, process_state, wrapped
from eagle3ops.screens.widgets.cells import ABSENT, Line, amount, cell, rate, size
from eagle3ops.screens.widgets.glyphs import Glyphs, history_line
from eagle3ops.words import plain

SIGNS = "0123456789abcdefghijklmnopqrstuvwxyz"
"""Of curves."""


def process_detail(
    entry: ProcessEntry,
    live: ProcessRow | None,
    environment: Environment | None,
    why_none: str,
    width: int,
    *,
    everything: bool,
) -> list[Line]:
    """All about one process.

    Args:
        entry: the process.
        live: what it does now; None when no sample knows it.
        environment: its variables; None with the reason in `why_none`.
        why_none: why there are none.
        width: cells.
        everything: all variables, and not only those that differ from the supervisor's.
    """
    told, look = process_state(entry, live)
    facts = [f"pid {ABSENT if entry.pid is None else entry.pid}"]
    facts += [f"rank {entry.rank}"] if entry.rank else []
    facts.append(f"started {clock_time(entry.started)}")
    facts += [f"ended {clock_time(entry.ended)}"] if entry.ended is not None else []
    facts += [f"log {entry.log} from byte {entry.offset:,}"] if entry.log else ["no log"]
    lines: list[Line] = [((told, look),)]
    lines += [((part, "dim"),) for part in wrapped(", ".join(facts), width)]
    if entry.state == "lost":
        text = "It lives no more, and nothing was left to say how it ended: everything was killed at once."
        lines += [((part, "warn"),) for part in wrapped(text, width)]
    elif entry.killed_by == "SIGKILL":
        text = "Killed: by the kernel when memory ran out, by kill -9, or by its run, which so ends what does not stop."
        lines += [((part, "warn"),) for part in wrapped(text, width)]
    if live is not None:
        lines += [((part, "plain"),) for part in wrapped(_now(live), width)]
    lines.append((("", "plain"),))
    lines += [((plain(part), "plain"),) for part in _cut(command_lines(entry.argv, width), width)]
    if entry.argv_left_out:
        lines.append(((f"and {entry.argv_left_out:,} more arguments", "warn"),))
    lines.append((("", "plain"),))
    if environment is None:
        return [*lines, *[((part, "dim"),) for part in wrapped(why_none, width)]]
    return [*lines, *environment_lines(environment, width, everything=everything)]


def _cut(lines: Sequence[str], width: int) -> list[str]:
    return [part for line in lines for part in (wrapped(line, width) if cell_len(line) > width else [line])]


def _now(live: ProcessRow) -> str:
    facts = [f"{amount(live.cpu, '%')} of a core", f"{size(live.rss)} of memory"]
    if live.gpus:
        facts.append(f"{size(live.gpu_memory)} on GPU {' '.join(map(str, live.gpus))}")
    if live.threads is not None:
        facts.append(f"{live.threads:.0f} thread{'s' if live.threads != 1 else ''}")
    facts.append(f"reads {rate(live.reads)}, writes {rate(live.writes)}")
    if live.wchan and live.wchan != "0":
        facts.append(f"waits in {live.wchan}")
    if live.age > STALE_S:
        facts.append(f"read {live.age:.0f} s before the last sample")
    return "now: " + ", ".join(facts)


def environment_lines(environment: Environment, width: int, *, everything: bool) -> list[Line]:
    """What differs first, then, where it is wanted, all the rest."""
    changed, removed = environment.changed, environment.removed
    count = len(environment.variables)
    if not environment.compared:
        head = f"Environment: {count} variables; those of the supervisor are not known"
    elif changed or removed:
        head = f"Environment: {count} variables, {len(changed) + len(removed)} other than the supervisor's"
    else:
        head = f"Environment: {count} variables, the same as the supervisor's"
    lines: list[Line] = [((part, "head"),) for part in wrapped(head, width)]
    for name in sorted(changed):
        value, before = changed[name]
        sign, was = ("+", "") if before is None else ("~", f"   (was {before})")
        lines += _variable(sign, f"{name}={value}{was}", width, "history")
    for name in sorted(removed):
        lines += _variable("-", f"{name}   (was {removed[name]})", width, "history")
    if everything or not environment.compared:
        for name in sorted(environment.variables.keys() - changed.keys()):
            lines += _variable(" ", f"{name}={environment.variables[name]}", width, "dim")
    return lines


def _variable(sign: str, text: str, width: int, look: str) -> list[Line]:
    first, *rest = wrapped(plain(text), max(1, width - 2))
    return [((sign + " ", "head"), (first, look)), *[(("  " + part, look),) for part in rest]]


def metric_head(width: int, glyphs: Glyphs) -> Line:
    """The heading of the figures."""
    name, values = _metric_widths(width)
    cells = [cell("figure", name, glyphs), cell("last", values, glyphs), cell("values", 8, glyphs, right=True)]
    return ((" ".join(cells), "head"),)


def _metric_widths(width: int) -> tuple[int, int]:
    name = max(8, min(34, width - 8 - 10 - 3 - 14))
    return name, max(6, width - name - 8 - 10 - 3)


def metric_line(group: Group, width: int, glyphs: Glyphs) -> Line:
    """One group of figures: its last values, and how its first member went."""
    name, values = _metric_widths(width)
    last = " ".join(_last(series, group.unit) for series in group.members.values())
    first = next(iter(group.members.values()))
    bad = any(series.bad for series in group.members.values())
    return (
        (cell(group.title, name, glyphs) + " ", "plain"),
        (cell(last, values, glyphs), "bad" if bad else "plain"),
        (f" {group.points:>8,} ", "dim"),
        (_small(first, 10, glyphs), "history"),
    )


def _last(series: Series, unit: str) -> str:
    return "NaN" if series.bad_last else figure(series.last, unit)


def _small(series: Series, width: int, glyphs: Glyphs) -> str:
    """How a series went on, in one row between its lowest and its highest value."""
    points = [y for _, y in series.points()]
    if len(points) < 2:
        return ""
    by = -(-len(points) // width)
    means: list[float | None] = []
    for at in range(0, len(points), by):
        known = [y for y in points[at : at + by] if y is not None]
        means.append(sum(known) / len(known) if known else None)
    numbers = [y for y in means if y is not None]
    if not numbers:
        return ""
    low, high = min(numbers), max(numbers)
    span = (high - low) or 1.0
    return history_line([None if y is None else (y - low) / span for y in means], 1.0, glyphs)


def figures_of(groups: Sequence[Group], stage: str) -> list[tuple[str, str]]:
    """Name and last value of every figure of a stage."""
    return [
        (f"{group.name} {member}".strip(), _last(series, group.unit))
        for group in groups
        if group.stage == stage and not group.name.endswith("/s")
        for member, series in group.members.items()
    ]


def curves_of(group: Group) -> tuple[list[Curve], str]:
    """The curves of a group and what they go over; single values become one curve over the numbers in their names."""
    members = list(group.members.items())
    single = len(members) > 1 and all(series.taken == 1 for _, series in members) and all(name for name, _ in members)
    if single:
        return [Curve(SIGNS[0], [(float(name), series.last) for name, series in members])], "number"
    return [Curve(SIGNS[at % len(SIGNS)], series.points()) for at, (_, series) in enumerate(members)], group.across


def metric_plot(
    group: Group, chosen: int, width: int, height: int, glyphs: Glyphs, *, log: bool, read: str
) -> list[Line]:
    """The plot of a group with its legend below."""
    curves, across = curves_of(group)
    unit = group.unit
    word = {"share": "%", "": "no unit", group.name: ""}.get(unit, unit)
    facts = "   ".join(fact for fact in (word, "logarithmic" if log else "", read) if fact)
    lines: list[Line] = [((group.title, "head"), (f"   {facts}", "dim"))]
    legend = _legend(group, chosen if len(curves) > 1 else -1, width)
    bad = sum(series.bad for series in group.members.values())
    if bad:
        legend.append(((f"{bad:,} value{'s' if bad != 1 else ''} no number: NaN or infinite", "bad"),))
    most = max((len(curve.points) for curve in curves), default=0)
    if most > 1:
        lines += plot(
            curves, width, max(0, height - len(lines) - len(legend)), glyphs,
            chosen=min(chosen, len(curves) - 1), unit=unit, across=across, log=log,
        )  # fmt: skip
    return [*lines, *legend]


def _legend(group: Group, chosen: int, width: int) -> list[Line]:
    """Sign, name and last value of every curve, and how low and high the chosen one was."""
    lines: list[Line] = []
    row: list[tuple[str, str]] = []
    used = 0
    for at, (name, series) in enumerate(group.members.items()):
        sign = SIGNS[at % len(SIGNS)]
        label = "" if name in ("", sign) else f" {name}"
        text = f"{sign}{label} {_last(series, group.unit)}" if len(group.members) > 1 else _last(series, group.unit)
        if row and used + cell_len(text) + 3 > width:
            lines.append(tuple(row))
            row, used = [], 0
        if row:
            row.append(("   ", "plain"))
            used += 3
        row.append((text, "bad" if series.bad_last else "history" if at == chosen else "plain"))
        used += cell_len(text)
    if row:
        lines.append(tuple(row))
    members = list(group.members.values())
    series = members[max(0, min(chosen, len(members) - 1))]
    if series.taken > 1 and series.last is not None:
        low, high = figure(series.low, group.unit), figure(series.high, group.unit)
        lines.append(((f"lowest {low}, highest {high}, {series.taken:,} values", "dim"),))
    return lines
