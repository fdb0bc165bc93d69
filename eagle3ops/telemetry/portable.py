"""What does each process of the watched trees do, where there is no procfs to tell?"""

import contextlib
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from eagle3ops.telemetry.procfs import IO_KEYS, TICKS_PER_S, parse_cmdline


class PortableTrees:
    """The same as `ProcessTrees` through psutil, for systems without procfs; what psutil cannot say is None."""

    def __init__(self, pids: Iterable[int | tuple[int, int]] = (), *, labels: Mapping[int, str] | None = None) -> None:
        self._roots = [pid if isinstance(pid, int) else pid[0] for pid in pids]
        self._labels = dict(labels or {})
        self.left_out = 0
        self.run_dirs: set[str] = set()

    def close(self) -> None:
        """Nothing is held."""

    def read(self, *, more: Collection[int] = (), threads: bool = False) -> list[dict[str, Any]]:
        """One look at every process of the trees, by process id."""
        import psutil

        found: dict[int, dict[str, Any]] = {}
        for root in [*self._roots, *more]:
            try:
                parent = psutil.Process(root)
                members = [parent, *parent.children(recursive=True)]
            except psutil.Error:
                continue
            for process in members:
                # It may have ended since it was listed.
                with contextlib.suppress(psutil.Error):
                    found.setdefault(process.pid, self._record(process, root))
        return [found[pid] for pid in sorted(found)]

    def _record(self, process: Any, root: int) -> dict[str, Any]:
        with process.oneshot():
            created, cpu = process.create_time(), process.cpu_times()
            return {
                "pid": process.pid,
                "ppid": process.ppid(),
                "start": created,
                "start_ticks": int(created * TICKS_PER_S),
                "root": root,
                "label": self._labels.get(root),
                "run": None,
                "name": process.name(),
                "cmd": parse_cmdline("\0".join(process.cmdline()).encode()),
                "state": process.status()[:1].upper(),
                "utime": cpu.user,
                "stime": cpu.system,
                "threads": process.num_threads(),
                "rss": process.memory_info().rss,
                "majflt": None,
                "stat_mono": time.monotonic(),
                **dict.fromkeys(IO_KEYS),
                "vcs": None,
                "nvcs": None,
                "wchan": None,
                "syscall": None,
                "detail_majflt": None,
                "detail_mono": None,
            }
