"""How are processes put into lines of a given width?"""

from rich.cells import cell_len

from eagle3ops.screens.feeds.machine import STALE_S, ProcessRow
from eagle3ops.screens.gpus.process_tree import Branch
from eagle3ops.screens.widgets.cells import ABSENT, WIDE, Line, aged, amount, cell, rate, size
from eagle3ops.screens.widgets.glyphs import Glyphs

STATES = {
    "R": "runs",
    "S": "sleeps",
    "D": "disk wait",
    "T": "stopped",
    "t": "traced",
    "Z": "zombie",
    "I": "idle",
    "X": "dead",
}
_BAD_STATES = {"T", "t", "Z", "X"}


def process_head(width: int, glyphs: Glyphs) -> Line:
    """The heading of the processes."""
    wide = width >= WIDE
    names = [cell("role", _role_width(width), glyphs), cell("pid", 7, glyphs, right=True), cell("state", 11, glyphs)]
    names += [cell(name, 9 if at else 7, glyphs, right=True) for at, name in enumerate(("CPU", "memory", "GPU mem"))]
    if wide:
        names += [cell("GPUs", 8, glyphs)]
        names += [cell(name, 11, glyphs, right=True) for name in ("reads", "writes", "wake-ups")]
        names.append(cell("command", max(0, width - sum(map(cell_len, names)) - len(names)), glyphs))
    else:
        names.append(cell("disk", 11, glyphs, right=True))
    return ((" ".join(names), "head"),)


def _role_width(width: int) -> int:
    return 28 if width >= WIDE else max(12, width - 7 - 11 - 7 - 9 - 9 - 11 - 6)


def process_line(branch: Branch, width: int, glyphs: Glyphs, *, stale: bool) -> Line:
    """One process, or the name of the run over its processes."""
    process = branch.process
    if process is None:
        return ((cell(branch.title, width, glyphs), "stale" if stale else "head"),)
    wide = width >= WIDE
    stems = "".join(glyphs.through if on else "  " for on in branch.stems)
    stem = stems + ("" if branch.depth == 0 else glyphs.last if branch.last else glyphs.branch)
    front = " ".join(
        [cell(stem + process.role, _role_width(width), glyphs), cell(str(process.pid), 7, glyphs, right=True), ""]
    )
    letter = process.state
    state = f"{letter} {STATES.get(letter, '')}".rstrip() or ("elsewhere" if not process.visible else ABSENT)
    look = "bad" if letter in _BAD_STATES else "warn" if letter == "D" else "plain"
    old = process.detail_age or 0.0
    figures = [
        "",
        cell(aged(amount(process.cpu, "%"), process.age if process.cpu is not None else 0.0), 7, glyphs, right=True),
        cell(size(process.rss), 9, glyphs, right=True),
        cell(size(process.gpu_memory), 9, glyphs, right=True),
    ]
    if wide:
        figures.append(cell(",".join(map(str, process.gpus)) or ABSENT, 8, glyphs))
        details = [rate(process.reads), rate(process.writes), amount(process.wakeups, "/s").replace(" /s", "/s")]
    else:
        known = [value for value in (process.reads, process.writes) if value is not None]
        details = [rate(sum(known) if known else None)]
    details = [cell(aged(one, old if one != ABSENT else 0.0), 11, glyphs, right=True) for one in details]
    line = [(front, "plain"), (cell(state, 11, glyphs), look), (" ".join(figures), "plain")]
    line.append((" " + " ".join(details), "stale" if old > STALE_S else "plain"))
    if wide:
        used = sum(cell_len(text) for text, _ in line)
        line.append((" " + cell(_command(process), max(0, width - used - 1), glyphs), "dim"))
    return tuple((text, "stale") for text, _ in line) if stale else tuple(line)


def _command(process: ProcessRow) -> str:
    """The command line without the folder of its program, which would take the room of what tells processes apart."""
    program, blank, rest = process.command.partition(" ")
    return f"{program.rpartition('/')[2]}{blank}{rest}" or process.role


def process_detail(process: ProcessRow | None, since: float) -> str:
    """All about the selected process; `since` is the age of the sample, s."""
    if process is None:
        return ""
    if not process.visible:
        gpus = ", ".join(map(str, process.gpus))
        return (
            f"pid {process.pid} of another container or of the host holds {size(process.gpu_memory)} of GPU {gpus}; "
            "nothing more can be seen of it here."
        )
    facts = [f"pid {process.pid}"]
    if process.wchan and process.wchan != "0":
        facts.append(f"in {process.wchan}")
    if process.syscall:
        facts.append("no syscall" if process.syscall == "running" else f"syscall {process.syscall}")
    if process.wakeups is not None:
        facts.append(f"{process.wakeups:,.0f} wake-ups/s")
    if process.threads is not None:
        facts.append(f"{process.threads:.0f} thread{'s' if process.threads != 1 else ''}")
    if process.gpus:
        facts.append(f"GPU {' '.join(map(str, process.gpus))}")
    if process.detail_age is None:
        facts.append("I/O not read")
    elif process.detail_age + since > STALE_S:
        facts.append(f"I/O and wchan stale: read {process.detail_age + since:.0f} s ago")
    return ", ".join(facts) + "\n" + (process.command or "(no command line)")
