"""How is a host asked something that may never answer: a program that hangs, a mount whose server is gone?"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

COMMAND_LIMIT_S = 5.0
MAX_OUTPUT = 65536

T = TypeVar("T")


class NoAnswer(Exception):
    """Nothing came back in time."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a program ended."""

    code: int
    output: str
    """Standard output and standard error together."""


def find_program(name: str) -> str | None:
    """The path of a program: beside this interpreter (a virtual environment need not be on PATH), else on PATH."""
    beside = Path(sys.executable).with_name(name)
    return shutil.which(str(beside)) or shutil.which(name)


def run(argv: Sequence[str], *, limit: float = COMMAND_LIMIT_S, env: Mapping[str, str] | None = None) -> Ran:
    """Run a program to its end.

    Raises:
        NoAnswer: it had not ended after `limit` seconds; it and its children have been killed.
        OSError: it could not be started.
    """
    process = subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env={**os.environ, "LC_ALL": "C", **(env or {})},
    )
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired as error:
        # The whole group: a wrapper script dies alone, and its child keeps the pipe open.
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=1)
        raise NoAnswer(f"`{' '.join(argv)}` had not ended after {limit:g} s") from error
    return Ran(process.returncode, output[:MAX_OUTPUT].decode(errors="replace"))


class Pending(Generic[T]):
    """A call under way in a thread of its own, which is given up when it does not come back."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._results: list[T] = []
        self._error: Exception | None = None
        self._done = threading.Event()
        self._began = time.monotonic()
        # A daemon: one that hangs in the kernel must not keep the interpreter from ending.
        threading.Thread(target=self._work, args=(call,), daemon=True).start()

    def _work(self, call: Callable[[], T]) -> None:
        try:
            self._results.append(call())
        except Exception as error:  # noqa: BLE001  (the boundary: handed to whoever waits)
            self._error = error
        self._done.set()

    def result(self, limit: float) -> T:
        """What the call returned, or its exception.

        Raises:
            NoAnswer: it has not come back `limit` seconds after it began.
        """
        if not self._done.wait(max(0.0, limit - (time.monotonic() - self._began))):
            raise NoAnswer(f"no answer within {limit:g} s")
        if self._error is not None:
            raise self._error
        return self._results[0]


VERSION = re.compile(r"(?<![\d.])(\d+(?:\.\d+)+)", re.ASCII)


def version_in(text: str) -> str | None:
    """The first dotted number, as `13.3.0` in what `gcc --version` says."""
    found = VERSION.search(text)
    return found.group(1) if found else None


def version_key(version: str) -> tuple[int, ...]:
    """For comparisons: the leading dotted numbers."""
    found = re.match(r"\d+(?:\.\d+)*", version, re.ASCII)
    return tuple(int(part[:9]) for part in found.group().split(".")) if found else ()


def first_line(text: str) -> str:
    """The first line that says something."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def read_text(path: str | Path) -> str:
    """A small file of the kernel; empty when it is not there."""
    try:
        with open(path, "rb") as file:
            return file.read(MAX_OUTPUT).decode(errors="replace")
    except OSError:
        return ""
