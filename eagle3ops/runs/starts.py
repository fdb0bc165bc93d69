"""Has this start happened already? Which run an order led to, and which starts of a run took effect.

ROOT/starts/<digest of the key>.jsonl   key -> run, held with flock while an order is carried out
RUN/intent.json                         written before a supervisor is spawned: token, who asked, when
RUN/started.jsonl                       written by the supervisor itself, once it alone looks after the run

A start is spawned as often as somebody asks and takes effect once: the supervisor leaves when its token is in
`started.jsonl` already. So whoever asks may die at any point and ask again.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from eagle3ops.errors import Refused
from eagle3ops.runs.directory import RunDirectory, runs_folder
from eagle3ops.runs.files import read_json, sync_folder, write_json
from eagle3ops.runs.leash import PARENT_VARIABLE
from eagle3ops.runs.processes import RUN_VARIABLE, SUPERVISOR_VARIABLE, identify, is_alive

_DIGEST = re.compile(r"[0-9a-f]{32}")

LOCK_WAIT_S = 120.0
"""How long another one that carries out the same order is waited for; planning a large pipeline takes seconds."""

KEPT_S = 90 * 86400.0
"""How long a key is remembered after its run was deleted."""


def digest(key: str) -> str:
    """What stands for an idempotency key in file names: 32 hex digits."""
    return hashlib.sha256(key.encode("utf-8", errors="surrogatepass")).hexdigest()[:32]


def starts_folder(root: Path) -> Path:
    """Where the keys of a root are remembered."""
    return root / "starts"


class KeyRecord:
    """What is known about one key. Lines are added to it, never changed; a torn last one counts as not written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        file.seek(0)
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)
        self.lines = [line for text in content[:whole].splitlines() if (line := _parse(text)) is not None]

    @property
    def run_id(self) -> str | None:
        """The run that the key stands for."""
        return next((str(line["run_id"]) for line in reversed(self.lines) if "run_id" in line), None)

    @property
    def order(self) -> str | None:
        """Digest of what was asked for under the key."""
        return next((str(line["order"]) for line in reversed(self.lines) if "order" in line), None)

    @property
    def created(self) -> bool:
        """Has the run's folder been there?"""
        return any(line.get("created") == self.run_id for line in self.lines)

    def add(self, **facts: Any) -> None:
        """Write a line down, durably."""
        line = facts | {"ts": round(time.time(), 3)}
        os.lseek(self._file.fileno(), 0, os.SEEK_END)
        os.write(self._file.fileno(), (json.dumps(line) + "\n").encode())
        os.fsync(self._file.fileno())
        self.lines.append(line)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


@contextmanager
def key_record(root: Path, key: str, *, create: bool = True) -> Iterator[KeyRecord | None]:
    """Hold the record of a key alone; None when there is none and none is to be made.

    Raises:
        Refused: another one has held it for two minutes.
    """
    path = starts_folder(root) / f"{digest(key)}.jsonl"
    if create:
        path.parent.mkdir(parents=True, exist_ok=True)
    elif not path.exists():
        yield None
        return
    with locked(path, f"the order with the key {key[:80]!r}") as file:
        if os.fstat(file.fileno()).st_size == 0:
            sync_folder(path.parent)
        yield KeyRecord(file)


@contextmanager
def locked(path: Path, what: str) -> Iterator[IO[bytes]]:
    """Open a file and hold its lock; a file that was deleted while it was waited for is opened again.

    Polled, because a blocking flock can neither be given up nor named.
    """
    deadline = time.monotonic() + LOCK_WAIT_S
    pause = 0.001
    while True:
        with open(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT, 0o644), "r+b", buffering=0) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Refused(
                        f"{what} has been held by another process for {LOCK_WAIT_S:.0f} s ({path})",
                        remedy=f"see who holds it: fuser -v {path}",
                    ) from None
                time.sleep(pause)
                pause = min(pause * 1.5, 0.05)
                continue
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    yield file
                    return


