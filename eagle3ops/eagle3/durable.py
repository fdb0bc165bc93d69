"""How does a file reach the disk so that a kill or a power cut leaves either all of it or none of it?

The bytes go to a temporary name in the same folder, are synced, take the final name in one rename, and the folder
itself is synced. A reader therefore never sees half a file under its final name.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

TMP_SUFFIX = ".tmp"
"""Ends the names of files that are being written; what a kill left under such a name is never read."""


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_durably(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file, then give it the name `path` durably.

    Raises:
        OSError: from the file system (full, read-only, ...); `path` is as it was before.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TMP_SUFFIX}")
    try:
        write(temporary)
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_bytes_durably(path: Path, data: bytes) -> None:
    """`write_durably` for bytes in memory."""
    write_durably(path, lambda temporary: temporary.write_bytes(data))


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes, read in pieces."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
