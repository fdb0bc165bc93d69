"""bench: is the drafter worth it? Paired with its baseline, checked for equal output, held against the prediction."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from eagle3ops.answers import AnswerRow, read_answers
from eagle3ops.bench.cases import BASELINE
from eagle3ops.bench.lineup import plan_context, planned, shared, visited, visits
from eagle3ops.engines.footprint import engine_forecast, engine_refusal
from eagle3ops.errors import RequestError
from eagle3ops.jobs.bench import alarm
from eagle3ops.jobs.bench.field import tool_figures
from eagle3ops.jobs.bench.loads import cases
from eagle3ops.jobs.bench.near_ties import Outputs, ask_baseline, collect, judged
from eagle3ops.jobs.bench.spec import BUNDLED, BenchSpec
from eagle3ops.jobs.serve.job import ServeStageSpec, SpeculationSpec, serve_spec, started
from eagle3ops.runs.context import Context
from eagle3ops.runs.files import write_json
from eagle3ops.runs.job import Job, Plan, PlanContext
from eagle3ops.spec.base import StageSpec
from eagle3ops.spec.models import Pipeline

if TYPE_CHECKING:
    from eagle3ops.bench.cases import Case, Measured
    from eagle3ops.engines.base import ServeSpec
    from eagle3ops.engines.client import Answer, EngineClient

QUESTION_TOKENS = 4096
"""Tokens of a question at most, for the forecast."""


class Bench(Job):
    """Everything measured, in `bench.json`."""

    name: ClassVar[str] = "bench"
    Spec: ClassVar[type[StageSpec]] = BenchSpec
    needs: ClassVar[tuple[str, ...]] = ("fetch", "generate", "train", "serve")
    reads: ClassVar[tuple[str, ...]] = ("target", "engine", "seed")
    uses_gpu: ClassVar[bool] = True
    pointless_after: ClassVar[tuple[str, ...]] = ("verify/wiring",)
    code: ClassVar[tuple[str, ...]] = (
        "eagle3ops.jobs.bench",
        "eagle3ops.jobs.serve",
        "eagle3ops.bench",
        "eagle3ops.engines",
        "eagle3ops.eagle3",
    )

    @classmethod
    def files(cls, spec: StageSpec) -> list[Path]:
        """Question sets of one's own: an edited file is another input."""
        assert isinstance(spec, BenchSpec)
        return [Path(name) for name in spec.questions if name != BUNDLED]

    def plan(self, ctx: PlanContext) -> Plan:
        """The baseline and one engine for each setting: all side by side, in groups, or in turn, as memory allows."""
        spec = ctx.spec
        assert isinstance(spec, BenchSpec)
        for path in self.files(spec):
            if not path.is_file():
                raise RequestError(
                    f"stages.bench.questions: {path}: no such file",
                    remedy="give a JSON or JSONL file of prompts, or `bundled`",
                )
        stage = ctx.pipeline.stages["serve"]
        assert isinstance(stage, ServeStageSpec)
        rows, length = spec.most_rows, longest_request(ctx.pipeline, spec)
        settings = settings_of(spec, stage)
        lineup = planned(ctx, list(settings), rows, length)
        return Plan(
            inputs=("drafter/", "engine"),
            outputs=("bench.json",),
            forecast=engine_forecast(ctx, rows=rows, length=length, engines=lineup.most, notes=(lineup.why,)),
            refusal=engine_refusal(ctx, speculation=True, topk=max(one.topk for one in settings.values())),
        )

    async def run(self, ctx: Context) -> None:
        """Equality in float32, then accept length, divergence and all loads in the served dtype."""
        from eagle3ops.bench.cases import Measured
        from eagle3ops.engines.client import Sampling

        spec, stage = ctx.spec, ctx.pipeline.stages["serve"]
        assert isinstance(spec, BenchSpec)
        assert isinstance(stage, ServeStageSpec)
        answers = read_answers(ctx.inputs["generate"] / "answers.jsonl")
        rows = [row for row in answers if row.split == "heldout"]
        served_at = stage.speculation.label
        record: dict[str, Any] = {"served": served_at, "engine": ctx.pipeline.engine.name}
        if spec.equality_prompts and ctx.pipeline.engine.name == "reference":
            record["equality"] = await equal_output(ctx, spec, stage, rows[: spec.equality_prompts])
        loads = await asyncio.to_thread(cases, ctx, spec, rows)
        measured = [Measured() for _ in loads]
        settings = settings_of(spec, stage)
        servers = server_specs(ctx, spec, stage, settings)
        lineup = planned(plan_context(ctx), list(settings), spec.most_rows, longest_request(ctx.pipeline, spec))
        ctx.info(lineup.why)
        record["lineup"] = lineup.as_json()
        near = rows[: spec.divergence_prompts]
        outputs = Outputs([row.prompt_ids for row in near], spec.equality_tokens)
        held: alarm.Held | None = None
        async with aclosing(visits(ctx, lineup, servers)) as steps:
            async for group, clients in steps:
                if served_at in clients and "accept" not in record:
                    served = await served_answers(ctx, spec, clients[served_at], rows)
                    record["accept"], held = await asyncio.to_thread(alarm.hold, ctx, spec, stage, rows, served)
                if near:
                    await collect(outputs, clients, Sampling(max_new_tokens=spec.equality_tokens), spec.batch)
                await visited(ctx, lineup, loads, group, clients, measured)
                if near:
                    await ask_baseline(ctx, outputs, clients.get(BASELINE))
                if spec.bench_serving:
                    new = [label for label in clients if label not in record.get("bench_serving", {})]
                    found = await tool_figures(ctx, spec, servers, new, rows)
                    record["bench_serving"] = record.get("bench_serving", {}) | found
        record |= told(ctx, loads, measured)
        if near:
            record["divergence"] = await judged(ctx, outputs)
        if held is not None and held.alarm:
            # The engines above have ended: it needs one of its own, which hands its states over.
            record["accept"] |= await alarm.investigate(ctx, spec, held)
        write_json(ctx.out / "bench.json", record)
        ctx.artifact(ctx.out / "bench.json", note="equality, accept length, paired throughput, divergence margins")


