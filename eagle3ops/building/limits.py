"""How many compile jobs at once can this machine bear? As many as it has cores and memory for."""

import os
from dataclasses import dataclass

from eagle3ops.runs.planning import cpu_count
from eagle3ops.telemetry.cgroup import read_cgroup
from eagle3ops.words import human_bytes

RESERVE = 1 << 30
"""Left to everything else."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is for a build."""

    cores: float
    available: int
    """Bytes of memory that the kernel would give."""
    limit: int | None = None
    """Bytes that the control group still allows; None: as many as there are."""


@dataclass(frozen=True, slots=True)
class Jobs:
    """How many, and what bounds them."""

    count: int
    why: str
    tight: bool = False
    """There is not even memory for one."""


def machine() -> Machine:
    """This one, as it is now."""
    import psutil

    group = read_cgroup()
    limit, used, quota = group["memory_limit"], group["memory_used"], group["cpu_limit"]
    cores = float(cpu_count())
    return Machine(
        cores=min(cores, quota) if quota else cores,
        available=int(psutil.virtual_memory().available),
        limit=None if limit is None else max(0, limit - (used or 0)),
    )


def compile_jobs(here: Machine, each: int, asked: int | None = None) -> Jobs:
    """How many compile jobs run at once.

    Args:
        here: what there is.
        each: bytes that one job takes at its peak.
        asked: what the person wants; it is taken, and judged.
    """
    least, by = here.available, "available memory"
    if here.limit is not None and here.limit < least:
        least, by = here.limit, "what the control group leaves of memory"
    room = max(0, least - RESERVE) // max(1, each)
    bound = max(1, min(int(here.cores) or 1, room))
    memory = f"{by} {human_bytes(least)}, {human_bytes(each)} for each"
    if asked is not None:
        return Jobs(asked, f"as asked for; {memory}, {here.cores:g} cores would bear {bound}", asked > max(1, room))
    if room < 1:
        return Jobs(1, f"{memory}: not even one is sure to fit", tight=True)
    return Jobs(bound, f"{here.cores:g} cores; {memory}" if room >= here.cores else memory)


def environment(jobs: int) -> dict[str, str]:
    """The variables by which torch, CMake, ninja, make and nvcc are told."""
    return {
        "MAX_JOBS": str(jobs),
        "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs),
        "MAKEFLAGS": f"-j{jobs}",
        "NVCC_THREADS": os.environ.get("NVCC_THREADS", "1"),
    }
