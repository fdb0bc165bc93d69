"""What would a pipeline do and need, next to what there is? The answer of `runs.plan`, as lines."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len

from eagle3ops.screens.feeds.values import mapping, number
from eagle3ops.screens.launch.marks import marks_of
from eagle3ops.screens.widgets.cells import ABSENT, Line, cell
from eagle3ops.screens.widgets.glyphs import Glyphs, bar
from eagle3ops.words import human_bytes, human_seconds, plain


@dataclass(frozen=True, slots=True)
class GpuRoom:
    """What GPUs there are, as the machine's samples say."""

    gpus: int = 0
    largest: float | None = None
    """Bytes of memory of the largest."""
    free: float | None = None
    """Bytes free on the one that has most free."""


def gpu_room(gpus: Sequence[Any]) -> GpuRoom:
    """From the rows of a snapshot."""
    totals = [gpu.mem_total for gpu in gpus if gpu.mem_total is not None]
    free = [gpu.mem_total - gpu.mem_used for gpu in gpus if gpu.mem_total is not None and gpu.mem_used is not None]
    return GpuRoom(len(gpus), max(totals, default=None), max(free, default=None))


def wrapped(text: str, width: int, look: str, indent: str = "") -> list[Line]:
    """Words over as many lines as they take."""
    pieces = textwrap.wrap(plain(text), max(8, width), initial_indent=indent, subsequent_indent=indent)
    return [((piece, look),) for piece in pieces] or [(("", look),)]


def due_stages(plan: Mapping[str, Any]) -> list[Mapping[Any, Any]]:
    """The stages that would run."""
    return due_of(_stages(plan))


def due_of(stages: Sequence[Mapping[Any, Any]]) -> list[Mapping[Any, Any]]:
    """Those of some stages that would run."""
    return [stage for stage in stages if stage.get("done") is not True]


def _stages(plan: Mapping[str, Any]) -> list[Mapping[Any, Any]]:
    found = plan.get("stages")
    return [stage for stage in found if isinstance(stage, Mapping)] if isinstance(found, list) else []


def plan_lines(plan: Mapping[str, Any], width: int, glyphs: Glyphs, gpus: GpuRoom) -> list[Line]:
    """Stages, what they are forecast to need, what is free, and what stands in the way.

    Args:
        plan: the answer of `runs.plan`.
        width: cells of a line.
        glyphs: what bars are drawn with.
        gpus: what the machine has.
    """
    marks = marks_of(glyphs)
    lines: list[Line] = []
    if plan.get("refused"):
        lines += wrapped(f"{marks.bad} REFUSED  {plan['refused']}", width, "bad")
        if plan.get("remedy"):
            lines += wrapped(f"{marks.arrow} {plan['remedy']}", width, "plain", "  ")
        lines.append(())
    stages = _stages(plan)
    if not stages:
        return [*lines, (("The answer names no stage.", "warn"),)]
    columns = _columns(stages, width)
    name = min(12, max(5, *(cell_len(plain(stage.get("stage", ""))) for stage in stages)))
    heads = [cell("stage", name, glyphs), cell("state", STATE, glyphs)]
    heads += [cell(word, FIGURE, glyphs, right=True) for word, _, _ in columns]
    lines.append(((" ".join(heads), "head"),))
    for stage in stages:
        lines += _stage(stage, name, columns, width, glyphs)
    return [*lines, (), *_sums(plan, width, glyphs, gpus), *_remarks(stages, width, glyphs)]


STATE, FIGURE = 8, 10
Column = tuple[str, str, Callable[[float], str]]


