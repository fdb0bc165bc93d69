"""How does a model get into the cache so that a kill, a second process or a bad disk cannot leave half of one?

A model is built in a folder of its own beside its place, and only renamed there once it is whole and a list of its
hashes stands in it. Whoever opens it compares the hashes; what does not match is named, removed and built again.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import ValidationError

from eagle3ops.errors import Eagle3opsError
from eagle3ops.runs.files import explain_os_error, sync_folder, write_atomic
from eagle3ops.targets.info import Progress, Source, TargetInfo, describe, fingerprint, model_files, sha256_of

MARKER = ".eagle3ops-complete.json"
"""Stands in a finished entry: its `TargetInfo`, whose `path` is ignored."""


class ModelStore:
    """The models below one cache folder."""

    def __init__(self, cache: Path) -> None:
        self.folder = cache / "targets"

    def find(self, entry: str) -> TargetInfo | None:
        """A finished entry whose every byte is as it was; None where there is none.

        Raises:
            Eagle3opsError: there is one, and it is damaged; the file is named.
        """
        place = self.folder / entry
        if not place.exists():
            return None
        try:
            kept = TargetInfo.model_validate_json((place / MARKER).read_bytes())
        except (OSError, ValidationError) as error:
            raise Eagle3opsError(f"{place}: its list of hashes is missing or damaged") from error
        for stamp in kept.files:
            path = place / stamp.name
            if not path.is_file():
                raise Eagle3opsError(f"{path}: missing")
            if path.stat().st_size != stamp.size or sha256_of(path) != stamp.sha256:
                raise Eagle3opsError(f"{path}: damaged, its content is not what was stored")
        if [path.name for path in model_files(place)] != [stamp.name for stamp in kept.files]:
            raise Eagle3opsError(f"{place}: holds files that were not stored")
        stamps = tuple(
            stamp.model_copy(update={"mtime_ns": (place / stamp.name).stat().st_mtime_ns}) for stamp in kept.files
        )
        return kept.model_copy(update={"path": place, "fingerprint": fingerprint(stamps), "files": stamps})

    def find_or_repair(self, entry: str, info: Callable[[str], None]) -> TargetInfo | None:
        """`find`, but a damaged entry is reported, removed and counts as missing. Call it under `locked`."""
        try:
            return self.find(entry)
        except Eagle3opsError as error:
            info(f"{error.what}; it is built again")
            with explained(self.folder):
                shutil.rmtree(self.folder / entry)
            return None

    def build(
        self, entry: str, name: str, source: Source, make: Callable[[Path], None], *, progress: Progress
    ) -> TargetInfo:
        """Let `make` fill a folder, check it, and put it in place. Call it under `locked`.

        Raises:
            Eagle3opsError: it cannot be written, or what `make` left is not a model.
        """
        place = self.folder / entry
        with explained(self.folder):
            for left in self.folder.glob(f".{entry}.*.tmp"):
                shutil.rmtree(left, ignore_errors=True)
            partial = self.folder / f".{entry}.{os.getpid()}.tmp"
            partial.mkdir()
            try:
                make(partial)
                found = describe(partial, name, source, progress=progress)
                for path in model_files(partial):
                    _sync(path)
                write_atomic(partial / MARKER, found.model_dump_json(indent=2))
                partial.rename(place)
                sync_folder(self.folder)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
        return found.model_copy(update={"path": place})

    @contextlib.contextmanager
    def locked(self, entry: str, info: Callable[[str], None]) -> Iterator[None]:
        """Keep other processes away from `entry`; waits for one that is at it. A dead holder's lock is free."""
        with explained(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.folder / f".{entry}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            told = False
            while not _try_lock(lock):
                if not told:
                    info(f"another process is building {entry}; waiting for it")
                    told = True
                time.sleep(0.2)
            yield
        finally:
            os.close(lock)


@contextlib.contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Put a full disk, a missing permission and the like into words."""
    try:
        yield
    except OSError as error:
        place = Path(error.filename) if isinstance(error.filename, str) else folder
        raise explain_os_error(error, place) or Eagle3opsError(f"{place}: {error.strerror or error}") from error


def require_space(folder: Path, needed: int) -> None:
    """Refuse before anything is downloaded that would not fit.

    Raises:
        Eagle3opsError: fewer than `needed` bytes are free.
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise Eagle3opsError(
            f"{folder}: {free / 1e6:.0f} MB free, {needed / 1e6:.0f} MB are needed to fetch the target",
            remedy="free some space, or set EAGLE3OPS_CACHE to a folder on another disk",
        )


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
