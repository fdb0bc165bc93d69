"""Is there room on the GPUs for a server, and is its memory back once it has ended?"""

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3ops.engines.base import ServeSpec, on_gpu
from eagle3ops.errors import Refused
from eagle3ops.runs.leases import present, visible_gpus
from eagle3ops.telemetry.gpus import GpuFacts
from eagle3ops.telemetry.nvml import GpuLost, Nvml, SessionGone
from eagle3ops.words import human_bytes

CONTEXT_BYTES = 1536 << 20
"""Of a process before it holds a weight: CUDA's context, the libraries' workspaces, a few graphs."""
TOLERANCE = 512 << 20
"""Contexts of the driver and of monitoring tools come and go."""
RETURN_WAIT_S = 50.0
ROOM_WAIT_S = 20.0
"""So long a server that has just ended may take to give its memory back before the next is refused for want of it."""
_WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}

Look = Callable[[], list[GpuFacts]]


def gpus_of(spec: ServeSpec) -> list[GpuFacts]:
    """The GPUs that a server would see; none where there are none, or where the driver does not answer."""
    if not on_gpu(spec.device):
        return []
    return visible_gpus(present(), spec.variables.get("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES")))


def capability(spec: ServeSpec) -> tuple[int, int] | None:
    """Compute capability of the first GPU that a server would see; None where that is not known."""
    gpus = gpus_of(spec)
    if not gpus:
        return None
    session = Nvml()
    if session.open() is not None:
        return None
    try:
        handle = session.ask("nvmlDeviceGetHandleByIndex", gpus[0].index)
        found = None if handle is None else session.ask("nvmlDeviceGetCudaComputeCapability", handle)
        return None if found is None else (int(found[0]), int(found[1]))
    except (GpuLost, TypeError, ValueError, IndexError):
        return None
    except SessionGone as error:
        session.forget(error)
        return None
    finally:
        session.close()


def least_bytes(spec: ServeSpec) -> int | None:
    """What a server needs on each of its GPUs at the very least; None where the weights' size is not known."""
    weights = _weights(spec.model)
    if not weights:
        return None
    target = weights * _grows(spec) // 2 // max(1, spec.gpus * spec.nodes)
    draft = 0 if spec.drafter is None or spec.return_hidden_states else _weights(spec.drafter)
    return target + draft + CONTEXT_BYTES


def _grows(spec: ServeSpec) -> int:
    """Twice the factor by which the weights are larger in memory than in their files."""
    config = _json(spec.model / "config.json")
    if "quantization_config" in config:
        return 2
    stored = config.get("dtype", config.get("torch_dtype"))
    if spec.dtype == "auto":
        return 2
    return 2 * _WIDTH[spec.dtype] // (4 if stored == "float32" else 2)


def _weights(folder: Path) -> int:
    """Bytes of the files that an engine loads; another copy in the same folder is not counted."""
    named = _json(folder / "model.safetensors.index.json").get("weight_map")
    files = {folder / name for name in named.values() if isinstance(name, str)} if isinstance(named, dict) else set()
    files = files or set(folder.glob("model*.safetensors")) or set(folder.glob("*.safetensors"))
    return sum(file.stat().st_size for file in files if file.is_file())


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def require_room(
    spec: ServeSpec, look: Callable[[ServeSpec], list[GpuFacts]] = gpus_of, wait_s: float = ROOM_WAIT_S
) -> None:
    """Return if weights and what goes with them fit what is free now.

    Raises:
        Refused: they do not, with the figures.
    """
    need = least_bytes(spec)
    if need is None or not on_gpu(spec.device):
        return
    deadline = time.monotonic() + wait_s
    while True:
        gpus = look(spec)
        known = [(gpu, gpu.memory_total - gpu.memory_used) for gpu in gpus
                 if gpu.memory_total is not None and gpu.memory_used is not None]  # fmt: skip
        # Servers take the first of those that they see.
        wanted = known[: spec.gpus]
        short = [(gpu, free) for gpu, free in wanted if free < need]
        if not short:
            return
        if time.monotonic() >= deadline:
            break
        time.sleep(0.5)
    gpu, free = short[0]
    who = ", ".join(str(process) for process in gpu.processes) or "nobody that the driver names"
    raise Refused(
        f"GPU memory: {spec.model.name} needs at least {human_bytes(need)} on each of {spec.gpus} GPU"
        f"{'s' if spec.gpus > 1 else ''}; GPU {gpu.index} has {human_bytes(free)} free of "
        f"{human_bytes(gpu.memory_total or 0)}, used by {who}",
        remedy="split it over more GPUs (engine.gpus), end what uses this one, or take a smaller target",
    )


@dataclass(slots=True)
class Returned:
    """What became of a server's GPU memory after its end.

    Attributes:
        given_back: bytes by GPU that its processes held, and hold no more.
        kept: sentences on what is not back; empty: all is.
        waited_s: seconds from the end of its processes.
    """

    given_back: dict[int, int] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    waited_s: float = 0.0

    def __str__(self) -> str:
        """A sentence for people."""
        if self.kept:
            return f"GPU memory is not back after {self.waited_s:.0f} s: {'; '.join(self.kept)}"
        if not self.given_back:
            return "the driver named none of its processes, so nothing can be said of its GPU memory"
        told = ", ".join(f"{human_bytes(held)} of GPU {index}" for index, held in sorted(self.given_back.items()))
        return f"GPU memory is back: {told}, after {self.waited_s:.1f} s"


def held_by(pids: Iterable[int], gpus: Iterable[GpuFacts]) -> dict[int, int]:
    """Bytes on each GPU that these processes hold, where the driver tells; 0 where it names them without a figure."""
    ours = set(pids)
    found: dict[int, int] = {}
    for gpu in gpus:
        for process in gpu.processes:
            if process.pid in ours and process.visible:
                found[gpu.index] = found.get(gpu.index, 0) + (process.memory_bytes or 0)
    return found


def wait_returned(
    pids: Iterable[int],
    held: Mapping[int, int],
    used: Mapping[int, int],
    look: Look,
    *,
    wait_s: float = RETURN_WAIT_S,
) -> Returned:
    """Wait until the driver names none of a server's processes any more, and each GPU has what they held free again.

    Args:
        pids: of its processes, as they were before its end.
        held: what `held_by` said of them then.
        used: bytes in use on those GPUs then, by everybody.
        look: asks the driver.
        wait_s: given up after so many seconds; what is kept by then is told.
    """
    pids = set(pids)
    began = time.monotonic()
    while True:
        gpus = [gpu for gpu in look() if gpu.index in held]
        still = held_by(pids, gpus)
        kept = []
        for gpu in gpus:
            now, before = gpu.memory_used, used.get(gpu.index)
            if gpu.index in still:
                kept.append(f"GPU {gpu.index}: its processes still hold {human_bytes(still[gpu.index])}")
            elif gpu.processes or now is None or before is None:
                # Others may have taken already what it gave back: what counts is that it is not among them.
                continue
            elif now > before - held[gpu.index] + TOLERANCE:
                kept.append(f"GPU {gpu.index}: {human_bytes(now)} in use by nobody that the driver names")
        waited = time.monotonic() - began
        if not kept or waited > wait_s:
            break
        time.sleep(0.25)
    return Returned(given_back={} if kept else dict(held), kept=kept, waited_s=waited)
