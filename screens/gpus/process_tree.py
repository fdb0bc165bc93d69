"""In which order do processes stand below each other: run by run, children under their parents, the busiest first?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eagle3ops.screens.feeds.machine import ProcessRow

ELSEWHERE = "other processes on the GPUs"
ORDERS = ("CPU", "memory", "GPU memory", "I/O", "age")
"""What the processes can be sorted by; see `key_of`."""

_CPU_STEPS = (2.0, 20.0, 60.0, 95.0)


@dataclass(frozen=True, slots=True)
class Branch:
    """One line of the tree: a process, or the title of a run."""

    key: str
    """The same as long as the process lives."""
    process: ProcessRow | None
    title: str = ""
    depth: int = 0
    last: bool = False
    stems: tuple[bool, ...] = ()
    """For every level above its own, whether that has more to come."""


def key_of(order: str) -> Callable[[ProcessRow], float]:
    """What a process weighs in an order. CPU goes by steps: what changes by little stays in its place."""
    if order == "CPU":
        return lambda process: float(sum((process.cpu or 0.0) >= step for step in _CPU_STEPS))
    if order == "memory":
        return lambda process: float(int(process.rss or 0.0) >> 26)
    if order == "GPU memory":
        return lambda process: process.gpu_memory or 0.0
    if order == "I/O":
        return lambda process: float(int((process.reads or 0.0) + (process.writes or 0.0)) >> 20)
    return lambda process: 0.0


def tree(processes: Sequence[ProcessRow], order: str = "CPU") -> list[Branch]:
    """All lines. Every process stands in it once, whatever its parents are said to be."""
    weigh = key_of(order)
    by_pid = {process.pid: process for process in processes}
    children: dict[int, list[ProcessRow]] = {}
    tops: dict[str, list[ProcessRow]] = {}
    for process in by_pid.values():
        parent = by_pid.get(process.ppid) if process.ppid is not None else None
        if parent is not None and parent.run == process.run and parent is not process and parent.visible:
            children.setdefault(parent.pid, []).append(process)
        else:
            tops.setdefault(process.run, []).append(process)
    _cut_circles(by_pid, children, tops)
    weights = _weights(tops, children, weigh)

    def rank(process: ProcessRow) -> tuple[float, float, int]:
        return -weights[process.pid], process.start, process.pid

    def newest_last(run: str) -> tuple[bool, float, str]:
        return not run, -max(weights[process.pid] for process in tops[run]), run

    lines: list[Branch] = []
    for run in sorted(tops, key=newest_last):
        count = sum(process.run == run for process in by_pid.values())
        counted = f"{count} process{'es' if count != 1 else ''}"
        lines.append(Branch(f"run {run}", None, f"{f'run {run}' if run else ELSEWHERE}: {counted}"))
        stack = [(process, 0, False, ()) for process in sorted(tops[run], key=rank, reverse=True)]
        todo: list[tuple[ProcessRow, int, bool, tuple[bool, ...]]] = list(stack)
        while todo:
            process, depth, last, stems = todo.pop()
            lines.append(Branch(f"pid {process.pid} {process.start}", process, "", depth, last, stems))
            below = sorted(children.get(process.pid, ()), key=rank)
            inner = (*stems, not last) if depth else ()
            todo.extend((child, depth + 1, child is below[-1], inner) for child in reversed(below))
    return lines


def _cut_circles(
    by_pid: dict[int, ProcessRow], children: dict[int, list[ProcessRow]], tops: dict[str, list[ProcessRow]]
) -> None:
    """A process number that was given again can make two processes each other's parents."""
    reached: set[int] = set()
    todo = [process.pid for group in tops.values() for process in group]

    def walk() -> None:
        while todo:
            pid = todo.pop()
            if pid not in reached:
                reached.add(pid)
                todo.extend(child.pid for child in children.get(pid, ()))

    walk()
    for process in sorted(by_pid.values(), key=lambda process: (process.start, process.pid)):
        if process.pid not in reached:
            siblings = children.get(process.ppid, []) if process.ppid is not None else []
            siblings[:] = [one for one in siblings if one is not process]
            tops.setdefault(process.run, []).append(process)
            todo.append(process.pid)
            walk()


def _weights(
    tops: dict[str, list[ProcessRow]],
    children: dict[int, list[ProcessRow]],
    weigh: Callable[[ProcessRow], float],
) -> dict[int, float]:
    """The weight of each process with all below it: that of the heaviest."""
    order: list[ProcessRow] = []
    todo = [process for group in tops.values() for process in group]
    while todo:
        process = todo.pop()
        order.append(process)
        todo.extend(children.get(process.pid, ()))
    weights: dict[int, float] = {}
    for process in reversed(order):
        weights[process.pid] = max(
            weigh(process), *(weights[child.pid] for child in children.get(process.pid, ())), 0.0
        )
    return weights
