"""Who may use which GPU? One holder per GPU of this machine and user, until it lets go or dies.

FOLDER/guard.lock    held for milliseconds while leases are taken, so that taking several is one step
FOLDER/<uuid>.lock   held (flock) by the run's supervisor for as long as it has the GPU
FOLDER/<uuid>.json   the holder: run, root, pid, start, boot, since

The lock says that the GPU is held, the file says by whom. A lock outlives its owner when a descriptor was inherited;
the holder is then seen to be dead by (boot, pid, start), and its lock file is put aside. A living holder keeps its GPU
whatever became of its lock.
"""

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from eagle3ops.errors import Eagle3opsError, Refused
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.files import read_json, write_json
from eagle3ops.runs.processes import identify, is_alive
from eagle3ops.telemetry.gpus import GpuFacts, inventory

GUARD_WAIT_S = 30.0

FOREIGN_WAIT_S = 5.0
"""A process that was just killed stands in the driver's list for a while."""

Look = Callable[[], Sequence[GpuFacts]]
"""Asks the driver for the GPUs of this machine."""


@dataclass(slots=True)
class Held:
    """The GPUs that this process holds."""

    gpus: tuple[GpuFacts, ...]
    notes: tuple[str, ...]
    """What a person should know: leases taken over from the dead, GPUs shared on demand."""
    _locks: list[tuple[Path, IO[bytes]]] = field(default_factory=list)

    def environment(self) -> dict[str, str]:
        """What makes CUDA programs see these GPUs and no others, numbered as the driver numbers them."""
        return {
            "CUDA_VISIBLE_DEVICES": ",".join(str(gpu.index) for gpu in self.gpus),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        }

    def refresh(self) -> None:
        """Show those who tidy temporary folders that the files are in use."""
        for path, _ in self._locks:
            for file in (path, path.with_suffix(".json")):
                with contextlib.suppress(OSError):
                    os.utime(file)

    def release(self) -> None:
        """Let go. May be called again."""
        while self._locks:
            path, lock = self._locks.pop()
            # First the name, then the lock: whoever gets the lock finds no living holder.
            with contextlib.suppress(OSError):
                path.with_suffix(".json").unlink()
            # Not only closed: a descriptor that somebody inherited would keep it.
            fcntl.flock(lock, fcntl.LOCK_UN)
            lock.close()


