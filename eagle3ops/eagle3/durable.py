"""How do weights reach the disk so that a kill or a power cut leaves either all of them or none?"""

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from eagle3ops.runs.files import write_whole

T = TypeVar("T")

TMP_SUFFIX = ".tmp"
"""Ends the names of files that are being written; what a kill left under such a name is never read."""


def write_durably(path: Path, write: Callable[[Path], T]) -> T:
    """`write_whole`, with what went wrong inside a library as the system's own error, and the file named.

    Raises:
        OSError: from the file system (full, read-only, ...); `path` is as it was before.
    """
    try:
        return write_whole(path, write)
    except OSError as error:
        # What fails while bytes are written does not say of which file.
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise
    except Exception as error:
        if (hidden := _hidden_os_error(error, path)) is not None:
            raise hidden from error
        raise


def _hidden_os_error(error: BaseException, path: Path) -> OSError | None:
    """The system's error inside one of safetensors, which says `(os error 28)` but is no OSError."""
    found = re.search(r"\(os error (\d+)\)", str(error))
    if found is None:
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
