"""How much space is left where runs write, also when a mount has died?

A question to a dead network mount never returns. So another process asks, and a path that has not answered in time
is said to be stalled; it is not asked again before that process has ended.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

ASK_EVERY_S = 15.0
STALLED_AFTER_S = 5.0
MAX_PATHS = 32

_ASK = """
import json, os, sys
for path in sys.argv[1:]:
    try:
        there = path
        while True:
            try:
                s = os.statvfs(there)
                break
            except FileNotFoundError:
                if there in ("", "/"):
                    raise
                there = os.path.dirname(there)
        out = [s.f_blocks * s.f_frsize, s.f_bavail * s.f_frsize, s.f_files, s.f_favail, None]
    except OSError as error:
        out = [None, None, None, None, error.strerror]
    sys.stdout.write(json.dumps([path, out]) + chr(10))
    sys.stdout.flush()
"""
_KEYS = ("total", "free", "inodes", "inodes_free", "reason")


@dataclass(slots=True)
class _Question:
    process: subprocess.Popen[bytes]
    paths: list[str]
    asked_at: float
    read: bytearray = field(default_factory=bytearray)


class Space:
    """Total and free bytes and inodes of the file systems behind some absolute paths, there yet or not."""

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self.paths = list(dict.fromkeys(paths))
        self._answers: dict[str, dict[str, Any]] = {}
        self._questions: list[_Question] = []
        self._asked_at: float | None = None

    def add(self, paths: Iterable[str]) -> None:
        """Also look at these, from the next question on; at most `MAX_PATHS` in all."""
        for path in paths:
            if path not in self.paths and len(self.paths) < MAX_PATHS:
                self.paths.append(path)

    def read(self, *, wait_s: float = 0.0) -> dict[str, dict[str, Any]]:
        """By path: total, free (bytes, for users without privileges), inodes, inodes_free, reason where it has none.

        The figures are up to `ASK_EVERY_S` old. `wait_s` waits for answers that are still due.
        """
        now = time.monotonic()
        if self._asked_at is None or now - self._asked_at >= ASK_EVERY_S:
            self._ask(now)
        deadline = now + wait_s
        while True:
            self._collect()
            if not self._questions or time.monotonic() >= deadline:
                break
            time.sleep(0.01)
        stalled = {
            path
            for question in self._questions
            if time.monotonic() - question.asked_at > STALLED_AFTER_S
            for path in question.paths
        }
        return {path: self._say(path, path in stalled) for path in self.paths}

    def close(self) -> None:
        """End the questions that are still open."""
        for question in self._questions:
            question.process.kill()
            _stdout(question).close()
            # One that hangs in a dead mount cannot be ended by anyone; it is left to init.
            with contextlib.suppress(subprocess.TimeoutExpired):
                question.process.wait(0.5)
        self._questions = []

    def _say(self, path: str, stalled: bool) -> dict[str, Any]:
        if stalled:
            return {**dict.fromkeys(_KEYS), "reason": f"does not answer for more than {STALLED_AFTER_S:.0f} s"}
        return self._answers.get(path, {**dict.fromkeys(_KEYS), "reason": "not asked yet"})

    def _ask(self, now: float) -> None:
        busy = {path for question in self._questions for path in question.paths}
        paths = [path for path in self.paths if path not in busy]
        self._asked_at = now
        if not paths:
            return
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _ASK, *paths],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            for path in paths:
                self._answers[path] = {**dict.fromkeys(_KEYS), "reason": f"cannot be asked: {error.strerror}"}
            return
        question = _Question(process, paths, now)
        os.set_blocking(_stdout(question).fileno(), False)
        self._questions.append(question)

    def _collect(self) -> None:
        still_open = []
        for question in self._questions:
            ended = question.process.poll() is not None
            question.read += _stdout(question).read() or b""
            *whole, rest = bytes(question.read).split(b"\n")
            question.read = bytearray(rest)
            for line in whole:
                path, values = json.loads(line)
                self._answers[path] = dict(zip(_KEYS, values, strict=True))
                question.paths.remove(path)
            if ended:
                _stdout(question).close()
            else:
                still_open.append(question)
        self._questions = still_open


def _stdout(question: _Question) -> Any:
    return question.process.stdout
