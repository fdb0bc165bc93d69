"""Has this stage been done before? Stage outputs by content key, finished only when `done.json` says so.

ROOT/stages/<job>-<first 16 digits of the key>/    what the stage wrote
                                     done.json      written last: the files with sizes and checksums, the findings
ROOT/stages/<job>-<...>.lock                        held by the process that works in the folder
"""

import fcntl
import hashlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eagle3ops.runs.context import Findings
from eagle3ops.runs.files import read_json, remove_partials, sync_file, write_json
from eagle3ops.runs.job import Job
from eagle3ops.runs.redact import redact_data

CHECKSUM_LIMIT = 64 << 20
"""Larger files get no checksum in `done.json`; shards have a manifest of their own."""

RECHECK_LIMIT = 64 << 20
"""At most so many bytes are read again to see whether a finished stage is still whole; all sizes are compared."""

DONE = "done.json"


@dataclass(frozen=True, slots=True)
class Stored:
    """A stage's place in the store, and what can be said about it."""

    job: str
    key: str
    out: Path
    done: dict[str, Any] | None
    """Content of `done.json`; None when the stage is not finished or can no longer be trusted."""
    reason: str | None = None
    """Why a finished output is not trusted."""


class Store:
    """The stage outputs below one root."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "stages"

    def out(self, job: str, key: str) -> Path:
        """Where the stage with this key writes."""
        return self.folder / f"{job}-{key[:16]}"

    def look_up(self, job: Job, key: str) -> Stored:
        """Is there a finished output that can be trusted?"""
        out = self.out(job.name, key)
        done = read_json(out / DONE)
        if done is None or done.get("key") != key:
            return Stored(job.name, key, out, None)
        reason = damage(out, done) or self._outdated(done) or job.stale(out)
        return Stored(job.name, key, out, None if reason else done, reason)

    def _outdated(self, done: dict[str, Any]) -> str | None:
        """Say which input has been made again, with another outcome, since this output was made from it.

        An input that is gone says nothing: features may be dropped once they are trained on.
        """
        for need, made_from in done.get("inputs", {}).items():
            now = read_json(self.folder / str(made_from["out"]) / DONE)
            if now is not None and identity_of(now) != made_from["identity"]:
                return f"{need} has been made again since, with another outcome"
        return None

    @contextmanager
    def working(self, out: Path, waiting: Callable[[str], None]) -> Iterator[None]:
        """Hold the stage's folder alone. `waiting` is told once when another process has it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(f"{out}.lock", "a+b") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting(f"another run works in {out.name}; waiting for it")
                while True:
                    # Polled, because a blocking flock would not let signals be answered.
                    time.sleep(0.2)
                    try:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    except BlockingIOError:
                        continue
            out.mkdir(parents=True, exist_ok=True)
            remove_partials(out)
            yield

    def finish(
        self, out: Path, job: str, key: str, findings: Findings, seconds: float, inputs: Mapping[str, Path]
    ) -> dict[str, Any]:
        """Declare the output finished: everything is flushed first, `done.json` is written last.

        Args:
            inputs: output folders that it was made from, by stage.
        """
        files = []
        for path in sorted(out.rglob("*")):
            if path.is_symlink() or not path.is_file() or path.name == DONE:
                continue
            sync_file(path)
            size = path.stat().st_size
            checksum = file_hash(path) if size <= CHECKSUM_LIMIT else None
            files.append({"path": path.relative_to(out).as_posix(), "bytes": size, "sha256": checksum})
        done = {
            "job": job,
            "key": key,
            "finished": round(time.time(), 3),
            "seconds": round(seconds, 3),
            "files": files,
            "inputs": {
                need: {"out": folder.name, "identity": identity_of(read_json(folder / DONE) or {})}
                for need, folder in inputs.items()
            },
            **redact_data(asdict(findings)),
        }
        write_json(out / DONE, done)
        return done


def identity_of(done: Mapping[str, Any]) -> str:
    """What stages that are built on this output depend on: what the job said, or all of its files."""
    if done.get("identity"):
        return str(done["identity"])
    files = [(entry["path"], entry["bytes"], entry["sha256"]) for entry in done.get("files", ())]
    return hashlib.sha256(repr(files).encode()).hexdigest()


def damage(out: Path, done: dict[str, Any]) -> str | None:
    """Say what of a finished output is missing or has changed, or None."""
    budget = RECHECK_LIMIT
    for entry in done.get("files", ()):
        path = out / str(entry["path"])
        try:
            size = path.stat().st_size
        except OSError:
            return f"{path} is missing"
        if size != entry["bytes"]:
            return f"{path} has {size} bytes instead of {entry['bytes']}"
        if entry.get("sha256") and size <= budget:
            budget -= size
            if file_hash(path) != entry["sha256"]:
                return f"{path} has changed since it was written"
    return None


def file_hash(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def remove(out: Path) -> bool:
    """Delete a stage's folder unless a process works in it; says whether it did."""
    with open(f"{out}.lock", "a+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        # First the word that it is finished, so that a kill half way leaves nothing that looks whole.
        (out / DONE).unlink(missing_ok=True)
        shutil.rmtree(out)
        return True
