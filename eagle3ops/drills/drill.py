"""What is a drill: which real processes does it start, what should be said of them, and how are they ended?"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from eagle3ops.drills import memory_group
from eagle3ops.errors import Eagle3opsError, Refused
from eagle3ops.runs.family import tree
from eagle3ops.runs.leash import leashed
from eagle3ops.runs.processes import ProcessId, identify, signal_all

PYTHON = (sys.executable, "-S", "-P", "-m")
"""Without site packages: it starts in a moment, and its processes have no thread or file that is not their own."""
READY_S = 30.0
"""A program that has not come so far after so long, beside the time for which it is well, is given up."""
END_S = 10.0
PASSED_ON = ("EAGLE3OPS_SGLANG_PYTHON", "EAGLE3OPS_SGLANG_MODEL", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH")
"""Of this process's environment a drill gets these, and no more."""
_LARGEST_FACTS = 64 * 2**10


class Skipped(Refused):
    """The drill cannot be held on this machine; the text says why."""


Reason = Callable[[], str | None]


def possible() -> str | None:
    """Nothing stands against it, but for the kernel."""
    return None if sys.platform == "linux" else "drills need Linux: they are about what /proc shows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """A fault that can be made, or something healthy that does not look like it."""

    name: str
    what: str
    """One line for people."""
    expect: frozenset[str]
    """States of which each is a right answer; of a healthy drill those that are named in between."""
    phase: str
    """In which phase of the work it happens: its deadline counts."""
    healthy: bool = False
    within_s: float | None = None
    """So long it may take where the phase has no deadline: the probes' schedule, the windows of the counters, s."""
    convicts: bool = True
    """False: it is told and need never be held for proven, as it may well end by itself."""
    serves: bool = False
    """It answers HTTP, so that it can be probed."""
    program: tuple[str, ...] = ()
    """What is started, instead of the program of this name in `faulty.py`: argv, to which folder and lead are added."""
    against: Reason = possible
    """Why it cannot be held here, or None."""
    mount: tuple[str, str] | None = None
    """A small file system that who watches has to see as well: where (below the folder, or absolute), and its size."""
    scope: Literal["tree", "member"] = "tree"
    """`member`: only the process that the program names as `subject` is watched, not the whole tree."""

    @property
    def expected(self) -> str:
        """For people."""
        return " or ".join(sorted(self.expect))

    def reason(self) -> str | None:
        """Why it cannot be held here, or None."""
        return possible() or self.against()

    def start(self, folder: Path, *, lead: float = 0.0) -> "Running":
        """Start it and wait until it is in the state that it is about.

        Args:
            folder: an existing one, for it alone; nothing outside is touched.
            lead: seconds for which a server is well before it breaks.

        Raises:
            Skipped: it is not possible here.
            Eagle3opsError: its program ended, or did not come so far.
        """
        running = self.launch(folder, lead=lead)
        try:
            running.await_fault(READY_S + lead)
        except BaseException:
            running.end()
            raise
        return running

    def launch(self, folder: Path, *, lead: float = 0.0) -> "Running":
        """Start it, without waiting. Ends with the thread that called this.

        Raises:
            Skipped: it is not possible here.
        """
        reason = self.reason() or (mount_small(folder / self.mount[0], self.mount[1]) if self.mount else None)
        if reason is not None:
            raise Skipped(f"drill {self.name} is skipped: {reason}")
        argv = [*(self.program or (*PYTHON, "eagle3ops.drills.faulty", self.name)), str(folder), str(lead)]
        log = folder / "engine.log"
        environment = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            # As with the real thing: where a stale lock lies is known from the environment of who waits for it.
            "TORCH_EXTENSIONS_DIR": str(folder / "torch_extensions"),
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "PYTHONUNBUFFERED": "1",
            **{name: value for name in PASSED_ON if (value := os.environ.get(name))},
        }
        with log.open("ab") as out:
            process = subprocess.Popen(
                leashed(argv),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )
        return Running(self, folder, process, log)


