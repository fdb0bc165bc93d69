"""How does a process hang, stop, spin or break? Programs that do it for real; the standard library is all they need.

Run as a file: `python -I -S faulty.py NAME FOLDER LEAD`. Each speaks as an engine does, in lines that begin with a time,
does what is healthy for LEAD seconds where it serves, and keeps in `FOLDER/ready.json` what may be known of it: url, numbers of
processes, and `fault_at` (monotonic, s) once it is in the state that it is named after. Every child asks the kernel to be killed with its parent.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # it is run as a file, without the package
from toy_server import Server  # noqa: E402

_PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


def say(text: str) -> None:
    """A line of the log, in the form of SGLang's."""
    sys.stdout.write(time.strftime("[%Y-%m-%d %H:%M:%S] ") + text + "\n")
    sys.stdout.flush()


def child(work: Callable[[], object]) -> int:
    """A process that does `work` and ends; it is killed when this one ends."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(137)
    try:
        work()
    finally:
        os._exit(0)


def hold() -> NoReturn:
    """Do nothing for ever, without waking up."""
    while True:
        signal.pause()


class Stage:
    """The folder that a program may touch, and how long it is well."""

    def __init__(self, folder: Path, lead: float) -> None:
        self.folder = folder
        self.lead = lead
        self._facts: dict[str, Any] = {}

    def tell(self, **facts: Any) -> None:
        """Whoever started it may know this."""
        self._facts |= facts
        new = self.folder / "ready.json.part"
        new.write_text(json.dumps(self._facts))
        new.rename(self.folder / "ready.json")

    def ready(self, **facts: Any) -> None:
        """It is in the state that it is named after."""
        self.tell(fault_at=time.monotonic(), **facts)

    def load(self) -> None:
        """What an engine says until its weights are there."""
        say("server_args={'model_path': 'toy', 'tp_size': 1}")
        say("Init torch distributed begin.")
        say("Init torch distributed ends. elapsed=0.02 s, mem usage=0.09 GB")
        say("Load weight begin. avail mem=138.43 GB")
        say("Load weight end. elapsed=0.27 s, type=LlamaForCausalLM, avail mem=137.52 GB, mem usage=0.92 GB.")

    def serve(self, worker: Callable[[socket.socket], object] | None = None) -> tuple[Server, int]:
        """A server that is up, its worker a process of its own."""
        self.load()
        say("KV Cache is allocated. dtype: torch.bfloat16, #tokens: 120000, K size: 1.29 GB, V size: 1.29 GB")
        ours, theirs = socket.socketpair()

        def work() -> None:
            ours.close()
            (worker or answer)(theirs)

        pid = child(work)
        theirs.close()
        server = Server(ours)
        server.start()
        self.tell(url=server.url, worker=pid, subject=os.getpid())
        say("The server is fired up and ready to roll!")
        return server, pid


def answer(channel: socket.socket) -> None:
    """A worker: a token for each request."""
    with contextlib.suppress(OSError):
        while channel.recv(1):
            channel.sendall(b"1")


# -- faults of a start


def deadlock(stage: Stage) -> None:
    """Two threads, two locks, each waits for the other's; the main thread waits for both."""
    stage.load()
    first, second, both = threading.Lock(), threading.Lock(), threading.Barrier(3)

    def take(one: threading.Lock, other: threading.Lock) -> None:
        with one:
            both.wait()
            other.acquire()

    threads = [threading.Thread(target=take, args=pair) for pair in ((first, second), (second, first))]
    for thread in threads:
        thread.start()
    both.wait()
    stage.ready()
    threads[0].join()


def spin(stage: Stage) -> None:
    """It computes without end and gets nowhere."""
    stage.load()
    stage.ready()
    os.nice(19)
    while True:
        pass


def pipe(stage: Stage) -> None:
    """It writes into a pipe that nobody empties, as when a console dies that its log goes through."""
    stage.load()
    reading, writing = os.pipe()

    def sleeper() -> None:
        os.close(writing)
        hold()

    reader = child(sleeper)
    os.close(reading)
    stage.ready(reader=reader)
    line = b"Decode batch, #running-req: 1, #token: 215, token usage: 0.00\n"
    while True:
        os.write(writing, line)


def baton(stage: Stage) -> None:
    """A lock file that a killed compilation left behind, asked for ten times a second, as PyTorch's FileBaton does."""
    lock = stage.folder / "torch_extensions" / "py311_cu128" / "fused_ops" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    os.utime(lock, (time.time() - 3600, time.time() - 3600))
    stage.load()
    say(f"Using {lock.parent.parent} as PyTorch extensions root...")
    stage.ready(lock=str(lock))
    while os.path.exists(lock):
        time.sleep(0.1)


