"""fetch: get the target onto this machine, whole, and say exactly which one it is."""

import asyncio
from pathlib import Path
from typing import ClassVar

from eagle3ops.errors import Eagle3opsError
from eagle3ops.runs.context import Context
from eagle3ops.runs.job import Forecast, Job, Plan, PlanContext
from eagle3ops.spec.base import StageSpec
from eagle3ops.targets import (
    EMBEDDED,
    TINY,
    changed_since,
    check_folder,
    read_target_info,
    refuse_unknown,
    resolve,
    write_target_info,
)


class FetchSpec(StageSpec):
    """Nothing to set: which target it is stands in the section `target`."""


class Fetch(Job):
    """`target.json`: where the target is, its shape, and its fingerprint. The model itself stays in the cache."""

    name: ClassVar[str] = "fetch"
    Spec: ClassVar[type[StageSpec]] = FetchSpec
    needs: ClassVar[tuple[str, ...]] = ()
    reads: ClassVar[tuple[str, ...]] = ("target",)
    code: ClassVar[tuple[str, ...]] = ("eagle3ops.jobs.fetch", "eagle3ops.targets")

    def plan(self, ctx: PlanContext) -> Plan:
        """What has to be downloaded is known for the built-in targets only; a folder is looked at."""
        target = ctx.pipeline.target
        model, refusal = target.model, None
        try:
            folder = refuse_unknown(model, target.revision)
            if folder is not None:
                check_folder(folder)
        except Eagle3opsError as error:
            refusal = error
        known = {
            EMBEDDED: Forecast(disk_bytes=275_000_000, notes=("downloads 93 to 270 MB, unless it is in the cache",)),
            TINY: Forecast(disk_bytes=1_000_000, seconds=2.0),
        }
        return Plan(outputs=("target.json",), forecast=known.get(model, Forecast()), refusal=refusal)

    def stale(self, out: Path) -> str | None:
        """The model's files have vanished or changed since."""
        try:
            return changed_since(read_target_info(out))
        except Eagle3opsError as error:
            return error.what

    async def run(self, ctx: Context) -> None:
        """Resolve the target and write down what was found."""
        target = ctx.pipeline.target
        info = await asyncio.to_thread(
            resolve,
            target.model,
            ctx.cache,
            revision=target.revision,
            trust_remote_code=target.trust_remote_code,
            progress=ctx.progress,
            info=ctx.info,
        )
        write_target_info(ctx.out, info)
        ctx.identify(info.fingerprint)
        ctx.info(f"{info.name} from {info.source}: {info.num_layers} layers, fingerprint {info.fingerprint[:16]}")
        ctx.artifact(ctx.out / "target.json", note="where the target is, its shape and its fingerprint")
