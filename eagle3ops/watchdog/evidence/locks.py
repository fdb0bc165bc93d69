"""Which lock files lie in the caches of compilations and downloads, who holds them, and is one left over from the dead?

Two kinds look alike. With flock the file means nothing, the kernel's lock on it does, and that ends with its holder.
Where the mere existence of a file is the lock (`FileBaton` of torch's extensions, soft locks), one that was killed
leaves it behind, and whoever comes later waits for ever: only that kind can be stale. Its holder keeps it open.
"""

import contextlib
import os
import re
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eagle3ops.runs.processes import ProcessId
from eagle3ops.telemetry.procfs import read_at
from eagle3ops.watchdog.evidence.open_files import OpenFiles
from eagle3ops.words import human_seconds

MOST_ENTRIES = 50_000
MOST_LOCKS = 500
DEEPEST = 6
CONTAINER_QUIET_S = 600.0
"""From inside a container not every process can be seen that may share a folder: so long nothing may have changed."""
_NETWORK = re.compile(r"nfs|lustre|ceph|beegfs|gpfs|glusterfs|cifs|smb|fuse\.|9p|virtiofs|wekafs")


@dataclass(frozen=True, slots=True, kw_only=True)
class LockFile:
    """One lock file as it was found."""

    path: Path
    kind: str
    """`existence` (that it is there is the lock) or `flock` (the kernel's lock on it is)."""
    age_s: float
    """Seconds since it was made or last written."""
    holders: tuple[ProcessId, ...] = ()
    waiters: tuple[ProcessId, ...] = ()
    """Those that the kernel lets wait for it."""
    stale: bool = False
    """Nobody holds it, and it holds others up."""
    proof: str = ""
    """Why it is said to be stale, or not, for people."""

    def harmless(self) -> "LockFile":
        """The same, said to hold nobody up."""
        return replace(self, stale=False, proof=f"left over, but nothing shows that anybody waits for it: {self.proof}")

    def as_json(self) -> dict[str, Any]:
        """For a file."""
        return {
            "path": str(self.path),
            "kind": self.kind,
            "age_s": round(self.age_s, 1),
            "holders": [one.as_json() for one in self.holders],
            "waiters": [one.as_json() for one in self.waiters],
            "stale": self.stale,
            "proof": self.proof,
        }


@dataclass(frozen=True, slots=True)
class KernelLock:
    """A line of /proc/locks."""

    kind: str
    """FLOCK, POSIX, OFDLCK, LEASE ..."""
    pid: int
    """-1 for one that belongs to an open file, 0 for one of another pid namespace."""
    major: int
    minor: int
    inode: int
    waiting: bool


def parse_locks(text: str) -> list[KernelLock]:
    """/proc/locks; lines that are none are passed over."""
    found = []
    for line in text.split("\n"):
        words = line.split()[1:]
        waiting = bool(words) and words[0] == "->"
        words = words[1:] if waiting else words
        place = words[4].split(":") if len(words) >= 7 else []
        with contextlib.suppress(ValueError):
            if len(place) == 3:
                major, minor = int(place[0], 16), int(place[1], 16)
                found.append(KernelLock(words[0], int(words[3]), major, minor, int(place[2]), waiting))
    return found


def cache_folders(environments: Iterable[Mapping[str, str]]) -> list[Path]:
    """Where locks of compilations and downloads may lie, by the environments of the processes that use them."""
    found: list[str] = []
    for environment in environments:
        home = environment.get("HOME") or os.path.expanduser("~")
        user = environment.get("USER") or os.path.basename(home)
        cache = environment.get("XDG_CACHE_HOME") or f"{home}/.cache"
        hub = environment.get("HF_HUB_CACHE") or f"{environment.get('HF_HOME') or f'{cache}/huggingface'}/hub"
        temporary = environment.get("TMPDIR") or "/tmp"
        base = environment.get("FLASHINFER_WORKSPACE_BASE") or home
        found += [
            environment.get("TORCH_EXTENSIONS_DIR") or f"{cache}/torch_extensions",
            environment.get("TRITON_CACHE_DIR") or f"{home}/.triton/cache",
            f"{base}/.cache/flashinfer",
            environment.get("TVM_FFI_CACHE_DIR") or f"{cache}/tvm-ffi",
            environment.get("TORCHINDUCTOR_CACHE_DIR") or f"{temporary}/torchinductor_{user}",
            f"{hub}/.locks",
            environment.get("VLLM_CACHE_ROOT") or f"{cache}/vllm",
            environment.get("SGLANG_CACHE_DIR") or f"{cache}/sglang",
            environment.get("SGLANG_DG_CACHE_DIR") or environment.get("DG_JIT_CACHE_DIR") or f"{home}/.deep_gemm",
        ]
    return [Path(folder) for folder in dict.fromkeys(found) if folder.startswith("/")]


def find(folders: Sequence[Path], *, until: float) -> list[Path]:
    """Lock files below the folders, `lock`, `.lock`, `*.lock` and `*.lck`; bounded in number, depth and time.

    Blocks where a folder does: to be asked with patience.
    """
    found: list[Path] = []
    left = MOST_ENTRIES
    todo = [(str(folder), 0) for folder in reversed(folders)]
    seen: set[str] = set()
    while todo and left > 0 and len(found) < MOST_LOCKS and time.monotonic() < until:
        folder, depth = todo.pop()
        if folder in seen:
            continue
        seen.add(folder)
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                left -= 1
                if left <= 0:
                    break
                if entry.is_dir(follow_symlinks=False):
                    if depth < DEEPEST:
                        todo.append((entry.path, depth + 1))
                elif _is_lock(entry.name) and len(found) < MOST_LOCKS:
                    found.append(Path(entry.path))
    return found


