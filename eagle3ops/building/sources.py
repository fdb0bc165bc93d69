"""What does a source tree say that its build needs? Read from its build files; nothing in it is run."""

import hashlib
import os
import re
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from eagle3ops.building.architectures import Arch, parse_arch
from eagle3ops.errors import RequestError

_SKIPPED = {".git", "build", "dist", "__pycache__", ".venv", "node_modules"}
_MOST_FILES, _MOST_BYTES = 20_000, 1 << 20
SCIKIT = "scikit_build_core.build"
_SETUPTOOLS = "setuptools.build_meta"
_GENCODE = re.compile(r"code=\[?\"?(?:sm|compute)_(\d{2,3}[af]?)", re.ASCII)
_DECLARED = re.compile(r"FetchContent_Declare\s*\(\s*[\"']?([\w.+-]+)(.{0,2000}?)\)", re.DOTALL | re.IGNORECASE)
_FROM = re.compile(r"\b(?:GIT_REPOSITORY|URL)\s+[\"']?((?:https?://|git@|ssh://)[^\s\"')]+)", re.IGNORECASE)
_CMAKE_MINIMUM = re.compile(r"cmake_minimum_required\s*\(\s*VERSION\s+([\d.]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Fetched:
    """Something that CMake gets from the network while it configures."""

    name: str
    url: str


@dataclass(frozen=True, slots=True)
class Source:
    """A source tree."""

    folder: Path
    backend: str
    requires: tuple[str, ...]
    """Requirements of the build, as pyproject.toml writes them."""
    cuda: bool
    """It compiles CUDA."""
    cmake: str | None
    """The oldest CMake it takes; None: it does not use CMake."""
    numa: bool
    """It includes numa.h."""
    fetched: tuple[Fetched, ...]
    targets: tuple[Arch, ...]
    """GPU architectures that its build files name themselves, whatever it is asked for."""
    compile_threads: str | None
    """A CMake option by which it starts several compilers for each compile job."""
    submodules: tuple[str, ...]
    """Git submodules that have not been fetched."""
    marks: str
    """Of names, sizes and times of its files: another one after any change."""


def read_source(folder: Path) -> Source:
    """What the tree says.

    Raises:
        RequestError: there is nothing to build, or its pyproject.toml does not parse.
    """
    pyproject = folder / "pyproject.toml"
    if not folder.is_dir():
        raise RequestError(
            f"{folder} is no folder", remedy="name the folder that holds the sources, with pyproject.toml"
        )
    if not pyproject.is_file() and not (folder / "setup.py").is_file():
        raise RequestError(
            f"{folder} has neither pyproject.toml nor setup.py",
            remedy="name the folder of the package itself, such as sglang/sgl-kernel",
        )
    system = _build_system(pyproject)
    texts, cuda, numa, marks = [], False, False, []
    for path in _files(folder):
        status = path.stat()
        marks.append(f"{path.relative_to(folder)} {status.st_size} {status.st_mtime_ns}")
        name = path.name
        cuda = cuda or path.suffix in (".cu", ".cuh")
        if name in ("CMakeLists.txt", "setup.py") or path.suffix == ".cmake":
            texts.append((name, _read(path)))
        elif path.suffix in (".c", ".cc", ".cpp", ".cxx", ".h", ".hpp") and not numa:
            numa = re.search(r"#\s*include\s*<numa(?:if)?\.h>", _read(path)) is not None
    cmake = [text for name, text in texts if name != "setup.py"]
    lists = "\n".join(cmake)
    minimum = _CMAKE_MINIMUM.search(lists)
    joined = lists + "\n" + "\n".join(text for name, text in texts if name == "setup.py")
    threads = re.search(r"\bset\s*\(\s*(\w*COMPILE_THREADS)\b", lists)
    return Source(
        folder=folder,
        backend=str(system.get("build-backend") or _SETUPTOOLS),
        requires=tuple(map(str, requires)) if isinstance(requires := system.get("requires"), list) else (),
        cuda=cuda or re.search(r"LANGUAGES[^)]*\bCUDA\b|CUDAExtension", joined) is not None,
        cmake=(minimum[1] if minimum else "3.15") if cmake else None,
        numa=numa or re.search(r"\bnuma\b", lists) is not None,
        fetched=fetched_by(lists),
        targets=tuple(sorted({parse_arch(found) for found in _GENCODE.findall(joined)})),
        compile_threads=threads[1] if threads else None,
        submodules=_submodules(folder),
        marks=_digest(marks),
    )


def fetched_by(text: str) -> tuple[Fetched, ...]:
    """What `FetchContent_Declare` names in CMake's language; what comes from variables is not told."""
    text = re.sub(r"^\s*#.*", "", text, flags=re.MULTILINE)
    found = []
    for name, body in _DECLARED.findall(text):
        url = _FROM.search(body)
        if url is not None and "$" not in url[1]:
            found.append(Fetched(name, url[1]))
    return tuple(dict.fromkeys(found))


def _build_system(path: Path) -> dict[str, object]:
    if not path.is_file():
        return {"requires": ["setuptools"]}
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RequestError(f"{path}: {error}", remedy="the build cannot read it either: mend it") from error
    found = data.get("build-system")
    system = found if isinstance(found, dict) else {"requires": ["setuptools"]}
    return system if isinstance(system.get("requires", []), list) else {**system, "requires": []}


def _files(folder: Path) -> Iterator[Path]:
    count = 0
    for top, folders, names in os.walk(folder):
        folders[:] = sorted(
            name for name in folders if name not in _SKIPPED and not name.endswith((".egg-info", ".dist-info"))
        )
        for name in sorted(names):
            path = Path(top, name)
            if not path.is_file():
                continue
            count += 1
            if count > _MOST_FILES:
                return
            yield path


def _read(path: Path) -> str:
    with suppress(OSError), path.open("rb") as file:
        return file.read(_MOST_BYTES).decode("utf-8", "replace")
    return ""


def _submodules(folder: Path) -> tuple[str, ...]:
    text = _read(folder / ".gitmodules")
    paths = re.findall(r"^\s*path\s*=\s*(\S+)\s*$", text, re.MULTILINE)
    return tuple(one for one in paths if not one.startswith(("/", "..")) and not _filled(folder / one))


def _filled(folder: Path) -> bool:
    with suppress(OSError):
        return any(folder.iterdir())
    return False


def _digest(marks: list[str]) -> str:
    return hashlib.sha256("\n".join(marks).encode(errors="surrogateescape")).hexdigest()
