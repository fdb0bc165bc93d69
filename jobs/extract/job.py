"""extract: run the target over its own answers and keep the hidden states that the drafter will read."""

import asyncio
import json
from typing import ClassVar

from eagle3ops.answers import Split, read_answers
from eagle3ops.engines.footprint import check_layers, engine_forecast, engine_refusal
from eagle3ops.jobs.extract.quota import QUOTA_FILE, check_memory, measure, outlook
from eagle3ops.jobs.extract.road import choose_road, kept_layers, road_of
from eagle3ops.jobs.extract.shards import extract_split
from eagle3ops.jobs.extract.source import Source, states_source
from eagle3ops.jobs.extract.spec import ExtractSpec, stored_dtype
from eagle3ops.runs.context import Context
from eagle3ops.runs.files import write_json
from eagle3ops.runs.job import Job, Plan, PlanContext
from eagle3ops.spec.base import StageSpec
from eagle3ops.targets import read_target_info
from eagle3ops.words import human_bytes


class Extract(Job):
    """Feature shards under `train/` and `heldout/`; with a quota that is too small for both, under `heldout/` only."""

    name: ClassVar[str] = "extract"
    Spec: ClassVar[type[StageSpec]] = ExtractSpec
    needs: ClassVar[tuple[str, ...]] = ("fetch", "generate")
    reads: ClassVar[tuple[str, ...]] = ("target", "engine")
    uses_gpu: ClassVar[bool] = True
    code: ClassVar[tuple[str, ...]] = (
        "eagle3ops.jobs.extract",
        "eagle3ops.answers",
        "eagle3ops.eagle3.space",
        "eagle3ops.features",
        "eagle3ops.engines.reference.model",
        "eagle3ops.engines.sglang.extraction",
    )

    def plan(self, ctx: PlanContext) -> Plan:
        """Disk: 4 hidden states per token (three aux, one final)."""
        from eagle3ops.features.format import state_bytes

        spec = ctx.spec
        assert isinstance(spec, ExtractSpec)
        check_layers(ctx, spec.aux_layers, "stages.extract.aux_layers")
        tokens = planned_tokens(ctx)
        hidden = ctx.target_hidden_size()
        states = 4 if spec.aux_layers is None else len(spec.aux_layers.ids) + 1
        disk = None if tokens is None or hidden is None else tokens * state_bytes(hidden, states, stored_dtype(spec))
        notes = [f"{states} hidden states a token in {spec.dtype}"]
        if spec.keep == "needed":
            notes.append("final states only where the target wrote the next token")
        road, why = road_of(ctx, spec)
        notes.append(why)
        outputs: tuple[str, ...] = ("train/", "heldout/")
        if hidden is None:
            notes.append("bytes are known once fetch has run")
        if spec.quota is not None:
            ahead = outlook(ctx, spec, tokens)
            if ahead is None:
                notes.append(f"at most the quota of {human_bytes(spec.quota)}")
            elif ahead.turns:
                disk, outputs = min(ahead.heldout, spec.quota), ("heldout/", QUOTA_FILE)
                notes.append(
                    f"all hidden states would take {human_bytes(ahead.disk)}, the quota is {human_bytes(spec.quota)}: "
                    "the held-out rows here, the others in turns of extract and train"
                )
        return Plan(
            inputs=("answers.jsonl",),
            outputs=outputs,
            forecast=engine_forecast(
                ctx, rows=spec.rows_per_batch, length=512, tokens=tokens, disk_bytes=disk, notes=tuple(notes)
            ),
            refusal=engine_refusal(ctx, speculation=False) if road == "engine" else None,
        )

    async def run(self, ctx: Context) -> None:
        """Write every shard that is not there yet and verified."""
        spec = ctx.spec
        assert isinstance(spec, ExtractSpec)
        splits: tuple[Split, ...] = ("heldout", "train")
        if spec.quota is not None and not await asyncio.to_thread(self._fits, ctx, spec):
            splits = ("heldout",)
        ctx.info(choose_road(spec, ctx.pipeline.engine, kept_layers(ctx, spec))[1])
        async with states_source(ctx, spec) as source:
            await asyncio.to_thread(self._extract, ctx, spec, splits, source)

    def _extract(self, ctx: Context, spec: ExtractSpec, splits: tuple[Split, ...], source: Source) -> None:
        info = read_target_info(ctx.inputs["fetch"])
        answers = read_answers(ctx.inputs["generate"] / "answers.jsonl")
        total = sum(
            min(spec.max_tokens, len(row.prompt_ids) + len(row.output_ids)) for row in answers if row.split in splits
        )
        done = 0
        for split in splits:
            rows = [row for row in answers if row.split == split]

            def advance(tokens: int) -> None:
                nonlocal done
                done += tokens
                ctx.progress(done, total, "tokens")

            extract_split(
                source,
                rows,
                ctx.out / split,
                spec,
                fingerprint=info.fingerprint,
                advance=advance,
                warn=ctx.warn,
            )
            ctx.artifact(ctx.out / split, note=f"hidden states of {len(rows)} {split} rows, {source.layers}")
        ctx.metric("tokens", total)

    def _fits(self, ctx: Context, spec: ExtractSpec) -> bool:
        """Whether all hidden states fit the quota; where not, leave the figures and make sure that turns are possible.

        Raises:
            RequestError: the quota is too small for the rows of one training step.
        """
        from eagle3ops.jobs.train.job import survey_of

        assert spec.quota is not None
        hidden = read_target_info(ctx.inputs["fetch"]).hidden_size
        sizes = measure(ctx.inputs["generate"] / "answers.jsonl", spec, hidden)
        in_memory = spec.place == "memory"
        if in_memory:
            check_memory(spec.quota - sizes.heldout)
        if sizes.total <= spec.quota and not in_memory:
            ctx.info(f"the hidden states take {human_bytes(sizes.total)} of the quota of {human_bytes(spec.quota)}")
            return True
        turns = survey_of(ctx, spec, sizes.heldout).turns
        write_json(
            ctx.out / QUOTA_FILE,
            {"quota": spec.quota, "heldout_bytes": sizes.heldout, "train_bytes": sizes.train, "tokens": sizes.tokens},
        )
        if in_memory:
            ctx.info(f"the training rows' hidden states stay in memory: extract and train will take {len(turns)} turns")
        else:
            ctx.info(
                f"the hidden states would take {human_bytes(sizes.total)}, more than the quota of "
                f"{human_bytes(spec.quota)}: extract and train will take {len(turns)} turns"
            )
        return False


def planned_tokens(ctx: PlanContext) -> int | None:
    """Tokens of prompts and answers: counted where generate is done, its upper bound where it is not."""
    if "generate" in ctx.inputs:
        summary = json.loads((ctx.inputs["generate"] / "summary.json").read_text(encoding="utf-8"))
        return int(summary["tokens"])
    return ctx.upstream_tokens("generate")
