"""What is installed for the Python that SGLang is started with? It says so itself, and imports nothing of it."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from eagle3ops.engines.installed import ask, interpreter
from eagle3ops.engines.sglang.flags import Flags, read_flags

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
    return ask("sglang", python, (_ASK,), variables)


def _imports_flashinfer(folder: Path) -> bool:
    try:
        text = (folder / "srt/layers/sampler.py").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return re.search(r"^\s*from flashinfer\.\w+ import", text, re.MULTILINE) is not None
