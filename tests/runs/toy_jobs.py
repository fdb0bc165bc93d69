"""A registry of jobs that need no model: they write files, wait, fail or judge, as their specs say."""

import asyncio
import errno
import hashlib
import os
import sys
import time
from pathlib import Path
from typing import ClassVar, Literal

from eagle3ops.errors import Eagle3opsError
from eagle3ops.runs.context import Context
from eagle3ops.runs.job import Forecast, Job, Plan, PlanContext
from eagle3ops.runs.processes import identify
from eagle3ops.spec.base import AuxLayersSpec, StageSpec

ENGINE_LOG = """\
[2026-11-30 08:00:01] server_args=ServerArgs(model_path='x', tp_size=1)
[2026-11-30 08:00:02 TP0] Load weight begin. avail mem=3.10 GB
[2026-11-30 08:00:05 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "/venv/lib/python3.12/site-packages/sglang/srt/managers/scheduler.py", line 2622, in run_scheduler_process
    scheduler = Scheduler(server_args, port_args, gpu_id, tp_rank, dp_rank)
  File "/venv/lib/python3.12/site-packages/torch/utils/_device.py", line 103, in __torch_function__
    return func(*args, **kwargs)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of \
which 1.06 GiB is free.

[2026-11-30 08:00:05] Received sigquit from a child process. It usually means the child failed.
"""
"""What an engine says whose GPU is too small."""


class MakeSpec(StageSpec):
    parts: int = 4
    part_s: float = 0.0
    part_bytes: int = 64
    forecast_bytes: int | None = None
    forecast_memory: int | None = None


