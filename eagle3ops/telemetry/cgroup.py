"""What may this process's control group use, and what has it used? Version 1 and version 2.

A limit of a parent group binds as well: the smallest one on the way up to the mount counts.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

_V1_UNLIMITED = 1 << 60
"""Version 1 writes a number near 2**63, rounded to pages, for no limit."""
_KEYS = (
    "memory_used",
    "memory_limit",
    "oom_kills",
    "cpu_limit",
    "cpu_throttled_s",
    "cpu_periods_throttled",
    "pids",
    "pids_limit",
)


@dataclass(frozen=True, slots=True)
class _Place:
    """A group's folder and the mount above which there is nothing to read."""

    folder: Path
    mount: Path

    def upwards(self) -> list[Path]:
        folders = [self.folder]
        while folders[-1] != self.mount and self.mount in folders[-1].parents:
            folders.append(folders[-1].parent)
        return folders


def read_cgroup(pid: int | str = "self", proc: Path = Path("/proc")) -> dict[str, Any]:
    """Usage and limits of a process's group.

    Returns: `version` (1, 2 or None), `reason` where it cannot be read, memory_used and memory_limit (bytes, None
    for no limit), oom_kills (so far), cpu_limit (cores), cpu_throttled_s, cpu_periods_throttled, pids, pids_limit.
    """
    found: dict[str, Any] = {"version": None, "reason": None, **dict.fromkeys(_KEYS)}
    try:
        memberships = parse_memberships((proc / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace"))
        mounts = parse_mounts((proc / "self" / "mountinfo").read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        return {**found, "reason": f"control groups cannot be read: {error.strerror or error}"}
    if "memory" in mounts and "memory" in memberships:
        return {**found, "version": 1, **_read_v1(memberships, mounts)}
    place = _place("", memberships, mounts)
    if place is None:
        return {**found, "reason": "no control group file system is mounted"}
    return {**found, "version": 2, **_read_v2(place)}


def parse_memberships(text: str) -> dict[str, str]:
    """/proc/PID/cgroup: path by controller; version 2 has the controller ""."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            for controller in parts[1].split(","):
                found[controller] = parts[2]
    return found


def parse_mounts(text: str) -> dict[str, tuple[str, str]]:
    """/proc/PID/mountinfo: (root inside the hierarchy, mount point) by controller; version 2 is ""."""
    found: dict[str, tuple[str, str]] = {}
    for line in text.splitlines():
        left, dash, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if not dash or len(fields) < 5 or not kind:
            continue
        if kind[0] == "cgroup2":
            found.setdefault("", (fields[3], fields[4]))
        elif kind[0] == "cgroup" and len(kind) >= 3:
            for option in kind[2].split(","):
                found.setdefault(option, (fields[3], fields[4]))
    return found


def _place(controller: str, memberships: dict[str, str], mounts: dict[str, tuple[str, str]]) -> _Place | None:
    if controller not in mounts or controller not in memberships:
        return None
    (root, mount), path = mounts[controller], memberships[controller]
    inside = path[len(root) :] if root != "/" and path.startswith(root) else path
    folder = Path(mount, inside.lstrip("/"))
    # Without a cgroup namespace a container sees the host's path, but only its own group is mounted.
    return _Place(folder if ".." not in folder.parts and folder.is_dir() else Path(mount), Path(mount))


def _read_v2(place: _Place) -> dict[str, Any]:
    cpu = _pairs(place.folder / "cpu.stat")
    throttled = cpu.get("throttled_usec")
    return {
        "memory_used": _number(place.folder / "memory.current"),
        "memory_limit": _least(place, "memory.max"),
        "oom_kills": _pairs(place.folder / "memory.events").get("oom_kill"),
        "cpu_limit": _least_cpu(place, _quota_v2),
        "cpu_throttled_s": None if throttled is None else throttled / 1e6,
        "cpu_periods_throttled": cpu.get("nr_throttled"),
        "pids": _number(place.folder / "pids.current"),
        "pids_limit": _least(place, "pids.max"),
    }


def _read_v1(memberships: dict[str, str], mounts: dict[str, tuple[str, str]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    memory, cpu, pids = (_place(name, memberships, mounts) for name in ("memory", "cpu", "pids"))
    if memory is not None:
        found["memory_used"] = _number(memory.folder / "memory.usage_in_bytes")
        found["memory_limit"] = _least(memory, "memory.limit_in_bytes")
        found["oom_kills"] = _pairs(memory.folder / "memory.oom_control").get("oom_kill")
    if cpu is not None:
        stat = _pairs(cpu.folder / "cpu.stat")
        throttled = stat.get("throttled_time")
        found["cpu_limit"] = _least_cpu(cpu, _quota_v1)
        found["cpu_throttled_s"] = None if throttled is None else throttled / 1e9
        found["cpu_periods_throttled"] = stat.get("nr_throttled")
    if pids is not None:
        found["pids"] = _number(pids.folder / "pids.current")
        found["pids_limit"] = _least(pids, "pids.max")
    return found


def _quota_v2(folder: Path) -> float | None:
    words = (_text(folder / "cpu.max") or "").split()
    return _ratio(words[0], words[1]) if len(words) == 2 else None


def _quota_v1(folder: Path) -> float | None:
    return _ratio(_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us"))


def _ratio(quota: str | None, period: str | None) -> float | None:
    try:
        cores = int(quota or "") / int(period or "")
    except (ValueError, ZeroDivisionError):
        return None
    return cores if cores > 0 else None


def _least_cpu(place: _Place, quota: Any) -> float | None:
    return min((cores for folder in place.upwards() if (cores := quota(folder)) is not None), default=None)


def _least(place: _Place, name: str) -> int | None:
    limits = [limit for folder in place.upwards() if (limit := _number(folder / name)) is not None]
    return min((limit for limit in limits if limit < _V1_UNLIMITED), default=None)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _number(path: Path) -> int | None:
    try:
        return int(_text(path) or "")
    except ValueError:
        return None


def _pairs(path: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in (_text(path) or "").splitlines():
        words = line.split()
        if len(words) == 2 and words[1].isdigit():
            found[words[0]] = int(words[1])
    return found
