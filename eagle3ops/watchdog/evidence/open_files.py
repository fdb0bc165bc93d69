"""Which processes have a file open, and whose open files may not be seen?"""

import contextlib
import os
from collections.abc import Iterable

from eagle3ops.runs.processes import ProcessId, boot_id, process_table
from eagle3ops.telemetry.gpus import INITIAL_PID_NAMESPACE
from eagle3ops.telemetry.procfs import parse_stat, read_at
from eagle3ops.watchdog.evidence.procfs import links_of

_COMPILERS = frozenset(
    {"nvcc", "cicc", "ptxas", "cudafe++", "fatbinary", "nvlink", "ninja", "c++", "g++", "gcc", "cc1plus", "cc1",
     "clang", "clang++", "ld", "as", "collect2", "hipcc"}
)  # fmt: skip


class OpenFiles:
    """The open files of all processes that show them, as they were when this was made."""

    def __init__(self) -> None:
        self._stats = process_table()
        self._boot = boot_id()
        self._links: dict[int, dict[int, str]] = {}
        self._hidden: list[int] = []
        for pid in self._stats:
            links = links_of(pid)
            if links is not None:
                self._links[pid] = links
            elif not _is_kernel_thread(pid):
                self._hidden.append(pid)
        try:
            self.contained = os.readlink("/proc/self/ns/pid") != INITIAL_PID_NAMESPACE
        except OSError:
            self.contained = True

    def holders(self, path: str, inode: int) -> set[int]:
        """Who has the file open, by its path; by its number where the path is another one in there."""
        base = os.path.basename(path)
        found = set()
        for pid, links in self._links.items():
            for number, target in links.items():
                if target == path or (os.path.basename(target) == base and _inode(pid, number) == inode):
                    found.add(pid)
                    break
        return found

    def builders(self, folder: str) -> list[int]:
        """Compilers at work in a folder, by working directory, open files or arguments: they may outlive who took the
        lock. Other programs there hold nobody up: whoever took it keeps it open.
        """
        found = []
        for pid in self._stats:
            if _name(pid) not in _COMPILERS:
                continue
            inside = any(_below(target, folder) for target in self._links.get(pid, {}).values())
            with contextlib.suppress(OSError):
                inside = inside or _below(os.readlink(f"/proc/{pid}/cwd"), folder)
            if inside or folder.encode() in (read_at(f"/proc/{pid}/cmdline", limit=256 << 10) or b""):
                found.append(pid)
        return found

    def hidden(self, uid: int) -> int:
        """How many processes of this user, or of a user that is not known, do not show their open files."""
        count = 0
        for pid in self._hidden:
            with contextlib.suppress(FileNotFoundError):
                count += os.stat(f"/proc/{pid}").st_uid == uid
        return count

    def living(self, pids: Iterable[int]) -> set[int]:
        """Those of them that live; not -1 and 0, which stand for nobody that is known."""
        return {pid for pid in pids if pid > 0 and pid in self._stats and self._stats[pid].state not in "ZX"}

    def identities(self, pids: Iterable[int]) -> tuple[ProcessId, ...]:
        return tuple(ProcessId(pid, self._stats[pid].start, self._boot) for pid in sorted(pids) if pid in self._stats)


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def _inode(pid: int, number: int) -> int | None:
    for line in (read_at(f"/proc/{pid}/fdinfo/{number}") or b"").split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"ino" and value.strip().isdigit():
            return int(value)
    return None


def _name(pid: int) -> str:
    stat_line = parse_stat(read_at(f"/proc/{pid}/stat") or b"")
    return stat_line.name if stat_line else ""


def _is_kernel_thread(pid: int) -> bool:
    stat_line = parse_stat(read_at(f"/proc/{pid}/stat") or b"")
    # One that has ended meanwhile holds nothing any more, nor does a zombie.
    return stat_line is None or stat_line.kernel_thread or stat_line.state in "ZX"