def leases_folder() -> Path:
    """$EAGLE3OPS_LEASES, else /tmp/eagle3ops-leases-UID: on this machine, and the same however one has logged in.

    Not the user's runtime folder: it goes away with the last login, and a run stays.

    Raises:
        Eagle3opsError: the folder belongs to somebody else, or others may write there.
    """
    given = os.environ.get("EAGLE3OPS_LEASES")
    folder = Path(given).expanduser().absolute() if given else Path(f"/tmp/eagle3ops-leases-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, parents=bool(given), exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise Eagle3opsError(
            f"{folder}: cannot hold GPU leases: {error.strerror}", remedy="name another folder by EAGLE3OPS_LEASES"
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise Eagle3opsError(
            f"{folder}: not a folder that only this user may write to, so GPU leases there could be forged",
            remedy="remove it, or name another folder by EAGLE3OPS_LEASES",
        )
    return folder


def present() -> Sequence[GpuFacts]:
    """The GPUs of this machine that answer; none where there is no driver or no GPU."""
    return [gpu for gpu in inventory().gpus if gpu.state == "ok" and gpu.uuid]


def visible_gpus(gpus: Sequence[GpuFacts], variable: str | None) -> list[GpuFacts]:
    """Those that CUDA_VISIBLE_DEVICES leaves, in ascending order. As for CUDA, a wrong entry ends the list.

    Args:
        gpus: all of them.
        variable: its value; None when it is not set.
    """
    if variable is None:
        return list(gpus)
    chosen: list[GpuFacts] = []
    for entry in (part.strip() for part in variable.split(",")):
        like = [
            gpu
            for gpu in gpus
            if (entry.isdecimal() and gpu.index == int(entry))
            or (entry.startswith("GPU-") and str(gpu.uuid).startswith(entry))
        ]
        if len(like) != 1 or like[0] in chosen:
            break
        chosen.append(like[0])
    return sorted(chosen, key=lambda gpu: gpu.index)


def acquire(
    count: int,
    run: RunDirectory,
    *,
    own: Callable[[], set[int]] = set,
    forced: bool = False,
    look: Look | None = None,
    wait_s: float | None = None,
) -> Held | None:
    """Take `count` GPUs that nobody uses, the lowest numbers first; None where one will do and the machine shows none.

    Args:
        count: how many.
        run: for whom.
        own: numbers of the run's own processes, which may be on a GPU.
        forced: GPUs that processes of others use will do when there are no better ones; a lease is never broken.
        look: asks the driver; by default `present`.
        wait_s: seconds that processes of others are given to go away, by default 5.

    Raises:
        Refused: there are not so many, or others hold or use them; says who.
    """
    deadline = time.monotonic() + (FOREIGN_WAIT_S if wait_s is None else wait_s)
    while True:
        gpus = visible_gpus((look or present)(), os.environ.get("CUDA_VISIBLE_DEVICES"))
        if not count or (not gpus and count == 1):
            return None
        if len(gpus) < count:
            visible = f"{len(gpus)} are" if len(gpus) > 1 else "one is" if gpus else "none is"
            raise Refused(
                f"{count} GPUs are wanted (engine.gpus), {visible} visible here",
                remedy="see why: eagle3ops doctor; lower engine.gpus, or let CUDA_VISIBLE_DEVICES name more",
            )
        last = time.monotonic() >= deadline
        found = _take(count, run, gpus, own(), forced=forced and last)
        if isinstance(found, Held):
            return found
        if found.leased or last:
            raise found.refusal()
        time.sleep(0.25)


@dataclass(frozen=True, slots=True)
class _TooFew:
    wanted: int
    reasons: tuple[str, ...]
    leased: bool
    """Waiting is of no use: leases, and not only processes that may be ending, are in the way."""

    def refusal(self) -> Refused:
        many = "1 GPU is" if self.wanted == 1 else f"{self.wanted} GPUs are"
        return Refused(
            f"{many} wanted, too few are free: {'; '.join(self.reasons)}",
            remedy="wait for it to end, end it, or let CUDA_VISIBLE_DEVICES name other GPUs",
        )


def _take(count: int, run: RunDirectory, gpus: Sequence[GpuFacts], own: set[int], *, forced: bool) -> Held | _TooFew:
    used = {gpu.index: [process for process in gpu.processes if process.pid not in own] for gpu in gpus}
    # Shared ones last, and only on demand.
    order = [gpu for gpu in gpus if not used[gpu.index]] + [gpu for gpu in gpus if used[gpu.index] and forced]
    foreign = [
        f"GPU {gpu.index} is used by {', '.join(_describe(process) for process in used[gpu.index])}"
        for gpu in gpus
        if used[gpu.index]
    ]
    held = Held((), ())
    reasons: list[str] = []
    notes: list[str] = []
    leased = 0
    taken: list[GpuFacts] = []
    folder = leases_folder()
    try:
        with _guard(folder):
            for gpu in order:
                if len(taken) == count:
                    break
                holder = _living_holder(folder, gpu)
                if holder is not None:
                    leased += 1
                    reasons.append(holder)
                elif (busy := _lease(folder, gpu, run, held, notes)) is not None:
                    reasons.append(busy)
                else:
                    taken.append(gpu)
    except BaseException:
        held.release()
        raise
    if len(taken) < count:
        held.release()
        # Would there be enough if everything but the leases went away?
        return _TooFew(count, (*reasons, *foreign), leased=len(gpus) - leased < count)
    if forced:
        notes += [text for gpu, text in zip([g for g in gpus if used[g.index]], foreign, strict=True) if gpu in taken]
    held.gpus, held.notes = tuple(sorted(taken, key=lambda gpu: gpu.index)), tuple(notes)
    return held


def _describe(process: Any) -> str:
    from eagle3ops.words import human_bytes

    memory = "" if process.memory_bytes is None else f" with {human_bytes(process.memory_bytes)}"
    return f"{process}{memory}"


@contextmanager
def _guard(folder: Path) -> Iterator[None]:
    """Be the only one that takes leases. No program is started meanwhile, so nobody inherits this lock."""
    with _open(folder / "guard.lock") as lock:
        deadline = time.monotonic() + GUARD_WAIT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Refused(
                        f"{folder / 'guard.lock'} has been held by another process for {GUARD_WAIT_S:.0f} s",
                        remedy=f"see who holds it: fuser -v {folder / 'guard.lock'}",
                    ) from None
                time.sleep(0.01)
        yield


def _open(path: Path) -> IO[bytes]:
    return open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), "r+b", buffering=0)


def _living_holder(folder: Path, gpu: GpuFacts) -> str | None:
    holder = read_json(_lock_file(folder, gpu).with_suffix(".json"))
    if holder is None or not is_alive(holder):
        return None
    return f"GPU {gpu.index} is leased by run {holder.get('run_id')} (pid {holder.get('pid')}, {holder.get('root')})"


def _lease(folder: Path, gpu: GpuFacts, run: RunDirectory, held: Held, notes: list[str]) -> str | None:
    """Take one GPU that no living process holds, under the guard; says what is in the way otherwise."""
    path = _lock_file(folder, gpu)
    holder = read_json(path.with_suffix(".json"))
    lock = _open(path)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        if holder is None:
            return f"GPU {gpu.index} is leased by a process that has not said who it is ({path})"
        # The owner is dead, something that inherited the descriptor is not.
        path.rename(path.with_name(f"{path.name}.{time.time_ns()}.stale"))
        notes.append(
            f"GPU {gpu.index}: the lease of run {holder.get('run_id')}, whose supervisor is dead, is taken over"
        )
        lock = _open(path)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    held._locks.append((path, lock))
    me = identify(os.getpid())
    who = me.as_json() if me else {"pid": os.getpid()}
    data = {"run_id": run.run_id, "root": str(run.root), **who, "since": round(time.time(), 3), "gpu": gpu.index}
    write_json(path.with_suffix(".json"), data, sync=False)
    for stale in folder.glob(f"{path.name}.*.stale"):
        with contextlib.suppress(OSError):
            stale.unlink()
    return None


def _lock_file(folder: Path, gpu: GpuFacts) -> Path:
    name = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in str(gpu.uuid))
    return folder / f"{name}.lock"
