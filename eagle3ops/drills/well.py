"""What is healthy and does not look like it? Programs of drills that must raise no alarm."""

import mmap
import os
import sys
import time

from eagle3ops.drills.stage import PR_SET_PDEATHSIG, Stage, child, hold, say

SHARD_BYTES = 64 * 2**20


def read(stage: Stage, rate: float, *, mapped: bool = False) -> None:
    """Read shard after shard at so many bytes per second."""
    path = stage.folder / "model-00001-of-00163.safetensors"
    with path.open("wb") as file:
        for _ in range(SHARD_BYTES // 2**20):
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
        view = mmap.mmap(fd, SHARD_BYTES, prot=mmap.PROT_READ) if mapped else None
        for start in range(0, SHARD_BYTES, piece):
            if view is not None:
                view[start : start + piece : mmap.PAGESIZE]
            else:
                os.pread(fd, piece, start)
            due += piece / rate
            time.sleep(max(0.0, due - time.monotonic()))
        if view is not None:
            view.close()


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


def long_request(stage: Stage) -> None:
    """A server at one request for more than a minute: who comes meanwhile, a probe too, waits his turn."""
    server, _ = stage.serve()
    stage.ready()
    while True:
        server.generate(700, every_s=0.1)
        time.sleep(8)


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
    die = f"import ctypes; ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, 9, 0, 0, 0)\n"
    call = [str(bin / "cicc"), "-I", "-S", "-c", die + burn]
    ninja = f"{die}import os\nwhile True:\n  os.waitpid(os.posix_spawn({call[0]!r}, {call!r}, os.environ), 0)\n"
    say("Emitting ninja build file build.ninja...")
    say("Building extension module fused_ops...")
    pid = child(lambda: os.execv(bin / "ninja", [str(bin / "ninja"), "-I", "-S", "-c", ninja]))
    stage.ready(ninja=pid)
    os.waitpid(pid, 0)


def slow_load(stage: Stage) -> None:
    """Weights are read, 80 MB/s."""
    read(stage, 80e6)


def slow_mmap(stage: Stage) -> None:
    """Weights are mapped and touched, 80 MB/s: no read() shows it."""
    read(stage, 80e6, mapped=True)


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


def checkpoint(stage: Stage) -> None:
    """A training that writes a checkpoint for longer than a step may take, and says nothing meanwhile."""
    say("Starting training")
    stage.ready()
    step = 0
    while True:
        for _ in range(10):
            step += 1
            say(f"step {step}/100000 loss 3.45 lr 4.9e-4")
            time.sleep(1)
        say(f"Saving the checkpoint to {stage.folder}/checkpoint-{step}")
        with (stage.folder / "checkpoint").open("wb") as file:
            for _ in range(150):
                file.write(os.urandom(2**18))
                file.flush()
                os.fsync(file.fileno())
                time.sleep(1)


PROGRAMS = (idle, busy, long_request, compile, slow_load, slow_mmap, bursts, checkpoint)
