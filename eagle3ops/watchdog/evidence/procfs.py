"""What does the kernel say about one process, thread by thread: where it sleeps, what it waits for, what it holds?

Everything is read without touching the process. Links in /proc/PID/fd are read, never followed: what is behind them may
be a file on a mount that does not answer.
"""

import contextlib
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from eagle3ops.runs.processes import ProcessId, boot_id
from eagle3ops.runs.redact import redact_argv, redact_environment, secret_arguments, secret_values
from eagle3ops.telemetry.procfs import TICKS_PER_S, parse_io, parse_stat, parse_word, read_at

MOST_THREADS = 256
MOST_STACKS = 64
"""Kernel stacks of so many threads of one process."""
MOST_FILES = 4096
"""Open files that are looked at, of one process."""
TOLD_FILES = 64
"""Ordinary open files that are told by name."""
TEXT_BYTES = 256 << 10
TOLD_CHARS = 16 << 10
"""Of a command line, or of the value of a variable."""

_ALLOWED = re.compile(
    r"(?:CUDA|NCCL|TORCH|PYTORCH|TORCHELASTIC|TORCHINDUCTOR|SGLANG|SGL|VLLM|OMP|MKL|OPENBLAS|GLOO|TRITON|FLASHINFER"
    r"|TVM_FFI|HF|TRANSFORMERS|NVIDIA|NVTE|LD|PYTHON|SLURM|UCX|FI|RAY|MASTER|MALLOC|EAGLE3OPS|XDG|CONDA|ROCR|NVSHMEM)_\w+"
    r"|PATH|HOME|USER|TMPDIR|TMP|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|NODE_RANK|VIRTUAL_ENV|LANG|LC_ALL"
    r"|PYTHONPATH|PYTHONHOME|PYTHONUNBUFFERED|MAX_JOBS|CC|CXX|HOSTNAME"
)
"""Names of the variables that are told. Never the whole environment: nobody knows what is in it."""

_STATUS = (
    "State", "Tgid", "PPid", "TracerPid", "Uid", "Gid", "NSpid", "VmRSS", "VmSwap", "VmSize", "RssShmem", "Threads",
    "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "CapEff", "Seccomp", "Cpus_allowed_list", "Mems_allowed_list",
    "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches",
)  # fmt: skip

PIPE_WAITS = ("pipe_write", "anon_pipe_write", "pipe_wait_writable")
"""Beginnings of the names under which the kernel's versions wait for room in a pipe."""
FUTEX_WAITS = ("futex_wait", "futex_do_wait")


def details(process: ProcessId) -> dict[str, Any] | None:
    """What procfs tells of one process; None when it has ended. What may not be read is None.

    Returns: pid, start, name, state, ppid, exe, cwd, cmdline (redacted), status, wchan, syscall, threads
    [{tid, name, state, cpu_s, wchan, syscall}], kernel_stacks [{tids, stack}], threads_left_out, io, files {count,
    kinds, pipes, sockets, deleted, regular}, limits, cgroup, oom_score, environment (allowed names, redacted), rank,
    and `_argv` and `_environment` as they are, which must not be written: see `shown`.
    """
    folder = f"/proc/{process.pid}"
    stat = parse_stat(read_at(f"{folder}/stat") or b"")
    if stat is None or stat.start_ticks != process.start or (process.boot and process.boot != boot_id()):
        return None
    argv = _words(read_at(f"{folder}/cmdline", limit=TEXT_BYTES))
    environment = parse_environment(read_at(f"{folder}/environ", limit=TEXT_BYTES))
    told = {name: value for name, value in environment.items() if _ALLOWED.fullmatch(name)}
    threads, stacks, left_out = _threads(process.pid)
    return {
        "pid": process.pid,
        "start": process.start,
        "name": stat.name,
        "state": stat.state,
        "ppid": stat.ppid,
        "cpu_s": (stat.user_ticks + stat.system_ticks) / TICKS_PER_S,
        "exe": _link(f"{folder}/exe"),
        "cwd": _link(f"{folder}/cwd"),
        "cmdline": _bounded(redact_argv(argv)),
        "status": parse_status(read_at(f"{folder}/status")),
        "wchan": parse_word(read_at(f"{folder}/wchan")),
        "syscall": _text(read_at(f"{folder}/syscall")),
        "threads": threads,
        "kernel_stacks": stacks,
        "threads_left_out": left_out,
        "io": parse_io(read_at(f"{folder}/io")),
        "files": _files(process.pid),
        "limits": _text(read_at(f"{folder}/limits")),
        "cgroup": _text(read_at(f"{folder}/cgroup")),
        "oom_score": _text(read_at(f"{folder}/oom_score")),
        "environment": {name: value[:TOLD_CHARS] for name, value in redact_environment(told).items()},
        "rank": environment.get("RANK") or environment.get("LOCAL_RANK"),
        "_argv": argv,
        "_environment": environment,
    }


