"""Is that process still the one that was meant, and which processes has a run left behind?"""

import contextlib
import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RUN_VARIABLE = "EAGLE3OPS_RUN_DIR"
"""Set for everything that a run starts, and so the mark by which its processes are found again."""


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


def boot_id() -> str:
    """The kernel's id of this boot; empty where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def identify(pid: int) -> ProcessId | None:
    """The identity of a living process; None when there is none (a zombie is not alive)."""
    start = _start_ticks(pid)
    return None if start is None else ProcessId(pid, start, boot_id())


def is_alive(data: dict[str, Any] | None) -> bool:
    """Does the process that was written down with `ProcessId.as_json` still live?"""
    if not data:
        return False
    pid = data.get("pid")
    if not isinstance(pid, int) or pid <= 0:
        return False
    now = identify(pid)
    return now is not None and (now.start, now.boot) == (data.get("start"), data.get("boot"))


def _start_ticks(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
        return _start_without_proc(pid)
    # The second field is the program's name in parentheses and may hold anything.
    fields = stat[stat.rfind(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])


def _start_without_proc(pid: int) -> int | None:
    import psutil

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return int(process.create_time() * 100)
    except psutil.Error:
        return None


def left_behind(run_dir: Path) -> list[int]:
    """Living processes that the run in `run_dir` started, except this one."""
    mark = f"{RUN_VARIABLE}={run_dir}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        if pid == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0") and _start_ticks(pid) is not None:
                found.append(pid)
    return found


def end_left_behind(run_dir: Path, *, grace: float = 2.0) -> list[int]:
    """End what `left_behind` finds: SIGTERM, `grace` seconds, SIGKILL. Returns the process ids."""
    ended = left_behind(run_dir)
    for pid in ended:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while (rest := left_behind(run_dir)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in rest:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return ended
