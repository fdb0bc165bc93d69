"""What does the machine around the processes say: GPUs and who else is on them, memory, pressure, space, the kernel?"""

import contextlib
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eagle3ops.runs.processes import process_table
from eagle3ops.telemetry.cgroup import parse_memberships, read_cgroup
from eagle3ops.telemetry.gpus import inventory
from eagle3ops.telemetry.host import HostReader
from eagle3ops.telemetry.procfs import read_at
from eagle3ops.watchdog.incidents.incident import Evidence
from eagle3ops.words import human_bytes

KERNEL_LINES = 200
KERNEL_BYTES = 4 << 20
SPACE_S = 2.0
"""So long is waited for answers about disk space."""
_FULL = 0.99
MOST_SEGMENTS = 200

_TELLING = re.compile(
    r"NVRM: Xid|oom-kill:|Out of memory: Killed|Memory cgroup out of memory|blocked for more than|hung_task"
    r"|nfs: server .* not responding|I/O error|segfault|soft lockup|fallen off the bus|EDAC|mce:",
    re.IGNORECASE,
)

_NAMED = re.compile(
    r"\bpid=(?P<pid>\d{1,9}),uid=|Killed process (?P<killed>\d{1,9})|task \S{1,64}:(?P<task>\d{1,9}) blocked"
    r"|\[(?:[^\[\]:]{0,64}:)?(?P<short>\d{1,9})\](?:: segfault|$)"
)
_GROUP = re.compile(r"\btask_memcg=(?P<path>/[^,]{0,4000})")
_HOST_PIDS = "pid:[4026531836]"
"""The kernel's fixed name of the first name space of processes (PROC_PID_INIT_INO)."""


def gpus(members: Iterable[int]) -> tuple[dict[str, Any], list[Evidence]]:
    """All GPUs as the driver tells of them, and what stands out.

    Args:
        members: the processes that are looked at; others are foreign.
    """
    own = set(members)
    found = inventory()
    told, findings = [], []
    for gpu in found.gpus:
        processes = [
            {"pid": p.pid, "name": p.name, "user": p.user, "memory_bytes": p.memory_bytes, "visible": p.visible,
             "foreign": p.visible and p.pid not in own}
            for p in gpu.processes
        ]  # fmt: skip
        told.append(
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "name": gpu.name,
                "state": gpu.state,
                "memory_total": gpu.memory_total,
                "memory_used": gpu.memory_used,
                "processes": processes,
            }
        )
        if gpu.state != "ok":
            findings.append(Evidence(f"GPU {gpu.index}: {gpu.state}"))
        strangers = [str(p) for p in gpu.processes if p.visible and p.pid not in own]
        if strangers and any(p.pid in own for p in gpu.processes):
            findings.append(Evidence(f"GPU {gpu.index} is also used by {', '.join(strangers[:4])}"))
    return {"gpus": told, "absent": found.absent, "remedy": found.remedy, "driver": found.driver}, findings


def host(pids: Sequence[int], paths: Sequence[Path]) -> tuple[dict[str, Any], list[Evidence]]:
    """Memory, pressure, control group, space, and shared memory that the dead left behind.

    Args:
        pids: of the processes; the control groups of the first few are looked at.
        paths: folders whose space matters.
    """
    reader = HostReader([str(path) for path in paths])
    try:
        facts = reader.read(wait_s=SPACE_S)
    finally:
        reader.close()
    groups = {pid: read_cgroup(pid) for pid in pids[:4]}
    segments = shm_segments()
    left = left_in_shm()
    told = {**facts, "cgroups": groups, "shm_segments": segments, "shm_files_of_the_dead": left}
    return told, _findings(facts, segments, left)


def _findings(
    facts: Mapping[str, Any],
    segments: Sequence[Mapping[str, Any]],
    left: Sequence[Mapping[str, Any]],
) -> list[Evidence]:
    found = []
    memory = facts.get("memory") or {}
    if memory.get("total") and (memory.get("available") or 0) < 0.02 * memory["total"]:
        found.append(Evidence(f"only {human_bytes(memory.get('available') or 0)} of the host's memory are available"))
    shm = facts.get("shm") or {}
    if shm.get("total") and shm["free"] < (1 - _FULL) * shm["total"]:
        found.append(Evidence(f"/dev/shm is full: {human_bytes(shm['free'])} of {human_bytes(shm['total'])} are free"))
    for path, space in (facts.get("disks") or {}).items():
        if space.get("total") and space.get("free") is not None and space["free"] < (1 - _FULL) * space["total"]:
            found.append(Evidence(f"the disk of {path} is full: {human_bytes(space['free'])} are free"))
        elif "does not answer" in str(space.get("reason")):
            found.append(Evidence(f"{path} {space['reason']}: a mount that hangs"))
    for name, pressure in (facts.get("psi") or {}).items():
        full = ((pressure or {}).get("full") or {}).get("avg10") or 0.0
        if name in ("io", "memory") and full > 50:
            found.append(Evidence(f"{full:.0f} % of the last 10 s everything waited for {name} (PSI full)"))
    dead = sum(one["bytes"] for one in [*(s for s in segments if s["dead"]), *left])
    if dead > 64 << 20:
        found.append(Evidence(f"{human_bytes(dead)} of shared memory belong to processes that have ended"))
    return found


