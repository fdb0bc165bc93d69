"""sweep: which setting is the best here? Many settings, each paired with a resident baseline, the hopeless ones few."""

import os
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from eagle3ops.answers import read_answers
from eagle3ops.engines.base import on_gpu
from eagle3ops.engines.footprint import SHOWN_PORT, engine_forecast, engine_refusal
from eagle3ops.errors import Eagle3opsError, RequestError
from eagle3ops.jobs.serve.job import ServeStageSpec, SpeculationSpec, serve_spec, started
from eagle3ops.jobs.sweep.spec import SweepSpec, VariantSpec, expand_spec, halving_of
from eagle3ops.runs.context import Context
from eagle3ops.runs.files import write_json
from eagle3ops.runs.job import Job, Plan, PlanContext
from eagle3ops.runs.planning import wanted_gpus
from eagle3ops.spec.base import StageSpec
from eagle3ops.sweep.points import Point, Setting
from eagle3ops.words import human_seconds

if TYPE_CHECKING:
    from eagle3ops.engines.base import ServeSpec
    from eagle3ops.engines.client import EngineClient
    from eagle3ops.sweep.lane import Lane


class Sweep(Job):
    """Every point with its interval, the Pareto front, the winner and its launch line, in `sweep.json`."""

    name: ClassVar[str] = "sweep"
    Spec: ClassVar[type[StageSpec]] = SweepSpec
    needs: ClassVar[tuple[str, ...]] = ("fetch", "generate", "train", "serve")
    reads: ClassVar[tuple[str, ...]] = ("target", "engine", "seed")
    uses_gpu: ClassVar[bool] = True
    code: ClassVar[tuple[str, ...]] = (
        "eagle3ops.jobs.sweep",
        "eagle3ops.jobs.serve",
        "eagle3ops.sweep",
        "eagle3ops.bench",
        "eagle3ops.engines",
        "eagle3ops.eagle3",
    )

    def plan(self, ctx: PlanContext) -> Plan:
        """Points, rungs, server starts, and how long that takes."""
        spec = ctx.spec
        assert isinstance(spec, SweepSpec)
        try:
            points, left_out = expand_spec(spec)
        except RequestError as error:
            return Plan(outputs=("sweep.json",), refusal=error)
        refusal = refused(ctx, spec)
        if not points:
            empty = [f"{name} has no values" for name in ("steps", "topk") if not getattr(spec.axes, name)]
            refusal = RequestError(
                "the sweep has no points: " + "; ".join([*empty, *(one.words for one in left_out)]),
                remedy="name values in stages.sweep.axes, or points in stages.sweep.points",
            )
        resident = min(max(spec.per_gpu, 2), len({point.setting for point in points})) + 1
        notes, seconds = forecast(ctx, spec, points)
        return Plan(
            inputs=("drafter/", "engine"),
            outputs=("sweep.json",),
            forecast=engine_forecast(
                ctx,
                rows=max(spec.axes.concurrency),
                length=spec.max_new_tokens + 64,
                engines=resident,
                seconds=seconds,
                notes=(*notes, *(one.words for one in left_out)),
            ),
            refusal=refusal,
        )

    async def run(self, ctx: Context) -> None:
        """Race, then say who won."""
        from eagle3ops.engines.client import Sampling
        from eagle3ops.sweep.book import Book
        from eagle3ops.sweep.outcome import outcome
        from eagle3ops.sweep.race import Race, Rules, Told

        spec, stage = ctx.spec, ctx.pipeline.stages["serve"]
        assert isinstance(spec, SweepSpec)
        assert isinstance(stage, ServeStageSpec)
        points, left_out = expand_spec(spec)
        for one in left_out:
            ctx.info(one.words)
        answers = read_answers(ctx.inputs["generate"] / "answers.jsonl")
        prompts = [row.prompt_ids for row in answers if row.split == "heldout"]
        book = Book.open(ctx.out)
        if book.measured:
            ctx.info(f"{len(book.measured)} measurements of an earlier attempt are kept")
        served = stage.speculation
        race = Race(
            points=points,
            default=Point(Setting(served.steps, served.topk, served.draft_tokens), points[0].concurrency),
            lanes=lanes(ctx, spec, stage, max(map(len, prompts))),
            book=book,
            rules=Rules(
                halving=halving_of(spec),
                final_pairs=spec.final_pairs,
                sampling=Sampling(max_new_tokens=spec.max_new_tokens, ignore_eos=not spec.natural_stop),
                warmup=spec.warmup,
                deadline_s=spec.request_deadline_s,
                retries=spec.retries,
            ),
            prompts=prompts,
            told=Told(lambda done, total: ctx.progress(done, total, "measurements"), ctx.info, ctx.warn),
        )
        began = time.monotonic()
        await race.run()
        launch = {point.setting: launch_line(ctx, spec, stage, point.setting) for point in points}
        found = outcome(race, left_out, launch) | {"seconds": round(time.monotonic() - began, 1)}
        write_json(ctx.out / "sweep.json", found)
        ctx.artifact(ctx.out / "sweep.json", note="every point with its interval, the Pareto front, the winners")
        tell(ctx, found)


