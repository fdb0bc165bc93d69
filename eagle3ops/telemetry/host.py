"""How loaded is the machine: CPU, memory, swap, disks, network, control group and pressure?

A source that is absent is None, and `reasons` says why.
"""

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from eagle3ops.telemetry.cgroup import read_cgroup
from eagle3ops.telemetry.procfs import TICKS_PER_S
from eagle3ops.telemetry.space import Space

SECTOR_BYTES = 512
"""The unit of /proc/diskstats, whatever the device uses."""

_CPU_KEYS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
MEMORY_KEYS = {
    "MemTotal": "total",
    "MemFree": "free",
    "MemAvailable": "available",
    "Cached": "cached",
    "Shmem": "shmem",
    "Dirty": "dirty",
    "SwapTotal": "swap_total",
    "SwapFree": "swap_free",
}
_PSI_NUMBER = re.compile(r"(avg10|avg60|avg300|total)=([0-9.]+)")


class HostReader:
    """Reads the machine's figures; counters only, rates are made by `rates`.

    `paths` are the folders whose space matters.
    """

    def __init__(self, paths: Iterable[str] = (), proc: Path = Path("/proc"), sys_root: Path = Path("/sys")) -> None:
        self._proc = proc
        self._sys = sys_root
        self.space = Space(paths)

    def close(self) -> None:
        """End what asks for disk space."""
        self.space.close()

    def read(self, *, wait_s: float = 0.0) -> dict[str, Any]:
        """One look; `wait_s` as for `Space.read`.

        Returns: `mono` (seconds, of this look), `load` (1, 5, 15 minutes), `cpu` {count, busy_s, iowait_s, steal_s,
        total_s: counters}, `memory` (bytes: total, free, available, cached, shmem, dirty, swap_total, swap_free),
        `shm` {total, free}, `disks` (by path, see `Space.read`), `devices` and `network` (byte counters by name),
        `cgroup` (see `read_cgroup`), `psi` {cpu, io, memory: {some, full: {avg10, avg60, avg300 in %, total in us}}},
        `reasons` (why a source is absent, by its name).
        """
        if not (self._proc / "stat").exists():
            return _read_portable(self.space.read(wait_s=wait_s))
        reasons: dict[str, str] = {}

        def text(name: str, source: str) -> str | None:
            try:
                return (self._proc / name).read_text(encoding="utf-8", errors="replace")
            except OSError as error:
                reasons[source] = f"{self._proc / name}: {error.strerror or error}"
                return None

        psi = {name: _maybe(parse_psi, text(f"pressure/{name}", f"psi {name}")) for name in ("cpu", "io", "memory")}
        return {
            "mono": time.monotonic(),
            "load": _maybe(parse_load, text("loadavg", "load")),
            "cpu": _maybe(parse_cpu, text("stat", "cpu")),
            "memory": _maybe(parse_memory, text("meminfo", "memory")),
            "shm": _shared_memory(reasons),
            "disks": self.space.read(wait_s=wait_s),
            "devices": _maybe(self._whole_devices, text("diskstats", "devices")),
            "network": _maybe(parse_network, text("net/dev", "network")),
            "cgroup": read_cgroup(proc=self._proc),
            "psi": None if all(value is None for value in psi.values()) else psi,
            "reasons": reasons,
        }

    def _whole_devices(self, text: str) -> dict[str, dict[str, int]]:
        found = parse_diskstats(text)
        try:
            whole = set(os.listdir(self._sys / "block"))
        except OSError:
            return found
        return {name: counters for name, counters in found.items() if name in whole}


def _maybe(parse: Any, text: str | None) -> Any:
    return None if text is None else parse(text)


def parse_load(text: str) -> list[float] | None:
    """Load averages over 1, 5 and 15 minutes."""
    try:
        one, five, fifteen = (float(word) for word in text.split()[:3])
    except ValueError:
        return None
    return [one, five, fifteen]


