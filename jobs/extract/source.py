"""Where do hidden states come from while a stage runs? One face for the reference model and for the engine."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from eagle3ops.answers import AnswerRow
from eagle3ops.jobs.extract.road import choose_road, kept_layers
from eagle3ops.jobs.extract.spec import ExtractSpec, stored_dtype
from eagle3ops.runs.context import Context
from eagle3ops.targets import read_target_info

if TYPE_CHECKING:
    from eagle3ops.eagle3.layers import AuxLayers
    from eagle3ops.engines.reference.model import Target
    from eagle3ops.features import FeatureRow, QuantisedRow


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
    from eagle3ops.engines.sglang.extraction.server import extraction_spec
    from eagle3ops.engines.sglang.extraction.spool import Spool
    from eagle3ops.engines.sglang.extraction.states import EngineStates, within
    from eagle3ops.jobs.serve.job import ServeStageSpec, serve_spec, started
    from eagle3ops.runs.planning import available_memory

    hidden = read_target_info(ctx.inputs["fetch"]).hidden_size
    ring, ahead = within(available_memory())
    with Spool(layers, hidden, stored_dtype(spec), ring) as spool:
        setting = extraction_spec(serve_spec(ctx, ServeStageSpec(), None), spool)
        async with started(ctx, setting, "engine-extract") as client:
            await asyncio.to_thread(spool.connected)
            loop = asyncio.get_running_loop()
            yield EngineStates(client, loop, spool, max_tokens=spec.max_tokens, ahead_bytes=ahead)


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
