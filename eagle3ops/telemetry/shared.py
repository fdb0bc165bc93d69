"""How do many watch one machine while it is sampled only once?

`watch` makes sure that the one sampler of this host and user lives (see `runtime` for how they meet) and reads along
in the feed that it writes. A sampler that dies is replaced; one that lives and says nothing is a named error.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from typing import Any

from eagle3ops.errors import RequestError
from eagle3ops.telemetry.processes import RUN_MARK
from eagle3ops.telemetry.runtime import Lock, TelemetryUnavailable, is_held, last_words, runtime_folder
from eagle3ops.telemetry.sampler_process import FAST_HZ, SLOW_HZ

SILENT_S = 10.0
"""A sampler that lives but has written nothing for so long is stalled."""
START_S = 20.0
"""So long may a new sampler take to say that it is there, on a busy machine."""
STARTS = 4
"""So many samplers may be started without one sample coming of it."""
_POLL_S = 0.05
_FRESH_S = 2.0
_LINE_BYTES = 16 << 20
_SPARE_BYTES = 256 << 10


async def watch(hz: float = SLOW_HZ, *, folder: Path | None = None) -> AsyncGenerator[dict[str, Any], None]:
    """Samples of this machine (schema: `sampler`), at most `hz` a second, without end.

    The sampler is started when there is none and ends by itself when nobody watches. Close the iterator (leave it by
    `aclosing`, or cancel the task) to stop watching.

    Raises:
        RequestError: `hz` is not above 0 and at most 10.
        TelemetryUnavailable: no samples come: the folder is unusable or full, the sampler cannot start or is stalled.
    """
    if not 0 < hz <= FAST_HZ:
        raise RequestError(f"{hz:g} samples a second: it can be more than 0 and at most {FAST_HZ:g}")
    where = folder or runtime_folder()
    locks = [Lock(where / "watchers.lock"), *([Lock(where / "fast.lock")] if hz > SLOW_HZ else [])]
    tail = _Tail(where / "feed.jsonl")
    try:
        for lock in locks:
            while True:
                if lock.take(shared=True):
                    break
                # A sampler looks whether it is alone, or is ending: both take an instant.
                await asyncio.sleep(_POLL_S / 2)
        starts, heard_at, given_at = 0, time.monotonic(), None
        missed: list[dict[str, Any]] = []
        while True:
            sample = tail.next()
            now = time.monotonic()
            if sample is not None:
                starts, heard_at = 0, now
                # Half an interval of the sampler early is on time.
                if given_at is None or sample["mono"] - given_at >= 1 / hz - sample["interval_s"] / 2:
                    given_at = sample["mono"]
                    yield _with_missed(sample, missed)
                    missed = []
                else:
                    missed.append(sample)
                continue
            if not is_held(where / "sampler.lock"):
                if starts >= STARTS:
                    raise _cannot_start(where)
                starts += await _start(where)
                heard_at = time.monotonic()
            elif now - heard_at > SILENT_S:
                raise _stalled(where, now - heard_at)
            await asyncio.sleep(_POLL_S)
    except OSError as error:
        # A runtime folder goes with the last login session of its user.
        raise _unusable(where, error) from error
    finally:
        for lock in locks:
            lock.release()
        tail.close()


def _with_missed(sample: dict[str, Any], missed: list[dict[str, Any]]) -> dict[str, Any]:
    """What a slow watcher must not miss of the samples that it does not get: events, and that the sampler was late."""
    if missed:
        sample["xids"] = [event for one in [*missed, sample] for event in one.get("xids") or ()]
        sample["late"] = any(one.get("late") is True for one in [*missed, sample])
    return sample


def _unusable(path: Path, error: OSError) -> TelemetryUnavailable:
    return TelemetryUnavailable(
        f"{path}: cannot be used for telemetry: {error.strerror or error}",
        remedy="watch again, or set EAGLE3OPS_RUNTIME to a folder of your own on a local disk",
    )


async def _start(folder: Path) -> int:
    """Start a sampler unless another watcher is doing so. Returns how many were started: 0 or 1."""
    lock = Lock(folder / "spawn.lock")
    if not lock.take():
        return 0
    try:
        if is_held(folder / "sampler.lock"):
            return 0
        process = _spawn(folder)
        deadline = time.monotonic() + START_S
        try:
            # It forks once, so that it is nobody's child here, and the first process ends.
            while process.poll() is None:
                if time.monotonic() > deadline:
                    break
                await asyncio.sleep(_POLL_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        while process.returncode == 0 and not is_held(folder / "sampler.lock"):
            if time.monotonic() > deadline or last_words(folder / "sampler.log"):
                break
            await asyncio.sleep(_POLL_S)
        return 1
    finally:
        lock.release()


def _spawn(folder: Path) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if name != RUN_MARK}
    try:
        with (folder / "sampler.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "eagle3ops.telemetry.sampler_process", str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
    except OSError as error:
        raise TelemetryUnavailable(
            f"{folder}: the telemetry sampler cannot be started: {error.strerror or error}",
            remedy="free space there, or set EAGLE3OPS_RUNTIME to another folder",
        ) from error


def _cannot_start(folder: Path) -> TelemetryUnavailable:
    words = last_words(folder / "sampler.log")
    return _no_space(folder) or TelemetryUnavailable(
        f"the telemetry sampler ended {STARTS} times before its first sample" + (f": {words}" if words else ""),
        remedy=f"{folder / 'sampler.log'} has what it said",
    )


def _stalled(folder: Path, seconds: float) -> TelemetryUnavailable:
    who = last_words(folder / "sampler.lock") or "?"
    return _no_space(folder) or TelemetryUnavailable(
        f"the telemetry sampler (pid {who}) has been silent for {seconds:.0f} s: it or the disk of {folder} is stalled",
        remedy=f"look at it (cat /proc/{who}/wchan); ending it is safe, a new one is started",
    )


def _no_space(folder: Path) -> TelemetryUnavailable | None:
    with suppress(OSError):
        space = os.statvfs(folder)
        if min(space.f_bavail * space.f_frsize, space.f_favail * _SPARE_BYTES) < _SPARE_BYTES:
            return TelemetryUnavailable(
                f"{folder}: no space left, samples cannot be written",
                remedy="free space there, or set EAGLE3OPS_RUNTIME to another folder",
            )
    return None


class _Tail:
    """Reads along in a feed that is exchanged now and then."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._inode: int | None = None
        self._rest = b""
        self._lines: list[bytes] = []
        self._first = True

    def next(self) -> dict[str, Any] | None:
        """The next sample; None when there is none yet. A torn or foreign line is passed over."""
        while True:
            while self._lines:
                sample = _sample(self._lines.pop())
                if sample is not None:
                    return sample
            if not self._more():
                return None

    def _more(self) -> bool:
        if self._fd is None and not self._open():
            return False
        assert self._fd is not None
        data = os.read(self._fd, 1 << 20)
        if not data:
            try:
                exchanged = os.stat(self._path).st_ino != self._inode
            except OSError:
                exchanged = False
            # What was written between our reading and the exchange comes first.
            data = os.read(self._fd, 1 << 20) if exchanged else b""
            if exchanged and not data:
                self.close()
                return self._open() and self._more()
        if not data:
            return False
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LINE_BYTES:
            self._rest = b""
        self._lines = whole[::-1]
        return True

    def _open(self) -> bool:
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        self._inode, self._rest = os.fstat(self._fd).st_ino, b""
        if self._first:
            # Whoever comes later starts with the newest sample, if there is a fresh one.
            self._first = False
            size = os.fstat(self._fd).st_size
            start = max(0, size - (1 << 20))
            data = os.pread(self._fd, size - start, start)
            end = data.rfind(b"\n") + 1
            newest = data[data.rfind(b"\n", 0, max(0, end - 1)) + 1 : end].rstrip(b"\n")
            os.lseek(self._fd, start + end, os.SEEK_SET)
            sample = _sample(newest)
            if sample is not None and 0 <= time.monotonic() - sample["mono"] <= _FRESH_S:
                self._lines = [newest]
        return True

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _sample(line: bytes) -> dict[str, Any] | None:
    try:
        sample = json.loads(line)
    except ValueError:
        return None
    if not isinstance(sample, dict):
        return None
    numbers = (sample.get("mono"), sample.get("interval_s"))
    return sample if all(isinstance(number, int | float) for number in numbers) else None
