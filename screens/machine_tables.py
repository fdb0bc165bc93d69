"""How are GPUs, processes and the host put into lines of a given width?

A line is a list of parts, each a text with the name of a look; what the looks are is for the widget that paints them.
Few parts a line, as every change of look costs bytes on the way to the terminal.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from eagle3ops.screens.glyphs import Glyphs, bar, history_line
from eagle3ops.screens.machine import CELL_S, STALE_S, GpuRow, Machine, ProcessRow, Snapshot, mapping, number
from eagle3ops.screens.process_tree import Branch
from eagle3ops.words import human_bytes, plain

Line = tuple[tuple[str, str], ...]
"""Texts with their looks: `plain`, `dim`, `head`, `good`, `warn`, `bad`, `history`, `stale`."""

ABSENT = "-"
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
_SHORT = {
    "software power cap": "sw power cap",
    "hardware slowdown": "hw slowdown",
    "software thermal slowdown": "sw thermal",
    "hardware thermal slowdown": "hw thermal",
    "hardware power brake": "power brake",
}
_BAD_STATES = {"T", "t", "Z", "X"}
WIDE = 130
"""From this width on there is room for more columns."""


@dataclass(frozen=True, slots=True)
class _Widths:
    """Of the columns that give way; 0 leaves a column out."""

    name: int
    state: int
    util_history: int
    bar: int
    power_history: int
    links: bool


def cell(text: str, width: int, glyphs: Glyphs, *, right: bool = False) -> str:
    """The text in exactly `width` cells, cut where it is longer."""
    length = cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + glyphs.more if width > 0 else ""
    return " " * (width - length) + text if right else text + " " * (width - length)


def amount(value: float | None, unit: str) -> str:
    """`97 %`; `-` for what is not known."""
    return ABSENT if value is None else f"{value:,.0f} {unit}"


def size(value: float | None) -> str:
    """`1.4 GiB`; `-` for what is not known."""
    return ABSENT if value is None else human_bytes(value)


def rate(value: float | None) -> str:
    """`1.4 GiB/s`; `-` for what is not known."""
    return ABSENT if value is None else f"{human_bytes(value)}/s"


def pair(one: float | None, other: float | None, suffix: str = "") -> str:
    """`12.3/141 GiB`: two sizes in the unit of the larger."""
    known = [value for value in (one, other) if value is not None]
    if not known:
        return ABSENT
    unit = human_bytes(max(known)).split()[1]
    scale = 1024 ** ("B", "KiB", "MiB", "GiB", "TiB", "PiB").index(unit)
    places = 0 if unit == "B" else 1
    told = [ABSENT if value is None else f"{value / scale:.{places}f}" for value in (one, other)]
    return f"{told[0]}/{told[1]} {unit}{suffix}"


def gpu_title(machine: Machine) -> str:
    """How many GPUs of which name, and the scale of the power history."""
    snapshot = machine.snapshot
    if snapshot is None or not snapshot.gpus:
        return "GPUs"
    names = sorted({gpu.name or "name not known" for gpu in snapshot.gpus})
    return f"{len(snapshot.gpus)} GPU{'s' if len(snapshot.gpus) > 1 else ''}: {', '.join(names)}"


def gpu_table(machine: Machine, width: int, glyphs: Glyphs) -> tuple[Line, list[Line]]:
    """The heading and one line a GPU."""
    snapshot = machine.snapshot
    if snapshot is None:
        return (), []
    if not snapshot.gpus:
        lines: list[Line] = [((f"No GPU: {snapshot.absent or 'the reason is not known'}", "warn"),)]
        return (), [*lines, ((f"  {snapshot.remedy}", "plain"),)] if snapshot.remedy else lines
    widths = _gpu_widths(snapshot, width)
    top = machine.power_top()
    seconds = f"{widths.util_history * CELL_S:.0f} s"
    heads = [
        cell("", 2, glyphs),
        cell("name", widths.name, glyphs),
        cell("state", widths.state, glyphs),
        cell("use", 5, glyphs, right=True),
        cell(seconds, widths.util_history, glyphs),
        cell("memory", widths.bar + 17, glyphs),
        cell("power", 7, glyphs, right=True),
    ]
    if widths.power_history:
        heads.append(cell(f"to {top:.0f} W", widths.power_history, glyphs))
    heads.append(cell("clocks" if widths.links else "clock", 14 if widths.links else 8, glyphs, right=not widths.links))
    heads.append(cell("temp", 5, glyphs, right=True))
    if widths.links:
        heads += [cell("PCIe out/in", 17, glyphs), cell("NVLink out/in", 16, glyphs)]
    return ((" ".join(heads), "head"),), [_gpu_line(gpu, machine, widths, top, glyphs) for gpu in snapshot.gpus]


def _gpu_widths(snapshot: Snapshot, width: int) -> _Widths:
    longest = max(cell_len(_short_name(gpu)) for gpu in snapshot.gpus)
    if width < WIDE:
        name = min(5, longest)
        rest = width - (2 + name + 5 + 17 + 7 + 8 + 5) - 8
        wanted = max(2, min(18, max(cell_len(_state(gpu, short=True)) for gpu in snapshot.gpus)))
        history = max(4, min(24, rest - max(12, wanted) - 4))
        fill = max(4, min(12, rest - 12 - history)) if rest > 26 else 4
        return _Widths(name, max(2, rest - history - fill), history, fill, 0, links=False)
    name = min(16, longest)
    rest = width - (2 + name + 5 + 17 + 7 + 14 + 5 + 17 + 16) - 11
    history, power, fill = (20, 10, 8) if rest > 60 else (12, 8, 6)
    return _Widths(name, max(8, rest - history - power - fill), history, fill, power, links=True)


def _short_name(gpu: GpuRow) -> str:
    return gpu.name.removeprefix("NVIDIA ") or ABSENT


def _state(gpu: GpuRow, *, short: bool) -> str:
    if not short:
        return gpu.words
    parts = [gpu.state] if gpu.state != "ok" else (["MIG"] if gpu.mig else [])
    parts += [_SHORT.get(reason, reason) for reason in gpu.throttled] if gpu.state == "ok" else []
    return ", ".join([*parts, *gpu.trouble]) or "ok"


def _gpu_line(gpu: GpuRow, machine: Machine, widths: _Widths, top: float, glyphs: Glyphs) -> Line:
    look = "bad" if gpu.state != "ok" else "warn" if gpu.throttled or gpu.trouble else "good"
    share = gpu.mem_used / gpu.mem_total if gpu.mem_used is not None and gpu.mem_total else None
    power = _aged(amount(gpu.power_w, "W"), gpu.power_age if gpu.power_w is not None else 0.0)
    clock = amount(gpu.sm_mhz, "MHz")
    if widths.links and gpu.mem_mhz is not None:
        clock = f"{ABSENT if gpu.sm_mhz is None else f'{gpu.sm_mhz:.0f}'}/{gpu.mem_mhz:.0f} MHz"
    temperature = ABSENT if gpu.temp_c is None else f"{gpu.temp_c:.0f} {glyphs.degree}C".replace("  ", " ")
    middle = " ".join(
        [
            "",
            f"{bar(share, widths.bar, glyphs)} {cell(pair(gpu.mem_used, gpu.mem_total), 16, glyphs)}",
            cell(power, 7, glyphs, right=True),
        ]
    )
    tail = [
        "",
        cell(clock, 14 if widths.links else 8, glyphs, right=not widths.links),
        cell(temperature, 5, glyphs, right=True),
    ]
    if widths.links:
        pcie = pair(*gpu.pcie, "/s")
        tail += [
            cell(_aged(pcie, gpu.pcie_age if pcie != ABSENT else 0.0), 17, glyphs),
            cell(pair(*gpu.nvlink, "/s"), 16, glyphs),
        ]
    line = [
        (f"{gpu.index:>2} {cell(_short_name(gpu), widths.name, glyphs)} ", "plain"),
        (cell(_state(gpu, short=not widths.links), widths.state, glyphs), look),
        (f" {cell(amount(gpu.util, '%'), 5, glyphs, right=True)} ", "plain"),
        (history_line(machine.util(gpu, widths.util_history), 100.0, glyphs), "history"),
        (middle, "plain"),
    ]
    if widths.power_history:
        line += [(" ", "plain"), (history_line(machine.power(gpu, widths.power_history), top, glyphs), "history")]
    return (*line, (" ".join(tail), "plain"))


def strip_cells(snapshot: Snapshot) -> list[tuple[str, str]]:
    """The shortest words about each GPU, with their looks; what is wrong stands in them."""
    found = []
    for gpu in snapshot.gpus:
        look = "bad" if gpu.state != "ok" else "warn" if gpu.throttled or gpu.trouble else "plain"
        if gpu.state != "ok":
            found.append((f"{gpu.index} {gpu.state}", look))
            continue
        words = [f"{amount(gpu.util, '%'):>5}", f"{pair(gpu.mem_used, gpu.mem_total):>15}"]
        words.append(f"{amount(gpu.power_w, 'W'):>6}")
        mark = " !" if look == "warn" else "  "
        found.append((f"{gpu.index} {' '.join(words)}{mark}", look))
    return found


def strip_lines(machine: Machine, width: int, stale: str, glyphs: Glyphs) -> list[Line]:
    """The GPUs in few lines, several side by side."""
    snapshot = machine.snapshot
    if snapshot is None:
        why = machine.failure[0] if machine.failure else "not read yet"
        return [((cell(f"GPUs: {why}", width, glyphs), "dim"),)]
    if not snapshot.gpus:
        return [
            ((cell(f"GPUs: {snapshot.absent or 'none'}" + (f" ({stale})" if stale else ""), width, glyphs), "dim"),)
        ]
    cells = strip_cells(snapshot)
    broad = max(cell_len(text) for text, _ in cells) + 2
    across = max(1, width // broad)
    lines: list[Line] = []
    for at in range(0, len(cells), across):
        row = cells[at : at + across]
        lines.append(tuple((cell(text, broad, glyphs), "stale" if stale else look) for text, look in row))
    if stale:
        lines.append(((cell(f"GPUs: {stale}", width, glyphs), "warn"),))
    return lines


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
        cell(_aged(amount(process.cpu, "%"), process.age if process.cpu is not None else 0.0), 7, glyphs, right=True),
        cell(size(process.rss), 9, glyphs, right=True),
        cell(size(process.gpu_memory), 9, glyphs, right=True),
    ]
    if wide:
        figures.append(cell(",".join(map(str, process.gpus)) or ABSENT, 8, glyphs))
        details = [rate(process.reads), rate(process.writes), amount(process.wakeups, "/s").replace(" /s", "/s")]
    else:
        known = [value for value in (process.reads, process.writes) if value is not None]
        details = [rate(sum(known) if known else None)]
    details = [cell(_aged(one, old if one != ABSENT else 0.0), 11, glyphs, right=True) for one in details]
    line = [(front, "plain"), (cell(state, 11, glyphs), look), (" ".join(figures), "plain")]
    line.append((" " + " ".join(details), "stale" if old > STALE_S else "plain"))
    if wide:
        used = sum(cell_len(text) for text, _ in line)
        line.append((" " + cell(process.command or process.role, max(0, width - used - 1), glyphs), "dim"))
    return tuple((text, "stale") for text, _ in line) if stale else tuple(line)


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
    if process.ppid is not None:
        facts.append(f"parent {process.ppid}")
    if process.threads is not None:
        facts.append(f"{process.threads:.0f} threads")
    if process.wchan and process.wchan != "0":
        facts.append(f"sleeps in {process.wchan}")
    if process.syscall:
        facts.append("no system call" if process.syscall == "running" else f"system call {process.syscall}")
    if process.wakeups is not None:
        facts.append(f"{process.wakeups:,.0f} wake-ups/s")
    if process.gpus:
        facts.append(f"GPU {', '.join(map(str, process.gpus))}")
    if process.detail_age is None:
        facts.append("I/O not read")
    elif process.detail_age + since > STALE_S:
        facts.append(f"I/O and wchan stale: read {process.detail_age + since:.0f} s ago")
    return ", ".join(facts) + "\n" + (process.command or "(no command line)")


def host_items(snapshot: Snapshot) -> list[tuple[str, str]]:
    """What the machine as a whole does, in pieces with their looks."""
    host = snapshot.host
    rates, cpu, memory = mapping(host.get("rates")), mapping(host.get("cpu")), mapping(host.get("memory"))
    cores = number(cpu.get("count"))
    items = [
        (
            f"CPU {amount(number(rates.get('cpu_percent')), '%')} of {ABSENT if cores is None else int(cores)} cores",
            "plain",
        )
    ]
    waiting = number(rates.get("iowait_percent"))
    items.append((f"waiting for disks {amount(waiting, '%')}", "warn" if waiting and waiting >= 10 else "plain"))
    total, available = number(memory.get("total")), number(memory.get("available"))
    used = total - available if total is not None and available is not None else None
    full = used is not None and total and used / total > 0.9
    items.append((f"memory {pair(used, total)}", "bad" if full else "plain"))
    for name, kinds in sorted(mapping(host.get("psi")).items(), key=str):
        some = number(mapping(mapping(kinds).get("some")).get("avg10"))
        items.append((f"PSI {plain(name)} {amount(some, '%')}", "warn" if some and some >= 10 else "plain"))
    if not mapping(host.get("psi")):
        items.append((f"PSI {ABSENT}", "plain"))
    shm = mapping(host.get("shm"))
    items.append((f"/dev/shm {_space(shm)}", _space_look(shm)))
    for path, disk in sorted(mapping(host.get("disks")).items(), key=str):
        facts = mapping(disk)
        reason = facts.get("reason")
        told = plain(reason) if isinstance(reason, str) else _space(facts)
        items.append((f"{plain(path)} {told}", "bad" if isinstance(reason, str) else _space_look(facts)))
    for source, keys in (("devices", ("read_s", "written_s")), ("network", ("received_s", "sent_s"))):
        words = ("reads", "writes") if source == "devices" else ("in", "out")
        for name, moved in _busiest(mapping(rates.get(source)), keys):
            told = ", ".join(f"{word} {rate(value)}" for word, value in zip(words, moved, strict=True))
            items.append((f"{plain(name)} {told}", "plain"))
    return items


def host_lines(snapshot: Snapshot, width: int, glyphs: Glyphs, *, stale: bool) -> list[Line]:
    """The same, packed into lines."""
    lines: list[Line] = []
    row: list[tuple[str, str]] = []
    old = stale or snapshot.host_age > STALE_S
    items = host_items(snapshot)
    if snapshot.host_age > STALE_S:
        items.append((f"read {snapshot.host_age:.0f} s before", "warn"))
    room = width
    for text, look in items:
        text = text if cell_len(text) <= width else cell(text, width, glyphs)
        if row and cell_len(text) + 3 > room:
            lines.append(tuple(row))
            row, room = [], width
        if row:
            row.append(("   ", "plain"))
            room -= 3
        row.append((text, "stale" if old else look))
        room -= cell_len(text)
    return [*lines, tuple(row)] if row else lines


def _busiest(rates: "Sequence[object] | object", keys: tuple[str, str]) -> list[tuple[str, tuple[float | None, ...]]]:
    found = [
        (str(name), tuple(number(mapping(moved).get(key)) for key in keys)) for name, moved in mapping(rates).items()
    ]
    found.sort(key=lambda one: (-sum(value or 0.0 for value in one[1]), one[0]))
    return found[:2]


def _space(facts: object) -> str:
    total, free = number(mapping(facts).get("total")), number(mapping(facts).get("free"))
    return f"{size(free)} free of {size(total)}"


def _space_look(facts: object) -> str:
    total, free = number(mapping(facts).get("total")), number(mapping(facts).get("free"))
    return "bad" if total and free is not None and free / total < 0.05 else "plain"


def _aged(text: str, age: float) -> str:
    """`~` before what was read too long before the rest; the screen says what that means."""
    return f"~{text}" if age > STALE_S else text
