"""How are the stages, processes, artifacts and verdicts of a run put into lines of a given width?"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells

from eagle3ops.screens.feeds.machine import ProcessRow
from eagle3ops.screens.feeds.watching import QUIET_S, RunDetail, StageRow, age
from eagle3ops.screens.gpus.process_table import STATES
from eagle3ops.screens.run.parts import Live, ProcessEntry
from eagle3ops.screens.widgets.cells import ABSENT, WIDE, Line, amount, cell, size
from eagle3ops.screens.widgets.glyphs import Glyphs, bar
from eagle3ops.screens.widgets.status_marks import mark
from eagle3ops.words import UNDECIDED, human_seconds, plain

COLUMNS = 105
"""From this width on a stage's pace has a column of its own."""


def marked(status: str) -> tuple[str, str]:
    """`● running` and its look."""
    sign, look = mark(status)
    return f"{sign} {status}", look


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """The text in lines of at most `width` cells, broken between words where that is possible."""
    lines: list[str] = []
    line = ""
    width = max(1, width)
    for word in plain(text).split(" "):
        joined = f"{line} {word}" if line else word
        if cell_len(joined) <= width:
            line = joined
            continue
        if line:
            lines.append(line)
            word = indent + word
        *whole, line = chop_cells(word, width) or [""]
        lines += whole
    return [*lines, line] if line or not lines else lines


def clock_time(ts: float | None) -> str:
    """`11-30 10:55:01` where the console is; `-` for what is not known."""
    if ts is None or not 0 <= ts < 1e11:
        return ABSENT
    return time.strftime("%m-%d %H:%M:%S", time.localtime(ts))


def run_lines(detail: RunDetail, now: float, width: int, *, may_resume: bool = False) -> list[Line]:
    """How the run stands; why it failed, and what to do: resume it, where that may be done here."""
    row = detail.row
    told, look = marked(row.status)
    facts = [f"job {detail.job}"] if detail.job else []
    if row.status == "running":
        facts.append(f"for {age(now - row.since)}")
    else:
        word = {"created": "created", "interrupted": "begun"}.get(row.status, "ended")
        facts.append(f"{word} {clock_time(row.since)}")
    silence = now - detail.last_event if row.status == "running" and detail.last_event is not None else 0.0
    if silence > QUIET_S:
        facts.append(f"nothing said for {age(silence)}")
    failed = sum(passed is False for _, passed, _ in detail.verdicts)
    undecided = sum(passed is None for _, passed, _ in detail.verdicts)
    verdicts: Line = ()
    if detail.verdicts:
        counted, word, judged = (failed, "FAIL", "bad") if failed else (len(detail.verdicts), "PASS", "dim")
        if undecided and not failed:
            counted, word, judged = undecided, UNDECIDED, "warn"
        verdicts = ((f"  {counted} of {len(detail.verdicts)} verdicts {word}", judged),)
    lines: list[Line] = [((told, look), ("  " + "  ".join(facts), "warn" if silence > QUIET_S else "dim"), *verdicts)]
    if detail.cause:
        cause_look = "plain" if row.status == "cancelled" else "bad"
        # `interrupted: its supervisor was killed` has the word that stands above.
        why = detail.cause.removeprefix(f"{row.status}: ")
        lines += [((part, cause_look),) for part in wrapped(why, width)]
    if detail.remedy:
        lines += [((part, "plain"),) for part in wrapped(f"→ {detail.remedy}", width, "  ")]
    elif may_resume and row.status in ("failed", "interrupted", "cancelled"):
        lines.append((("→ r takes it up again where it stopped", "plain"),))
    return lines


