"""extract: run the target over its own answers and keep the hidden states that the drafter will read."""

import asyncio
import json
import shutil
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from pydantic import Field, model_validator

from eagle3ops.answers import AnswerRow, Split, read_answers
from eagle3ops.engines.footprint import check_layers, engine_forecast
from eagle3ops.errors import Eagle3opsError, RequestError
from eagle3ops.features.format import Dtype
from eagle3ops.jobs.extract.quota import QUOTA_FILE, SHARED_MEMORY, measure, outlook
from eagle3ops.runs.context import Context
from eagle3ops.runs.files import write_json
from eagle3ops.runs.job import Job, Plan, PlanContext
from eagle3ops.spec.base import AuxLayersSpec, StageSpec
from eagle3ops.spec.models import EngineSpec
from eagle3ops.spec.sizes import Size
from eagle3ops.targets import read_target_info
from eagle3ops.words import human_bytes

if TYPE_CHECKING:
    from eagle3ops.eagle3.layers import AuxLayers
    from eagle3ops.engines.reference.model import Target
    from eagle3ops.features import FeatureRow, FeatureWriter, QuantisedRow, ShardRecord

Road = Literal["reference", "engine"]


class ExtractSpec(StageSpec):
    """Which hidden states are kept, and in what pieces."""

    aux_layers: AuxLayersSpec | None = None
    """Layers the drafter reads; the default is boundaries 2, n // 2 and n - 3."""
    rows_per_shard: int = Field(default=64, ge=1)
    """A shard is what a kill costs at most."""
    rows_per_batch: int = Field(default=16, ge=1)
    max_tokens: int = Field(default=2048, ge=8)
    """Longer rows are cut here."""
    dtype: Literal["bfloat16", "float32", "fp8"] = "bfloat16"
    """`fp8`: float8 e4m3 with a scale for every token and layer, about half of bfloat16; training reads bfloat16."""
    keep: Literal["all", "needed"] = "all"
    """`needed`: final states only where the target wrote the next token; nothing else of them is trained on."""
    through: Road | None = None
    """Who computes the states: the reference model in this process, or the pipeline's engine at the speed at which it
    reads prompts. Left out: the engine where it is SGLang and hands these layers over, else the reference model."""
    quota: Size | None = None
    """Most disk for hidden states, as `200 GiB`. Where they need more, train extracts them part by part."""
    place: Literal["disk", "memory"] = "disk"
    """`memory`: those of the training rows lie in shared memory, as much as `quota` says, while train reads them, and
    never on the disk."""

    @model_validator(mode="after")
    def _bounded(self) -> "ExtractSpec":
        if self.place == "memory" and self.quota is None:
            raise ValueError("place: memory needs a quota: how much memory the hidden states may take")
        return self


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
        notes.append(road_of(ctx, spec)[1])
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
        spec = ctx.spec
        assert isinstance(spec, ExtractSpec)
        splits: tuple[Split, ...] = ("heldout", "train")
        if spec.quota is not None and not await asyncio.to_thread(self._fits, ctx, spec):
            splits = ("heldout",)
        ctx.info(choose_road(spec, ctx.pipeline.engine, kept_layers(ctx, spec))[1])
        async with states_source(ctx, spec) as source:
            await asyncio.to_thread(self._extract, ctx, spec, splits, source)

    def _extract(self, ctx: Context, spec: ExtractSpec, splits: tuple[Split, ...], source: "Source") -> None:
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


def check_memory(needed: int, place: Path = SHARED_MEMORY) -> None:
    """Raise RequestError unless so many bytes of shared memory are free."""
    try:
        free = shutil.disk_usage(place).free
    except OSError as error:
        raise RequestError(f"stages.extract.place: memory: {place}: {error.strerror}", remedy="say disk") from error
    if free < needed:
        raise RequestError(
            f"stages.extract.quota: {human_bytes(needed)} of shared memory are wanted, {human_bytes(free)} are free in "
            f"{place}",
            remedy="lower the quota, or give the container more (--shm-size)",
        )


class Source(Protocol):
    """Who computes hidden states.

    Attributes:
        layers: the aux layers of its rows.
        workers: threads that may write shards while it computes others; 0: none.
    """

    @property
    def layers(self) -> "AuxLayers": ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def workers(self) -> int: ...

    def shards(self, chunks: Iterable[Sequence[AnswerRow]]) -> "Iterator[Sequence[FeatureRow | QuantisedRow]]":
        """The rows of each chunk with their states, in the order given."""
        ...


