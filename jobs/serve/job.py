"""serve: start the engine with the drafter as the pipeline says, prove that it answers, and keep it up on request."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, model_validator

from eagle3ops.answers import read_answers
from eagle3ops.engines.footprint import check_layers, engine_forecast, engine_notes, engine_refusal
from eagle3ops.errors import RequestError
from eagle3ops.jobs.serve.other_layers import refuse_unservable, relabelled
from eagle3ops.patching.installed import patches_of
from eagle3ops.runs.context import Context
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.files import write_json
from eagle3ops.runs.job import Job, Plan, PlanContext
from eagle3ops.spec.base import AuxLayersSpec, StageSpec
from eagle3ops.sweep.points import capacity
from eagle3ops.targets import read_target_info

if TYPE_CHECKING:
    from eagle3ops.engines.base import ServeSpec
    from eagle3ops.engines.client import EngineClient
    from eagle3ops.engines.fleet import Fleet


POOL_TOKENS_A_REQUEST = 2048
"""Tokens whose keys and values a server keeps for each request at once, where it may have neighbours on its GPU."""


class SpeculationSpec(StageSpec):
    """One setting of speculative decoding, in the engines' own terms."""

    steps: int = Field(default=3, ge=1, le=16)
    """Draft steps before each verification."""
    topk: int = Field(default=1, ge=1, le=32)
    """Branches kept at each step; 1 makes a chain."""
    draft_tokens: int = Field(default=4, ge=2, le=128)
    """Tokens verified at once, the last accepted one included; a chain has steps + 1."""

    @model_validator(mode="after")
    def _consistent(self) -> "SpeculationSpec":
        if self.topk == 1 and self.draft_tokens != self.steps + 1:
            raise ValueError(f"a chain (topk 1) of {self.steps} steps verifies {self.steps + 1} draft_tokens")
        if self.draft_tokens > (most := capacity(self.steps, self.topk)):
            # The engines would find that out after they have loaded everything.
            raise ValueError(
                f"a tree of {self.steps} steps with topk {self.topk} holds {most} draft_tokens at most, not "
                f"{self.draft_tokens}"
            )
        return self

    @property
    def label(self) -> str:
        """`3/1/4`: steps, topk, draft tokens."""
        return f"{self.steps}/{self.topk}/{self.draft_tokens}"


class ServeStageSpec(StageSpec):
    """How the drafter is served."""

    speculation: SpeculationSpec = SpeculationSpec()
    aux_layers: AuxLayersSpec | None = None
    """Serve with other aux layers than the drafter's config says. For experiments: the wiring will be FAIL."""
    port: int | None = Field(default=None, ge=1, le=65535)
    """A free one is taken when left out."""
    hold: bool = False
    """Keep serving until the run is cancelled."""


