"""Which tensors does a safetensors file hold, of which shape and type, and where? Read from its header alone.

The format: 8 bytes with the length of the header, the header as JSON, then the tensors at the offsets that it names.
"""

import json
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

MOST_HEADER = 100 << 20
"""The format's own bound."""
SIZES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
"""Bytes of one element."""
FLOATS = frozenset({"F16", "BF16", "F32", "F64"})
_CODES = {"F16": "e", "F32": "f", "F64": "d"}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor, as its header tells."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    begin: int
    """Byte in the file."""
    end: int

    def read(self, begin: int = 0, end: int | None = None) -> bytes:
        """Bytes of it.

        Raises:
            OSError: the file cannot be read.
        """
        end = self.end - self.begin if end is None else end
        with self.file.open("rb") as file:
            file.seek(self.begin + begin)
            return file.read(max(0, end - begin))


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Every tensor of one safetensors file.

    Raises:
        ValueError: it is damaged, with the reason.
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if len(start) < 8:
            raise ValueError(f"its header is cut off: it has {size} bytes in all")
        (length,) = struct.unpack("<Q", start)
        if length > min(MOST_HEADER, size - 8):
            raise ValueError(f"its header of {length} bytes is cut off, or none: it has {size} bytes in all")
        raw = file.read(length)
    try:
        header = json.loads(raw)
        if not isinstance(header, dict):
            raise TypeError("an object was expected")
        found = {name: _tensor(name, data, path, 8 + length) for name, data in header.items() if name != "__metadata__"}
    except (ValueError, TypeError, KeyError, RecursionError) as problem:
        raise ValueError(f"no safetensors file: its header is damaged: {problem}") from problem
    if (last := max((info.end for info in found.values()), default=0)) > size:
        raise ValueError(f"torn: {last - size} of its bytes are missing at the end")
    _without_gaps(found, 8 + length, size)
    return found


def _without_gaps(found: dict[str, TensorInfo], at: int, size: int) -> None:
    """The safetensors library refuses a file whose tensors do not fill it, one after the other."""
    for info in sorted(found.values(), key=lambda one: (one.begin, one.end)):
        if info.begin != at:
            how = "overlaps the tensor before it" if info.begin < at else f"comes after {info.begin - at} unused bytes"
            raise ValueError(f"{info.name!r} {how}, and nothing loads such a file")
        at = info.end
    if at < size:
        raise ValueError(f"{size - at} bytes too many at the end, and nothing loads such a file")


def _tensor(name: str, data: Any, path: Path, base: int) -> TensorInfo:
    dtype, shape, (begin, end) = data["dtype"], data["shape"], data["data_offsets"]
    whole = [begin, end, *shape]
    if not isinstance(dtype, str) or any(type(one) is not int or not 0 <= one < 2**60 for one in whole):
        raise ValueError(f"{name!r}: type, shape or place make no sense")
    if dtype in SIZES and end - begin != SIZES[dtype] * prod(shape):
        raise ValueError(f"{name!r}: {end - begin} bytes do not hold {dtype} {shape}")
    return TensorInfo(name, dtype, tuple(shape), path, base + begin, base + end)


def floats(raw: bytes, dtype: str) -> tuple[float, ...]:
    """The numbers in the bytes of a tensor of one of `FLOATS`."""
    if dtype == "BF16":
        wide = bytearray(2 * len(raw))
        wide[2::4], wide[3::4] = raw[0::2], raw[1::2]
        raw, dtype = bytes(wide), "F32"
    return struct.unpack(f"<{len(raw) // SIZES[dtype]}{_CODES[dtype]}", raw)