def _is_lock(name: str) -> bool:
    return name == "lock" or name.endswith((".lock", ".lck"))


def examine(paths: Sequence[Path], *, now: float | None = None) -> list[LockFile]:
    """Who holds each of these files, and which of them are stale; those that are gone are left out.

    The look is of one moment: before a lock is taken away, look again.

    Args:
        paths: lock files.
        now: seconds since 1970; None for the clock's.
    """
    now = time.time() if now is None else now
    if not paths:
        return []
    kernel = parse_locks((read_at("/proc/locks", limit=1 << 20) or b"").decode("ascii", "replace"))
    table = OpenFiles()
    mounts = (read_at("/proc/self/mountinfo", limit=1 << 20) or b"").decode("utf-8", "replace")
    found = []
    for path in paths:
        try:
            info = path.lstat()
            real = os.path.realpath(path)
        except OSError:
            continue
        if stat.S_ISREG(info.st_mode):
            found.append(_examine(path, real, info, now, kernel, table, file_system(mounts, real)))
    return found


def _examine(
    path: Path,
    real: str,
    info: os.stat_result,
    now: float,
    kernel: Sequence[KernelLock],
    table: OpenFiles,
    kind_of_mount: str,
) -> LockFile:
    open_in = table.holders(real, info.st_ino)
    here = [
        lock
        for lock in kernel
        if lock.inode == info.st_ino
        # Some file systems give another device number to the kernel than to programs.
        and ((lock.major, lock.minor) == (os.major(info.st_dev), os.minor(info.st_dev)) or lock.pid in open_in)
    ]
    holders = table.living(lock.pid for lock in here if not lock.waiting)
    waiters = table.living(lock.pid for lock in here if lock.waiting)
    held_by_kernel = any(not lock.waiting for lock in here)
    existence = not here and _by_existence(path, info)
    if existence or (held_by_kernel and not holders):
        # The kernel names who took a lock, also when only children that inherited it are left, or names nobody; and
        # who locks by existence keeps the file open.
        holders |= open_in - waiters
    age = max(0.0, now - info.st_mtime)

    def tell(stale: bool, proof: str) -> LockFile:
        return LockFile(
            path=path,
            kind="existence" if existence else "flock",
            age_s=age,
            holders=table.identities(holders),
            waiters=table.identities(waiters),
            stale=stale,
            proof=proof,
        )

    if holders or held_by_kernel:
        who = ", ".join(f"pid {pid}" for pid in sorted(holders)) or "a process that cannot be seen here"
        waits = f"; {len(waiters)} wait for it" if waiters else ""
        return tell(False, f"held by {who}{waits}")
    if not existence:
        return tell(False, "nobody holds it; it is locked by flock, so the file alone holds nobody up")
    builders = table.builders(os.path.dirname(real))
    if builders:
        return tell(
            False, f"not open anywhere, but {', '.join(f'pid {pid}' for pid in builders[:5])} compiles in its folder"
        )
    if _NETWORK.search(kind_of_mount):
        return tell(False, f"not open on this machine, but on {kind_of_mount} its holder may be on another")
    hidden = table.hidden(info.st_uid)
    if hidden:
        return tell(False, f"not known: the open files of {hidden} processes of its owner may not be read")
    quiet = now - _newest(os.path.dirname(real), info.st_mtime)
    if table.contained and quiet < CONTAINER_QUIET_S:
        words = f"its folder changed {human_seconds(max(0.0, quiet))} ago and its holder may be in another container"
        return tell(False, f"not open in this container, but {words}")
    where = "in this container" if table.contained else "on this machine"
    return tell(
        True,
        f"made {human_seconds(age)} ago, open in no process {where}, locked in no line of /proc/locks, "
        f"and no compiler works in its folder",
    )


def _by_existence(path: Path, info: os.stat_result) -> bool:
    """torch's FileBaton makes an empty file named `lock` in the folder of an extension that is being built."""
    return path.name == "lock" and info.st_size <= 64


def _newest(folder: str, otherwise: float) -> float:
    newest = otherwise
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for number, entry in enumerate(entries):
            if number > 2000:
                break
            with contextlib.suppress(OSError):
                newest = max(newest, entry.stat(follow_symlinks=False).st_mtime)
    return newest


def file_system(mounts: str, path: str) -> str:
    """The type of the file system that holds a path, from /proc/self/mountinfo; empty when it is not there."""
    best, kind = -1, ""
    for line in mounts.split("\n"):
        left, dash, right = line.partition(" - ")
        words, types = left.split(), right.split()
        if not dash or len(words) < 5 or not types:
            continue
        mount = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8) & 0xFF), words[4])
        inside = mount == "/" or path == mount or path.startswith(mount + "/")
        # Of two on one place the later one hides the other.
        if inside and len(mount) >= best:
            best, kind = len(mount), types[0]
    return kind
