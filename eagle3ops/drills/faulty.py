"""How does a process hang, stop, spin or break? Programs that do it for real; the standard library is all they need.

Run as a module: `python -S -P -m eagle3ops.drills.faulty NAME FOLDER LEAD`. Each speaks as an engine does, does what is
healthy for LEAD seconds where it serves, and keeps in `FOLDER/ready.json` what may be known of it: url, numbers of
processes, and `fault_at` (monotonic, s) once it is in the state that it is named after.
"""

import contextlib
import fcntl
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from eagle3ops.drills import dead_mount, memory_group, well
from eagle3ops.drills.stage import Stage, child, hold, say
from eagle3ops.drills.well import read

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
    """It asks without end whether the other ranks are there, and they never are."""
    say("server_args={'model_path': 'toy', 'tp_size': 2}")
    say("Init torch distributed begin.")
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


def odd_rank(stage: Stage) -> None:
    """Four ranks: three wait in a collective for the one that waits for its data."""
    stage.load()
    python = [sys.executable, "-S", "-P", "-m", "eagle3ops.drills.faulty", "rank", str(stage.folder), "0"]
    ranks = [
        child(lambda rank=rank: os.execve(sys.executable, python, {**os.environ, "RANK": str(rank)}))  # type: ignore[misc]
        for rank in range(4)
    ]
    stage.ready(ranks=ranks)
    os.waitpid(ranks[0], 0)


def rank(stage: Stage) -> None:
    """One of the ranks of `odd_rank`."""

    def all_reduce() -> None:
        ours, _theirs = socket.socketpair()
        ours.recv(1)

    def next_batch() -> None:
        threading.Event().wait()

    (next_batch if os.environ["RANK"] == "2" else all_reduce)()


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
    read(stage, 2e6)


def crash_loop(stage: Stage) -> None:
    """A worker that dies as often as it is started."""
    say("server_args={'model_path': 'toy', 'tp_size': 1}")
    stage.ready()

    def crash() -> None:
        # What a real one does meanwhile: it imports its libraries, and waits for the others.
        end = time.monotonic() + 0.4
        while time.monotonic() < end:
            pass
        time.sleep(1.5)
        os.abort()

    while True:
        say("Init torch distributed begin.")
        pid = child(crash)
        os.waitpid(pid, 0)
        say(f"worker {pid} died with signal 6, starting another one")
        time.sleep(1.5)


def host_oom(stage: Stage) -> None:
    """A worker takes more memory than its control group has; the kernel kills it and nobody takes note."""
    group = memory_group.make(stage.folder.name)
    stage.load()

    def greedy() -> None:
        memory_group.join(group)
        # A guard has to have seen it alive: a zombie that was one from the beginning may be anybody's.
        time.sleep(stage.lead)
        held = []
        while True:
            held.append(bytearray(b"x" * 2**20))

    pid = child(greedy)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # ... and it is left as a zombie
    stage.ready(killed=pid, group=str(group))
    hold()


def disk_wait(stage: Stage) -> None:
    """A process touches a mapped file whose file system has stopped answering."""
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


_FAULTS = (
    *(deadlock, spin, pipe, baton, flock, hung_import, odd_rank, rank, nccl_init, slow_disk, crash_loop, host_oom),
    *(disk_wait, disk_full, shm_full, stopped, half_dead, dead_thread, deaf),
)
PROGRAMS = {program.__name__: program for program in (*_FAULTS, *well.PROGRAMS)}


if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](Stage(Path(sys.argv[2]), float(sys.argv[3])))
