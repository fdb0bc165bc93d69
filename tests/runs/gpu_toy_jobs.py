"""The toy jobs on a machine with toy GPUs: `use` needs one, and the file in $TOY_GPUS is the driver."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

import lease_world
import toy_jobs

from eagle3ops.runs import gpu_share, leases
from eagle3ops.runs.context import Context
from eagle3ops.runs.job import Forecast, Job, Plan, PlanContext
from eagle3ops.spec.base import StageSpec
from eagle3ops.telemetry.gpus import GpuFacts

_FILE = Path(os.environ[lease_world.FILE_VARIABLE])


def _present() -> Sequence[GpuFacts]:
    return lease_world.look(_FILE)


def _memory_used(indices: Iterable[int]) -> dict[int, int]:
    return lease_world.memory_used(_FILE, list(indices))


leases.present = _present
leases.FOREIGN_WAIT_S = 0.5
gpu_share.gpu_memory_used = _memory_used  # type: ignore[attr-defined]
gpu_share.RETURN_WAIT_S = 1.0


class Use(toy_jobs.Use):
    """Shows what it was given."""

    uses_gpu: ClassVar[bool] = True

    def plan(self, ctx: PlanContext) -> Plan:
        need = os.environ.get("TOY_GPU_NEED")
        return Plan(outputs=("joined",), forecast=Forecast(gpu_memory_bytes=int(need) if need else None))

    async def run(self, ctx: Context) -> None:
        ctx.info(f"sees {os.environ.get('CUDA_VISIBLE_DEVICES')} by {os.environ.get('CUDA_DEVICE_ORDER')}")
        after = os.environ.get("TOY_GPUS_AFTER")
        if after:
            os.replace(after, _FILE)
        await super().run(ctx)


_JOBS: dict[str, type[Job]] = {"make": toy_jobs.Make, "use": Use, "end": toy_jobs.End}


def names() -> list[str]:
    return list(_JOBS)


def job(name: str) -> type[Job]:
    return _JOBS[name]


def specs() -> dict[str, type[StageSpec]]:
    return {name: found.Spec for name, found in _JOBS.items()}


order = toy_jobs.order
