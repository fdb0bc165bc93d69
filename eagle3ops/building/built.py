"""What did a build make? The libraries of a wheel (or one library), by their content."""

import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path

from eagle3ops.errors import RequestError

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Library:
    """A compiled file."""

    name: str
    """Relative to the folder that packages lie in, as `sgl_kernel/sm90/common_ops.abi3.so`."""
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Built:
    """A wheel, or one library."""

    path: Path
    libraries: tuple[Library, ...]
    packages: tuple[str, ...]
    """Top-level names that can be imported."""


def is_library(name: str) -> bool:
    """Is it a shared library, by its name?"""
    return ".so" in Path(name).suffixes


def sha256(path: Path) -> str:
    """Of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_built(path: Path) -> Built:
    """What is in a wheel, or the library itself.

    Raises:
        RequestError: it is neither, or cannot be read.
    """
    try:
        if path.suffix == ".whl":
            return _wheel(path)
        if is_library(path.name):
            one = Library(path.name, sha256(path), path.stat().st_size)
            return Built(path, (one,), (path.name.partition(".")[0],))
    except (OSError, zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, ValueError) as error:
        raise RequestError(f"{path}: cannot be read: {error}", remedy="name the wheel that the build made") from error
    raise RequestError(f"{path} is no wheel and no shared library", remedy="name a .whl or a .so file")


def _wheel(path: Path) -> Built:
    libraries, packages = [], set()
    with zipfile.ZipFile(path) as wheel:
        for entry in wheel.infolist():
            name = _installed(entry.filename)
            if name is None or entry.is_dir():
                continue
            top = name.partition("/")[0]
            if name.endswith("/__init__.py") and name.count("/") == 1:
                packages.add(top)
            elif "/" not in name and (name.endswith(".py") or is_library(name)):
                packages.add(name.partition(".")[0])
            if is_library(name):
                digest = hashlib.sha256()
                with wheel.open(entry) as file:
                    while block := file.read(_BLOCK):
                        digest.update(block)
                libraries.append(Library(name, digest.hexdigest(), entry.file_size))
                if "/" in name:
                    packages.add(top)
    return Built(path, tuple(libraries), tuple(sorted(name for name in packages if name.isidentifier())))


def _installed(name: str) -> str | None:
    """Where a file of a wheel comes to lie below site-packages; None for metadata, scripts and headers."""
    top, _, rest = name.partition("/")
    if top.endswith(".data"):
        kind, _, rest = rest.partition("/")
        return rest if kind in ("platlib", "purelib") else None
    return None if top.endswith(".dist-info") else name