def _columns(stages: Sequence[Mapping[Any, Any]], width: int) -> list[Column]:
    """The figures that any stage has, the most telling ones first where there is no room for all."""
    every: list[Column] = [
        ("time", "seconds", human_seconds),
        ("disk", "disk_bytes", human_bytes),
        ("GPU", "gpu_memory_bytes", human_bytes),
        ("memory", "memory_bytes", human_bytes),
        ("tokens", "tokens", _count),
    ]
    known = [
        column
        for column in every
        if any(number(mapping(stage.get("forecast")).get(column[1])) is not None for stage in due_of(stages))
    ]
    kept = known[: max(1, (width - 12 - 1 - STATE) // (FIGURE + 1))]
    order = ("tokens", "disk", "memory", "GPU", "time")
    return sorted(kept, key=lambda column: order.index(column[0]))


def _stage(stage: Mapping[Any, Any], name: int, columns: Sequence[Column], width: int, glyphs: Glyphs) -> list[Line]:
    marks = marks_of(glyphs)
    forecast = mapping(stage.get("forecast"))
    title = cell(plain(stage.get("stage", "?")), name, glyphs)
    if stage.get("done") is True:
        return [((f"{title} ", "dim"), (cell(f"{marks.good} reused", STATE, glyphs), "good"))]
    figures = []
    for _, key, told in columns:
        value = number(forecast.get(key))
        figures.append(cell(ABSENT if value is None else told(value), FIGURE, glyphs, right=True))
    state = (f"{marks.bad} no", "bad") if stage.get("refusal") else (f"{marks.to_do} runs", "history")
    line: Line = (
        (f"{title} ", "plain"),
        (cell(state[0], STATE, glyphs), state[1]),
        (" " + " ".join(figures), "plain"),
    )
    why = stage.get("reason")
    return [line, *(wrapped(f"its output is not trusted: {why}", width, "warn", "  ") if why else [])]


def _sums(plan: Mapping[str, Any], width: int, glyphs: Glyphs, gpus: GpuRoom) -> list[Line]:
    """Each need against what is free; nothing is summed that does not add up."""
    due = due_stages(plan)
    if not due:
        return [(("Everything is done already: it would end at once.", "good"),)]
    forecasts = [mapping(stage.get("forecast")) for stage in due]

    def known(key: str) -> list[float]:
        return [value for one in forecasts if (value := number(one.get(key))) is not None]

    lines = [
        *_need(
            "disk",
            sum(known("disk_bytes")) if known("disk_bytes") else None,
            number(plan.get("free_bytes")),
            "free",
            width,
            glyphs,
        ),
        *_need(
            "memory",
            max(known("memory_bytes"), default=None),
            number(plan.get("available_memory_bytes")),
            "available",
            width,
            glyphs,
        ),
    ]
    need = max(known("gpu_memory_bytes"), default=None)
    if need or gpus.gpus:
        there = gpus.largest if gpus.gpus else None
        lines += _need("GPU", need, there, "on the largest", width, glyphs)
        if need and not gpus.gpus:
            lines.append((("       no GPU here: it runs on the CPU", "dim"),))
        elif need and gpus.free is not None and need > gpus.free:
            told = f"       only {human_bytes(gpus.free)} of GPU memory are free now: it may have to wait for a lease"
            lines += wrapped(told, width, "warn")
    seconds = known("seconds")
    unknown = [
        plain(stage.get("stage")) for stage in due if number(mapping(stage.get("forecast")).get("seconds")) is None
    ]
    told = human_seconds(sum(seconds)) if seconds else "not known yet"
    told = f"at least {told}" if unknown and seconds else told
    lines.append((("time   ", "head"), (told, "plain")))
    if unknown and seconds:
        lines += wrapped(f"without {', '.join(unknown)}: nothing is known of them yet", width, "dim", "       ")
    elif seconds:
        lines += wrapped("by what earlier stages of this root took, of any target", width, "dim", "       ")
    elif unknown:
        lines += wrapped("no run of this root has shown how long these take", width, "dim", "       ")
    return lines


def _need(word: str, need: float | None, there: float | None, how: str, width: int, glyphs: Glyphs) -> list[Line]:
    if need is None:
        told = "not forecast" + (f"; {human_bytes(there)} {how}" if there is not None else "")
        return [((f"{word:<7}", "head"), (told, "dim"))]
    share = need / there if there else None
    look = "plain" if share is None or share <= 0.8 else "warn" if share <= 1 else "bad"
    told = f"{human_bytes(need)} of {human_bytes(there)} {how}" if there is not None else human_bytes(need)
    if share is not None:
        # Never 0 % for something.
        percent = f"{share:.0%}" if share < 10 else f"{share:,.0f} times as much"
        told += f", {percent}" if share >= 0.01 or not need else ", under 1%"
    line: Line = ((f"{word:<7}", "head"), (told, look))
    room = width - 8 - cell_len(told)
    if share is not None and room >= 8:
        drawn = bar(min(1.0, share), min(20, room), glyphs)
        line = (*line, (" ", "plain"), (drawn, look if look != "plain" else "history"))
    return [line]


def _remarks(stages: Sequence[Mapping[Any, Any]], width: int, glyphs: Glyphs) -> list[Line]:
    lines: list[Line] = []
    for stage in stages:
        notes = mapping(stage.get("forecast")).get("notes")
        for note in notes[:20] if isinstance(notes, list) and stage.get("done") is not True else ():
            lines += wrapped(f"{plain(stage.get('stage'))}: {plain(note)}", width, "dim")
    return [(), *lines] if lines else []


def _count(value: float) -> str:
    for limit, size, unit in ((1e4, 1.0, ""), (1e7, 1e3, " k"), (1e10, 1e6, " M")):
        if value < limit:
            return f"{value / size:,.0f}{unit}"
    return f"{value / 1e9:,.0f} G"
