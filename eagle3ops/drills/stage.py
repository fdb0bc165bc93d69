"""What do the programs of drills share? A log, children that end with them, a server; the standard library only."""

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from eagle3ops.drills.toy_server import Server

PR_SET_PDEATHSIG = 1
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
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
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
