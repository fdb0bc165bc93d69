"""Where in a shared library are its sections? As much of the ELF format as that takes (64 bits, little-endian).

Format: System V ABI, "Object Files" (gABI chapter 4).
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

_NOBITS = 8
_EXTENDED = 0xFFFF


class Buffer(Protocol):
    """Bytes, or a file mapped into memory."""

    def __len__(self) -> int: ...
    def __getitem__(self, at: slice, /) -> bytes: ...
    def find(self, what: bytes, start: int, end: int, /) -> int:
        """As `bytes.find`."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the file."""

    name: str
    offset: int
    size: int


def is_elf(data: Buffer) -> bool:
    """Does it begin as such a file does?"""
    return data[0:4] == b"\x7fELF"


def sections(data: Buffer) -> Sequence[Section]:
    """The sections that have content in the file; none where the table of sections was stripped.

    Raises:
        ValueError: it is no ELF file that this reads, or its table leaves the file.
    """
    if not is_elf(data):
        raise ValueError("no ELF file")
    if data[4:6] != b"\x02\x01":
        raise ValueError("an ELF file of 32 bits or big-endian")
    if len(data) < 64:
        raise ValueError("the ELF header is cut off")
    (table,) = struct.unpack("<Q", data[40:48])
    width, count, names = struct.unpack("<HHH", data[58:64])
    if table == 0:
        return []
    if width < 64:
        raise ValueError(f"section headers of {width} bytes")
    first = _header(data, table, width, 0)
    count = count or first[5]
    names = first[6] if names == _EXTENDED else names
    if table + count * width > len(data):
        raise ValueError("the table of sections leaves the file")
    headers = [_header(data, table, width, at) for at in range(count)]
    if names >= len(headers):
        raise ValueError("there is no table of the sections' names")
    strings, length = headers[names][4], headers[names][5]
    found = []
    for name, kind, _, _, offset, size, _ in headers[1:]:
        if kind == _NOBITS or size == 0:
            continue
        if offset + size > len(data):
            raise ValueError("a section leaves the file")
        found.append(Section(_string(data, strings, length, name), offset, size))
    return found


def _header(data: Buffer, table: int, width: int, number: int) -> tuple[int, int, int, int, int, int, int]:
    at = table + number * width
    raw = data[at : at + 44]
    if len(raw) < 44:
        raise ValueError("the table of sections leaves the file")
    return struct.unpack("<IIQQQQI", raw)


def _string(data: Buffer, table: int, length: int, at: int) -> str:
    begin, limit = table + at, min(table + length, len(data))
    if begin >= limit:
        return ""
    end = data.find(b"\0", begin, limit)
    return data[begin : limit if end < 0 else min(end, begin + 256)].decode("ascii", "replace")
