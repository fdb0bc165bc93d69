"""Which servers of a comparison are up together, and how are they started? As many as the memory holds.

Equal servers differ from minute to minute, so a setting is only compared with a baseline that is up beside it. Where
not all fit, there are groups, each with a baseline; where not even two fit, baseline and setting take turns.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from eagle3ops.bench.cases import BASELINE, Case, Measured, run_cases
from eagle3ops.engines.base import on_gpu
from eagle3ops.engines.footprint import engine_forecast
from eagle3ops.errors import first_failure
from eagle3ops.runs.context import Context
from eagle3ops.runs.job import PlanContext
from eagle3ops.words import human_bytes

if TYPE_CHECKING:
    from eagle3ops.engines.base import ServeSpec
    from eagle3ops.engines.client import EngineClient

GPU_EXTRA_BYTES = 2 << 30
"""Of a server on a GPU besides weights and caches: its CUDA context, graphs and work space; 1.6 GiB were measured."""
SHARE = 0.9
"""Part of the memory that servers are planned into."""
TURNS = 2
"""How often baseline and setting are started one after the other, where only one fits at a time."""
MARGIN_TOKENS = 64
"""Tokens of a chat template and of drafts, on top of every prompt and answer."""
LEAST_POOL_TOKENS = 16384


@dataclass(frozen=True, slots=True)
class Lineup:
    """Labels that are up together, the baseline first in each group.

    Attributes:
        alone: the servers of a group take turns, one at a time.
        why: a sentence for the plan.
    """

    groups: tuple[tuple[str, ...], ...]
    alone: bool
    why: str

    @property
    def most(self) -> int:
        """Servers that are up at once at most."""
        return 1 if self.alone else max(len(group) for group in self.groups)

    def as_json(self) -> dict[str, Any]:
        """For the record of the benchmark."""
        return {"groups": [list(group) for group in self.groups], "alone": self.alone, "why": self.why}


def line_up(labels: Sequence[str], need: int | None, room: int | None) -> Lineup:
    """Divide the settings into groups that fit.

    Args:
        labels: of the settings, without the baseline.
        need: bytes of one server; None where it is not known.
        room: bytes that there are; None where it is not known.
    """
    everyone = (BASELINE, *labels)
    if need is None or room is None:
        return Lineup((everyone,), False, f"all {len(everyone)} servers up together")
    fit = int(room * SHARE) // max(1, need)
    size = f"{human_bytes(need)} each, {human_bytes(room)} there"
    if fit >= len(everyone):
        return Lineup((everyone,), False, f"all {len(everyone)} servers up together ({size})")
    if fit >= 2:
        step = fit - 1
        groups = tuple((BASELINE, *labels[first : first + step]) for first in range(0, len(labels), step))
        why = f"{len(groups)} groups of at most {fit} servers, a baseline in each ({size})"
        return Lineup(groups, False, why)
    why = f"baseline and setting take turns, {TURNS} times each: two servers do not fit together ({size})"
    return Lineup(tuple((BASELINE, label) for label in labels), True, why)


def planned(ctx: PlanContext, labels: Sequence[str], rows: int, length: int) -> Lineup:
    """The lineup by the forecast of one server's memory and by what this machine has."""
    forecast = engine_forecast(ctx, rows=rows, length=length)
    if forecast.gpu_memory_bytes is not None:
        return line_up(labels, forecast.gpu_memory_bytes + GPU_EXTRA_BYTES, gpu_room())
    if forecast.memory_bytes is not None:
        from eagle3ops.runs.planning import available_memory

        return line_up(labels, forecast.memory_bytes, available_memory())
    return line_up(labels, None, None)


def gpu_room() -> int | None:
    """Bytes of the smallest GPU that a run may use here; None where there is none, or none says."""
    from eagle3ops.runs.leases import present, visible_gpus

    sizes = [
        gpu.memory_total
        for gpu in visible_gpus(present(), os.environ.get("CUDA_VISIBLE_DEVICES"))
        if gpu.memory_total is not None
    ]
    return min(sizes, default=None)


def plan_context(ctx: Context) -> PlanContext:
    """What a running stage knows, for questions that are asked while planning too."""
    return PlanContext(ctx.pipeline, ctx.spec, ctx.out, ctx.inputs, {}, ctx.cache)


def shared(setting: "ServeSpec", rows: int, length: int) -> "ServeSpec":
    """The same server with only as large a cache of keys and values as `rows` requests of `length` tokens need: the
    first of several on one GPU would take all of it."""
    # What has to wait in the server's queue is no load of so many at once.
    setting = replace(setting, max_running_requests=max(rows, setting.max_running_requests))
    if not on_gpu(setting.device):
        return setting
    return replace(setting, pool_tokens=max(LEAST_POOL_TOKENS, rows * (length + MARGIN_TOKENS) * 5 // 4))


@asynccontextmanager
async def up(
    ctx: Context,
    servers: "Mapping[str, ServeSpec]",
    *,
    role: str = "engine-bench",
    engines: Mapping[str, str] | None = None,
) -> "AsyncIterator[dict[str, EngineClient]]":
    """All of these servers, running. They start together: what they compile was compiled and kept by earlier stages.

    Args:
        ctx: of the stage.
        servers: by label.
        role: begins the names of their logs.
        engines: by label, where it is not the pipeline's for all.
    """
    from eagle3ops.engines.registry import adapter
    from eagle3ops.engines.serving import running, side_by_side

    async def enter(stack: AsyncExitStack, label: str) -> "EngineClient":
        name = f"{role}-{slug(label)}"
        engine = adapter((engines or {}).get(label, ctx.pipeline.engine.name))
        log = ctx.run_dir / "logs" / f"{name}.log"
        server = running(engine, servers[label], spawn=ctx.spawn, role=name, log=log)
        return await stack.enter_async_context(server)

    async with side_by_side(len(servers)) as stacks:
        with first_failure():
            async with asyncio.TaskGroup() as group:
                tasks = {
                    label: group.create_task(enter(one, label)) for label, one in zip(servers, stacks, strict=True)
                }
        yield {label: task.result() for label, task in tasks.items()}


def slug(label: str) -> str:
    """A label as part of a file's name."""
    return "".join(letter if letter.isalnum() or letter in "._" else "-" for letter in label)


async def visits(
    ctx: Context, lineup: Lineup, servers: "Mapping[str, ServeSpec]", **how: Any
) -> "AsyncGenerator[tuple[tuple[str, ...], dict[str, EngineClient]]]":
    """Every group with its running servers; where they take turns, every server by itself, `TURNS` times.
    `how` are further words for `up`."""
    for group in lineup.groups:
        if not lineup.alone:
            async with up(ctx, {label: servers[label] for label in group}, **how) as clients:
                yield group, clients
            continue
        for _ in range(TURNS):
            for label in group:
                async with up(ctx, {label: servers[label]}, **how) as clients:
                    yield group, clients


async def visited(
    ctx: Context,
    lineup: Lineup,
    cases: Sequence[Case],
    group: Sequence[str],
    clients: "Mapping[str, EngineClient]",
    measured: Sequence[Measured],
) -> None:
    """Put the servers of one visit under all cases, and add what they did to `measured`, one for each case."""
    found = await run_cases(cases, clients, lambda done, total: ctx.progress(done, total, "timed requests"))
    for place, results in zip(measured, found, strict=True):
        if lineup.alone:
            for label, result in results.items():
                place.append(label, result, group[-1])
        else:
            place.add(results)