class Running:
    """The processes of a drill. A context: whatever happens inside, they are ended.

    Attributes:
        log: what they print.
        facts: what the program told: `fault_at` (monotonic, s), numbers of processes, paths.
    """

    def __init__(self, drill: Drill, folder: Path, process: subprocess.Popen[bytes], log: Path) -> None:
        self.drill = drill
        self.folder = folder
        self.log = log
        self.facts: dict[str, Any] = {}
        self._process = process
        self._seen: dict[int, ProcessId] = {}

    @property
    def pid(self) -> int:
        """The top of its tree."""
        return self._process.pid

    @property
    def subject(self) -> int:
        """The process that is to be watched, with all below it."""
        named = self.facts.get("subject")
        return named if self.drill.scope == "member" and isinstance(named, int) else self.pid

    @property
    def url(self) -> str | None:
        """Where it answers HTTP."""
        url = self.facts.get("url")
        return url if isinstance(url, str) else None

    @property
    def fault_at(self) -> float | None:
        """Monotonic seconds at which it broke; None before."""
        at = self.facts.get("fault_at")
        return float(at) if isinstance(at, int | float) else None

    def processes(self) -> dict[int, ProcessId]:
        """Its living processes."""
        found = tree(self.pid)
        top = identify(self.pid)
        if top is not None and self._process.poll() is None:
            found[self.pid] = top
        self._seen |= found
        return found

    def look(self) -> bool:
        """Is it in the state that it is about? Reads what its program told.

        Raises:
            Eagle3opsError: it has ended before that.
        """
        with contextlib.suppress(OSError, ValueError), open(self.folder / "ready.json", "rb") as file:
            facts = json.loads(file.read(_LARGEST_FACTS))
            if isinstance(facts, dict):
                self.facts = facts
        if self.fault_at is not None:
            return True
        if self._process.poll() is not None:
            last = self.log.read_bytes()[-600:].decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise Eagle3opsError(f"drill {self.drill.name}: its program ended at once: {last or 'it said nothing'}")
        return False

    def await_fault(self, seconds: float) -> None:
        """Wait until it is in the state that it is about.

        Raises:
            Eagle3opsError: it has ended, or it is not after so many seconds.
        """
        deadline = time.monotonic() + seconds
        while not self.look():
            if time.monotonic() > deadline:
                raise Eagle3opsError(f"drill {self.drill.name}: its program did not come so far in {seconds:.0f} s")
            time.sleep(0.02)

    def end(self) -> None:
        """End every process of it, and take back what it made, but for its log."""
        everyone = self._seen | self.processes()
        signal_all(everyone, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        deadline = time.monotonic() + END_S
        while any(identify(one.pid) == one for one in everyone.values()) and time.monotonic() < deadline:
            time.sleep(0.02)
        group = self.facts.get("group")
        if isinstance(group, str) and Path(group).name.startswith(memory_group.PREFIX):
            _remove_group(Path(group), deadline)
        if self.drill.mount is not None:
            unmount(self.folder / self.drill.mount[0])
        _forget(self.folder)

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def _remove_group(group: Path, deadline: float) -> None:
    """The kernel takes a moment to notice that the last process of a group has gone."""
    while time.monotonic() < deadline:
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.05)
        else:
            return


def holds_capability(bit: int) -> bool:
    """Has this process a capability? Those of capabilities(7), by their number."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> bit & 1)
    return False


def mount_small(point: Path, size: str) -> str | None:
    """Mount a small file system that only this process and its children see, and that ends with them.

    Returns:
        Why it is not permitted, or None.
    """
    from eagle3ops.drills.dead_mount import mount, private_mounts

    reason = private_mounts()
    if reason is not None:
        return reason
    point.mkdir(exist_ok=True)
    return mount("eagle3ops-drill", point, "tmpfs", f"size={size},mode=700")


def unmount(point: Path) -> None:
    """Take away what `mount_small` made."""
    ctypes.CDLL(None, use_errno=True).umount2(str(point).encode(), 2)


def _forget(folder: Path) -> None:
    """Delete the files that a drill made, some of them large, but not what tells of it."""
    with contextlib.suppress(OSError):
        for path in list(folder.iterdir()):
            if path.name in ("engine.log", "ready.json", "evidence"):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