def flock(stage: Stage) -> None:
    """It waits for a lock on a file that a process which sleeps for ever holds."""
    import fcntl

    path = stage.folder / "build.lock"
    path.touch()
    taken, told = os.pipe()

    def holder() -> None:
        held = os.open(path, os.O_RDWR)
        fcntl.flock(held, fcntl.LOCK_EX)
        os.write(told, b"1")
        hold()

    pid = child(holder)
    os.read(taken, 1)
    stage.load()
    stage.ready(holder=pid, lock=str(path))
    fcntl.flock(os.open(path, os.O_RDWR), fcntl.LOCK_EX)


def hung_import(stage: Stage) -> None:
    """It stops before it has said anything worth reading: an import that waits for another thread."""
    say("server_args={'model_path': 'toy', 'tp_size': 1}")
    stage.ready()
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def nccl_init(stage: Stage) -> None:
    """The ranks do not find each other: rank 0 listens, nobody comes."""
    say("server_args={'model_path': 'toy', 'tp_size': 2}")
    say("Init torch distributed begin.")
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    stage.ready(port=listener.getsockname()[1])
    while True:
        listener.accept()


def slow_disk(stage: Stage) -> None:
    """Weights come in at 2 MB/s: it moves, and will not be done today."""
    _read(stage, 2e6)


def crash_loop(stage: Stage) -> None:
    """A worker that dies as often as it is started."""
    say("server_args={'model_path': 'toy', 'tp_size': 1}")
    stage.ready()
    while True:
        say("Init torch distributed begin.")
        pid = child(lambda: (time.sleep(0.5), os.abort()))
        os.waitpid(pid, 0)
        say(f"worker {pid} died with signal 6, starting another one")
        time.sleep(1.5)


def host_oom(stage: Stage) -> None:
    """A worker takes more memory than its control group has; the kernel kills it and nobody takes note."""
    import memory_group

    group = memory_group.make(stage.folder.name)
    stage.load()

    def greedy() -> None:
        memory_group.join(group)
        held = []
        while True:
            held.append(bytearray(b"x" * 2**20))

    pid = child(greedy)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # ... and it is left as a zombie
    stage.ready(killed=pid, group=str(group))
    hold()


def disk_wait(stage: Stage) -> None:
    """A process touches a mapped file whose file system has stopped answering."""
    import dead_mount

    stage.load()
    dead_mount.touch(stage.folder, child, lambda reader, how: stage.ready(reader=reader, how=how))


def disk_full(stage: Stage) -> None:
    """The disk that the run writes to is full: a file system of its own, 8 MB, filled up. It tries again for ever."""
    stage.load()
    target = stage.folder / "full" / "checkpoint"
    _fill(target)
    stage.ready(path=str(target.parent))
    while True:
        try:
            with target.open("ab", buffering=0) as file:
                file.write(b"\0" * 2**20)
        except OSError as error:
            say(f"OSError: [Errno {error.errno}] {error.strerror}: '{target}'")
        time.sleep(5)


def shm_full(stage: Stage) -> None:
    """/dev/shm, one of its own, is full."""
    stage.load()
    _fill(Path("/dev/shm/psm_0badf00d"))
    stage.ready()
    hold()


def _fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 2**16)


# -- faults of a server


def stopped(stage: Stage) -> None:
    """The worker of a server was stopped."""
    _, worker = stage.serve()
    time.sleep(stage.lead)
    os.kill(worker, signal.SIGSTOP)
    os.waitpid(worker, os.WUNTRACED)
    stage.ready()
    hold()


def half_dead(stage: Stage) -> None:
    """The worker died, the server lives on and nobody has taken note."""
    _, worker = stage.serve()
    time.sleep(stage.lead)
    os.kill(worker, signal.SIGKILL)
    os.waitid(os.P_PID, worker, os.WEXITED | os.WNOWAIT)
    stage.ready()
    hold()


def dead_thread(stage: Stage) -> None:
    """A server that takes requests and never answers: the thread that should is gone. Its /health still says 200."""

    def works_a_while(channel: socket.socket) -> None:
        until = time.monotonic() + stage.lead
        while time.monotonic() < until:
            channel.settimeout(max(0.01, until - time.monotonic()))
            with contextlib.suppress(TimeoutError):
                channel.recv(1)
                channel.sendall(b"1")
        channel.settimeout(None)
        hold()

    stage.serve(works_a_while)
    time.sleep(stage.lead)
    stage.ready()
    hold()


