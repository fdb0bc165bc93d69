"""Where does a process log, which rank is it, where does it answer, and what is it called? By procfs alone.

Procfs can hang for a process in an uninterruptible call: ask aside (see `aside`), never in an event loop.
"""

import os
import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from eagle3ops.runs.processes import ProcessId
from eagle3ops.telemetry.procfs import read_at
from eagle3ops.watchdog.guard.listening import Address, listening_ports
from eagle3ops.words import plain

MAX_LOGS = 32
_RANK = re.compile(rb"(?:^|\0)(?:RANK)=(\d{1,6})(?=\0|$)")
_ENVIRON_BYTES = 1 << 20
_DEFAULT_PORTS = {"sglang": "30000", "vllm": "8000"}


def logs_of(processes: Iterable[ProcessId]) -> tuple[Path, ...]:
    """The files that they write their output and errors to, by their descriptors 1 and 2.

    Only the links are read, the files are not touched: a path on a dead mount hangs nobody here.
    """
    found: dict[Path, None] = {}
    for process in processes:
        for number in (1, 2):
            try:
                target = os.readlink(f"/proc/{process.pid}/fd/{number}")
            except OSError:
                continue
            # Pipes, sockets and memory files have no path; terminals and /dev/null hold nothing.
            if target.startswith("/") and not target.startswith(("/dev/", "/memfd:")):
                if target.endswith(" (deleted)"):
                    # Its name is gone or another file's; the descriptor still leads to it.
                    target = f"/proc/{process.pid}/fd/{number}"
                found[Path(target)] = None
    return tuple(found)[:MAX_LOGS]


def roles_of(processes: Iterable[ProcessId]) -> dict[int, str]:
    """`rank N` where the environment says so (RANK, as torchrun sets it)."""
    roles = {}
    for process in processes:
        found = _RANK.search(_read(process.pid, "environ", _ENVIRON_BYTES))
        if found is not None:
            roles[process.pid] = f"rank {int(found[1])}"
    return roles


def served_at(processes: Iterable[ProcessId]) -> str | None:
    """Where one of them answers HTTP; None where that is not certain.

    Only a port that its command line names, or that its engine takes by default, and that it does listen on: to send a
    question to any other socket (a rendezvous of NCCL, a store of torch) could harm what is watched.
    """
    for process in processes:
        words = _read(process.pid, "cmdline", 1 << 16).decode("utf-8", "replace").split("\0")
        named = [text for word, text in pairwise(words) if word == "--port"]
        named += [word.removeprefix("--port=") for word in words if word.startswith("--port=")]
        named += [port for engine, port in _DEFAULT_PORTS.items() if any(engine in word for word in words[:4])]
        if not named:
            continue
        ports = listening_ports(process.pid)
        for text in named:
            if text.isdecimal() and len(text) < 6 and int(text) in ports:
                return Address("http", ports[int(text)], int(text)).url
    return None


def program_of(pid: int) -> str:
    """The program's short name, for people."""
    return plain(_read(pid, "comm", 64).decode("utf-8", "replace")).strip() or "?"


def looks_after(pid: int) -> bool:
    """Does that process look after the run rather than work in it?"""
    words = _read(pid, "cmdline", 1 << 16).split(b"\0")[:8]
    # The host's sampler is started by whoever needs it first, and is adopted by the supervisor.
    return any(
        word in (b"eagle3ops.supervisor", b"eagle3ops.telemetry.sampler_process")
        or word.startswith(b"eagle3ops.supervisor.")
        for word in words
    )


def _read(pid: int, name: str, limit: int) -> bytes:
    return read_at(f"/proc/{pid}/{name}", limit=limit) or b""
