"""Is that process still the one that was meant, and how is it signalled without hitting another?

A process is a number only as long as it lives: every identity carries the time at which it started and the boot, and
every signal goes through a handle (pidfd) that was opened before the identity was compared.
"""

import contextlib
import os
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eagle3ops.errors import Eagle3opsError

RUN_VARIABLE = "EAGLE3OPS_RUN_DIR"
"""Set for everything that a run starts, and so the mark by which its processes are found again."""

SUPERVISOR_VARIABLE = "EAGLE3OPS_SUPERVISES"
"""Set for the supervisor alone, so that samplers find it: it carries no run's mark, by which it would end itself."""

ARGUMENTS_VARIABLE = "EAGLE3OPS_ENGINE_ARGUMENTS"
"""What an engine is given beside its own arguments, as a JSON list: for a restart that leaves something out."""


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process, told apart from a later one that was given the same number."""

    pid: int
    start: int
    """Clock ticks after boot at which it started."""
    boot: str
    """The kernel's id of this boot."""

    def as_json(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)

    @staticmethod
    def from_json(data: Any) -> "ProcessId | None":
        """Read `as_json` back, also from an object with more in it; None when it is not one."""
        if not isinstance(data, Mapping):
            return None
        pid, start, boot = data.get("pid"), data.get("start"), data.get("boot")
        numbers = all(isinstance(number, int) and not isinstance(number, bool) for number in (pid, start))
        # Numbers beyond what the kernel gives out would not fit its calls.
        if not numbers or not isinstance(boot, str) or not 0 < pid < 1 << 31:  # type: ignore[operator]
            return None
        return ProcessId(int(pid), int(start), boot)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Stat:
    """A line of the process table."""

    pid: int
    parent: int
    group: int
    session: int
    start: int
    """Clock ticks after boot."""
    state: str
    """The kernel's letter: R, S, D, Z, ..."""


def boot_id() -> str:
    """The kernel's id of this boot; empty where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def identify(pid: int) -> ProcessId | None:
    """The identity of a living process; None when there is none (a zombie is not alive)."""
    start = start_ticks(pid)
    return None if start is None else ProcessId(pid, start, boot_id())


def is_alive(data: Mapping[str, Any] | None) -> bool:
    """Does the process that was written down with `ProcessId.as_json` still live?"""
    known = ProcessId.from_json(data)
    return known is not None and identify(known.pid) == known


def read_stat(pid: int | str) -> Stat | None:
    """One process's line, also a zombie's; None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
    except OSError:
        return None
    # The second field is the program's name in parentheses and may hold anything.
    fields = line[line.rfind(b")") + 2 :].split()
    try:
        numbers = [int(fields[place]) for place in (1, 2, 3, 19)]
        return Stat(int(pid), numbers[0], numbers[1], numbers[2], numbers[3], fields[0].decode("ascii", "replace"))
    except (ValueError, IndexError):
        return None


def process_table() -> dict[int, Stat]:
    """All processes that can be seen here, by number."""
    try:
        names = os.listdir("/proc")
    except OSError:
        return {}
    stats = (read_stat(name) for name in names if name.isdecimal())
    return {stat.pid: stat for stat in stats if stat is not None}


def start_ticks(pid: int) -> int | None:
    """When a living process started; None when there is none."""
    stat = read_stat(pid)
    if stat is not None:
        return None if stat.state in "ZX" else stat.start
    return None if os.path.exists("/proc/self/stat") else _start_without_proc(pid)


def _start_without_proc(pid: int) -> int | None:
    import psutil

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return int(process.create_time() * 100)
    except psutil.Error:
        return None


def send_signal(process: ProcessId, number: int) -> bool:
    """Send a signal to that very process; False when it has ended, also when its number is in use again.

    Raises:
        Eagle3opsError: it lives and may not be signalled.
    """
    try:
        handle = os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else None
    except ProcessLookupError:
        return False
    except OSError:
        # An old kernel, or one that hides the call: the comparison below has to do, with a gap of microseconds.
        handle = None
    try:
        # The handle stays with the process that had the number when it was opened. Whoever has the number now and is
        # the one that was written down long before has had it then as well.
        if identify(process.pid) != process:
            return False
        if handle is None:
            os.kill(process.pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
        return True
    except ProcessLookupError:
        return False
    except PermissionError as error:
        raise Eagle3opsError(
            f"process {process.pid} may not be signalled: it belongs to another user",
            remedy="ask as that user",
        ) from error
    finally:
        if handle is not None:
            os.close(handle)


def signal_all(processes: Mapping[int, ProcessId], number: int) -> None:
    """Send a signal to each of them; those that have ended, or are not ours any more, are passed over."""
    for process in processes.values():
        with contextlib.suppress(Eagle3opsError):
            send_signal(process, number)