def parse_cpu(text: str) -> dict[str, Any] | None:
    """/proc/stat: counters in seconds, summed over all `count` processors."""
    count, ticks = 0, None
    for line in text.splitlines():
        words = line.split()
        if not words or not words[0].startswith("cpu"):
            break
        if words[0] != "cpu":
            count += 1
            continue
        with contextlib.suppress(ValueError):
            ticks = dict(zip(_CPU_KEYS, (int(word) for word in words[1:9]), strict=False))
    if ticks is None or len(ticks) < 4:
        return None
    seconds = {name: value / TICKS_PER_S for name, value in ticks.items()}
    total, idle, waiting = sum(seconds.values()), seconds["idle"], seconds.get("iowait", 0.0)
    return {
        "count": count,
        "busy_s": total - idle - waiting,
        "iowait_s": waiting,
        "steal_s": seconds.get("steal", 0.0),
        "total_s": total,
    }


def parse_memory(text: str) -> dict[str, int | None]:
    """/proc/meminfo, in bytes."""
    found: dict[str, int | None] = dict.fromkeys(MEMORY_KEYS.values())
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name in MEMORY_KEYS:
            with contextlib.suppress(ValueError, IndexError):
                found[MEMORY_KEYS[name]] = int(rest.split()[0]) * 1024
    return found


def parse_diskstats(text: str) -> dict[str, dict[str, int]]:
    """Bytes read and written, and milliseconds with I/O under way, since boot, by device."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) < 14 or words[2].startswith(("loop", "ram", "zram")):
            continue
        with contextlib.suppress(ValueError):
            read, written, busy = int(words[5]), int(words[9]), int(words[12])
            if read or written:
                found[words[2]] = {"read": read * SECTOR_BYTES, "written": written * SECTOR_BYTES, "busy_ms": busy}
    return found


def parse_network(text: str) -> dict[str, dict[str, int]]:
    """Bytes received and sent since boot by interface, without loopback and those that were never used."""
    found = {}
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        words = rest.split()
        if not colon or len(words) < 9 or name.strip() == "lo":
            continue
        with contextlib.suppress(ValueError):
            received, sent = int(words[0]), int(words[8])
            if received or sent:
                found[name.strip()] = {"received": received, "sent": sent}
    return found


def parse_psi(text: str) -> dict[str, dict[str, float]]:
    """A file of /proc/pressure: shares of time in % and the total in microseconds, for `some` and `full`."""
    found = {}
    for line in text.splitlines():
        kind = line.partition(" ")[0]
        values = {}
        for name, number in _PSI_NUMBER.findall(line):
            with contextlib.suppress(ValueError):
                values[name] = float(number)
        if kind in ("some", "full") and values:
            found[kind] = values
    return found


def _shared_memory(reasons: dict[str, str]) -> dict[str, int] | None:
    try:
        stat = os.statvfs("/dev/shm")
    except OSError as error:
        reasons["shm"] = f"/dev/shm: {error.strerror or error}"
        return None
    return {"total": stat.f_blocks * stat.f_frsize, "free": stat.f_bavail * stat.f_frsize}


def _read_portable(disks: Mapping[str, Any]) -> dict[str, Any]:
    """What psutil can say where there is no procfs."""
    import psutil

    times, memory, swap = psutil.cpu_times(), psutil.virtual_memory(), psutil.swap_memory()
    total = sum(times)
    network = psutil.net_io_counters(pernic=True)
    absent = f"not known on {sys.platform}"
    return {
        "mono": time.monotonic(),
        "load": list(psutil.getloadavg()),
        "cpu": {
            "count": psutil.cpu_count() or 0,
            "busy_s": total - times.idle - getattr(times, "iowait", 0.0),
            "iowait_s": getattr(times, "iowait", 0.0),
            "steal_s": getattr(times, "steal", 0.0),
            "total_s": total,
        },
        "memory": {
            **dict.fromkeys(MEMORY_KEYS.values()),
            "total": memory.total,
            "free": memory.free,
            "available": memory.available,
            "swap_total": swap.total,
            "swap_free": swap.free,
        },
        "shm": None,
        "disks": dict(disks),
        "devices": None,
        "network": {
            name: {"received": counters.bytes_recv, "sent": counters.bytes_sent} for name, counters in network.items()
        },
        "cgroup": {"version": None, "reason": absent},
        "psi": None,
        "reasons": {"shm": absent, "devices": absent, "psi": absent},
    }