class ReferenceStates:
    """Hidden states from the reference model, in this process."""

    workers = 0

    def __init__(self, target: "Target", layers: "AuxLayers", spec: ExtractSpec) -> None:
        self._target, self.layers, self._spec = target, layers, spec
        self.hidden_size = target.config.hidden_size

    def shards(self, chunks: Iterable[Sequence[AnswerRow]]) -> "Iterator[Sequence[FeatureRow]]":
        """See `Source.shards`."""
        for chunk in chunks:
            yield features_of(self._target, self.layers, chunk, self._spec)


def stored_dtype(spec: ExtractSpec) -> Dtype:
    """As a shard calls it."""
    return "float8_e4m3fn" if spec.dtype == "fp8" else spec.dtype


def kept_layers(ctx: Context, spec: ExtractSpec) -> "AuxLayers":
    """The layers whose states are kept."""
    from eagle3ops.eagle3.layers import AuxLayers, resolve_layers

    count = read_target_info(ctx.inputs["fetch"]).num_layers
    if spec.aux_layers is None:
        return AuxLayers.default(count)
    return resolve_layers(spec.aux_layers, count, "stages.extract.aux_layers")


def choose_road(spec: ExtractSpec, engine: EngineSpec, layers: "AuxLayers | None") -> tuple[Road, str]:
    """Who computes the states, and why.

    Args:
        layers: None as long as the target's size is not known.

    Raises:
        RequestError: the engine was asked for by name and cannot.
    """
    if spec.through == "reference":
        return "reference", "states from the reference model, as stages.extract.through says"
    reason = None
    if engine.name == "reference" and spec.through is None:
        return "reference", "states from the reference model"
    if engine.name != "sglang":
        reason = f"engine {engine.name} does not hand over hidden states"
    elif layers is not None and not hands_over(layers):
        reason = f"SGLang hands over boundaries 1 to {layers.num_layers - 1} only, these are {layers}"
    if reason is None:
        return "engine", "states from SGLang, through shared memory, while it reads the rows"
    if spec.through == "engine":
        raise RequestError(f"stages.extract.through: engine: {reason}", remedy="leave it out, or say reference")
    return "reference", f"states from the reference model: {reason}"


def road_of(ctx: PlanContext, spec: ExtractSpec) -> tuple[Road, str]:
    """`choose_road` for a plan; the target may not be here yet."""
    from eagle3ops.eagle3.layers import AuxLayers, resolve_layers

    config = ctx.target_config()
    count = None if config is None else config.get("num_hidden_layers")
    layers = None
    if isinstance(count, int):
        given = spec.aux_layers
        layers = (
            AuxLayers.default(count) if given is None else resolve_layers(given, count, "stages.extract.aux_layers")
        )
    return choose_road(spec, ctx.pipeline.engine, layers)


def hands_over(layers: "AuxLayers") -> bool:
    """Whether SGLang does: it takes boundaries at the entry of a layer, the first left out."""
    return all(0 < k < layers.num_layers for k in layers.boundary)


@asynccontextmanager
async def states_source(ctx: Context, spec: ExtractSpec) -> "AsyncIterator[Source]":
    """Whoever computes the hidden states of this pipeline, loaded and ready, for as long as the block lasts."""
    layers = kept_layers(ctx, spec)
    road, _ = choose_road(spec, ctx.pipeline.engine, layers)
    if road == "reference":
        from eagle3ops.engines.reference.model import Target, pick_device, pick_dtype

        engine, path = ctx.pipeline.engine, read_target_info(ctx.inputs["fetch"]).path
        target = await asyncio.to_thread(Target.load, path, pick_dtype(engine.dtype), pick_device(engine.device))
        yield ReferenceStates(target, layers, spec)
        return
    from eagle3ops.engines.sglang.extraction import EngineStates, Spool, extraction_spec, within
    from eagle3ops.jobs.serve import ServeStageSpec, serve_spec, started
    from eagle3ops.runs.planning import available_memory

    hidden = read_target_info(ctx.inputs["fetch"]).hidden_size
    ring, ahead = within(available_memory())
    with Spool(layers, hidden, stored_dtype(spec), ring) as spool:
        setting = extraction_spec(serve_spec(ctx, ServeStageSpec(), None), spool)
        async with started(ctx, setting, "engine-extract") as client:
            await asyncio.to_thread(spool.connected)
            loop = asyncio.get_running_loop()
            yield EngineStates(client, loop, spool, max_tokens=spec.max_tokens, ahead_bytes=ahead)


