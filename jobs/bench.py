"""bench: is the drafter worth it? Paired with its baseline, checked for equal output, held against the prediction."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from eagle3ops.answers import AnswerRow, read_answers
from eagle3ops.engines.footprint import engine_forecast, engine_refusal
from eagle3ops.jobs.serve import ServeStageSpec, SpeculationSpec, serve_spec, started
from eagle3ops.runs.context import Context
from eagle3ops.runs.files import write_json
from eagle3ops.runs.job import Job, Plan, PlanContext
from eagle3ops.spec.base import StageSpec
from eagle3ops.targets import read_target_info

if TYPE_CHECKING:
    from eagle3ops.bench.accept import AcceptStats
    from eagle3ops.engines.client import Answer, EngineClient

BASELINE = "baseline"


class BenchSpec(StageSpec):
    """What is measured, and on how much."""

    settings: tuple[SpeculationSpec, ...] = (
        SpeculationSpec(steps=1, topk=1, draft_tokens=2),
        SpeculationSpec(steps=2, topk=1, draft_tokens=3),
        SpeculationSpec(steps=3, topk=1, draft_tokens=4),
    )
    """Settings timed against the baseline, beside the one that is served."""
    timing_prompts: int = Field(default=10, ge=2)
    """Held-out prompts in each timed round, batch 1."""
    timing_tokens: int = Field(default=64, ge=8)
    timing_rounds: int = Field(default=1, ge=1)
    natural_stop: bool = True
    """Stop where the target stops; a forced length understates the accept length, as text after the end is unusual."""
    accept_prompts: int = Field(default=96, ge=1)
    """Held-out prompts over which the served accept length is measured, to their natural end."""
    max_new_tokens: int = Field(default=128, ge=8)
    batch: int = Field(default=16, ge=1)
    """Requests at once where nothing is timed."""
    equality_prompts: int = Field(default=64, ge=0)
    """Held-out prompts whose output has to be the same with and without speculation."""
    equality_tokens: int = Field(default=64, ge=1)
    equality_dtype: Literal["float32"] = "float32"
    divergence_prompts: int = Field(default=16, ge=0)
    """Held-out prompts, in the served dtype, whose first divergence has to be a near-tie of the target."""
    max_gap: float = Field(default=0.05, gt=0)
    """Relative gap between predicted and served accept length above which the wiring or the training is suspect."""


class Bench(Job):
    """Everything measured, in `bench.json`."""

    name: ClassVar[str] = "bench"
    Spec: ClassVar[type[StageSpec]] = BenchSpec
    needs: ClassVar[tuple[str, ...]] = ("fetch", "generate", "train", "serve")
    reads: ClassVar[tuple[str, ...]] = ("target", "engine", "seed")
    uses_gpu: ClassVar[bool] = True
    code: ClassVar[tuple[str, ...]] = (
        "eagle3ops.jobs.bench",
        "eagle3ops.jobs.serve",
        "eagle3ops.bench",
        "eagle3ops.engines",
        "eagle3ops.eagle3",
    )

    def plan(self, ctx: PlanContext) -> Plan:
        """One engine for the baseline and one for each setting, side by side."""
        spec = ctx.spec
        assert isinstance(spec, BenchSpec)
        engines = len(spec.settings) + 2
        return Plan(
            inputs=("drafter/", "engine"),
            outputs=("bench.json",),
            forecast=engine_forecast(
                ctx,
                rows=spec.batch,
                length=spec.max_new_tokens + 64,
                engines=engines,
                notes=(f"up to {engines} engines at once",),
            ),
            refusal=engine_refusal(ctx, speculation=True),
        )

    async def run(self, ctx: Context) -> None:
        """Equality in float32, then accept length, timing and divergence in the served dtype."""
        spec, stage = ctx.spec, ctx.pipeline.stages["serve"]
        assert isinstance(spec, BenchSpec)
        assert isinstance(stage, ServeStageSpec)
        answers = read_answers(ctx.inputs["generate"] / "answers.jsonl")
        rows = [row for row in answers if row.split == "heldout"]
        record: dict[str, Any] = {"served": stage.speculation.label}
        if spec.equality_prompts:
            record["equality"] = await equal_output(ctx, spec, stage, rows[: spec.equality_prompts])
        settings = {item.label: item for item in (stage.speculation, *spec.settings)}
        async with AsyncExitStack() as stack:
            clients = await start_all(ctx, stage, settings, stack)
            served = await accept_length(ctx, spec, clients[stage.speculation.label], rows)
            record["accept"] = compare_with_prediction(ctx, spec, stage, served)
            record["timing"] = await time_settings(ctx, spec, clients, rows)
            if spec.divergence_prompts:
                record["divergence"] = await near_ties(ctx, spec, clients, stage, rows[: spec.divergence_prompts])
        write_json(ctx.out / "bench.json", record)
        ctx.artifact(ctx.out / "bench.json", note="equality, accept length, paired throughput, divergence margins")


async def start_all(
    ctx: Context, stage: ServeStageSpec, settings: dict[str, SpeculationSpec], stack: AsyncExitStack
) -> "dict[str, EngineClient]":
    """The baseline and one engine per setting, all resident; they are stopped with `stack`."""
    chosen: dict[str, SpeculationSpec | None] = {BASELINE: None, **settings}
    clients = {}
    for label, speculation in chosen.items():
        setting = serve_spec(ctx, stage.model_copy(update={"port": None}), speculation)
        role = f"engine-bench-{label.replace('/', '-')}"
        clients[label] = await stack.enter_async_context(started(ctx, setting, role))
    return clients


async def equal_output(
    ctx: Context, spec: BenchSpec, stage: ServeStageSpec, rows: Sequence[AnswerRow]
) -> dict[str, Any]:
    """Greedy output in float32, with and without the drafter: it has to be the same, token for token."""
    from eagle3ops.bench.divergence import first_divergence
    from eagle3ops.bench.measure import answer_all
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


async def accept_length(
    ctx: Context, spec: BenchSpec, client: "EngineClient", rows: Sequence[AnswerRow]
) -> "AcceptStats":
    """The accept length as served, over held-out prompts to their natural end."""
    from eagle3ops.bench.measure import accept_stats, answer_all
    from eagle3ops.engines.client import Sampling

    chosen = rows[: spec.accept_prompts]
    answers = await answer_all(
        client,
        [row.prompt_ids for row in chosen],
        Sampling(max_new_tokens=spec.max_new_tokens),
        batch=spec.batch,
        progress=lambda done: ctx.progress(done, len(chosen), "prompts served"),
    )
    return accept_stats(answers)


def compare_with_prediction(
    ctx: Context, spec: BenchSpec, stage: ServeStageSpec, served: "AcceptStats"
) -> dict[str, Any]:
    """Served against predicted: a gap is the alarm that a benchmark alone cannot raise."""
    prediction = json.loads((ctx.inputs["train"] / "prediction.json").read_text(encoding="utf-8"))
    record: dict[str, Any] = {
        "setting": stage.speculation.label,
        "served": served.accept_length,
        "accept_rate": served.accept_rate,
        "histogram": list(served.histogram),
        "by_position": list(served.by_position),
        "verify_steps": served.verify_steps,
    }
    ctx.metric("accept_length_served", served.accept_length)
    known = prediction["accept_length"].get(str(stage.speculation.steps))
    if stage.speculation.topk != 1 or known is None:
        ctx.info(f"no prediction for {stage.speculation.label}: training predicts chains of its predict_steps")
        return record
    gap = served.accept_length / known["accept_length"] - 1.0
    record |= {"predicted": known["accept_length"], "predicted_histogram": known["histogram"], "gap": gap}
    ctx.metric("accept_length_gap", gap)
    reason = (
        f"served {served.accept_length:.3f} against {known['accept_length']:.3f} predicted "
        f"({gap:+.1%}, {spec.max_gap:.0%} allowed) at {stage.speculation.label}"
    )
    ctx.verdict("accept_length", abs(gap) <= spec.max_gap, reason)
    return record


async def time_settings(
    ctx: Context, spec: BenchSpec, clients: "dict[str, EngineClient]", rows: Sequence[AnswerRow]
) -> dict[str, Any]:
    """Throughput at batch 1, every setting paired with the baseline, and the setting to recommend."""
    from eagle3ops.bench.measure import accept_stats, interleaved
    from eagle3ops.bench.paired import ratio, throughput
    from eagle3ops.engines.client import Sampling

    prompts = [row.prompt_ids for row in rows[: spec.timing_prompts]]
    sampling = Sampling(max_new_tokens=spec.timing_tokens, ignore_eos=not spec.natural_stop)
    measured = await interleaved(
        clients,
        prompts,
        sampling,
        rounds=spec.timing_rounds,
        progress=lambda done, total: ctx.progress(done, total, "timed requests"),
    )
    base = [sample for sample, _ in measured[BASELINE]]
    table: dict[str, Any] = {}
    for label, pairs in measured.items():
        samples = [sample for sample, _ in pairs]
        each = [throughput([sample]) for sample in samples]
        row: dict[str, Any] = {
            "tokens_per_s": throughput(samples),
            "per_request": each,
            "samples": [asdict(sample) for sample in samples],
        }
        if label != BASELINE:
            row["speedup"] = asdict(ratio(samples, base))
            row["accept_length"] = accept_stats([answer for _, answer in pairs]).accept_length
        table[label] = row
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
    return {
        "batch": 1,
        "natural_stop": spec.natural_stop,
        "prompts": len(prompts),
        "settings": table,
        "recommended": recommended,
        "worth_it": worth_it,
    }


async def near_ties(
    ctx: Context,
    spec: BenchSpec,
    clients: "dict[str, EngineClient]",
    stage: ServeStageSpec,
    rows: Sequence[AnswerRow],
) -> dict[str, Any]:
    """In the served dtype outputs may part, but only at near-ties of the target."""
    from eagle3ops.bench.measure import answer_all
    from eagle3ops.engines.client import Sampling

    prompts = [row.prompt_ids for row in rows]
    sampling = Sampling(max_new_tokens=spec.equality_tokens)
    base = await answer_all(clients[BASELINE], prompts, sampling, batch=spec.batch)
    drafted = await answer_all(clients[stage.speculation.label], prompts, sampling, batch=spec.batch)
    found = await asyncio.to_thread(
        margins, ctx, prompts, [answer.output_ids for answer in base], [answer.output_ids for answer in drafted]
    )
    widest = max((item["gap"] for item in found["divergences"]), default=0.0)
    bound = found["bound"]
    passed = widest <= bound
    reason = (
        f"{len(found['divergences'])} of {len(rows)} outputs part in {ctx.pipeline.engine.dtype}, the widest logit gap "
        f"there is {widest:.3f}; rounding moves gaps by up to {found['noise']:.3f}, {bound:.3f} allowed"
    )
    ctx.verdict("divergence", passed, reason)
    return {"passed": passed, "prompts": len(rows), **found}


def margins(ctx: Context, prompts: list[list[int]], base: list[list[int]], drafted: list[list[int]]) -> dict[str, Any]:
    """First divergences with the target's float32 logit gap, and the rounding noise that explains them."""
    import torch

    from eagle3ops.bench.divergence import divergences, rounding_noise
    from eagle3ops.engines.reference.model import Target, pick_device, pick_dtype

    info = read_target_info(ctx.inputs["fetch"])
    device = pick_device(ctx.pipeline.engine.device)
    exact = Target.load(info.path, torch.float32, device)
    rounded = Target.load(info.path, pick_dtype(ctx.pipeline.engine.dtype), device)
    found = divergences(exact, prompts, base, drafted)
    texts = [[*prompt, *output] for prompt, output in zip(prompts[:4], base[:4], strict=True)]
    noise = rounding_noise(exact, rounded, texts)
    # Either side of the comparison is rounded, so a gap of twice the noise can turn.
    return {"noise": noise, "bound": 2.0 * noise, "divergences": [asdict(item) for item in found]}