def deaf(stage: Stage) -> None:
    """A server whose port is open and whose whole process waits for a lock: nothing at all is answered."""
    server, _ = stage.serve()
    time.sleep(stage.lead)
    server.deafen()
    stage.ready()
    hold()


# -- what is healthy and does not look like it


def idle(stage: Stage) -> None:
    """A server that nobody asks anything."""
    stage.serve()
    stage.ready()
    hold()


def busy(stage: Stage) -> None:
    """A server with a client that asks twice a second."""
    server, _ = stage.serve()
    stage.ready()
    while True:
        server.generate()
        say("Decode batch, #running-req: 1, #token: 215, token usage: 0.00, gen throughput (token/s): 2.00")
        time.sleep(0.5)


def compile(stage: Stage) -> None:
    """ninja starts one compiler after the other; each computes and says nothing."""
    stage.load()
    bin = stage.folder / "bin"
    bin.mkdir()
    for name in ("ninja", "cicc"):
        (bin / name).symlink_to(sys.executable)
    burn = "import os, time\nos.nice(19)\nend = time.monotonic() + 6\n" + (
        "while time.monotonic() < end:\n  stop = time.monotonic() + 0.03\n"
        "  while time.monotonic() < stop: pass\n  time.sleep(0.05)\n"
    )
    call = [str(bin / "cicc"), "-I", "-S", "-c", burn]
    die = f"import ctypes; ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, 9, 0, 0, 0)\n"
    ninja = f"{die}import os\nwhile True:\n  os.waitpid(os.posix_spawn({call[0]!r}, {call!r}, os.environ), 0)\n"
    call[4] = die + burn
    ninja = f"{die}import os\nwhile True:\n  os.waitpid(os.posix_spawn({call[0]!r}, {call!r}, os.environ), 0)\n"
    say("Emitting ninja build file build.ninja...")
    say("Building extension module fused_ops...")
    pid = child(lambda: os.execv(bin / "ninja", [str(bin / "ninja"), "-I", "-S", "-c", ninja]))
    stage.ready(ninja=pid)
    os.waitpid(pid, 0)


def slow_load(stage: Stage) -> None:
    """Weights are read, 80 MB/s."""
    _read(stage, 80e6)


def slow_mmap(stage: Stage) -> None:
    """Weights are mapped and touched, 80 MB/s: no read() shows it."""
    _read(stage, 80e6, mapped=True)


def bursts(stage: Stage) -> None:
    """A training that waits for its data: a short burst of work, then 1.4 s of sleep, a line every ten steps."""
    say("Starting training")
    stage.ready()
    step = 0
    while True:
        end = time.monotonic() + 0.1
        while time.monotonic() < end:
            pass
        step += 1
        if step % 10 == 0:
            say(f"step {step}/100000 loss 3.45 lr 4.9e-4")
        time.sleep(1.4)


_SHARD_BYTES = 64 * 2**20


def _read(stage: Stage, rate: float, *, mapped: bool = False) -> None:
    """Read shard after shard at so many bytes per second."""
    import mmap

    path = stage.folder / "model-00001-of-00163.safetensors"
    with path.open("wb") as file:
        for _ in range(_SHARD_BYTES // 2**20):
            file.write(os.urandom(2**20))
        file.flush()
        os.fsync(file.fileno())
    say("Load weight begin. avail mem=138.43 GB")
    stage.ready(path=str(path))
    piece = min(2**20, int(rate / 4))
    fd = os.open(path, os.O_RDONLY)
    due = time.monotonic()
    while True:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        view = mmap.mmap(fd, _SHARD_BYTES, prot=mmap.PROT_READ) if mapped else None
        for start in range(0, _SHARD_BYTES, piece):
            if view is not None:
                view[start : start + piece : mmap.PAGESIZE]
            else:
                os.pread(fd, piece, start)
            due += piece / rate
            time.sleep(max(0.0, due - time.monotonic()))
        if view is not None:
            view.close()


PROGRAMS: dict[str, Callable[[Stage], None]] = {
    program.__name__: program
    for program in (deadlock, spin, pipe, baton, flock, hung_import, nccl_init, slow_disk, crash_loop, host_oom)
    + (disk_wait, disk_full, shm_full, stopped, half_dead, dead_thread, deaf)
    + (idle, busy, compile, slow_load, slow_mmap, bursts)
}


if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](Stage(Path(sys.argv[2]), float(sys.argv[3])))