def planned_tokens(ctx: PlanContext) -> int | None:
    """Tokens of prompts and answers: counted where generate is done, its upper bound where it is not."""
    if "generate" in ctx.inputs:
        summary = json.loads((ctx.inputs["generate"] / "summary.json").read_text(encoding="utf-8"))
        return int(summary["tokens"])
    return ctx.upstream_tokens("generate")


def extract_split(
    source: Source,
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

    if not rows:
        raise Eagle3opsError(
            f"no answers for {folder.name}", remedy="let generate answer at least one prompt of each split"
        )
    header = FeatureHeader(
        target_fingerprint=fingerprint,
        aux_layers=source.layers,
        hidden_size=source.hidden_size,
        dtype=stored_dtype(spec),
        final_state="pre_norm",
        final_tokens="taught" if spec.keep == "needed" else "all",
    )
    writer = FeatureWriter(folder, header, keep_damaged=spec.quota is None)
    kept = writer.verified()
    for problem in writer.problems:
        warn(f"{folder.name}: {problem}; it is extracted again")
    todo: list[tuple[str, Sequence[AnswerRow]]] = []
    for first in range(0, len(rows), spec.rows_per_shard):
        name, chunk = f"{first // spec.rows_per_shard:05d}", rows[first : first + spec.rows_per_shard]
        if name in kept:
            advance(_tokens(chunk, spec))
        else:
            todo.append((name, chunk))
    for chunk, record in _written(writer, source, todo):
        if isinstance(record, Exception):
            if not skip_unsound:
                raise record
            warn(f"{folder.name}: {record}")
        else:
            for bad in record.dropped:
                warn(f"{folder.name}: row {bad.id} is left out: {bad.reason}")
        advance(_tokens(chunk, spec))


def _tokens(rows: Sequence[AnswerRow], spec: ExtractSpec) -> int:
    return sum(min(spec.max_tokens, len(row.prompt_ids) + len(row.output_ids)) for row in rows)


def _written(
    writer: "FeatureWriter", source: Source, todo: Sequence[tuple[str, Sequence[AnswerRow]]]
) -> "Iterator[tuple[Sequence[AnswerRow], ShardRecord | Exception]]":
    """Every shard's rows with its record once it is durable, or with why no row of it was sound; in order."""
    from eagle3ops.features.format import NoSoundRow

    def write(name: str, rows: "Sequence[FeatureRow | QuantisedRow]") -> "ShardRecord | Exception":
        try:
            return writer.write_shard(name, rows)
        except NoSoundRow as error:
            return error

    computed = zip(todo, source.shards(chunk for _, chunk in todo), strict=True)
    if not source.workers:
        for (name, chunk), rows in computed:
            yield chunk, write(name, rows)
        return
    waiting: deque[tuple[Sequence[AnswerRow], Future[ShardRecord | Exception]]] = deque()
    with ThreadPoolExecutor(source.workers, "shards") as pool:
        for (name, chunk), rows in computed:
            waiting.append((chunk, pool.submit(write, name, rows)))
            # No more of them in memory than are being written, and one that waits.
            while len(waiting) > source.workers:
                first, future = waiting.popleft()
                yield first, future.result()
        for chunk, future in waiting:
            yield chunk, future.result()


def features_of(
    target: "Target", layers: "AuxLayers", rows: Sequence[AnswerRow], spec: ExtractSpec
) -> "list[FeatureRow]":
    """Hidden states of some rows, in the order given; batches are formed by length, so their make-up is fixed."""
    import torch

    from eagle3ops.features import FeatureRow

    texts = [(row.prompt_ids + row.output_ids)[: spec.max_tokens] for row in rows]
    by_length = sorted(range(len(rows)), key=lambda index: len(texts[index]))
    want = [*layers.boundary, target.config.num_layers]
    # Eight bits are made of these where they are written.
    dtype = torch.float32 if spec.dtype == "float32" else torch.bfloat16
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