class Make(Job):
    """Parts made one by one; a part that is there is not made again."""

    name: ClassVar[str] = "make"
    Spec: ClassVar[type[StageSpec]] = MakeSpec
    reads: ClassVar[tuple[str, ...]] = ("seed",)

    def plan(self, ctx: PlanContext) -> Plan:
        spec = ctx.spec
        assert isinstance(spec, MakeSpec)
        forecast = Forecast(tokens=10, disk_bytes=spec.forecast_bytes, memory_bytes=spec.forecast_memory)
        return Plan(outputs=("part-*",), forecast=forecast)

    async def run(self, ctx: Context) -> None:
        spec = ctx.spec
        assert isinstance(spec, MakeSpec)
        for number in range(spec.parts):
            path = ctx.out / f"part-{number}"
            if not path.exists():
                await asyncio.sleep(spec.part_s)
                seed = hashlib.sha256(f"{ctx.pipeline.seed} {number}".encode()).hexdigest()
                partial = ctx.out / "part.tmp"
                partial.write_text(seed * (spec.part_bytes // 64))
                partial.replace(path)
                ctx.info(f"made {number}")
            ctx.progress(number + 1, spec.parts, "parts")
        (ctx.out / "part.tmp").unlink(missing_ok=True)
        ctx.metric("parts", spec.parts)
        ctx.artifact(ctx.out / "part-0", note="the first")


class UseSpec(StageSpec):
    mode: Literal[
        "plain",
        "raise",
        "explain",
        "hang",
        "child",
        "hog",
        "full",
        "runaways",
        "orphans",
        "secret",
        "heirs",
        "stopped",
        "engine",
    ] = "plain"

    passed: bool = True
    aux_layers: AuxLayersSpec | None = None
    lr: float = 1e-3


class Use(Job):
    """Joins the parts, or does what its mode says."""

    name: ClassVar[str] = "use"
    Spec: ClassVar[type[StageSpec]] = UseSpec
    needs: ClassVar[tuple[str, ...]] = ("make",)
    code: ClassVar[tuple[str, ...]] = ("toy_code",)

    def plan(self, ctx: PlanContext) -> Plan:
        return Plan(inputs=("part-*",), outputs=("joined",), forecast=Forecast(seconds=1.0))

    async def run(self, ctx: Context) -> None:
        spec = ctx.spec
        assert isinstance(spec, UseSpec)
        if spec.mode == "raise":
            raise ZeroDivisionError("nobody expected this")
        if spec.mode == "explain":
            raise Eagle3opsError("the model file is damaged", remedy="fetch it again")
        if spec.mode == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(ctx.out / "joined"))
        if spec.mode == "hang":
            await asyncio.to_thread(time.sleep, 3600)
        if spec.mode == "runaways" and not (ctx.run_dir / "runaways").exists():
            folder = ctx.run_dir / "runaways"
            folder.mkdir()
            script = Path(__file__).with_name("runaways.py")
            async with ctx.spawn([sys.executable, "-S", str(script), str(folder)], role="runaways") as process:
                await process.wait()
        if spec.mode == "orphans":
            _make_orphans(20)
            (ctx.run_dir / "orphaned").touch()
            await asyncio.sleep(3600)
        if spec.mode == "heirs":
            # The leader of the group is gone, and waited for, long before the block ends.
            commands = "sleep 3600 & echo $! > $0; setsid sleep 3600 & echo $! >> $0"
            numbers = ctx.run_dir / "heirs"
            async with ctx.spawn(["sh", "-c", commands, str(numbers)], role="heirs") as process:
                await process.wait()
            first, *_ = map(int, numbers.read_text().split())
            ctx.info("the group is left" if identify(first) else "the group is ended")
        if spec.mode == "secret":
            # Put together here, so that nothing but what is written at run time can hold it.
            canary = "hf_" + "Canary" * 4
            program = "import sys; sys.exit(0)"
            async with ctx.spawn(
                [sys.executable, "-c", program, "--api-key", "canary-argument"],
                role="child",
                env={"RANK": "3", "MY_TOKEN": "canary-variable", "PROXY": "http://ann:canary-proxy@proxy.example"},
            ) as process:
                await process.wait()
            ctx.info(f"logged in with {canary}")
            ctx.warn(f"HF_TOKEN={canary} https://ann:canary-password@hub.example/x")
            ctx.artifact(ctx.out / "joined", note=f"Authorization: Bearer {canary}")
            ctx.verdict("login", True, f"password='canary-word' token {canary}", {"api_key": "canary-key", "n": 1})
            raise ConnectionError(f"401 for {canary} at https://ann:canary-password@hub.example/x")
        if spec.mode == "stopped" and not (ctx.run_dir / "mended").exists():
            program = "import os, signal, time; os.kill(os.getpid(), signal.SIGSTOP); time.sleep(3600)"
            async with ctx.spawn([sys.executable, "-c", program], role="child") as process:
                (ctx.run_dir / "child.pid").write_text(str(process.pid))
                await process.wait()
        if spec.mode == "engine":
            program = f"import sys; sys.stderr.write({ENGINE_LOG!r}); sys.exit(1)"
            async with ctx.spawn([sys.executable, "-c", program], role="engine-serve") as process:
                await process.wait()
            raise Eagle3opsError("the server ended with exit code 1 before it was ready", remedy="see its log")
        if spec.mode == "child":
            program = "import sys, time; print('child', flush=True); time.sleep(3600)"
            async with ctx.spawn([sys.executable, "-c", program], role="child") as process:
                (ctx.run_dir / "child.pid").write_text(str(process.pid))
                await process.wait()
        parts = sorted(ctx.inputs["make"].glob("part-*"), key=lambda path: int(path.name.split("-")[1]))
        (ctx.out / "joined").write_text("\n".join(path.read_text() for path in parts))
        ctx.patched("toy-recipe", "applied", {"site": "/venv/site-packages"})
        passed = None if os.environ.get("TOY_UNDECIDED") else spec.passed
        ctx.verdict("joined", passed, "all parts are there" if spec.passed else "a part is wrong")


def _make_orphans(count: int) -> None:
    """Each is left by its parent at once, and ends a moment later as a child of the supervisor."""
    for _ in range(count):
        if os.fork() == 0:
            if os.fork() == 0:
                time.sleep(0.1)
            os._exit(0)
        os.wait()


class EndSpec(StageSpec):
    pass


class End(Job):
    """Runs after everything, also after a verdict of FAIL."""

    name: ClassVar[str] = "end"
    pointless_after: ClassVar[tuple[str, ...]] = tuple(os.environ.get("TOY_POINTLESS_AFTER", "").split())
    Spec: ClassVar[type[StageSpec]] = EndSpec
    needs: ClassVar[tuple[str, ...]] = ("use",)

    def plan(self, ctx: PlanContext) -> Plan:
        return Plan(outputs=("report",))

    async def run(self, ctx: Context) -> None:
        (ctx.out / "report").write_text("written")


_JOBS: dict[str, type[Job]] = {"make": Make, "use": Use, "end": End}


def names() -> list[str]:
    return list(_JOBS)


def job(name: str) -> type[Job]:
    return _JOBS[name]


def specs() -> dict[str, type[StageSpec]]:
    return {name: found.Spec for name, found in _JOBS.items()}


def order(target: str) -> list[str]:
    all_names = list(_JOBS)
    return all_names if target == "pipeline" else all_names[: all_names.index(target) + 1]
