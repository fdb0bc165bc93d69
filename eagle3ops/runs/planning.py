"""What would run, what is done already, and does it fit?"""

import contextlib
import os
import shutil
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from eagle3ops.errors import Refused, RequestError
from eagle3ops.runs.history import forecast_seconds, past_seconds
from eagle3ops.runs.job import Forecast, Plan, PlanContext, Registry
from eagle3ops.runs.keys import stage_keys
from eagle3ops.runs.store import Store
from eagle3ops.spec.models import Pipeline
from eagle3ops.words import human_bytes


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage: done already or to be run, and what it would need."""

    name: str
    key: str
    out: Path
    done: bool
    reason: str | None
    """Why a finished output is not trusted."""
    plan: Plan
    gpus: int = 0
    """GPUs that it would be given on a machine that has any."""

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "stage": self.name,
            "key": self.key,
            "out": str(self.out),
            "done": self.done,
            "reason": self.reason,
            "inputs": list(self.plan.inputs),
            "outputs": list(self.plan.outputs),
            "forecast": asdict(self.plan.forecast),
            "gpus": self.gpus,
            "refusal": None if self.plan.refusal is None else str(self.plan.refusal),
        }


def plan_stages(
    pipeline: Pipeline, registry: Registry, root: Path, cache: Path, also: Collection[str] = ()
) -> list[StagePlan]:
    """Plan the stages of the pipeline, upstream first, and the jobs in `also` with what they need.

    Raises:
        Eagle3opsError: one of them cannot be planned as it is set.
    """
    store = Store(root)
    keys = stage_keys(pipeline, registry, also)
    finished: dict[str, Path] = {}
    plans: dict[str, Plan] = {}
    planned = []
    for name, key in keys.items():
        job = registry.job(name)()
        known = store.look_up(job, key)
        ctx = PlanContext(pipeline, pipeline.stages[name], known.out, dict(finished), dict(plans), cache)
        plans[name] = timed(job.plan(ctx), store.folder, name)
        if known.done is not None:
            finished[name] = known.out
        gpus = wanted_gpus(pipeline) if job.uses_gpu else 0
        planned.append(StagePlan(name, key, known.out, known.done is not None, known.reason, plans[name], gpus))
    return planned


def timed(plan: Plan, stages: Path, job: str) -> Plan:
    """Add the time that earlier stages of this root suggest, by tokens where those are known."""
    forecast = plan.forecast
    if forecast.seconds is not None:
        return plan
    seconds = forecast_seconds(stages, job, "tokens", forecast.tokens) or past_seconds(stages, job)
    return replace(plan, forecast=replace(forecast, seconds=seconds))


def choose(planned: Sequence[StagePlan], registry: Registry, job: str) -> list[StagePlan]:
    """The stages that `--job JOB` runs: all for "pipeline", else that one.

    Raises:
        RequestError: stages that it needs are not done.
        Eagle3opsError: so it is, and it could not run here anyhow.
    """
    by_name = {stage.name: stage for stage in planned}
    if job == "pipeline":
        return [by_name[name] for name in registry.order("pipeline")]
    missing = [name for name in registry.order(job) if name != job and not by_name[name].done]
    if missing:
        # What can never run here says so before anything is fetched for it.
        if (refusal := by_name[job].plan.refusal) is not None:
            raise refusal
        why = [f"{name} ({by_name[name].reason})" if by_name[name].reason else name for name in missing]
        first = missing[0]
        raise RequestError(
            f"{job} needs the output of {', '.join(why)}, which {'is' if len(missing) == 1 else 'are'} not done "
            "for this pipeline",
            remedy=f"run --job {first} first, or --job pipeline for everything",
        )
    return [by_name[job]]


def admit(stages: Sequence[StagePlan], root: Path) -> None:
    """Refuse what does not fit on this machine; stages that are done need nothing.

    Raises:
        Refused: naming the number that does not fit.
        Eagle3opsError: a stage cannot run here as it is set.
    """
    due = [stage for stage in stages if not stage.done]
    for stage in due:
        if stage.plan.refusal is not None:
            raise stage.plan.refusal
    disk = sum(max(0, (stage.plan.forecast.disk_bytes or 0) - _present(stage.out)) for stage in due)
    free = free_bytes(root)
    if free is not None and disk > free:
        largest = max(due, key=lambda stage: stage.plan.forecast.disk_bytes or 0)
        raise Refused(
            f"disk: {human_bytes(disk)} are forecast, {human_bytes(free)} are free at {root} "
            f"(most of it for {largest.name}: {human_bytes(largest.plan.forecast.disk_bytes or 0)})",
            remedy="free some space, choose another --root, or lower the number of prompts or tokens",
        )
    memory = available_memory()
    for stage in due:
        need = stage.plan.forecast.memory_bytes
        if need is not None and need > memory:
            raise Refused(
                f"memory: {stage.name} is forecast to need {human_bytes(need)}, {human_bytes(memory)} are available",
                remedy="use a smaller batch or a smaller target, or a machine with more memory",
            )
    _admit_to_gpus(due)


def wanted_gpus(pipeline: Pipeline) -> int:
    """GPUs that a stage of this pipeline is to have on a machine with GPUs."""
    engine = pipeline.engine
    return 0 if engine.device == "cpu" else engine.gpus * engine.replicas


def _admit_to_gpus(due: Sequence[StagePlan]) -> None:
    """Compare forecasts with the size of the GPUs; whether they are free is seen when they are leased."""
    asking = [stage for stage in due if stage.gpus and stage.plan.forecast.gpu_memory_bytes]
    if not asking:
        return
    from eagle3ops.runs.leases import present, visible_gpus

    gpus = visible_gpus(present(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    for stage in asking if gpus else []:
        need = stage.plan.forecast.gpu_memory_bytes or 0
        # One that does not say how large it is may be large enough.
        enough = [gpu for gpu in gpus if gpu.memory_total is None or gpu.memory_total >= need]
        if len(enough) < stage.gpus:
            largest = max((gpu.memory_total or 0 for gpu in gpus), default=0)
            many = f"on each of {stage.gpus} GPUs" if stage.gpus > 1 else "on one GPU"
            raise Refused(
                f"GPU memory: {stage.name} is forecast to need {human_bytes(need)} {many}; "
                f"{len(gpus)} here, the largest has {human_bytes(largest)}",
                remedy="use a smaller batch or a smaller target, or GPUs with more memory",
            )


def _present(out: Path) -> int:
    """Bytes that an earlier attempt has written already."""
    from eagle3ops.runs.store import folder_bytes

    return folder_bytes(out) if out.is_dir() else 0


def free_bytes(root: Path) -> int | None:
    """Free bytes of the file system that `root` is, or would be, on."""
    folder = root
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def available_memory() -> int:
    """Bytes of memory that a program can get here, by the kernel and by the control group."""
    import psutil

    available = int(psutil.virtual_memory().available)
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        available = min(available, max(0, limit - used))
    return available


def total(forecasts: Sequence[Forecast]) -> Forecast:
    """Sum of what adds up, maximum of what does not; None counts as unknown and is left out."""
    tokens = [f.tokens for f in forecasts if f.tokens is not None]
    disk = [f.disk_bytes for f in forecasts if f.disk_bytes is not None]
    memory = [f.memory_bytes for f in forecasts if f.memory_bytes is not None]
    seconds = [f.seconds for f in forecasts if f.seconds is not None]
    return Forecast(
        tokens=max(tokens, default=None),
        disk_bytes=sum(disk) if disk else None,
        memory_bytes=max(memory, default=None),
        seconds=sum(seconds) if seconds else None,
    )


def cpu_count() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