def shm_segments() -> list[dict[str, Any]]:
    """System V segments: id, bytes, attached, creator (pid), dead (its creator has ended and nobody is attached)."""
    text = (read_at("/proc/sysvipc/shm", limit=1 << 20) or b"").decode("ascii", "replace")
    return parse_shm(text, set(process_table()))


def parse_shm(text: str, living: set[int]) -> list[dict[str, Any]]:
    """/proc/sysvipc/shm; lines that are none are passed over."""
    found: list[dict[str, Any]] = []
    for line in text.split("\n")[1 : MOST_SEGMENTS + 1]:
        words = line.split()
        with contextlib.suppress(ValueError, IndexError):
            creator, attached = int(words[4]), int(words[6])
            found.append(
                {
                    "id": int(words[1]),
                    "bytes": int(words[3]),
                    "attached": attached,
                    "creator": creator,
                    "dead": attached == 0 and creator > 0 and creator not in living,
                }
            )
    return found


def left_in_shm() -> list[dict[str, Any]]:
    """Files of torch in /dev/shm whose maker, named in the file's name, has ended: name, bytes."""
    living = process_table()
    found: list[dict[str, Any]] = []
    with contextlib.suppress(OSError), os.scandir("/dev/shm") as entries:
        for number, entry in enumerate(entries):
            if number > 20_000 or len(found) >= MOST_SEGMENTS:
                break
            made = re.match(r"torch_([0-9]{1,9})_", entry.name)
            if made and int(made[1]) not in living:
                with contextlib.suppress(OSError):
                    found.append({"name": entry.name, "bytes": entry.stat(follow_symlinks=False).st_size})
    return found


def kernel_messages(path: str = "/dev/kmsg") -> tuple[list[str], str]:
    """The kernel's last messages, `[seconds after boot] text`, and why there are none if they may not be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        words = f"{path}: {error.strerror}"
        hint = ": only root, or with kernel.dmesg_restrict=0" if isinstance(error, PermissionError) else ""
        return [], words + hint
    lines: list[str] = []
    left, until = KERNEL_BYTES, time.monotonic() + 2
    try:
        while left > 0 and time.monotonic() < until:
            try:
                record = os.read(handle, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:
                # Overwritten before it was read: the next one is there.
                continue
            except OSError as error:
                return lines, f"{path}: {error.strerror}"
            if not record:
                break
            left -= len(record)
            line = parse_kmsg(record)
            if line:
                lines.append(line)
                del lines[:-KERNEL_LINES]
    finally:
        os.close(handle)
    return lines, ""


def parse_kmsg(record: bytes) -> str | None:
    """A record of /dev/kmsg: `level,number,microseconds,flags;text`."""
    head, semicolon, text = record.partition(b";")
    if not semicolon:
        return None
    try:
        seconds = int(head.split(b",")[2]) / 1e6
    except (ValueError, IndexError, OverflowError):
        return None
    return f"[{seconds:.6f}] {text.split(bytes([10]), 1)[0].decode('utf-8', 'replace')[:1000]}"


def kernel_findings(
    lines: Sequence[str], processes: Sequence[Mapping[str, Any]], since_s: float = 0.0
) -> list[Evidence]:
    """Those messages of the kernel that explain a failure of these processes; the newest ones.

    What names a process (killed for want of memory, a segmentation fault, a task that is blocked) counts when that is
    one of them, or was in their control group. Inside of a container neither can be told; there the program's name
    decides.

    Args:
        lines: as `kernel_messages` gives them.
        processes: `procfs.details` of each.
        since_s: older ones tell nothing, s after boot.
    """
    contained = _contained()
    names = {str(one["name"]) for one in processes}
    pids = {int(one["pid"]) for one in processes}
    groups = {path for one in processes for path in parse_memberships(one.get("cgroup") or "").values()} - {"/", ""}
    ours: dict[int, bool] = {}
    found = []
    for line in lines:
        seconds, _, text = line.removeprefix("[").partition("]")
        try:
            old = float(seconds) < since_s
        except ValueError:
            continue
        if old or not _TELLING.search(text):
            continue
        named = _NAMED.search(text)
        if named is not None:
            pid = int(next(filter(None, named.group("pid", "killed", "task", "short"))))
            group = _GROUP.search(text)
            own = contained and any(name in text for name in names)
            own |= not contained and (pid in pids or (group is not None and _within(group["path"], groups)))
            # The kernel tells of one killing in two lines, of which only the first names the group.
            ours[pid] = own or ours.get(pid, False)
            if not ours[pid]:
                continue
        found.append(Evidence(f"the kernel says: {line}"))
    return found[-4:]


def _within(path: str, groups: Iterable[str]) -> bool:
    return any(path == group or path.startswith(f"{group}/") for group in groups)


def _contained() -> bool:
    """Are numbers of processes here others than those that the kernel's log has?"""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid") != _HOST_PIDS
    return True
