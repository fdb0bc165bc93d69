"""extract: run the target over its own answers and keep the hidden states that the drafter will read."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from eagle3ops.answers import AnswerRow, Split, read_answers
from eagle3ops.engines.footprint import check_layers, engine_forecast
from eagle3ops.errors import Eagle3opsError
from eagle3ops.jobs.multiplex import QUOTA_FILE, measure, outlook
from eagle3ops.runs.context import Context
from eagle3ops.runs.files import write_json
from eagle3ops.runs.job import Job, Plan, PlanContext
from eagle3ops.spec.base import AuxLayersSpec, StageSpec
from eagle3ops.spec.sizes import Size
from eagle3ops.targets import read_target_info
from eagle3ops.words import human_bytes

if TYPE_CHECKING:
    from eagle3ops.eagle3.layers import AuxLayers
    from eagle3ops.engines.reference.model import Target
    from eagle3ops.features import FeatureRow


class ExtractSpec(StageSpec):
    """Which hidden states are kept, and in what pieces."""

    aux_layers: AuxLayersSpec | None = None
    """Layers the drafter reads; the default is boundaries 2, n // 2 and n - 3."""
    rows_per_shard: int = Field(default=64, ge=1)
    """A shard is what a kill costs at most."""
    rows_per_batch: int = Field(default=16, ge=1)
    max_tokens: int = Field(default=2048, ge=8)
    """Longer rows are cut here."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    quota: Size | None = None
    """Most disk for hidden states, as `200 GiB`. Where they need more, train extracts them part by part."""


class Extract(Job):
    """Feature shards under `train/` and `heldout/`; with a quota that is too small for both, under `heldout/` only."""

    name: ClassVar[str] = "extract"
    Spec: ClassVar[type[StageSpec]] = ExtractSpec
    needs: ClassVar[tuple[str, ...]] = ("fetch", "generate")
    reads: ClassVar[tuple[str, ...]] = ("target", "engine")
    uses_gpu: ClassVar[bool] = True
    code: ClassVar[tuple[str, ...]] = (
        "eagle3ops.jobs.extract",
        "eagle3ops.jobs.multiplex",
        "eagle3ops.answers",
        "eagle3ops.eagle3.space",
        "eagle3ops.features",
        "eagle3ops.engines.reference.model",
    )

    def plan(self, ctx: PlanContext) -> Plan:
        """Disk: 4 hidden states per token (three aux, one final)."""
        spec = ctx.spec
        assert isinstance(spec, ExtractSpec)
        check_layers(ctx, spec.aux_layers, "stages.extract.aux_layers")
        tokens = planned_tokens(ctx)
        hidden = ctx.target_hidden_size()
        width = 2 if spec.dtype == "bfloat16" else 4
        disk = None if tokens is None or hidden is None else tokens * 4 * hidden * width
        notes = [f"4 hidden states a token in {spec.dtype}"]
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
        )

    async def run(self, ctx: Context) -> None:
        """Write every shard that is not there yet and verified."""
        await asyncio.to_thread(self._extract, ctx)

    def _extract(self, ctx: Context) -> None:
        spec = ctx.spec
        assert isinstance(spec, ExtractSpec)
        info = read_target_info(ctx.inputs["fetch"])
        answers = read_answers(ctx.inputs["generate"] / "answers.jsonl")
        splits: tuple[Split, ...] = ("heldout", "train")
        if spec.quota is not None and not self._fits(ctx, spec):
            splits = ("heldout",)
        target, layers = load_target(ctx, spec)
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
                target,
                layers,
                rows,
                ctx.out / split,
                spec,
                fingerprint=info.fingerprint,
                advance=advance,
                warn=ctx.warn,
            )
            ctx.artifact(ctx.out / split, note=f"hidden states of {len(rows)} {split} rows, {layers}")
        ctx.metric("tokens", total)

    def _fits(self, ctx: Context, spec: ExtractSpec) -> bool:
        """Whether all hidden states fit the quota; where not, leave the figures and make sure that turns are possible.

        Raises:
            RequestError: the quota is too small for the rows of one training step.
        """
        from eagle3ops.jobs.train import survey_of

        assert spec.quota is not None
        hidden = read_target_info(ctx.inputs["fetch"]).hidden_size
        sizes = measure(ctx.inputs["generate"] / "answers.jsonl", spec, hidden)
        if sizes.total <= spec.quota:
            ctx.info(f"the hidden states take {human_bytes(sizes.total)} of the quota of {human_bytes(spec.quota)}")
            return True
        turns = survey_of(ctx, spec, sizes.heldout).turns
        write_json(
            ctx.out / QUOTA_FILE,
            {"quota": spec.quota, "heldout_bytes": sizes.heldout, "train_bytes": sizes.train, "tokens": sizes.tokens},
        )
        ctx.info(
            f"the hidden states would take {human_bytes(sizes.total)}, more than the quota of "
            f"{human_bytes(spec.quota)}: extract and train will take {len(turns)} turns"
        )
        return False


def load_target(ctx: Context, spec: ExtractSpec) -> "tuple[Target, AuxLayers]":
    """The target on its device, and the layers whose states are kept."""
    from eagle3ops.eagle3.layers import AuxLayers, resolve_layers
    from eagle3ops.engines.reference.model import Target, pick_device, pick_dtype

    info = read_target_info(ctx.inputs["fetch"])
    if spec.aux_layers is None:
        layers = AuxLayers.default(info.num_layers)
    else:
        layers = resolve_layers(spec.aux_layers, info.num_layers, "stages.extract.aux_layers")
    engine = ctx.pipeline.engine
    return Target.load(info.path, pick_dtype(engine.dtype), pick_device(engine.device)), layers


def planned_tokens(ctx: PlanContext) -> int | None:
    """Tokens of prompts and answers: counted where generate is done, its upper bound where it is not."""
    if "generate" in ctx.inputs:
        summary = json.loads((ctx.inputs["generate"] / "summary.json").read_text(encoding="utf-8"))
        return int(summary["tokens"])
    return ctx.upstream_tokens("generate")


def extract_split(
    target: "Target",
    layers: "AuxLayers",
    rows: Sequence[AnswerRow],
    folder: Path,
    spec: ExtractSpec,
    *,
    fingerprint: str,
    advance: Callable[[int], None],
    warn: Callable[[str], None],
    skip_unsound: bool = False,
) -> None:
    """Write the shards of one split; a shard that verifies is kept, a torn one is named and made again.

    Args:
        skip_unsound: a shard without a sound row is left out instead of ending the stage.

    Raises:
        Eagle3opsError: the split has no rows, or a hidden state is not finite.
    """
    from eagle3ops.features import FeatureHeader, FeatureWriter
    from eagle3ops.features.format import NoSoundRow

    if not rows:
        raise Eagle3opsError(
            f"no answers for {folder.name}", remedy="let generate answer at least one prompt of each split"
        )
    header = FeatureHeader(
        target_fingerprint=fingerprint,
        aux_layers=layers,
        hidden_size=target.config.hidden_size,
        dtype=spec.dtype,
        final_state="pre_norm",
    )
    writer = FeatureWriter(folder, header, keep_damaged=spec.quota is None)
    kept = writer.verified()
    for problem in writer.problems:
        warn(f"{folder.name}: {problem}; it is extracted again")
    for first in range(0, len(rows), spec.rows_per_shard):
        name = f"{first // spec.rows_per_shard:05d}"
        chunk = rows[first : first + spec.rows_per_shard]
        if name not in kept:
            try:
                record = writer.write_shard(name, features_of(target, layers, chunk, spec))
            except NoSoundRow as error:
                if not skip_unsound:
                    raise
                warn(f"{folder.name}: {error.what}")
            else:
                for bad in record.dropped:
                    warn(f"{folder.name}: row {bad.id} is left out: {bad.reason}")
        advance(sum(min(spec.max_tokens, len(row.prompt_ids) + len(row.output_ids)) for row in chunk))


def features_of(
    target: "Target", layers: "AuxLayers", rows: Sequence[AnswerRow], spec: ExtractSpec
) -> "list[FeatureRow]":
    """Hidden states of some rows, in the order given; batches are formed by length, so their make-up is fixed."""
    import torch

    from eagle3ops.features import FeatureRow

    texts = [(row.prompt_ids + row.output_ids)[: spec.max_tokens] for row in rows]
    by_length = sorted(range(len(rows)), key=lambda index: len(texts[index]))
    want = [*layers.boundary, target.config.num_layers]
    dtype = getattr(torch, spec.dtype)
    found: dict[int, FeatureRow] = {}
    for start in range(0, len(by_length), spec.rows_per_batch):
        batch = by_length[start : start + spec.rows_per_batch]
        lengths = torch.tensor([len(texts[index]) for index in batch])
        ids = torch.zeros(len(batch), int(lengths.max()), dtype=torch.int64)
        for slot, index in enumerate(batch):
            ids[slot, : lengths[slot]] = torch.tensor(texts[index])
        states = target.boundaries(ids.to(target.device), lengths.to(target.device), want).to("cpu", dtype)
        for slot, index in enumerate(batch):
            length = int(lengths[slot])
            row = rows[index]
            mask = torch.zeros(length, dtype=torch.bool)
            mask[len(row.prompt_ids) :] = True
            found[index] = FeatureRow(
                id=row.id,
                token_ids=torch.tensor(texts[index], dtype=torch.int32),
                loss_mask=mask,
                aux=states[:-1, slot, :length].transpose(0, 1).flatten(1).contiguous(),
                final=states[-1, slot, :length].contiguous(),
            )
    return [found[index] for index in range(len(rows))]
