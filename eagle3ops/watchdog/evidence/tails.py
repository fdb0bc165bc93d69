"""How does each log end, and when did it last speak?"""

import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path

LINES = 200
TAIL_BYTES = 256 << 10
MOST_LOGS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The end of one log."""

    name: str
    offset: int
    """Byte of the log at which the text begins."""
    text: str
    size: int
    spoke_s: float
    """Seconds since it was last written to."""
    last: str
    """Its last whole line that is not blank; empty where there is none."""
    last_offset: int
    identity: tuple[int, int]
    """Device and inode: two names may lead to one log."""


def read_tail(path: Path, *, now: float | None = None) -> Tail:
    """The last lines of a log, at most `LINES` and `TAIL_BYTES`.

    A line of which only the end would be shown is left out, as half a secret is not recognised as one. Blocks where
    the file does: to be asked with patience.

    Raises:
        OSError: it cannot be read, or is no ordinary file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb") as file:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            raise OSError("no ordinary file")
        start = max(0, info.st_size - TAIL_BYTES)
        file.seek(start)
        data = file.read(TAIL_BYTES)
    if start:
        cut = data.find(b"\n") + 1
        cut = cut or len(data)
        start, data = start + cut, data[cut:]
    lines = data.split(b"\n")
    drop = max(0, len(lines) - LINES - 1)
    offset = start + sum(len(line) + 1 for line in lines[:drop])
    lines = lines[drop:]
    last, last_offset, at = "", offset, offset
    for line in lines:
        if line.strip():
            last, last_offset = line.decode("utf-8", "replace").strip()[:500], at
        at += len(line) + 1
    return Tail(
        name=path.name,
        offset=offset,
        text=b"\n".join(lines).decode("utf-8", "replace"),
        size=info.st_size,
        spoke_s=max(0.0, (time.time() if now is None else now) - info.st_mtime),
        last=last,
        last_offset=last_offset,
        identity=(info.st_dev, info.st_ino),
    )
