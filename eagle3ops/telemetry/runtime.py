"""Where do the sampler and its watchers of one user meet, and who is there?

RUNTIME/telemetry-1/            0700, ours, or it is not used; the number is the schema of the samples
    sampler.lock                held for life by the one sampler; its text is the sampler's process id
    spawn.lock                  held by the watcher that is starting one
    watchers.lock               held shared by every watcher: the kernel lets go of it however a watcher ends
    fast.lock                   held shared, too, by those that want more than 2 samples a second
    feed.jsonl, feed.old.jsonl  the samples; bounded, the old one is kept until the next change
    sampler.log                 what a sampler that failed had to say
"""

import contextlib
import os
import stat
import warnings
from pathlib import Path

from eagle3ops.errors import Eagle3opsError
from eagle3ops.telemetry.sampler import SCHEMA


class TelemetryUnavailable(Eagle3opsError):
    """There are no samples to watch; says which folder, process or disk is in the way."""


def runtime_folder() -> Path:
    """The meeting place: under $EAGLE3OPS_RUNTIME, else the user's runtime folder. Created when it is missing.

    Raises:
        TelemetryUnavailable: it cannot be created, or another user could write there.
    """
    given = os.environ.get("EAGLE3OPS_RUNTIME")
    if given:
        base = Path(given).expanduser().absolute()
    else:
        import platformdirs

        with warnings.catch_warnings():
            # It warns where there is no login session; its other folder will do, and is looked at below.
            warnings.simplefilter("ignore")
            base = Path(platformdirs.user_runtime_dir("eagle3ops", appauthor=False))
    folder = base / f"telemetry-{SCHEMA}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        require_private(base.parent, others_may_read=True)
        require_private(base, others_may_read=True)
        require_private(folder)
    except OSError as error:
        raise TelemetryUnavailable(
            f"{folder}: cannot be used for telemetry: {error.strerror or error}",
            remedy="free space there, or set EAGLE3OPS_RUNTIME to a folder of your own on a local disk",
        ) from error
    return folder


def require_private(folder: Path, *, others_may_read: bool = False) -> None:
    """Refuse a folder in which another user could put something in our place.

    Raises:
        TelemetryUnavailable: it belongs to another user, is a link, or others may write to it.
        OSError: it cannot be looked at.
    """
    found = folder.lstat() if not others_may_read else folder.stat()
    sticky = found.st_mode & stat.S_ISVTX
    if not stat.S_ISDIR(found.st_mode):
        wrong = "is not a folder"
    elif found.st_uid not in ((0, os.geteuid()) if others_may_read else (os.geteuid(),)):
        wrong = f"belongs to user {found.st_uid}"
    elif found.st_mode & 0o022 and not (others_may_read and sticky):
        wrong = "can be written by other users"
    elif found.st_mode & 0o077 and not others_may_read:
        wrong = "can be read by other users"
    else:
        return
    raise TelemetryUnavailable(
        f"{folder}: {wrong}; samples are not kept there",
        remedy="set EAGLE3OPS_RUNTIME to a folder that only you can write to (chmod 700)",
    )


class Lock:
    """An advisory lock that the kernel gives back at any death. Its descriptor is never inherited."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        """Do we hold it?"""
        return self._fd is not None

    def take(self, *, shared: bool = False) -> bool:
        """Take it if it is free; returns whether we hold it now. Never waits.

        Raises:
            OSError: the file cannot be opened.
        """
        if self._fd is not None:
            return True
        import fcntl

        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        except OSError:
            os.close(fd)
            raise
        self._fd = fd
        return True

    def write(self, text: str) -> None:
        """Say who holds it; for people only."""
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, text.encode(), 0)

    def release(self) -> None:
        """Let go of it."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def is_held(path: Path) -> bool:
    """Does anybody hold the lock exclusively?

    Asks with a shared lock, so that several who ask do not see each other.
    """
    lock = Lock(path)
    if lock.take(shared=True):
        lock.release()
        return False
    return True


def anybody_holds(path: Path) -> bool:
    """Does anybody hold the lock, exclusively or shared?"""
    lock = Lock(path)
    if lock.take():
        lock.release()
        return False
    return True


def last_words(log: Path, limit: int = 400) -> str:
    """The end of a log, in one line."""
    with contextlib.suppress(OSError):
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4 * limit))
            text = file.read().decode("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1][:limit] if lines else ""
    return ""
