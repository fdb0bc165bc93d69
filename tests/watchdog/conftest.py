"""Real processes to be watched, which end with the test."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SMALL_ENGINE = Path(__file__).with_name("small_engine.py")


class Engine:
    """A small engine in a process of its own."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self.log = folder / "engine.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(SMALL_ENGINE), kind, str(folder)], stdout=log, stderr=log, start_new_session=True
            )
        while not (folder / "port").exists():
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.01)
        self.port = int((folder / "port").read_text())
        self.url = f"http://127.0.0.1:{self.port}"

    def mood(self, word: str) -> None:
        (self.folder / "mood.new").write_text(word)
        (self.folder / "mood.new").rename(self.folder / "mood")

    def asked(self) -> list[str]:
        asked = self.folder / "asked"
        return asked.read_text().split() if asked.exists() else []

    def end(self) -> None:
        for number in (signal.SIGCONT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)
        self.process.wait()


@pytest.fixture
def start_engine(tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    """Start a small engine: `start_engine("sglang")`."""
    started: list[Engine] = []

    def start(kind: str = "sglang") -> Engine:
        folder = tmp_path / f"engine{len(started)}"
        folder.mkdir()
        started.append(Engine(folder, kind))
        return started[-1]

    yield start
    for engine in started:
        engine.end()