def refused(ctx: PlanContext, spec: SweepSpec) -> Eagle3opsError | None:
    """Why the engine cannot do here what a value of an engine axis asks of it; None where it can do all of them."""
    engine = ctx.pipeline.engine
    values = {f" ({axis}: {name})": one for axis, named in spec.axes.engine.items() for name, one in named.items()}
    for where, variant in {"": VariantSpec(), **values}.items():
        words = (*engine.arguments, *spec.all_servers.arguments, *variant.arguments)
        variables = {**engine.environment, **spec.all_servers.environment, **variant.environment}
        tried = engine.model_copy(update={"arguments": words, "environment": variables})
        asked = replace(ctx, pipeline=ctx.pipeline.model_copy(update={"engine": tried}))
        if (found := engine_refusal(asked, speculation=True)) is not None:
            return RequestError(f"sweep{where}: {found.what}", remedy=found.remedy)
    return None


def forecast(ctx: PlanContext, spec: SweepSpec, points: list[Point]) -> tuple[list[str], float | None]:
    """What a sweep comes to: notes, and seconds where the speed of this engine is known from earlier stages."""
    from eagle3ops.sweep.schedule import prompts_needed, schedule

    halving, engine = halving_of(spec), ctx.pipeline.engine
    gpus = wanted_gpus(ctx.pipeline) if on_gpu(engine.device) else 0
    per_server = spec.gpus_per_server or max(1, engine.gpus)
    by_load: dict[int, int] = {}
    for point in points:
        by_load[point.concurrency] = by_load.get(point.concurrency, 0) + 1
    found = schedule(
        by_load,
        len({point.setting for point in points}),
        halving,
        final_pairs=spec.final_pairs,
        lanes=max(1, gpus // per_server),
        room=spec.per_gpu,
    )
    field = " -> ".join(f"{size} x {halving.pairs(rung)} pairs" for rung, size in enumerate(found.field))
    notes = [
        f"{len(points)} points of {len({point.setting for point in points})} settings, {spec.rungs} rungs: {field}",
        f"about {found.starts} server starts in {found.waves} wave{'s' * (found.waves != 1)}, up to {spec.per_gpu} "
        f"settings and a baseline side by side on each of {found.lanes} lane{'s' * (found.lanes != 1)}, "
        f"{found.requests} timed requests",
    ]
    heldout = getattr(ctx.pipeline.stages.get("generate"), "heldout", None)
    for concurrency in by_load:
        needed = prompts_needed(halving, spec.final_pairs, concurrency)
        if isinstance(heldout, int) and heldout < needed:
            notes.append(
                f"the final at concurrency {concurrency} uses prompts that chose the point, which flatters it: "
                f"{needed} held-out prompts would be needed, stages.generate.heldout is {heldout}"
            )
    start_s, token_s = _known_speed(ctx)
    if start_s is None or token_s is None:
        return notes, None
    notes.append(f"a start takes {human_seconds(start_s)} and a token {token_s * 1000:.2f} ms, as they did before")
    return notes, found.waves * start_s + found.sequential_requests * spec.max_new_tokens * token_s


def _known_speed(ctx: PlanContext) -> tuple[float | None, float | None]:
    """Seconds that a start took in `serve`, and that one token takes at batch 1, as the last bench here measured."""
    from eagle3ops.outputs.lineage import outputs, record
    from eagle3ops.outputs.values import mapping, number

    serve = ctx.inputs.get("serve")
    ready = number(mapping(record(serve / "serve.json")).get("ready_s")) if serve is not None else None
    if serve is None or ready is None:
        return None, None
    for made in outputs(ctx.out.parent.parent, "bench"):
        if made.made_from("serve").get("out") != serve.name:
            continue
        settings = mapping(mapping(mapping(record(made.folder / "bench.json")).get("timing")).get("settings"))
        rate = number(mapping(settings.get("baseline")).get("tokens_per_s"))
        if rate:
            return ready, 1.0 / rate
    return ready, None


def lanes(ctx: Context, spec: SweepSpec, stage: ServeStageSpec, longest: int) -> "list[Lane]":
    """One for each group of GPUs of the lease that a server takes; a host without GPUs is one lane.

    Args:
        ctx: of the stage.
        spec: of the sweep.
        stage: of the serve stage.
        longest: tokens of the longest prompt.
    """
    from eagle3ops.bench.lineup import shared
    from eagle3ops.sweep.lane import Lane
    from eagle3ops.sweep.measurement import BASELINE
    from eagle3ops.sweep.race import log_role

    engine = ctx.pipeline.engine
    visible = [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one.strip()]
    if not on_gpu(engine.device):
        visible = []
    width = spec.gpus_per_server or max(1, engine.gpus)
    groups = [tuple(visible[at : at + width]) for at in range(0, len(visible) - width + 1, width)] or [()]
    taken: set[int] = set()

    def opener(setting: Setting | None, lane: Lane) -> "AbstractAsyncContextManager[EngineClient]":
        served = serve_spec_of(ctx, spec, stage, setting, unused_port(taken), spec.all_servers)
        served = shared(served, max(spec.axes.concurrency), longest + spec.max_new_tokens)
        if lane.gpus:
            served = replace(served, variables={**served.variables, "CUDA_VISIBLE_DEVICES": ",".join(lane.gpus)})
        return started(ctx, served, log_role(lane.name, BASELINE if setting is None else setting.label))

    names = ["GPU " + "+".join(group) if group else "host" for group in groups]
    return [
        Lane(name, group, spec.per_gpu, opener, spec.start_deadline_s)
        for name, group in zip(names, groups, strict=True)
    ]


def unused_port(taken: set[int]) -> int:
    """A free one that no other server of this sweep was given: between its choice and its use others are chosen."""
    from eagle3ops.engines.serving import free_port

    while (port := free_port()) in taken:
        pass
    taken.add(port)
    return port


def serve_spec_of(
    ctx: Context,
    spec: SweepSpec,
    stage: ServeStageSpec,
    setting: Setting | None,
    port: int,
    beside: VariantSpec | None = None,
) -> "ServeSpec":
    """A setting as the engine takes it; None: the target alone, as the pipeline serves it.

    Args:
        ctx: of the stage.
        spec: of the sweep.
        stage: of the serve stage.
        setting: what is tried.
        port: where it answers.
        beside: what it gets because others are up beside it.
    """
    if setting is None:
        served = serve_spec(ctx, stage, None, port=port)
    else:
        speculation = SpeculationSpec(steps=setting.steps, topk=setting.topk, draft_tokens=setting.draft_tokens)
        served = serve_spec(ctx, stage, speculation, port=port)
    arguments, variables = list(served.arguments), dict(served.variables)
    choices = () if setting is None else setting.choices
    # Those of the point come last: they are what is tried.
    for variant in (beside or VariantSpec(), *(spec.axes.engine[axis][value] for axis, value in choices)):
        arguments += variant.arguments
        variables |= variant.environment
    gpus = spec.gpus_per_server or ctx.pipeline.engine.gpus
    return replace(served, gpus=gpus, arguments=tuple(arguments), variables=variables)


def launch_line(ctx: Context, spec: SweepSpec, stage: ServeStageSpec, setting: Setting) -> str:
    """The command that serves a setting where it has its GPUs to itself."""
    from eagle3ops.engines.registry import adapter

    served = serve_spec_of(ctx, spec, stage, setting, stage.port or SHOWN_PORT)
    return adapter(ctx.pipeline.engine.name).launch_line(replace(served, pool_tokens=None))


def tell(ctx: Context, found: Mapping[str, Any]) -> None:
    """The outcome in a few lines, and as metrics."""
    failed = [row["label"] for row in found["points"] if row["state"] == "failed"]
    if failed:
        ctx.warn(f"{len(failed)} of {len(found['points'])} points failed: {', '.join(failed)}")
    for winner in found["winners"]:
        words = (
            f"at concurrency {winner['concurrency']}: {winner['label']}, {_words(winner['speedup'])} of the baseline"
        )
        if winner["over_default"] is not None:
            words += f", {_words(winner['over_default'])} of the default {found['default']}"
        elif winner["is_default"]:
            words += ", which is the default"
        if winner["better_than_baseline"]:
            ctx.info(f"winner {words}; {winner['launch_line']}")
        else:
            ctx.warn(f"no point is faster than the baseline beyond noise; the best {words}")
        if winner["concurrency"] == found["decisive_concurrency"]:
            ctx.metric("speedup", winner["speedup"]["value"])
            if winner["over_default"] is not None:
                ctx.metric("over_default", winner["over_default"]["value"])


def _words(ratio: Mapping[str, float]) -> str:
    return f"{ratio['value']:.2f}x ({ratio['low']:.2f} to {ratio['high']:.2f})"
