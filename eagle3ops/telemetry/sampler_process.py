"""The one sampler of a host and user: it samples while somebody watches, then ends by itself.

`shared.watch` starts it, detached from whoever needed it first:
`python -m eagle3ops.telemetry.sampler_process FOLDER`.
"""

import contextlib
import errno
import gc
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from eagle3ops.telemetry.processes import RUN_MARK
from eagle3ops.telemetry.runtime import Lock, anybody_holds
from eagle3ops.telemetry.sampler import Sampler

SLOW_HZ, FAST_HZ = 2.0, 10.0
"""Samples a second, unless a watcher wants more and when one does."""
LINGER_S = 3.0
"""It stays so long without watchers: a console that reconnects finds it still there."""
FEED_BYTES = 8 << 20
"""A feed longer than this is moved away; with the old one the folder holds at most twice this and one sample."""
COLLECT_EVERY = 120
"""Samples between two collections of what refers to itself."""
_TAKE_TRIES = 40
_DESCRIPTORS = 4096


def main(folder: Path) -> int:
    """Sample until nobody watches. Returns 0, also when another sampler is already there."""
    _detach()
    lock = Lock(folder / "sampler.lock")
    for _ in range(_TAKE_TRIES):
        # Watchers look at this lock all the time, each for an instant.
        if lock.take():
            break
        time.sleep(0.025)
    else:
        return 0
    with contextlib.suppress(OSError):  # for people only; a full disk is told by the watchers
        lock.write(f"{os.getpid()}\n")
    _raise_descriptor_limit()
    feed = Feed(folder)
    watched = Lock(folder / "watchers.lock")
    sampler = Sampler(paths=watched_paths(), interval_s=1 / SLOW_HZ)
    try:
        _serve(sampler, feed, watched, folder)
    finally:
        sampler.close()
        feed.close()
        # In this order: whoever becomes a watcher after this finds no sampler, and starts one.
        lock.release()
        watched.release()
    return 0


def _serve(sampler: Sampler, feed: "Feed", watched: Lock, folder: Path) -> None:
    due = time.monotonic()
    alone_since: float | None = None
    # What a sample allocates is freed by reference counts; collecting all the time would cost more than the reading.
    gc.freeze()
    gc.disable()
    while not _ended:
        sampler.interval_s = 1 / (FAST_HZ if anybody_holds(folder / "fast.lock") else SLOW_HZ)
        sample = sampler.sample()
        feed.append(sample)
        if sample["n"] % COLLECT_EVERY == 0:
            gc.collect()
        sampler.host.space.add(sampler.trees.run_dirs)
        now = time.monotonic()
        if watched.take():
            alone_since = now if alone_since is None else alone_since
            if now - alone_since >= LINGER_S:
                return  # still holding `watched`
            watched.release()
        else:
            alone_since = None
        if sampler.gpus.session.stale:
            # The driver was exchanged. Only a new process can load its library; the watchers start one.
            return
        due = max(due + sampler.interval_s, now)
        time.sleep(max(0.0, due - time.monotonic()))


class Feed:
    """Samples as JSON lines in a file of bounded length. Readers notice a change of file by its inode."""

    def __init__(self, folder: Path, limit: int = FEED_BYTES) -> None:
        self.path = folder / "feed.jsonl"
        self.old = folder / "feed.old.jsonl"
        self._limit = limit
        self._fd: int | None = None
        self._length = 0
        self.lost = 0
        """Samples that found no space."""

    def append(self, sample: dict[str, Any]) -> None:
        """Add a sample. On a full disk the old feed is given up first, then samples are lost, and counted."""
        sample["lost"] = self.lost
        line = json.dumps(sample, separators=(",", ":"), default=str).encode() + b"\n"
        for _ in range(2):
            try:
                self._write(line)
                return
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self._make_room()
        self.lost += 1

    def _write(self, line: bytes) -> None:
        if self._fd is None or self._length > self._limit:
            self._next()
        assert self._fd is not None
        written = os.write(self._fd, line)
        if written < len(line):
            # The disk is full: no half line may stay in front of the next one.
            os.ftruncate(self._fd, self._length)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._length += written

    def _next(self) -> None:
        self.close()
        with contextlib.suppress(FileNotFoundError):
            self.path.replace(self.old)
        self._fd = os.open(
            self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        self._length = 0

    def _make_room(self) -> None:
        self.old.unlink(missing_ok=True)
        if self._length:
            self._length = self._limit + 1
            self._next()
            self.old.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file; it stays."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def watched_paths() -> list[str]:
    """Folders whose space matters to anyone here: system, home, temporary files, where runs live."""
    import tempfile

    import platformdirs

    root = os.environ.get("EAGLE3OPS_ROOT") or platformdirs.user_data_dir("eagle3ops", appauthor=False)
    return list(dict.fromkeys(["/", str(Path.home()), tempfile.gettempdir(), root]))


_ended: list[int] = []


def _end(number: int, _: FrameType | None) -> None:
    _ended.append(number)


def _detach() -> None:
    """Leave the watcher that needed a sampler first: its death, terminal and run are not ours."""
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    os.environ.pop(RUN_MARK, None)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)


def _raise_descriptor_limit() -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # Without it fewer descriptors are kept open, which costs time and nothing else.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
