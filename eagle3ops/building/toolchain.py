"""Which compilers would a build take, and do they fit together? They say so themselves, or their headers do."""

import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from eagle3ops.building.architectures import Arch, parse_arch
from eagle3ops.errors import RequestError
from eagle3ops.hosts.doctor.probing import NoAnswer, read_text, run, version_in

_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler."""

    path: str
    kind: str
    """`gcc` or `clang`."""
    version: str


@dataclass(frozen=True, slots=True)
class Toolkit:
    """A CUDA toolkit."""

    home: Path
    """Its folder: what CUDA_HOME has to name."""
    nvcc: Path
    version: str
    architectures: frozenset[Arch]
    """That it compiles for; empty where it does not say."""
    newest_gcc: int | None
    """The newest major version of gcc that its headers accept."""
    clangs: tuple[int, int] | None
    """From (included) and to (excluded)."""
    wrapper: Path | None = None
    """A script on PATH that calls it and lies elsewhere: who takes the toolkit from there looks in the wrong place."""


def program(name: str, search: str | None = None) -> str | None:
    """A program's path; `search` as PATH is written."""
    return shutil.which(name, path=search)


def ask_version(path: str, *words: str) -> str | None:
    """The first dotted number of what `path --version` says; None where it does not."""
    with suppress(OSError, NoAnswer):
        ran = run([path, *(words or ("--version",))], limit=_LIMIT_S)
        if ran.code == 0:
            return version_in(ran.output)
    return None


def find_compiler(variables: Mapping[str, str], search: str | None = None) -> Compiler | None:
    """The C++ compiler that a build with these variables takes."""
    named = next((variables[key] for key in ("NVCC_CCBIN", "CUDAHOSTCXX", "CXX") if variables.get(key)), "")
    words = named.split()
    # `ccache g++`: the compiler is the last word that is no option.
    name = next((word for word in reversed(words) if not word.startswith("-")), None)
    path = next(
        (found for one in ([name] if name else ["g++", "c++", "clang++"]) if (found := program(one, search))), None
    )
    if path is None:
        return None
    with suppress(OSError, NoAnswer):
        ran = run([path, "--version"], limit=_LIMIT_S)
        # What stands in parentheses is the distribution's package.
        version = version_in(re.sub(r"\([^)]*\)", "", ran.output))
        if ran.code == 0 and version is not None:
            return Compiler(path, "clang" if "clang" in ran.output.lower() else "gcc", version)
    return None


def find_toolkit(variables: Mapping[str, str], search: str | None = None) -> Toolkit | None:
    """The CUDA toolkit that a build with these variables takes; None where there is no nvcc that answers."""
    named = variables.get("CUDA_HOME") or variables.get("CUDA_PATH")
    first = str(Path(named, "bin/nvcc")) if named else program("nvcc", search)
    if first is None:
        first = program("/usr/local/cuda/bin/nvcc")
    if first is None or not os.access(first, os.X_OK):
        return None
    home = _home(first)
    nvcc = home / "bin/nvcc"
    # A wrapper on PATH calls the compiler of another folder.
    wrapper = None if nvcc.resolve() == Path(first).resolve() else Path(first)
    try:
        said = run([first, "--version"], limit=_LIMIT_S).output
    except (OSError, NoAnswer):
        return None
    found = re.search(r"release (\d+\.\d+)", said)
    if found is None:
        return None
    gcc, clangs = accepted(_header(home))
    return Toolkit(home, nvcc, found[1], _architectures(first), gcc, clangs, wrapper)


def _home(nvcc: str) -> Path:
    """The toolkit's folder, by the compiler's own word."""
    with suppress(OSError, NoAnswer):
        said = run([nvcc, "--dryrun", "-x", "cu", "-c", "/dev/null", "-o", "/dev/null"], limit=_LIMIT_S).output
        top = re.search(r"^#\$ _HERE_=(.+)$", said, re.MULTILINE)
        if top is not None and Path(top[1].strip()).is_dir():
            return Path(top[1].strip()).parent
    return Path(nvcc).resolve().parent.parent


def _header(home: Path) -> str:
    places = [home / "include/crt/host_config.h", *sorted(home.glob("targets/*/include/crt/host_config.h"))]
    return next((text for place in places if (text := read_text(place))), "")


def accepted(header: str) -> tuple[int | None, tuple[int, int] | None]:
    """The newest gcc, and the clangs, that `crt/host_config.h` does not refuse; None for what it does not say."""
    gcc = re.search(r"#\s*if\s+__GNUC__\s*>\s*(\d{1,3})\b", header)
    clang = re.search(r"__clang_major__\s*>=\s*(\d{1,3})\s*\)\s*\|\|\s*\(\s*__clang_major__\s*<\s*(\d{1,3})", header)
    return int(gcc[1]) if gcc else None, (int(clang[2]), int(clang[1])) if clang else None


def _architectures(nvcc: str) -> frozenset[Arch]:
    with suppress(OSError, NoAnswer):
        ran = run([nvcc, "--list-gpu-code"], limit=_LIMIT_S)
        if ran.code == 0:
            found = set()
            for word in ran.output.split():
                with suppress(RequestError):
                    found.add(parse_arch(word).plain)
            return frozenset(found)
    return frozenset()


def torch_cuda(folder: Path) -> tuple[str | None, str | None]:
    """Version of an installed torch, and of the CUDA that it was built with (None: none), by its `version.py`."""
    text = read_text(folder / "torch/version.py")
    version = re.search(r"^__version__(?:: [^=\n]+)? = ['\"]([^'\"]+)", text, re.MULTILINE)
    cuda = re.search(r"^cuda(?:: [^=\n]+)? = ['\"]([^'\"]+)", text, re.MULTILINE)
    return version[1] if version else None, cuda[1] if cuda else None
