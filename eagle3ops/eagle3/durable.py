"""How does a file reach the disk so that a kill or a power cut leaves either all of it or none of it?

The bytes go to a temporary name in the same folder, are synced, take the final name in one rename, and the folder
itself is synced. A reader therefore never sees half a file under its final name.
"""

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path

from eagle3ops.runs.files import sync_folder

TMP_SUFFIX = ".tmp"
"""Ends the names of files that are being written; what a kill left under such a name is never read."""


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
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if (hidden := _hidden_os_error(error, path)) is not None:
            raise hidden from error
        raise
    sync_folder(path.parent)


def _hidden_os_error(error: BaseException, path: Path) -> OSError | None:
    """The system's error inside one of safetensors, which says `(os error 28)` but is no OSError."""
    found = re.search(r"\(os error (\d+)\)", str(error))
    if found is None or isinstance(error, OSError):
        return None
    number = int(found.group(1))
    return OSError(number, os.strerror(number), str(path))


def write_bytes_durably(path: Path, data: bytes) -> None:
    """`write_durably` for bytes in memory."""
    write_durably(path, lambda temporary: temporary.write_bytes(data))


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes, read in pieces."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
