"""Which drills are there?"""

import importlib.util
import os
import shutil

from eagle3ops.drills import memory_group
from eagle3ops.drills.drill import PYTHON, Drill, holds_capability
from eagle3ops.errors import RequestError

_CAP_SYS_ADMIN = 21
SGLANG_PYTHON = "EAGLE3OPS_SGLANG_PYTHON"
SGLANG_MODEL = "EAGLE3OPS_SGLANG_MODEL"


def _no_mounts() -> str | None:
    if holds_capability(_CAP_SYS_ADMIN):
        return None
    return "a file system of its own needs CAP_SYS_ADMIN"


def _no_gpu() -> str | None:
    return None if os.path.exists("/dev/nvidiactl") else "no NVIDIA GPU here"


def _no_sglang() -> str | None:
    python = os.environ.get(SGLANG_PYTHON)
    if not python and importlib.util.find_spec("sglang") is None:
        return f"SGLang is not installed here, and {SGLANG_PYTHON} names no python that has it"
    if python and shutil.which(python) is None:
        return f"{SGLANG_PYTHON} names {python}, which cannot be run"
    if not os.path.isdir(os.environ.get(SGLANG_MODEL, "")):
        return f"{SGLANG_MODEL} does not name the folder of a model (a tiny one will do)"
    return None


_ABOUT_A_START = "allocating"
_HUNG = frozenset({"deadlock", "overdue"})


def _fault(
    name: str, what: str, expect: frozenset[str] | set[str], phase: str = _ABOUT_A_START, **more: object
) -> Drill:
    return Drill(name=name, what=what, expect=frozenset(expect), phase=phase, **more)  # type: ignore[arg-type]


def _server(name: str, what: str, expect: set[str], within_s: float = 150.0) -> Drill:
    return Drill(name=name, what=what, expect=frozenset(expect), phase="serving", serves=True, within_s=within_s)


def _well(name: str, what: str, expect: set[str], phase: str, *, serves: bool = False) -> Drill:
    return Drill(name=name, what=what, expect=frozenset(expect), phase=phase, healthy=True, serves=serves)


_GPU_SPIN = (*PYTHON, "eagle3ops.drills.gpu_spin")

DRILLS: tuple[Drill, ...] = (
    _fault("deadlock", "two threads hold a lock each and wait for the other's; weights are loaded", _HUNG),
    _fault("spin", "asks without end whether the other ranks are there", {"spin", "overdue"}, "connecting"),
    _fault("pipe", "writes its log into a pipe that nobody empties", {"blocked_pipe"}, within_s=60.0),
    _fault("baton", "polls a lock file that a killed compilation left behind", {"stale_lock"}, "compiling"),
    _fault("flock", "waits for a file lock that a sleeping process holds", _HUNG | {"stale_lock"}),
    _fault("disk_wait", "touches a mapped file on a dead mount (state D)", {"disk_wait"}),
    _fault("hung_import", "says that it imports, and waits for a lock", _HUNG, "importing"),
    _fault("odd_rank", "four ranks: three wait in a collective for the one that waits for data", _HUNG),
    _fault("nccl_init", "rank 0 listens for the others, nobody comes", _HUNG, "connecting"),
    _fault("slow_disk", "weights come in at 2 MB/s", {"slow_load"}, "loading", within_s=120.0, convicts=False),
    _fault("crash_loop", "a worker that dies as often as it is started", {"overdue"}, "connecting"),
    _fault(
        "host_oom",
        "the kernel killed a worker for want of memory, its parent lives on",
        {"host_oom", "half_dead"},
        within_s=60.0,
        against=memory_group.reason_against,
    ),
    _fault(
        "disk_full",
        "the file system that it writes to is full",
        {"disk_full"},
        within_s=60.0,
        convicts=False,
        against=_no_mounts,
        mount=("full", "8m"),
    ),
    _fault(
        "shm_full",
        "/dev/shm is full",
        {"shm_full"},
        within_s=60.0,
        convicts=False,
        against=_no_mounts,
        mount=("/dev/shm", "16m"),
    ),
    _server("stopped", "the worker of a server was stopped (SIGSTOP)", {"stopped"}),
    _server("half_dead", "the worker of a server died, the server lives on", {"half_dead"}),
    _server(
        "dead_thread", "a server takes requests and never answers; its /health says 200", {"unresponsive", "deadlock"}
    ),
    _server("deaf", "a server whose port is open and that answers nothing", {"unresponsive", "deadlock"}),
    Drill(
        name="gpu_spin",
        what="a kernel spins on the GPU at idle power, as NCCL does when a peer is missing",
        expect=frozenset({"spin", "overdue"}),
        phase=_ABOUT_A_START,
        program=(*_GPU_SPIN, "own"),
        against=_no_gpu,
    ),
    Drill(
        name="sglang_stuck",
        what="a real SGLang that hangs while its scheduler starts",
        expect=_HUNG | {"unresponsive"},
        phase="loading",
        within_s=420.0,
        program=(*PYTHON, "eagle3ops.drills.sglang_stuck"),
        against=_no_sglang,
    ),
    _well("idle", "a server that nobody asks anything", {"serving", "idle"}, "serving", serves=True),
    _well("busy", "a server that is asked twice a second", {"serving", "idle"}, "serving", serves=True),
    _well("long_request", "a server at one request for a minute; a probe waits", {"serving"}, "serving", serves=True),
    _well("compile", "compilers compute and nobody says anything", {"compiling"}, "compiling"),
    _well("slow_load", "weights are read, 80 MB/s", {"loading"}, "loading"),
    _well("slow_mmap", "weights are mapped and touched, 80 MB/s", {"loading"}, "loading"),
    _well("bursts", "a training that waits for its data most of the time", {"working", "straggler"}, "training"),
    _well("checkpoint", "a training that writes a checkpoint, in silence", {"working"}, "checkpointing"),
    Drill(
        name="gpu_foreign",
        what="an idle server on a GPU on which somebody else's kernel spins",
        expect=frozenset({"serving", "idle", "foreign_gpu_use"}),
        phase="serving",
        healthy=True,
        serves=True,
        scope="member",
        program=(*_GPU_SPIN, "foreign"),
        against=_no_gpu,
    ),
)


def find(name: str) -> Drill:
    """A drill by its name.

    Raises:
        RequestError: there is none.
    """
    for drill in DRILLS:
        if drill.name == name.replace("-", "_"):
            return drill
    names = ", ".join(drill.name for drill in DRILLS)
    raise RequestError(f"there is no drill {name!r}", remedy=f"one of: healthy, {names}")
