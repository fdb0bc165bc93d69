"""For which GPUs does code run? Names of architectures, and NVIDIA's rules of compatibility.

Rules: CUDA C++ Programming Guide, "Application Compatibility" and "Feature Set Compiler Targets".
"""

import re
from dataclasses import dataclass

from eagle3ops.errors import RequestError

_NAME = re.compile(r"(?:sm_|compute_)?(\d{1,3})(?:\.(\d))?([af]?)", re.ASCII)

_OLDEST = 2
"""Major version of the oldest that any torch or nvcc still names."""


@dataclass(frozen=True, slots=True, order=True)
class Arch:
    """A compute capability, and whether code is for exactly it (`a`), for its family (`f`), or plain."""

    major: int
    minor: int
    suffix: str = ""

    def __str__(self) -> str:
        return f"sm_{self.digits}"

    @property
    def digits(self) -> str:
        """`90a`, `120`."""
        return f"{self.major}{self.minor}{self.suffix}"

    @property
    def dotted(self) -> str:
        """`9.0a`, `12.0`: as torch writes it."""
        return f"{self.major}.{self.minor}{self.suffix}"

    @property
    def plain(self) -> "Arch":
        """The GPU, without the feature set."""
        return Arch(self.major, self.minor)


@dataclass(frozen=True, slots=True, order=True)
class Code:
    """One piece of GPU code: machine code of an architecture, or PTX that the driver compiles when it is loaded."""

    arch: Arch
    ptx: bool = False

    def __str__(self) -> str:
        return f"compute_{self.arch.digits} (PTX)" if self.ptx else str(self.arch)


def parse_arch(text: str) -> Arch:
    """`sm_90`, `sm_90a`, `120`, `12.0` or `compute_120f`.

    Raises:
        RequestError: it is none.
    """
    found = _NAME.fullmatch(text.strip().lower())
    meant = None
    if found is not None:
        number, minor, suffix = found.groups()
        if minor is not None:
            meant = Arch(int(number), int(minor), suffix)
        elif len(number) >= 2:
            meant = of_number(int(number), suffix)
    if meant is None or meant.major < _OLDEST:
        # `sm_12` would be 1.2, of a GPU of 2009, and is never what somebody wants.
        raise RequestError(f"{text!r} is no GPU architecture", remedy="write it as sm_90, sm_100, sm_120 or 12.0")
    return meant


def of_number(number: int, suffix: str = "") -> Arch:
    """90 -> 9.0, 120 -> 12.0: the last digit is the minor version."""
    return Arch(number // 10, number % 10, suffix)


def runs_on(code: Code, gpu: Arch) -> bool:
    """Can the driver run this code on that GPU? PTX: can it compile it for that GPU?

    A `gpu` with a suffix asks for code of that very feature set.
    """
    arch = code.arch
    if gpu.suffix and arch != gpu:
        return False
    if arch.suffix == "a":
        return arch.plain == gpu.plain
    if code.ptx and not arch.suffix:
        return arch.plain <= gpu.plain
    # Machine code runs on later minor versions of its major one; so does what is compiled for a family.
    return arch.major == gpu.major and arch.minor <= gpu.minor
