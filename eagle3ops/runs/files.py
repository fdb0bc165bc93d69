"""How does a small file reach the disk whole or not at all, and how does a full disk speak up?"""

import contextlib
import errno
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from eagle3ops.errors import Eagle3opsError
from eagle3ops.runs.redact import redact

T = TypeVar("T")

_EXPLAINED = {
    errno.ENOSPC: ("no space left on the disk", "free some space (eagle3ops runs gc --yes), then resume"),
    errno.EDQUOT: ("the disk quota is used up", "free some space (eagle3ops runs gc --yes), then resume"),
    errno.EACCES: ("no permission to write", "choose another folder with --root, or change its permissions"),
    errno.EPERM: ("the system does not allow writing", "choose another folder with --root, or change its attributes"),
    errno.EROFS: ("the file system is read-only", "choose another folder with --root, or mount it for writing"),
    errno.EEXIST: ("a file stands where a folder is needed", "choose another folder with --root"),
    errno.ENOENT: ("cannot be created", "choose another folder with --root"),
    errno.ENOTDIR: ("a file stands where a folder is needed", "choose another folder with --root"),
    errno.EISDIR: ("a folder stands where a file is needed", "move it away, or name another file"),
}


def explain_os_error(error: OSError, path: Path | str | None = None) -> Eagle3opsError | None:
    """Put an error of the file system into words that name the path; None for an error of another kind."""
    words = _EXPLAINED.get(error.errno or 0)
    if words is None:
        return None
    place = path or error.filename or "the output folder"
    return Eagle3opsError(f"{place}: {words[0]} ({os.strerror(error.errno or 0)})", remedy=words[1])


def log_line(text: str) -> None:
    """Write to standard error, which is a log file here; a disk too full for the log must not hide the cause."""
    with contextlib.suppress(OSError):
        sys.stderr.write(redact(text) + "\n")
        sys.stderr.flush()


def sync_folder(folder: Path) -> None:
    """Make renames within `folder` survive a power cut."""
    sync_file(folder)


def sync_file(path: Path) -> None:
    """Flush what was written to `path` to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomic(path: Path, text: str, *, sync: bool = True) -> None:
    """Replace `path` by `text`: a reader, or a restart after a power cut, sees the old or the new, never a part.

    Args:
        path: the file to replace.
        text: its new content.
        sync: False skips the flush to disk, for what may be lost in a power cut.
    """
    # Half a surrogate pair, as names of files and JSON may hold it, is no reason to write nothing.
    content = text.encode("utf-8", errors="replace")
    write_whole(path, lambda partial: partial.write_bytes(content), sync=sync)


def write_whole(path: Path, write: Callable[[Path], T], *, sync: bool = True, mode: int | None = None) -> T:
    """Let `write` fill a file beside `path`, which then takes its name in one rename: never half a file under it.

    Args:
        path: the file to replace.
        write: is given the other name, under which nothing stands; what it returns is returned.
        sync: False skips the flush to disk, for what may be lost in a power cut.
        mode: permissions of the new file; None leaves those that `write` gave it.

    Raises:
        OSError: from the file system (full, read-only, ...); `path` is as it was before.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # Not into what a killed process, or somebody else, left under that name; it may be a link.
        partial.unlink(missing_ok=True)
        made = write(partial)
        if mode is not None:
            partial.chmod(mode)
        if sync:
            sync_file(partial)
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
    if sync:
        sync_folder(path.parent)
    return made


_PARTIAL = re.compile(r"\..+\.[0-9]+\.tmp")


def remove_partials(folder: Path) -> None:
    """Delete what `write_whole` left below a folder where it was killed; only for who is alone in there."""
    for path in folder.rglob(".*.tmp"):
        if _PARTIAL.fullmatch(path.name) and path.is_file():
            path.unlink(missing_ok=True)


def write_json(path: Path, data: Any, *, sync: bool = True) -> None:
    """`write_atomic` for an object, indented, so that `cat` and `diff` are of use."""
    write_atomic(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n", sync=sync)


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in `path`; None when it is missing, damaged or not an object."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None