class Serve(Job):
    """Facts of the running engine, its first answer and its launch line, in `serve.json`."""

    name: ClassVar[str] = "serve"
    Spec: ClassVar[type[StageSpec]] = ServeStageSpec
    needs: ClassVar[tuple[str, ...]] = ("fetch", "generate", "train")
    reads: ClassVar[tuple[str, ...]] = ("target", "engine", "seed")
    uses_gpu: ClassVar[bool] = True
    code: ClassVar[tuple[str, ...]] = ("eagle3ops.jobs.serve", "eagle3ops.engines", "eagle3ops.eagle3")

    def plan(self, ctx: PlanContext) -> Plan:
        """Starts one engine."""
        spec = ctx.spec
        assert isinstance(spec, ServeStageSpec)
        check_layers(ctx, spec.aux_layers, "stages.serve.aux_layers")
        chosen = spec.speculation
        notes = engine_notes(
            ctx, speculation=True, topk=chosen.topk, steps=chosen.steps, draft_tokens=chosen.draft_tokens
        )
        forecast = engine_forecast(ctx, rows=1, length=512, notes=notes)
        refusal = engine_refusal(ctx, speculation=True, topk=chosen.topk) or taken_port(spec)
        refusal = refusal or refuse_unservable(ctx, spec.aux_layers)
        return Plan(inputs=("target", "drafter/"), outputs=("serve.json",), forecast=forecast, refusal=refusal)

    async def run(self, ctx: Context) -> None:
        """Start, ask one held-out prompt, record, and hold when asked to."""
        from eagle3ops.engines.base import Explains
        from eagle3ops.engines.client import Sampling
        from eagle3ops.engines.registry import adapter
        from eagle3ops.engines.sglang.server_info import parse_server_info

        spec = ctx.spec
        assert isinstance(spec, ServeStageSpec)
        engine = adapter(ctx.pipeline.engine.name)
        setting = serve_spec(ctx, spec, spec.speculation, bounded=not spec.hold)
        lines = engine.launch_lines(setting) if isinstance(engine, Explains) else ()
        row = next(row for row in read_answers(ctx.inputs["generate"] / "answers.jsonl") if row.split == "heldout")
        began = time.monotonic()
        async with started_fleet(ctx, setting, "engine-serve") as client:
            ready_s = time.monotonic() - began
            answer = await client.generate(row.prompt_ids, Sampling(max_new_tokens=32))
            info = await client.server_info()
            told = parse_server_info(info) if engine.name == "sglang" else None
            if told is not None and told.speculative_algorithm is None:
                ctx.warn("the server says that it does not speculate, although it was started with a drafter")
            facts: dict[str, Any] = {
                "ready_s": ready_s,
                "launch_line": engine.launch_line(setting),
                "launch_lines": list(lines),
                "urls": client.urls,
                "starts": [one.start.as_json() for one in client.clients if one.start is not None],
                "choices": list(engine.explain(setting)) if isinstance(engine, Explains) else [],
                "model_info": await client.model_info(),
                "server_info": info,
                "server_facts": None if told is None else told.as_json(),
                "first_answer": {"prompt_id": row.id, "text": answer.text, "finish_reason": answer.finish_reason},
            }
            write_json(ctx.out / "serve.json", facts)
            ctx.artifact(ctx.out / "serve.json", note=f"engine facts; ready after {ready_s:.1f} s")
            ctx.metric("ready_s", ready_s)
            ctx.info(f"serving at {', '.join(client.urls)}")
            if spec.hold:
                await hold(ctx, client)


def taken_port(spec: ServeStageSpec) -> RequestError | None:
    """Why the port that is asked for cannot be had now; None where it can. Hours of training come before it is used."""
    from eagle3ops.engines.places import refuse_taken_port

    try:
        if spec.port is not None:
            refuse_taken_port("127.0.0.1", spec.port)
    except RequestError as error:
        return error
    return None


async def hold(ctx: Context, fleet: "Fleet", every_s: float = 5.0) -> None:
    """Keep serving until this task is cancelled; tells of a replica that ends, and ends with the last one.

    Raises:
        EngineError: none of the servers lives any more.
    """
    from eagle3ops.engines.client import EngineError, log_tail

    living = fleet.clients
    while True:
        for client in list(living):
            if client.process is None or client.process.returncode is None:
                continue
            living.remove(client)
            why = f"{client.url} has ended with code {client.process.returncode}"
            if not living:
                raise EngineError(f"{why}; {log_tail(client.log)}")
            ctx.warn(f"{why}; {len(living)} of {len(fleet.served)} servers are left")
        await asyncio.sleep(every_s)


@asynccontextmanager
async def started(ctx: Context, setting: "ServeSpec", role: str) -> "AsyncIterator[EngineClient]":
    """The pipeline's engine, running as `setting` says for as long as the block lasts."""
    from eagle3ops.engines.registry import adapter
    from eagle3ops.engines.serving import running

    name = ctx.pipeline.engine.name
    await asyncio.to_thread(refuse_wrong_drafter, name, setting)
    await asyncio.to_thread(tell_patches, ctx)
    log = ctx.run_dir / "logs" / f"{role}.log"
    async with running(adapter(name), setting, spawn=ctx.spawn, role=role, log=log, tell=ctx) as client:
        yield client