def note_deleted(run: RunDirectory) -> None:
    """Write down, before a run is deleted, that its folder has been there."""
    key = (read_json(run.path / "request.json") or {}).get("key")
    path = starts_folder(run.root) / f"{key}.jsonl"
    if isinstance(key, str) and _DIGEST.fullmatch(key) and path.is_file():
        with locked(path, f"the order of {run.run_id}") as file:
            KeyRecord(file).add(created=run.run_id, deleted=True)


def forget_old(root: Path, *, now: float | None = None) -> int:
    """Drop the records of keys whose run was deleted and that nobody has used for 90 days; returns how many."""
    limit = (time.time() if now is None else now) - KEPT_S
    gone = 0
    folder = starts_folder(root)
    for path in sorted(folder.glob("*.jsonl")) if folder.is_dir() else []:
        with path.open("r+b", buffering=0) as file, contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            run_id = KeyRecord(file).run_id
            used = os.fstat(file.fileno()).st_mtime
            if used < limit and (run_id is None or not (runs_folder(root) / run_id).exists()):
                path.unlink()
                gone += 1
    return gone


def started_lines(run: RunDirectory) -> list[dict[str, Any]]:
    """The starts of a run that took effect, in order."""
    try:
        content = (run.path / "started.jsonl").read_bytes()
    except OSError:
        return []
    return [line for text in content.splitlines() if (line := _parse(text)) is not None]


def started(run: RunDirectory, token: str) -> dict[str, Any] | None:
    """The start with this token, if it took effect."""
    return next((line for line in started_lines(run) if line.get("token") == token), None)


def take_effect(run: RunDirectory, token: str) -> bool:
    """Called by the one supervisor of a run: write its start down, or say False when that start was made before."""
    if started(run, token) is not None:
        return False
    me = identify(os.getpid())
    line = {"token": token, **(me.as_json() if me else {"pid": os.getpid()}), "after": run.last_seq()}
    line["ts"] = round(time.time(), 3)
    path = run.path / "started.jsonl"
    with path.open("a+b", buffering=0) as file:
        size = file.tell()
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
            # Torn by a power cut: it never took effect, and the new line must not be joined to it.
            file.write(b"\n")
        file.write((json.dumps(line) + "\n").encode())
        os.fsync(file.fileno())
    sync_folder(run.path)
    return True


def launch(run: RunDirectory, token: str) -> subprocess.Popen[bytes] | None:
    """Start the supervisor of a run, detached; None when this start has taken effect or is about to.

    Raises:
        OSError: it cannot be started.
        Refused: the run is going on by another start.
    """
    with locked(run.path / "start.lock", f"the start of {run.run_id}"):
        intent = read_json(run.path / "intent.json") or {}
        if started(run, token) is not None or (intent.get("token") == token and is_alive(intent.get("process"))):
            return None
        if run.alive():
            raise Refused(f"{run.run_id} is running", remedy=run.command("follow"))
        me = identify(os.getpid())
        intent = {
            "token": token,
            "by": me.as_json() if me else {"pid": os.getpid()},
            "ts": round(time.time(), 3),
            "process": None,
        }
        write_json(run.path / "intent.json", intent)
        process = spawn(run, token)
        who = identify(process.pid)
        write_json(run.path / "intent.json", intent | {"process": who.as_json() if who else None}, sync=False)
        return process


def spawn(run: RunDirectory, token: str) -> subprocess.Popen[bytes]:
    """The supervisor as a process: in a session of its own, with its output in the run's logs."""
    environment = {name: value for name, value in os.environ.items() if name not in (RUN_VARIABLE, PARENT_VARIABLE)}
    with (run.logs / "supervisor.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "eagle3ops.supervisor", str(run.path), token],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=environment | {SUPERVISOR_VARIABLE: str(run.path)},
        )
