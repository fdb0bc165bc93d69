"""From where are the lines of a log read? From files as they are, also compressed, and of large ones the newest part.

Places in a compressed log are those of its text: the byte of the text behind `zcat`, not of the file.
"""

import bz2
import gzip
import lzma
import os
import re
import stat
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from eagle3ops.errors import RequestError
from eagle3ops.forensics.records import Reader
from eagle3ops.forensics.scan import BLOCK, TAIL, Bytes, read_lines
from eagle3ops.words import human_bytes

NEWEST = 64 << 20
"""Bytes of each log that are read where an answer may not take long."""
SECONDS = 12.0
"""Seconds for all logs, where an answer may not take long; then only their ends are read, so that it has come by 20."""
INFLATED = 1 << 30
"""Bytes of text that are taken out of one compressed log where an answer may not take long."""

XZ_MEMORY = 256 << 20
"""Bytes that unpacking xz may take; the most that `xz -9` asks for is 65 MiB."""

_KINDS: Sequence[tuple[bytes, str]] = (
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
)
_ROTATED = re.compile(r"(.+\.(?:log|out|err|txt))[.-](\d{1,3}|\d{8})(?:\.(?:gz|bz2|xz|zst))?", re.DOTALL)
"""`a.log.1`, `a.log.2.gz`, `a.log-20261130`."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may be read."""

    most: int | None = None
    """Bytes at the end of each log; None: all."""
    until: float | None = None
    """Moment of `time.monotonic` from which on only the ends are read; None: never."""

    @classmethod
    def short(cls) -> "Bounds":
        """For an answer that somebody waits for, or that nobody asked for."""
        return cls(NEWEST, time.monotonic() + SECONDS)

    def late(self) -> bool:
        """Is the time over?"""
        return self.until is not None and time.monotonic() > self.until


class Inflated:
    """The text of a compressed file; ends where the file is damaged, as one is that is still being written."""

    def __init__(self, stream: BinaryIO, kind: str) -> None:
        stream.seek(0)
        self._damage: tuple[type[BaseException], ...] = (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError)
        self._read1: Callable[[int], bytes]
        if kind == "gzip":
            self._read1 = gzip.GzipFile(fileobj=stream, mode="rb").read1
        elif kind == "bzip2":
            self._read1 = bz2.BZ2File(stream).read1
        elif kind == "xz":
            self._read1 = _xz(stream)
        else:
            self._read1, error = _zstd(stream)
            self._damage += (error,)
        self.damaged = False

    def read(self, size: int, /) -> bytes:
        """Up to so many bytes; fewer only at the end."""
        parts, length = [], 0
        while length < size and not self.damaged:
            try:
                part = self._read1(size - length)
            except self._damage:
                self.damaged = True
                break
            if not part:
                break
            parts.append(part)
            length += len(part)
        return b"".join(parts)


def _xz(stream: BinaryIO) -> Callable[[int], bytes]:
    """As `lzma.open` reads it, but within bounds: a file of a few bytes may ask for 4 GiB to be unpacked in."""
    decoder = lzma.LZMADecompressor(memlimit=XZ_MEMORY)

    def read1(size: int) -> bytes:
        nonlocal decoder
        while True:
            more = b""
            if decoder.eof:
                more = decoder.unused_data.lstrip(b"\0") or stream.read(1 << 16)
                if not more:
                    return b""
                decoder = lzma.LZMADecompressor(memlimit=XZ_MEMORY)
            elif decoder.needs_input and not (more := stream.read(1 << 16)):
                raise EOFError
            if part := decoder.decompress(more, size):
                return part

    return read1


def _zstd(stream: BinaryIO) -> tuple[Callable[[int], bytes], type[BaseException]]:
    """Python has it from 3.14 on; before that a package may."""
    for module in ("compression.zstd", "backports.zstd", "zstandard"):
        with suppress(ImportError):
            found: Any = import_module(module)
            if module == "zstandard":
                reader = found.ZstdDecompressor().stream_reader(stream, read_across_frames=True)
                return reader.read, found.ZstdError
            return found.ZstdFile(stream).read1, found.ZstdError
    raise RequestError(
        "the log is compressed with zstd, and nothing here can read that",
        remedy="unpack it with `zstd -d`, or install the package zstandard",
    )


def open_file(path: str | Path) -> BinaryIO:
    """A log file for reading; never waits for a writer, as opening a pipe would."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(21, "Is a directory")
        if not stat.S_ISREG(mode):
            raise OSError(22, "it is no regular file; write what it gives into one first")
        return os.fdopen(fd, "rb", buffering=0)
    except BaseException:
        os.close(fd)
        raise


def compression(stream: BinaryIO) -> str:
    """How a file is compressed, by its first bytes; empty: it is not."""
    stream.seek(0)
    first = stream.read(8)
    stream.seek(0)
    return next((kind for magic, kind in _KINDS if first.startswith(magic)), "")


def rotated(paths: Sequence[str]) -> list[list[str]]:
    """The files by logs, those of one log (`a.log.2.gz`, `a.log.1`, `a.log`) from the oldest to the newest."""
    logs: dict[str, list[tuple[int, str]]] = {}
    for path in dict.fromkeys(paths):
        found = _ROTATED.fullmatch(path)
        base, age = (found[1], int(found[2])) if found is not None else (path, 0)
        age = 10**8 - age if age > 999 else age
        logs.setdefault(base, []).append((age, path))
    return [[path for _, path in sorted(parts, key=lambda part: -part[0])] for parts in logs.values()]


def read_log(
    stream: BinaryIO, name: str, reader: Reader, *, begin: int = 0, bounds: Bounds | None = None
) -> tuple[str, ...]:
    """Reads on in a log, in one more file of it, from a byte on; the answer is what was not read, in words."""
    bounds = bounds or Bounds()
    notes = []
    kind = compression(stream)
    source: Bytes = stream
    if kind:
        size, whole = _length(stream, kind, bounds)
        source = Inflated(stream, kind)
        if whole:
            notes.append(whole)
    else:
        size = os.fstat(stream.fileno()).st_size
    most = TAIL if bounds.late() else bounds.most
    first = begin if most is None else max(begin, size - most)
    if first > begin:
        notes.append(f"the first {human_bytes(first)} of {human_bytes(size)} were not read")
    number = len(reader.names)
    reader.names[number] = name
    hurried: list[int] = []
    # From the byte before: the line that it is in, which may be no more than its end, is not read.
    start = max(0, first - 1)
    lines = _skip(source, start)
    read = read_lines(source, number, size=size, begin=start, number=lines, late=bounds.late, hurried=hurried)
    if first > 0:
        next(read, None)
    reader.read(read)
    if hurried:
        notes.append(f"time was over: between byte {hurried[0]} and the end only the last lines were read")
    return tuple(notes)


def _length(stream: BinaryIO, kind: str, bounds: Bounds) -> tuple[int, str]:
    """Bytes of the text of a compressed log that can be read, and why they are not all, in words."""
    text, length = Inflated(stream, kind), 0
    while block := text.read(BLOCK):
        length += len(block)
        if bounds.most is not None and (length >= INFLATED or bounds.late()):
            return length, f"only the first {human_bytes(length)} of the compressed log were unpacked"
    return length, f"the {kind} file is cut off or damaged after {human_bytes(length)} of text" if text.damaged else ""


def _skip(source: Bytes, count: int) -> int:
    """Goes on to a byte; how many lines were passed by. Counting them costs little beside reading them."""
    lines = 0
    while count > 0 and (block := source.read(min(BLOCK, count))):
        lines += block.count(b"\n")
        count -= len(block)
    return lines
