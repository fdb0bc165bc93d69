"""For which GPUs does a compiled file hold code? Reads the fat binaries in it, without tools of the CUDA toolkit.

A fat binary is what one translation unit compiled to: entries, each machine code (cubin) of one architecture or PTX.
The format is not published; it was read off what `fatbinary` of CUDA 13.0 writes, and compared with `cuobjdump`.

header   u32 magic, u16 version 1, u16 header bytes, u64 bytes of all entries
entry    u16 kind (1 PTX, 2 cubin), u16, u32 header bytes, u64 payload bytes, u32 compressed bytes, u32, u16, u16,
         u32 architecture (90, 120), u32, u32, u64 flags, ...
"""

import mmap
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3ops.building.architectures import Arch, Code, of_number, runs_on
from eagle3ops.building.elf import Buffer, is_elf, sections

MAGIC = struct.pack("<I", 0xBA55ED50)
SECTIONS = (".nv_fatbin", "__nv_relfatbin")
"""Where nvcc puts fat binaries: those that run, and, looked at where there are none, those that are linked first."""
PTX, CUBIN = 1, 2
_EXACT, _FAMILY = 0x10_0000, 0x20_0000


@dataclass(frozen=True, slots=True)
class Image:
    """One fat binary: the code of a translation unit, once for each architecture."""

    codes: tuple[Code, ...]
    others: int = 0
    """Entries of kinds that no GPU runs as they are (intermediate code for a link)."""

    def native(self, gpu: Arch) -> bool:
        """Does it hold machine code for that GPU?"""
        return any(not code.ptx and runs_on(code, gpu) for code in self.codes)

    def compiles(self, gpu: Arch) -> bool:
        """Does it hold PTX that the driver can compile for that GPU?"""
        return any(code.ptx and runs_on(code, gpu) for code in self.codes)


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of a file can run on one GPU, in fat binaries."""

    native: int
    compiled: int
    """Those without machine code for it whose PTX the driver would compile at the first start."""
    total: int

    @property
    def any(self) -> bool:
        """Can anything run?"""
        return self.native + self.compiled > 0


def coverage(images: Sequence[Image], gpu: Arch) -> Coverage:
    """Count what runs on that GPU."""
    native = sum(image.native(gpu) for image in images)
    compiled = sum(not image.native(gpu) and image.compiles(gpu) for image in images)
    return Coverage(native, compiled, len(images))


def targets(images: Sequence[Image]) -> dict[Code, int]:
    """Every target, and in how many fat binaries it is."""
    found: Counter[Code] = Counter()
    for image in images:
        found.update(set(image.codes))
    return dict(sorted(found.items()))


def read_images(path: Path) -> list[Image]:
    """The fat binaries of a shared library, an object file, a `.fatbin` or a `.cubin`; none where it has no GPU code.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged, or something else.
    """
    with path.open("rb") as file:
        if file.seek(0, 2) == 0:
            raise ValueError("the file is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return images_of(data)


def images_of(data: Buffer) -> list[Image]:
    """`read_images` of what is in memory.

    Raises:
        ValueError: it is damaged, or something else.
    """
    if data[0:4] == MAGIC:
        return list(_images(data, 0, len(data)))
    if not is_elf(data):
        raise ValueError("neither an ELF file nor a fat binary")
    if len(data) >= 52 and data[18:20] == b"\xbe\x00":
        # A cubin by itself (machine 190 is CUDA): its flags name the architecture, and no feature set.
        (flags,) = struct.unpack("<I", data[48:52])
        number = flags >> 8 & 0xFF if data[7:8] == b"\x41" else flags & 0xFF
        return [Image((Code(of_number(number)),))]
    found = sections(data)
    if not found:
        # No table of sections: a fat binary is told by its magic number.
        return list(_images(data, 0, len(data), strict=False))
    for name in SECTIONS:
        places = [section for section in found if section.name == name]
        if places:
            return [image for place in places for image in _images(data, place.offset, place.offset + place.size)]
    return []


def _images(data: Buffer, begin: int, end: int, *, strict: bool = True) -> Iterator[Image]:
    while (at := data.find(MAGIC, begin, end)) >= 0:
        raw = data[at : min(at + 16, end)]
        version, header, size = struct.unpack("<HHQ", raw[4:]) if len(raw) == 16 else (0, 0, 0)
        if version != 1 or header < 16 or at + header + size > end:
            if strict:
                raise ValueError(f"a damaged fat binary at byte {at}")
            begin = at + 4
            continue
        yield _image(data, at + header, at + header + size)
        begin = at + header + size


def _image(data: Buffer, at: int, end: int) -> Image:
    codes: list[Code] = []
    others = 0
    while at + 48 <= end:
        kind, _, header, size = struct.unpack("<HHIQ", data[at : at + 16])
        number, _, _, flags = struct.unpack("<IIIQ", data[at + 28 : at + 48])
        if header < 48 or at + header + size > end:
            raise ValueError(f"a damaged entry of a fat binary at byte {at}")
        suffix = "a" if flags & _EXACT else "f" if flags & _FAMILY else ""
        if kind in (PTX, CUBIN) and 10 <= number < 10_000:
            codes.append(Code(of_number(number, suffix), kind == PTX))
        else:
            others += 1
        at += header + size
    return Image(tuple(codes), others)