def secrets_of(pid: int) -> set[str]:
    """What a process was given by its environment or arguments under a name that says that it is a secret."""
    argv = _words(read_at(f"/proc/{pid}/cmdline", limit=TEXT_BYTES))
    environment = parse_environment(read_at(f"/proc/{pid}/environ", limit=TEXT_BYTES))
    return secret_values(environment) | secret_arguments(argv)


def shown(facts: Mapping[str, Any]) -> dict[str, Any]:
    """`details` without what must not be written."""
    return {name: value for name, value in facts.items() if not name.startswith("_")}


def parse_environment(data: bytes | None) -> dict[str, str]:
    """/proc/PID/environ: variables by name. What is not a variable is left out."""
    found = {}
    for entry in (data or b"").split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and name:
            found[name.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
    return found


def parse_status(data: bytes | None) -> dict[str, str]:
    """The part of /proc/PID/status that says something about a hang."""
    found = {}
    for line in (data or b"").decode("utf-8", "replace").split("\n"):
        name, colon, value = line.partition(":")
        if colon and name in _STATUS:
            found[name] = value.strip().replace("\t", " ")
    return found


def write_target(syscall: str | None) -> int | None:
    """The file descriptor that a blocked write() is about, from /proc/PID/syscall; None for any other call."""
    words = (syscall or "").split()
    # write and writev, on x86-64 and on arm64.
    if len(words) < 2 or words[0] not in {"1", "20", "64", "66"}:
        return None
    try:
        number = int(words[1], 16)
    except ValueError:
        return None
    return number if 0 <= number < 1 << 20 else None


def _threads(pid: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]], int]:
    """The threads, their kernel stacks (those of many are equal, so each is told once), and how many were left out."""
    try:
        tids = sorted(int(name) for name in os.listdir(f"/proc/{pid}/task") if name.isdecimal())
    except OSError:
        return [], [], 0
    found: list[dict[str, Any]] = []
    stacks: dict[str, list[int]] = {}
    for number, tid in enumerate(tids[:MOST_THREADS]):
        folder = f"/proc/{pid}/task/{tid}"
        stat = parse_stat(read_at(f"{folder}/stat") or b"")
        if stat is None:
            continue
        found.append(
            {
                "tid": tid,
                "name": stat.name,
                "state": stat.state,
                "cpu_s": (stat.user_ticks + stat.system_ticks) / TICKS_PER_S,
                "wchan": parse_word(read_at(f"{folder}/wchan")),
                "syscall": _text(read_at(f"{folder}/syscall")),
            }
        )
        if number < MOST_STACKS and (stack := _text(read_at(f"{folder}/stack"))):
            stacks.setdefault(stack, []).append(tid)
    told = [{"tids": tids, "stack": stack.split("\n")} for stack, tids in stacks.items()]
    return found, told, max(0, len(tids) - MOST_THREADS)


def _files(pid: int) -> dict[str, Any] | None:
    links = links_of(pid)
    if links is None:
        return None
    kinds: Counter[str] = Counter()
    pipes: dict[int, str] = {}
    sockets: dict[int, str] = {}
    deleted: dict[int, str] = {}
    regular: dict[int, str] = {}
    for number, target in links.items():
        kind = target.partition(":")[0] if not target.startswith("/") else "device" if _device(target) else "file"
        kinds[kind] += 1
        if kind == "pipe":
            pipes[number] = target[6:-1]
        elif kind == "socket":
            sockets[number] = target[8:-1]
        elif kind == "file" and target.endswith(" (deleted)"):
            deleted[number] = target
        elif kind == "file" and len(regular) < TOLD_FILES:
            regular[number] = target
    return {
        "count": len(links),
        "kinds": dict(kinds),
        "pipes": pipes,
        "sockets": sockets,
        "deleted": dict(list(deleted.items())[:TOLD_FILES]),
        "regular": regular,
    }


def _device(target: str) -> bool:
    return target.startswith("/dev/") and not target.startswith("/dev/shm/")


def links_of(pid: int) -> dict[int, str] | None:
    """What each open file of a process is, by number; None when that may not be read or it has ended."""
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return None
    found = {}
    for name in names[:MOST_FILES]:
        with contextlib.suppress(OSError, ValueError):
            found[int(name)] = os.readlink(f"{folder}/{name}")
    return found


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def _words(data: bytes | None) -> list[str]:
    return (data or b"").rstrip(b"\0").decode("utf-8", "replace").split("\0") if data else []


def _bounded(argv: Sequence[str]) -> list[str]:
    kept, left = list[str](), TOLD_CHARS
    for number, argument in enumerate(argv):
        if left <= 0:
            kept.append(f"[{len(argv) - number} arguments more]")
            break
        kept.append(argument[:left])
        left -= len(argument) + 1
    return kept


def _text(data: bytes | None) -> str | None:
    return data.decode("utf-8", "replace").strip() if data else None