@asynccontextmanager
async def started_fleet(ctx: Context, setting: "ServeSpec", role: str) -> "AsyncIterator[Fleet]":
    """As many of the pipeline's engine as `engine.replicas` says, running as `setting` says, asked as one."""
    from eagle3ops.engines.registry import adapter
    from eagle3ops.engines.serving import running_fleet

    engine = ctx.pipeline.engine
    await asyncio.to_thread(refuse_wrong_drafter, engine.name, setting)
    await asyncio.to_thread(tell_patches, ctx)
    async with running_fleet(
        adapter(engine.name), setting, engine.replicas,
        spawn=ctx.spawn, role=role, logs=ctx.run_dir / "logs", tell=ctx,
    ) as fleet:  # fmt: skip
        yield fleet


def tell_patches(ctx: Context) -> None:
    """Put down which patches the environment of the engine has, and how they stand."""
    for one in patches_of(RunDirectory(ctx.run_dir).root, ctx.pipeline.engine.python):
        facts = {"site": one.site, "applied": one.applied, "version": one.version, "drifted": list(one.drifted)}
        ctx.patched(one.recipe, one.standing, facts | {"files": [file for file, _, _ in one.files]})


def refuse_wrong_drafter(engine: str, setting: "ServeSpec") -> None:
    """Return if the engine would load this drafter and feed it what it was trained on, as far as its files tell.

    Configs and headers are read, no weights. An engine that is no installation of its own checks by itself.

    Raises:
        RequestError: it is of another target, its layer ids make this version fail, or a tensor does not fit.
    """
    from eagle3ops.engines.base import Versioned
    from eagle3ops.engines.registry import adapter
    from eagle3ops.wiring.lint.lint import lint

    chosen = adapter(engine)
    if setting.drafter is None or setting.return_hidden_states or not isinstance(chosen, Versioned):
        return
    version = chosen.version(setting)
    wrong = [one for one in lint(setting.drafter, setting.model, engine, version) if one.severity == "error"]
    if wrong:
        # That it is another target's, or wired as nothing can be, explains the rest.
        first = min(wrong, key=lambda one: (one.code != "vocab-differs", not one.code.startswith("ids-")))
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise RequestError(
            f"{setting.drafter} cannot be served by {engine} {version}: {first.where}: {first.what}: "
            f"{first.cause}{more}",
            remedy=f"{first.fix}; all that is wrong: eagle3ops lint {setting.drafter} --target {setting.model} "
            f"--engine {engine} --engine-version {version}",
        )


def serve_spec(
    ctx: Context,
    spec: ServeStageSpec,
    speculation: SpeculationSpec | None,
    *,
    dtype: str | None = None,
    return_hidden_states: bool = False,
    port: int | None = None,
    bounded: bool = True,
) -> "ServeSpec":
    """The engine's settings for this pipeline; without `speculation`, the baseline: the target alone.

    Args:
        ctx: of the stage.
        spec: of the serve stage.
        speculation: how it drafts.
        dtype: other than the pipeline's.
        return_hidden_states: whether it is to hand over what the drafter would be fed.
        port: other than the stage's.
        bounded: it keeps no more than its requests need, so that others fit beside it on the same GPU.
    """
    from eagle3ops.eagle3.layers import resolve_layers
    from eagle3ops.engines.base import ServeSpec
    from eagle3ops.engines.serving import free_port

    info = read_target_info(ctx.inputs["fetch"])
    engine = ctx.pipeline.engine
    override = None
    if spec.aux_layers is not None and speculation is not None:
        override = resolve_layers(spec.aux_layers, info.num_layers, "stages.serve.aux_layers")
    drafter: Path | None = ctx.inputs["train"] / "drafter" if speculation is not None else None
    if override is not None and drafter is not None and engine.name != "reference":
        drafter, override = relabelled(drafter, override, ctx.out), None
    chosen = speculation or SpeculationSpec()
    return ServeSpec.of(
        engine,
        model=info.path,
        port=port or spec.port or free_port(),
        dtype=dtype or engine.dtype,
        drafter=drafter,
        steps=chosen.steps,
        topk=chosen.topk,
        draft_tokens=chosen.draft_tokens,
        aux_layers=override,
        return_hidden_states=return_hidden_states,
        pool_tokens=POOL_TOKENS_A_REQUEST * engine.max_running_requests if bounded else None,
        seed=ctx.pipeline.seed,
        trust_remote_code=ctx.pipeline.target.trust_remote_code,
    )
