"""How are GPUs and the host put into lines of a given width?

A line is a list of parts, each a text with the name of a look; what the looks are is for the widget that paints them.
Few parts a line, as every change of look costs bytes on the way to the terminal.
"""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len

from eagle3ops.screens.feeds.machine import CELL_S, STALE_S, GpuRow, Machine, Snapshot
from eagle3ops.screens.feeds.values import mapping, number
from eagle3ops.screens.widgets.cells import ABSENT, WIDE, Line, aged, amount, cell, pair, rate, size
from eagle3ops.screens.widgets.glyphs import Glyphs, bar, history_line
from eagle3ops.words import plain

_SHORT = {
    "software power cap": "sw power cap",
    "hardware slowdown": "hw slowdown",
    "software thermal slowdown": "sw thermal",
    "hardware thermal slowdown": "hw thermal",
    "hardware power brake": "power brake",
}


@dataclass(frozen=True, slots=True)
class _Widths:
    """Of the columns that give way; 0 leaves a column out."""

    name: int
    state: int
    util_history: int
    bar: int
    power_history: int
    links: bool


def refusal_lines(what: str, remedy: str, width: int) -> list[Line]:
    """What stands in the way and what to do about it, on as many lines as that takes."""
    told = [(piece, "bad") for piece in textwrap.wrap(what, max(8, width))]
    told += [(piece, "plain") for piece in textwrap.wrap(f"→ {remedy}" if remedy else "", max(8, width))]
    return [(part,) for part in told]


def hanging(text: str, width: int, look: str = "plain") -> list[Line]:
    """Words over as many lines as they take; the later ones stand further in."""
    return [((piece, look),) for piece in textwrap.wrap(text, max(12, width), subsequent_indent="  ")]


def gpu_title(machine: Machine) -> str:
    """How many GPUs of which name, and the scale of the power history."""
    snapshot = machine.snapshot
    if snapshot is None or not snapshot.gpus:
        return "GPUs"
    names = sorted({gpu.name for gpu in snapshot.gpus if gpu.name})
    return f"{len(snapshot.gpus)} GPU{'s' if len(snapshot.gpus) > 1 else ''}: {', '.join(names) or ABSENT}"


def gpu_table(machine: Machine, width: int, glyphs: Glyphs) -> tuple[Line, list[Line]]:
    """The heading and one line a GPU."""
    snapshot = machine.snapshot
    if snapshot is None:
        return (), []
    if not snapshot.gpus:
        lines = hanging(f"No GPU: {snapshot.absent or 'the reason is not known'}", width, "warn")
        return (), lines + (hanging(f"{glyphs.arrow} {snapshot.remedy}", width) if snapshot.remedy else [])
    widths = _gpu_widths(snapshot, width)
    top = machine.power_top()
    seconds = f"{widths.util_history * CELL_S:.0f} s"
    if len(seconds) + 5 <= widths.util_history:
        seconds = f"last {seconds}"
    heads = [
        cell("", 2, glyphs),
        *([cell("name", widths.name, glyphs)] if widths.name else []),
        cell("state", widths.state, glyphs),
        cell("use", 5, glyphs, right=True),
        cell(seconds, widths.util_history, glyphs),
        cell("memory", widths.bar + 16, glyphs),
        cell("power", 6, glyphs, right=True),
    ]
    if widths.power_history:
        heads.append(cell(f"to {top:.0f} W", widths.power_history, glyphs))
    heads.append(cell("clocks" if widths.links else "clock", 14 if widths.links else 8, glyphs, right=not widths.links))
    heads.append(cell("temp", 5, glyphs, right=True))
    if widths.links:
        heads += [cell("PCIe out/in", 17, glyphs), cell("NVLink out/in", 17, glyphs)]
    return ((" ".join(heads), "head"),), [_gpu_line(gpu, machine, widths, top, glyphs) for gpu in snapshot.gpus]


def _gpu_widths(snapshot: Snapshot, width: int) -> _Widths:
    name = max(cell_len(_short_name(gpu)) for gpu in snapshot.gpus)
    if width < WIDE:
        # One name for all stands in the title.
        name = min(5, name) if len({gpu.name for gpu in snapshot.gpus if gpu.name}) > 1 else 0
        rest = width - (2 + name + bool(name) + 5 + 16 + 6 + 8 + 5) - 7
        state = min(30, max(12, rest // 2))
        history = max(0, min(40, (rest - state) * 2 // 3))
        return _Widths(name, state, history, max(0, rest - state - history), 0, links=False)
    name = min(16, name)
    rest = width - (2 + name + 1 + 5 + 16 + 6 + 14 + 5 + 17 + 17) - 10
    state = min(29, max(rest // 2, rest - 20))
    history, power = max(8, (rest - state) // 2), max(6, (rest - state) // 4)
    return _Widths(name, state, history, max(0, rest - state - history - power), power, links=True)


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
    power = aged(amount(gpu.power_w, "W"), gpu.power_age if gpu.power_w is not None else 0.0)
    clock = amount(gpu.sm_mhz, "MHz").replace(",", "")
    if widths.links and gpu.mem_mhz is not None:
        clock = f"{ABSENT if gpu.sm_mhz is None else f'{gpu.sm_mhz:.0f}'}/{gpu.mem_mhz:.0f} MHz"
    temperature = ABSENT if gpu.temp_c is None else f"{gpu.temp_c:.0f} {glyphs.degree}C".replace("  ", " ")
    middle = " ".join(
        [
            "",
            f"{bar(share, widths.bar, glyphs)} {cell(pair(gpu.mem_used, gpu.mem_total), 15, glyphs)}",
            cell(power, 6, glyphs, right=True),
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
            cell(aged(pcie, gpu.pcie_age if pcie != ABSENT else 0.0), 17, glyphs),
            cell(pair(*gpu.nvlink, "/s"), 17, glyphs),
        ]
    line = [
        (f"{gpu.index:>2} {cell(_short_name(gpu), widths.name, glyphs)}{' ' if widths.name else ''}", "plain"),
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
    items += [(f"{place} {told}", look) for (told, look), place in _places(mapping(host.get("disks"))).items()]
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


def _places(disks: Mapping[Any, Any]) -> dict[tuple[str, str], str]:
    """What is said of each file system, with the shortest of the paths on it and how many more there are."""
    paths: dict[tuple[str, str], list[str]] = {}
    for path, disk in disks.items():
        reason = mapping(disk).get("reason")
        told = (plain(reason), "warn") if isinstance(reason, str) else (_space(disk), _space_look(disk))
        paths.setdefault(told, []).append(plain(path))
    for some in paths.values():
        some.sort(key=lambda path: (len(path), path))
    return {told: some[0] + (f" and {len(some) - 1} more:" if len(some) > 1 else "") for told, some in paths.items()}


def _busiest(rates: object, keys: tuple[str, str]) -> list[tuple[str, tuple[float | None, ...]]]:
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
