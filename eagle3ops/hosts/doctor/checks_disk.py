"""Is there room, and is it the kind of file system that locks and survives?"""

import contextlib
import os
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from eagle3ops.hosts.doctor.finding import Finding, bad, ok, warn
from eagle3ops.hosts.doctor.probing import read_text
from eagle3ops.words import human_bytes

GIB = 1024**3
NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs")
LEFTOVER = re.compile(
    r"""
    torch_(?P<torch>\d+)_\d+(?:_\d+)?
    | __KMP_REGISTERED_LIB_(?P<omp>\d+)(?:_\d+)?
    | cuda\.shm\.[0-9a-f]+\.(?P<cuda>[0-9a-f]+)\.\d+
    """,
    re.VERBOSE | re.ASCII,
)
"""Names in /dev/shm that carry the id of the process they belong to (CUDA writes it in hexadecimal)."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A line of /proc/self/mountinfo."""

    point: str
    kind: str
    source: str
    read_only: bool
    noexec: bool


def parse_mounts(text: str) -> list[Mount]:
    """The mounts of /proc/self/mountinfo; lines that are none are left out."""
    found = []
    for line in text.splitlines():
        left, dash, right = line.partition(" - ")
        fields, more = left.split(" "), right.split(" ")
        if not dash or len(fields) < 6 or len(more) < 2:
            continue
        options = {*fields[5].split(","), *(more[2].split(",") if len(more) > 2 else ())}
        found.append(
            Mount(_unescape(fields[4]), more[0], _unescape(more[1]), "ro" in options, "noexec" in fields[5].split(","))
        )
    return found


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def mount_of(path: str, mounts: Iterable[Mount]) -> Mount | None:
    """The mount that an absolute path lies on; of several at one point the last, which covers the others."""
    best: Mount | None = None
    for mount in mounts:
        point = mount.point.rstrip("/")
        fits = path == point or path.startswith(point + "/")
        if fits and (best is None or len(point) >= len(best.point.rstrip("/"))):
            best = mount
    return best


def existing(path: Path) -> Path:
    """`path`, or the nearest folder above it that is there."""
    for candidate in (path, *path.parents):
        if candidate.exists():
            return candidate
    return Path("/")


def space(name: str, path: Path, *, small: float, locks: bool) -> list[Finding]:
    """Room, inodes, right to write and file system of one folder.

    Args:
        name: the finding's name, as `disk.root`.
        path: the folder; need not exist yet.
        small: bytes below which it is called short.
        locks: locks are kept here.
    """
    folder = existing(path)
    where = f"{path}" if folder == path else f"{path} (not there yet, on {folder})"
    mount = mount_of(os.path.realpath(folder), parse_mounts(read_text("/proc/self/mountinfo")))
    kind = mount.kind if mount else "file system unknown"
    facts = os.statvfs(folder)
    free, size = facts.f_bavail * facts.f_frsize, facts.f_blocks * facts.f_frsize
    value = f"{where}: {human_bytes(free)} of {human_bytes(size)} free, {kind}"
    refusal = _cannot_write(folder)
    if refusal is not None:
        remedy = "choose another folder with --root or EAGLE3OPS_ROOT (EAGLE3OPS_CACHE for the cache), or free this one"
        return [bad(name, f"{value}; cannot be written: {refusal}", remedy)]
    inodes = facts.f_favail / facts.f_files if facts.f_files else 1.0
    if facts.f_files and inodes < 0.05:
        return [warn(name, f"{value}, {facts.f_favail:,} inodes left", "delete small files; `df -i` shows where")]
    if free < small / 20:
        return [bad(name, value, f"free some: `eagle3ops runs gc`, or another disk; {human_bytes(small)} are wise")]
    if free < small:
        return [warn(name, value, f"hidden states of a small target take gigabytes; {human_bytes(small)} are wise")]
    if locks and (kind in NETWORK or kind.startswith("fuse")):
        remedy = "locks and renames are weaker over the network: put the root on a local disk (--root)"
        return [warn(name, value, remedy)]
    if locks and kind == "overlay":
        remedy = "this is the container's own layer: runs vanish with it; mount a volume and name it with --root"
        return [warn(name, value, remedy)]
    return [ok(name, value)]


def _cannot_write(folder: Path) -> str | None:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"e" * 4096)
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return None


def shared_memory(folder: Path = Path("/dev/shm")) -> list[Finding]:
    """/dev/shm: its size, and what dead processes have left there."""
    try:
        facts = os.statvfs(folder)
    except FileNotFoundError:
        remedy = "engines pass tensors between processes through it: mount a tmpfs on /dev/shm"
        return [warn("disk.shm", f"{folder} is not there", remedy)]
    free, size = facts.f_bavail * facts.f_frsize, facts.f_blocks * facts.f_frsize
    value = f"{human_bytes(free)} of {human_bytes(size)} free"
    if size < GIB:
        remedy = "start the container with --ipc=host or --shm-size=16g: NCCL and data loaders run out of it"
        found = [warn("disk.shm", value, remedy)]
    elif free < GIB:
        found = [warn("disk.shm", value, f"see what fills it: ls -l {folder}")]
    else:
        found = [ok("disk.shm", value)]
    count, held = leftovers(folder)
    if count:
        remedy = "left behind by crashed programs; look and delete: ls -l /dev/shm (not in a container that shares it)"
        found.append(warn("disk.shm_leftovers", f"{count} files, {human_bytes(held)}, of processes that ended", remedy))
    return found


def owner_of(name: str) -> int | None:
    """The process id in the name of a file in /dev/shm; None when it carries none."""
    match = LEFTOVER.fullmatch(name)
    if match is None:
        return None
    return int(match["cuda"], 16) if match["cuda"] else int(match["torch"] or match["omp"])


def leftovers(folder: Path) -> tuple[int, int]:
    """Number and bytes of files whose process does not live (any more)."""
    count = held = 0
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            pid = owner_of(entry.name)
            if pid is not None and not Path(f"/proc/{pid}").exists():
                with contextlib.suppress(OSError):
                    held += entry.stat(follow_symlinks=False).st_blocks * 512
                    count += 1
    return count, held
