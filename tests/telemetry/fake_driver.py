"""An NVIDIA driver that says what a test wants: a compiled library that answers from a text file."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pynvml
import pytest

SOURCE = Path(__file__).with_name("fake_nvml.c")


def build(folder: Path) -> Path:
    """Compile the library; skips the test where there is no compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the stand-in for the driver's library")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE)], check=True)
    return library


class FakeDriver:
    """`say` what the driver answers; `count` GPUs, everything else has a default."""

    def __init__(self, library: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        # A copy has its own state: a session left open by one test is not seen by the next.
        self.library = Path(shutil.copy(library, folder / "libnvidia-ml.so.1"))
        self.answers = folder / "gpus.txt"
        monkeypatch.setenv("FAKE_NVML", str(self.answers))
        monkeypatch.setattr(pynvml, "nvmlLib", None)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        monkeypatch.setattr(pynvml, "CDLL", self._load)
        self.say(count=2)

    def _load(self, _: str) -> Any:
        return ctypes.CDLL(str(self.library))

    def say(self, *lines: str, count: int = 2) -> None:
        """What it answers from now on."""
        text = "\n".join([f"count {count}", *lines]) + "\n"
        fresh = self.answers.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self.answers)

    def environment(self) -> dict[str, str]:
        """For a process that shall see these GPUs."""
        return {**os.environ, "FAKE_NVML": str(self.answers), "LD_LIBRARY_PATH": str(self.folder)}


class Clock:
    """Time that a test moves."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
