"""How is a lock that nobody holds taken out of the way? It is renamed, never deleted, and only after proof.

Locks whose being there is the lock (torch's FileBaton: made with O_EXCL, kept open while it is held, removed after)
stay behind when their holder is killed, and then everybody waits for ever. A lock of the kernel (flock) cannot be
stale: it ends with its holder, and its file may lie there for good; such a file is never touched.
"""

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from eagle3ops.runs.files import write_json
from eagle3ops.runs.processes import ProcessId

LEAST_AGE_S = 600.0
"""A lock younger than this may belong to a build that goes on on another machine or in another container."""
_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "lustre", "fuse.sshfs", "glusterfs", "ceph", "9p", "beegfs"})
_MOST = 256 << 10
_BUILDS = re.compile(
    r"python|pt_|ray|sglang|vllm|torchrun|ninja|make|cmake|nvcc|cicc|ptxas|cudafe|fatbin|hipcc|clang|gcc|g\+\+|c\+\+|cc1|ld"
)
"""Programs that make such locks, or build for others. Others that hide (ssh-agent, init) do neither."""


class Lock(Protocol):
    """As much of `evidence.LockFile` as is used."""

    @property
    def path(self) -> Path: ...
    @property
    def kind(self) -> str: ...
    @property
    def holders(self) -> tuple[ProcessId, ...]: ...
    @property
    def stale(self) -> bool: ...
    @property
    def proof(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Release:
    """What came of it."""

    path: str
    released: bool
    to: str
    """Where it lies now; empty when it was not touched."""
    why: str
    """The proof, or what is missing of it."""

    def as_json(self) -> dict[str, Any]:
        """For an event."""
        return asdict(self)


def release_lock(
    lock: Lock, into: Path, *, waiting: Sequence[int] = (), least_age_s: float = LEAST_AGE_S, now: float | None = None
) -> Release:
    """Move a stale lock into the evidence folder, with a note of where it was.

    May hang on a dead mount, as everything that touches a foreign path: call it where that hurts nobody.

    Args:
        lock: as the evidence found it; looked at once more here.
        into: the evidence folder.
        waiting: process ids of those that wait for it, which do not count as building there.
        least_age_s: younger locks are left alone.
        now: seconds since 1970; by default the clock.
    """
    path = Path(os.path.abspath(lock.path))
    kept = _reason_to_keep(lock, path, frozenset(waiting), least_age_s, time.time() if now is None else now)
    if kept:
        return Release(str(path), False, "", kept)
    try:
        to = _move(path, into)
    except OSError as error:
        return Release(str(path), False, "", f"cannot be renamed: {error.strerror or error}")
    done = Release(str(path), True, str(to), lock.proof or "no process has it open, and none works in its folder")
    with contextlib.suppress(OSError):
        write_json(into / f"{to.name}.json", done.as_json() | {"time": round(time.time(), 3)}, sync=False)
    return done


def _reason_to_keep(lock: Lock, path: Path, waiting: frozenset[int], least_age_s: float, now: float) -> str:
    """Why the lock is not to be touched; empty when it may be."""
    if lock.kind != "existence":
        return "the kernel keeps this lock, and gives it back when its holder ends"
    if lock.holders or not lock.stale:
        return "it is not proven that nobody holds it"
    try:
        status = path.lstat()
    except OSError as error:
        return f"it is not there any more ({error.strerror})"
    if not stat.S_ISREG(status.st_mode):
        return "it is not a plain file"
    if now - status.st_mtime < least_age_s:
        return f"it is younger than {least_age_s:.0f} s"
    if status.st_uid != os.geteuid():
        return "it belongs to another user"
    kind = _file_system(path)
    if kind is None or kind in _NETWORK:
        return f"others may hold it from another machine (file system: {kind or 'unknown'})"
    if (status.st_dev, status.st_ino) in _locked():
        return "a process holds a lock of the kernel on it"
    return _user_of(path, status, waiting)


def _move(path: Path, into: Path) -> Path:
    """Rename it into the folder, or beside itself where that is another file system; never over another file."""
    into.mkdir(parents=True, exist_ok=True, mode=0o700)
    mark = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    for target in (into / f"{path.parent.name}-{path.name}.{mark}", path.with_name(f"{path.name}.released-{mark}")):
        if target.exists():
            continue
        try:
            path.rename(target)
            return target
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))


def _user_of(path: Path, status: os.stat_result, waiting: frozenset[int]) -> str:
    """Who has the lock open, or works in its folder; empty when nobody of those that could have made it does.

    A process that may not be looked into counts as one if it runs as the lock's owner and a program like it builds.
    """
    folder = os.fsencode(os.path.realpath(path.parent))
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        place = f"/proc/{name}"
        try:
            owner = os.stat(place).st_uid
            files = os.listdir(f"{place}/fd")
            cwd = os.fsencode(os.readlink(f"{place}/cwd"))
        except FileNotFoundError:
            continue
        except PermissionError:
            if owner == status.st_uid and _BUILDS.match(_program(name)):
                return f"process {name} may have it open and cannot be looked into"
            continue
        except OSError:
            continue
        for number in files:
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(f"{place}/fd/{number}"), status):
                    return f"process {name} has it open"
        if int(name) in waiting or int(name) == os.getpid():
            continue
        if cwd == folder or cwd.startswith(folder + b"/"):
            return f"process {name} works in its folder"
        if folder in _command_line(name):
            return f"process {name} was given its folder"
    return ""


def _program(name: str) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{name}/comm", encoding="utf-8", errors="replace") as file:
        return file.read(64)
    return ""


def _command_line(name: str) -> bytes:
    with contextlib.suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as file:
        return file.read(_MOST)
    return b""


def _locked() -> set[tuple[int, int]]:
    """(device, inode) of all files on which the kernel knows a lock."""
    try:
        with open("/proc/locks", encoding="ascii", errors="replace") as file:
            return parse_locks(file.read(1 << 22))
    except OSError:
        return set()


def parse_locks(text: str) -> set[tuple[int, int]]:
    """`1: FLOCK  ADVISORY  WRITE 708 08:01:262170 0 EOF`: device and inode of each line."""
    found = set()
    for line in text.splitlines():
        for word in line.split():
            parts = word.split(":")
            if len(parts) == 3:
                with contextlib.suppress(ValueError, OverflowError):
                    found.add((os.makedev(int(parts[0], 16), int(parts[1], 16)), int(parts[2])))
    return found


def _file_system(path: Path) -> str | None:
    """The kind of the file system that a path is on; None where that is not known."""
    try:
        text = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return file_system_of(os.path.realpath(path.parent), text)


def file_system_of(folder: str, mountinfo: str) -> str | None:
    """The same from the text of `/proc/self/mountinfo`: of the deepest mount above a folder, the last one counts."""
    best: tuple[int, str] | None = None
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) < 5 or not kinds:
            continue
        at = fields[4].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        inside = folder == at or folder.startswith(at if at.endswith("/") else at + "/")
        if inside and (best is None or len(at) >= best[0]):
            best = len(at), kinds[0]
    return best[1] if best is not None else None
