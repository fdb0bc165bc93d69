"""What is installed for the Python that SGLang is started with? It says so itself, and imports nothing of it."""

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from eagle3ops.engines.sglang.flags import Flags, read_flags
from eagle3ops.errors import Eagle3opsError, RequestError

_ASK = """\
import glob, importlib.metadata as m, importlib.util as u, json, os, re, sys
found = {"python": ".".join(map(str, sys.version_info[:3]))}
for name in ("sglang", "torch", "sglang-kernel", "transformers", "flashinfer-python"):
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        continue
def place(name):
    try:
        spec = u.find_spec(name)
    except (ImportError, ValueError):
        return None
    return next(iter(spec.submodule_search_locations or ()), None) if spec else None
at = place("sglang")
if at:
    found["sglang folder"] = at
    for file in ("_version.py", "version.py") if "sglang" not in found else ():
        try:
            with open(os.path.join(at, file), encoding="utf-8") as text:
                told = re.search(r"^__version__ = [^'\\"\\n]*['\\"]([^'\\"]+)", text.read(65536), re.M)
        except OSError:
            continue
        if told:
            found["sglang"] = told.group(1)
            break
at = place("flashinfer")
if at:
    whole = os.path.isfile(os.path.join(at, "decode.py")) and os.path.isdir(os.path.join(at, "jit"))
    found["flashinfer"] = found.get("flashinfer-python", "yes") if whole else "stub"
at = place("sgl_kernel")
if at:
    found["sgl_kernel"] = "fa3" if glob.glob(os.path.join(at, "flash_ops*.so")) else "without fa3"
sys.stdout.write(json.dumps(found))
"""
_ASK_TIMEOUT_S = 30.0
_ANSWER_BYTES = 16384
_FLASHINFER = "SGLANG_IS_FLASHINFER_AVAILABLE"


@dataclass(frozen=True, slots=True)
class Installation:
    """One SGLang, as it would be started."""

    python: str
    version: str
    flags: Flags | None
    """None: its source is not there or not understood, so nothing is checked against it."""
    flashinfer: str | None
    """Its version, or None where it cannot be used."""
    no_flashinfer: str
    """Why it cannot be used, in words that go on after "flashinfer"."""
    lacks_flashinfer: bool
    """It imports flashinfer on a GPU, used or not, and nothing of that name is there."""
    fa3: bool
    """Whether FlashAttention 3 is among its kernels."""

    def knows(self, flag: str) -> bool:
        """Whether an option can be given; one whose source is not understood is trusted to know ours."""
        return self.flags is None or flag in self.flags


def interpreter(python: str | None) -> str:
    """The Python that SGLang is installed in: the one named, or our own.

    The path is not resolved further: a virtual environment is told by the name under which its Python is called.
    """
    return sys.executable if python is None else str(Path(python).expanduser())


def installation(python: str | None, variables: Mapping[str, str]) -> Installation | None:
    """What would be started; None where that Python has no SGLang.

    Args:
        python: see `interpreter`.
        variables: of the engine's environment; its PYTHONPATH is where SGLang may be found.

    Raises:
        RequestError: there is no such program, or it is no Python that answers.
    """
    path = interpreter(python)
    found = installed(path, variables)
    version = found.get("sglang")
    if version is None:
        return None
    folder, flashinfer = found.get("sglang folder"), found.get("flashinfer")
    why = ""
    if variables.get(_FLASHINFER, os.environ.get(_FLASHINFER, "true")).lower() in ("false", "0"):
        why = f"is switched off by {_FLASHINFER}"
    elif flashinfer is None:
        why = "is not installed"
    elif flashinfer == "stub":
        why = "is there as a stand-in only"
    return Installation(
        python=path,
        version=version,
        flags=None if folder is None else read_flags(Path(folder)),
        flashinfer=None if why else flashinfer,
        no_flashinfer=why,
        lacks_flashinfer=flashinfer is None and folder is not None and _imports_flashinfer(Path(folder)),
        fa3=found.get("sgl_kernel") == "fa3",
    )


def installed(python: str, variables: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """Versions of SGLang and what it computes with, by package, as that Python has them, and what is said in `_ASK`.

    Raises:
        RequestError: there is no such program, or it is no Python that answers.
    """
    try:
        # Another program under the same name, or another installation into the same environment, is asked anew.
        program = Path(python)
        marks = tuple(_mark(place) for place in (program, program.parent, *_site_packages(program)))
    except OSError as error:
        raise RequestError(
            f"engine.python: {python}: {error.strerror}",
            remedy="name the Python of the environment that holds SGLang, such as /opt/sglang/bin/python",
        ) from error
    if not os.access(python, os.X_OK) or Path(python).is_dir():
        raise RequestError(
            f"engine.python: {python} is not a program", remedy="name a Python, such as /opt/sglang/bin/python"
        )
    elsewhere = (variables or {}).get("PYTHONPATH", "").split(os.pathsep)
    marks += tuple(_mark(Path(place)) for place in elsewhere if place and Path(place).is_dir())
    return _ask(python, tuple(sorted((variables or {}).items())), marks)


def _imports_flashinfer(folder: Path) -> bool:
    try:
        text = (folder / "srt/layers/sampler.py").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return re.search(r"^\s*from flashinfer\.\w+ import", text, re.MULTILINE) is not None


def numbers(version: str) -> tuple[int, ...]:
    """`0.5.14.post1` -> (0, 5, 14); () for what does not begin with a number."""
    found = re.match(r"\d{1,9}(?:\.\d{1,9}){0,2}", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def parse_versions(text: str) -> dict[str, str]:
    """What the interpreter answered.

    Raises:
        ValueError: that is no answer to the question.
    """
    try:
        raw = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(raw, dict) or not isinstance(raw.get("python"), str):
        raise ValueError("no Python answers like that")
    return {name: value[:4096] for name, value in raw.items() if isinstance(value, str)}


def _site_packages(python: Path) -> list[Path]:
    return sorted(python.parent.parent.glob("lib/python3*/site-packages"))[:4]


def _mark(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


@functools.lru_cache(maxsize=8)
def _ask(python: str, variables: tuple[tuple[str, str], ...], marks: object) -> Mapping[str, str]:
    try:
        done = subprocess.run(
            # As the server will be started: what its environment finds counts, and not what lies in this folder.
            [python, "-P", "-c", _ASK],
            env={**os.environ, "PYTHONPATH": "", **dict(variables)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ASK_TIMEOUT_S,
            check=True,
        )
        return parse_versions(done.stdout[:_ANSWER_BYTES].decode("utf-8", "replace"))
    except subprocess.TimeoutExpired as error:
        raise Eagle3opsError(
            f"engine.python: {python} does not say within {_ASK_TIMEOUT_S:.0f} s what is installed",
            remedy="is its disk reachable?",
        ) from error
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        raise RequestError(
            f"engine.python: {python} is no Python that can say what is installed: {type(error).__name__}",
            remedy=f"try it: {python} -c 'import sglang'",
        ) from error