def _stage_widths(width: int) -> tuple[int, ...]:
    """Of name, state, progress, pace, time, CPU, memory."""
    name = min(16, max(9, width // 9))
    if width < COLUMNS:
        rest = width - (name + 14 + 11 + 6 + 10) - 6
        return name, 14, max(8, rest - 12), max(0, min(12, rest - 8)), 11, 6, 10
    pace = 18 + min(8, max(0, width - COLUMNS))
    rest = width - (name + 16 + pace + 16 + 8 + 11) - 6
    return name, 16, max(12, rest), pace, 16, 8, 11


def stage_head(width: int, glyphs: Glyphs) -> Line:
    """The heading of the stages."""
    names = ("stage", "state", "progress", "pace", "time", "CPU", "memory")
    cells = [
        cell(name, room, glyphs, right=at > 3)
        for at, (name, room) in enumerate(zip(names, _stage_widths(width), strict=True))
    ]
    return ((" ".join(cells), "head"),)


def stage_line(stage: StageRow, live: Live | None, now: float, width: int, glyphs: Glyphs) -> Line:
    """One stage; `live` is what its processes use now, if it is the one that runs."""
    widths = _stage_widths(width)
    told, look = marked(stage.status)
    cpu, memory, used = None, None, "plain"
    if stage.status == "running":
        if live is not None:
            cpu, memory = live.cpu, live.rss
    else:
        seconds, spent = _number(stage.facts.get("seconds")), _number(stage.facts.get("cpu_seconds"))
        cpu = 100 * spent / seconds if seconds and spent is not None and seconds > 0.05 else None
        memory, used = _number(stage.facts.get("max_memory_bytes")), "dim"
    stale = stage.status == "running" and stage.read is not None and now - stage.read > QUIET_S
    return (
        (cell(stage.name, widths[0], glyphs) + " ", "plain"),
        (cell(told, widths[1], glyphs), look),
        (" " + _progress(stage, widths[2], glyphs), "history" if stage.status == "running" else "dim"),
        (" " + cell(_pace(stage), widths[3], glyphs), "stale" if stale else "plain"),
        (" " + cell(_time(stage, now, widths[4]), widths[4], glyphs, right=True), "plain"),
        (
            f" {cell(amount(cpu, '%'), widths[5], glyphs, right=True)} "
            + cell(size(memory), widths[6], glyphs, right=True),
            used,
        ),
    )


def _progress(stage: StageRow, width: int, glyphs: Glyphs) -> str:
    if stage.done is None or stage.status == "waiting":
        return " " * width
    if stage.status in ("done", "reused") or not stage.total or stage.total <= 0:
        return cell(f"{stage.done:,.0f} {stage.unit}", width, glyphs)
    share = min(1.0, max(0.0, stage.done / stage.total))
    return bar(share, max(0, width - 6), glyphs) + cell(f"{share:.0%}", min(6, width), glyphs, right=True)


def _pace(stage: StageRow) -> str:
    if stage.rate is None or stage.status != "running":
        return ""
    value = f"{stage.rate:,.0f}" if stage.rate >= 100 else f"{stage.rate:.1f}"
    return f"{value} {stage.unit}/s"


def _time(stage: StageRow, now: float, room: int) -> str:
    if stage.left is not None:
        # `left` must not be cut off: without it the same figure says how long it took.
        told = f"{human_seconds(stage.left)} left" if stage.left < 1e8 else "years left"
        return told if len(told) <= room else f"{age(stage.left)} left"
    seconds = stage.seconds
    if stage.status == "running" and (started := _number(stage.facts.get("started"))) is not None:
        return f"for {age(now - started)}"
    return human_seconds(seconds) if seconds is not None and 0 <= seconds < 1e9 else ""


def stage_detail(
    stage: StageRow, live: Live | None, figures: Sequence[tuple[str, str]], width: int, glyphs: Glyphs
) -> list[Line]:
    """All about one stage; `figures` are its last values."""
    facts = stage.facts
    lines: list[Line] = []

    def say(name: str, text: object, look: str = "plain") -> None:
        for number, part in enumerate(wrapped(plain(text), max(1, width - 11))):
            lines.append(((cell(name, 10, glyphs) + " " if number == 0 else " " * 11, "dim"), (part, look)))

    if facts.get("error"):
        say("error", facts["error"], "bad")
    if stage.root:
        say(
            "cause",
            f"{stage.root.get('file', '')}:{stage.root.get('line_no', '')}  {stage.root.get('text', '')}",
            "bad",
        )
        say("meaning", stage.root.get("explanation", ""))
        say("fix", stage.root.get("fix", ""))
    if stage.attempt > 1:
        say("attempt", f"{stage.attempt}: the watchdog ended the one before; 5 says why")
    if facts.get("remedy"):
        say("remedy", facts["remedy"])
    began, ended = _number(facts.get("started")), _number(facts.get("ended"))
    if began is not None or ended is not None:
        say("from, to", f"{clock_time(began)}   {clock_time(ended)}")
    usage = facts.get("usage")
    if isinstance(usage, Mapping):
        user, system = _number(usage.get("user_seconds")), _number(usage.get("system_seconds"))
        used = [f"{amount(user, 's')} in programs, {amount(system, 's')} in the kernel"]
        used.append(f"at most {size(_number(usage.get('max_rss_bytes')))} in one process")
        faults = _number(usage.get("major_faults"))
        used += [f"{faults:,.0f} pages read from disk"] if faults else []
        say("used", ", ".join(used))
    elif live is not None and live.by_pid and stage.status == "running":
        gpu = f", {size(live.gpu_memory)} on GPUs" if live.gpu_memory is not None else ""
        count = f"{len(live.by_pid)} process{'es' if len(live.by_pid) != 1 else ''}"
        say("uses now", f"{amount(live.cpu, '%')} of a core, {size(live.rss)}{gpu}, in {count} of the run")
    if facts.get("signal") or facts.get("exit_code") not in (None, 0):
        ending = plain(facts["signal"]) if facts.get("signal") else f"exit code {plain(facts.get('exit_code'))}"
        say("ended by", ending, "bad")
    if stage.done is not None and stage.status != "waiting":
        of = f" of {stage.total:,.0f}" if stage.total is not None else ""
        say("did", f"{stage.done:,.0f}{of} {stage.unit}")
    if figures:
        say("figures", ",  ".join(f"{name} {value}" for name, value in figures))
    if facts.get("out"):
        say("output", facts["out"])
    if facts.get("key"):
        say("key", facts["key"], "dim")
    if not lines:
        lines.append((("Nothing is known of it yet." if stage.status == "waiting" else "", "dim"),))
    return lines


@dataclass(frozen=True, slots=True)
class ProcessWidths:
    """Of the columns of processes; 0 leaves one out."""

    role: int
    rank: int
    state: int
    took: int
    wide: bool


def process_widths(width: int, entries: Sequence[ProcessEntry]) -> ProcessWidths:
    """Room for the longest role; ranks only where there are any."""
    wide = width >= WIDE
    rank = 4 if any(entry.rank for entry in entries) else 0
    state, took = (22, 12) if wide else (12, 8)
    fixed = 9 + 7 + state + 6 + 9 + took + 6 + (rank + 1 if rank else 0) + (8 + 10 + 14 + 3 if wide else 0)
    longest = max((cell_len(entry.role) for entry in entries), default=4)
    return ProcessWidths(max(8, min(longest, 60, width - fixed)), rank, state, took, wide)


def process_head(widths: ProcessWidths, glyphs: Glyphs) -> Line:
    """The heading of the processes."""
    cells = [cell("role", widths.role, glyphs)]
    cells += [cell("rank", widths.rank, glyphs, right=True)] if widths.rank else []
    cells += [cell("stage", 9, glyphs), cell("pid", 7, glyphs, right=True), cell("state", widths.state, glyphs)]
    cells += [cell("CPU", 6, glyphs, right=True), cell("memory", 9, glyphs, right=True)]
    if widths.wide:
        cells += [cell("GPUs", 8, glyphs), cell("GPU mem", 10, glyphs, right=True), cell("started", 14, glyphs)]
    cells.append(cell("for", widths.took, glyphs, right=True))
    return ((" ".join(cells), "head"),)


def process_state(entry: ProcessEntry, live: ProcessRow | None, *, short: bool = False) -> tuple[str, str]:
    """Mark, words and look; `short` for a column that has room for one word."""
    if entry.state == "running":
        doing = STATES.get(live.state, "") if live is not None and live.state != "R" else ""
        look = "bad" if live is not None and live.state in ("T", "t", "Z", "X") else "history"
        if short:
            # Where both have no room, the one that matters.
            return f"● {doing}" if look == "bad" else "● running", look
        return f"● running{f', {doing}' if doing else ''}", look
    if entry.state == "lost":
        return "◌ lost", "warn"
    if entry.killed_by:
        # A program that is not needed any more is ended by SIGTERM, and leaves as it likes.
        wanted = entry.killed_by == "SIGTERM"
        return (f"■ {entry.killed_by}", "dim") if wanted else (f"✗ {entry.killed_by}", "bad")
    if entry.code is None:
        return "■ ended", "dim"
    return ("✓ exit 0", "dim") if entry.code == 0 else (f"✗ exit {entry.code}", "bad")


def process_line(
    entry: ProcessEntry, live: ProcessRow | None, now: float, widths: ProcessWidths, glyphs: Glyphs
) -> Line:
    """One process."""
    told, look = process_state(entry, live, short=not widths.wide)
    until = now if entry.state == "running" else entry.ended
    took = max(0.0, until - entry.started) if until is not None and entry.started is not None else None
    front = [cell(entry.role, widths.role, glyphs)]
    front += [cell(entry.rank, widths.rank, glyphs, right=True)] if widths.rank else []
    front += [cell(entry.stage or ABSENT, 9, glyphs)]
    front += [cell(ABSENT if entry.pid is None else str(entry.pid), 7, glyphs, right=True), ""]
    back = ["", cell(amount(live.cpu, "%") if live is not None else ABSENT, 6, glyphs, right=True)]
    back.append(cell(size(live.rss) if live is not None else ABSENT, 9, glyphs, right=True))
    if widths.wide:
        gpus = ",".join(map(str, live.gpus)) if live is not None else ""
        memory = size(live.gpu_memory) if live is not None else ABSENT
        back += [cell(gpus or ABSENT, 8, glyphs), cell(memory, 10, glyphs, right=True)]
        back.append(cell(clock_time(entry.started), 14, glyphs))
    back.append(cell(ABSENT if took is None else age(took), widths.took, glyphs, right=True))
    return (
        (" ".join(front), "plain" if entry.state == "running" else "dim"),
        (cell(told, widths.state, glyphs), look),
        (" ".join(back), "plain" if entry.state == "running" else "dim"),
    )


def _number(value: object) -> float | None:
    finite = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if finite else None  # type: ignore[arg-type]
