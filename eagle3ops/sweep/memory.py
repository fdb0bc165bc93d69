"""How much memory does a server take? Of its GPU where it has one, else of the host; its children included."""

import contextlib
from collections.abc import Mapping
from typing import Any

import psutil


def memory_of(processes: Mapping[str, Any], *, gpu: bool) -> dict[str, dict[str, Any]]:
    """For each server's process: `bytes`, and `of` what, see `server_memory`."""
    found = {}
    for label, process in processes.items():
        held, of = server_memory(getattr(process, "pid", None), gpu=gpu)
        found[label] = {"bytes": held, "of": of}
    return found


def server_memory(pid: int | None, *, gpu: bool) -> tuple[int | None, str]:
    """Bytes that a process and all below it hold, and of what: `gpu` or `host`. None where nobody says."""
    if pid is None:
        return None, "gpu" if gpu else "host"
    tree = _tree(pid)
    if gpu:
        return _of_gpus({process.pid for process in tree}), "gpu"
    total = 0
    for process in tree:
        with contextlib.suppress(psutil.Error):
            total += process.memory_info().rss
    return total or None, "host"


def _tree(pid: int) -> list[psutil.Process]:
    try:
        leader = psutil.Process(pid)
        return [leader, *leader.children(recursive=True)]
    except psutil.Error:
        return []


def _of_gpus(pids: set[int]) -> int | None:
    """The driver's own account, summed over GPUs; a process that it counts by another number is not found."""
    from eagle3ops.telemetry.gpus import inventory

    found = [
        process.memory_bytes
        for gpu in inventory().gpus
        for process in gpu.processes
        if process.visible and process.pid in pids and process.memory_bytes is not None
    ]
    return sum(found) if found else None