def settings_of(spec: BenchSpec, stage: ServeStageSpec) -> dict[str, SpeculationSpec]:
    """By label, the one that is served first."""
    return {item.label: item for item in (stage.speculation, *spec.settings)}


def longest_request(pipeline: Pipeline, spec: BenchSpec) -> int:
    """Tokens of the longest prompt with its answer, as far as it is limited."""
    prompt = int(pipeline.stages["generate"].model_dump().get("max_prompt_tokens", 1024))
    return max(prompt, *spec.prompt_lengths, QUESTION_TOKENS if spec.questions else 0) + spec.longest


def server_specs(
    ctx: Context, spec: BenchSpec, stage: ServeStageSpec, settings: dict[str, SpeculationSpec]
) -> "dict[str, ServeSpec]":
    """What is started, the baseline first; each takes only the memory that these loads need."""
    free = stage.model_copy(update={"port": None})
    chosen: dict[str, SpeculationSpec | None] = {BASELINE: None, **settings}
    length = longest_request(ctx.pipeline, spec)
    return {label: shared(serve_spec(ctx, free, one), spec.most_rows, length) for label, one in chosen.items()}


async def equal_output(
    ctx: Context, spec: BenchSpec, stage: ServeStageSpec, rows: Sequence[AnswerRow]
) -> dict[str, Any]:
    """Greedy output in float32, with and without the drafter: it has to be the same, token for token."""
    from eagle3ops.bench.measure import answer_all
    from eagle3ops.bench.parting import first_divergence
    from eagle3ops.engines.client import Sampling

    prompts = [row.prompt_ids for row in rows]
    sampling = Sampling(max_new_tokens=spec.equality_tokens)
    outputs: list[list[Answer]] = []
    for number, (label, speculation) in enumerate(((BASELINE, None), ("speculative", stage.speculation))):
        free = stage.model_copy(update={"port": None})
        setting = serve_spec(ctx, free, speculation, dtype=spec.equality_dtype)
        role = f"engine-equality-{label}"

        def report(done: int, before: int = number * len(rows)) -> None:
            ctx.progress(before + done, 2 * len(rows), "answers compared")

        async with started(ctx, setting, role) as client:
            outputs.append(await answer_all(client, prompts, sampling, batch=spec.batch, progress=report))
    pairs = list(zip(rows, *outputs, strict=True))
    parted = {row.id: at for row, a, b in pairs if (at := first_divergence(a.output_ids, b.output_ids)) is not None}
    tokens = sum(len(answer.output_ids) for answer in outputs[0])
    equal = not parted
    if equal:
        reason = f"{len(rows)} held-out prompts, {tokens} tokens in {spec.equality_dtype}: the same with and without"
    else:
        first = next(iter(parted.items()))
        reason = f"{len(parted)} of {len(rows)} outputs differ in {spec.equality_dtype}, first {first[0]} at {first[1]}"
    ctx.verdict("equal_output", equal, reason)
    return {"equal": equal, "prompts": len(rows), "tokens": tokens, "dtype": spec.equality_dtype, "differ": parted}


async def served_answers(
    ctx: Context, spec: BenchSpec, client: "EngineClient", rows: Sequence[AnswerRow]
) -> "list[Answer]":
    """Held-out prompts answered as served, to their natural end."""
    from eagle3ops.bench.measure import answer_all
    from eagle3ops.engines.client import Sampling

    chosen = rows[: spec.accept_prompts]
    return await answer_all(
        client,
        [row.prompt_ids for row in chosen],
        Sampling(max_new_tokens=spec.max_new_tokens),
        batch=spec.batch,
        progress=lambda done: ctx.progress(done, len(chosen), "prompts served"),
    )


def told(ctx: Context, loads: "Sequence[Case]", measured: "Sequence[Measured]") -> dict[str, Any]:
    """The record of all loads, and the setting to recommend by the first of them."""
    from eagle3ops.bench.cases import case_record

    records = [(load, case_record(load, found)) for load, found in zip(loads, measured, strict=True)]
    found: dict[str, Any] = {"timing": recommend(ctx, records[0][1])}
    for kind, name in (("ladder", "ladder"), ("latency", "latency"), ("category", "categories"), ("length", "lengths")):
        listed = [record for load, record in records if load.kind == kind]
        if listed:
            found[name] = listed
    return found


def recommend(ctx: Context, record: dict[str, Any]) -> dict[str, Any]:
    """The load that decides, with the fastest setting, and whether it is worth it."""
    table = record["settings"]
    best = max((label for label in table if label != BASELINE), key=lambda label: table[label]["speedup"]["value"])
    speedup = table[best]["speedup"]
    worth_it = speedup["low"] > 1.0
    recommended = best if worth_it else BASELINE
    ctx.metric("speedup", speedup["value"])
    interval = f"{speedup['value']:.2f}x of the baseline, 95 % interval {speedup['low']:.2f} to {speedup['high']:.2f}"
    if worth_it:
        ctx.info(f"recommended: {best}, {interval}")
    else:
        ctx.warn(f"no setting is faster beyond noise; the best, {best}, reaches {interval}")
    return {**record, "batch": record["concurrency"], "recommended": recommended, "worth_it": worth_it}
