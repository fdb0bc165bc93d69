"""What is a drafter in training? Its vocabulary and scale, its batches, its loss, and how good it is by now."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from eagle3ops.eagle3.arithmetic import fast_bfloat16
from eagle3ops.eagle3.drafter import Drafter
from eagle3ops.eagle3.initial import from_drafter, from_target
from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.eagle3.losses import StepSums, unrolled_loss
from eagle3ops.eagle3.packing import Batch, pack, plan_epoch
from eagle3ops.eagle3.target_head import TargetHead
from eagle3ops.eagle3.train_config import TrainConfig
from eagle3ops.eagle3.training_data import Corpus, Row, aux_rms
from eagle3ops.eagle3.ttt import unroll
from eagle3ops.eagle3.vocab import build_vocabulary, count_tokens

Planned = tuple[int, list[int]]
"""Epoch and documents of a step."""
Packed = tuple[int, Batch | None]


QUEUED = 2
"""Steps that wait for a GPU; it always has the next one."""


class Aside:
    """A GPU's second queue: what is packed beside a step must not wait behind it.

    On a CPU it does nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            # What the packing reads, the target's head, was put there on the first queue.
            self._stream.wait_stream(torch.cuda.current_stream(device))
        self._begun: deque[torch.cuda.Event] = deque()

    def run(self, one: Callable[[Planned], Packed], step: Planned) -> Packed:
        """Pack one step in the calling thread; its tensors are whole when this returns."""
        with torch.cuda.stream(self._stream):
            packed = one(step)
        if self._stream is not None:
            self._stream.synchronize()
        return packed

    def taken(self, packed: Packed) -> Packed:
        """Hand a batch to the calling thread's queue, which reads it from now on.

        Waits until that queue is at most `QUEUED` batches behind: their memory is free only when they have been read,
        and one of a wide target takes a gigabyte.
        """
        if self._stream is None or packed[1] is None:
            return packed
        queue = torch.cuda.current_stream(self._stream.device)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(queue)
        self._begun.append(event)
        if len(self._begun) > QUEUED:
            self._begun.popleft().synchronize()
        for tensor in packed[1].tensors():
            # The allocator must not give it away before.
            tensor.record_stream(queue)
        return packed


class Trainer:
    """One drafter in training; `training` drives it, or `training_turns` where the rows come part by part."""

    def __init__(
        self,
        rows: Sequence[Row],
        layers: AuxLayers,
        head: TargetHead,
        config: TrainConfig,
        *,
        counts: Tensor | None = None,
        scale: Tensor | None = None,
    ) -> None:
        """Choose vocabulary and scale.

        Args:
            counts: occurrences of every token, int64 `[V]`, where `rows` are only a part of the text.
            scale: `[A*H]`, by which the aux states are divided; None takes it from the rows.
        """
        self.config = config
        self.device = torch.device(config.device)
        self.bfloat16 = config.dtype == "bfloat16" or (config.dtype == "auto" and fast_bfloat16(self.device))
        self.head = head
        self.corpus = Corpus(rows, head, allow_empty=scale is not None)
        if counts is None:
            counts = count_tokens(((r.token_ids, r.loss_mask) for r in self.corpus.rows()), head.shape.vocab_size)
        self.counts = counts
        self.vocabulary = build_vocabulary(counts, config.draft_vocab_size)
        self.scale = aux_rms(self.corpus.rows()) if scale is None else scale
        self.drafter = Drafter(head.drafter_config(config.draft_vocab_size, layers))
        self.drafter.d2t.copy_(self.vocabulary.d2t)
        self.drafter.t2d.copy_(self.vocabulary.t2d)
        self._draftable = self.vocabulary.t2d

    def start(self, init_from: Path | None) -> str:
        """Give the drafter its first weights; says where they came from."""
        if init_from is not None:
            said = f"{init_from}: {from_drafter(self.drafter, init_from, self.scale)}"
        else:
            copied = from_target(self.drafter, self.head, self.config.seed)
            said = "from the target: " + ", ".join(copied)
        self.place()
        return said

    def beginning(self, start: str) -> str:
        """A sentence about what is trained; `start` is what `start` said."""
        return (
            f"draft vocabulary {self.config.draft_vocab_size}: {self.vocabulary.unique} different tokens in the text, "
            f"{self.vocabulary.coverage:.1%} of it covered; start {start}"
        )

    def place(self) -> None:
        """Move the drafter to its device and take the target's head over its vocabulary."""
        self.drafter.to(self.device)
        self.scale = self.scale.to(self.device)
        ids = self.drafter.d2t + torch.arange(self.drafter.d2t.numel(), device=self.device)
        self.draft_head = self.head.lm_head_weight.to(self.device)[ids]
        self._draftable = self.drafter.t2d.cpu()

    def embed(self, ids: Tensor) -> Tensor:
        """The target's embedding."""
        return F.embedding(ids, self.head.embed_weight)

    def batch(self, indices: Sequence[int]) -> Batch:
        """Pack documents of the corpus."""
        return self._pack(self.corpus, indices)

    def _pack(self, corpus: Corpus, indices: Sequence[int]) -> Batch:
        documents = [corpus.document(i) for i in indices]
        batch = pack(documents, self.config.ttt_steps, self.device, draftable=self._draftable)
        assert batch is not None, "every document of a corpus trains something"
        return batch

    def packed(self, course: Iterator[Planned], ahead: int) -> Iterator[Packed]:
        """The batches of a course, packed; None for a step without documents.

        Args:
            ahead: how many are packed before they are asked for, in a thread: hundreds of small copies from mapped
                files take as long as a GPU takes for a step. The order, and so the result, is the same.
        """

        def one(step: Planned) -> Packed:
            return step[0], self.batch(step[1]) if step[1] else None

        if not ahead:
            yield from map(one, course)
            return
        aside = Aside(self.device)
        with ThreadPoolExecutor(max_workers=1) as packer:
            waiting: deque[Future[Packed]] = deque()
            try:
                for step in course:
                    waiting.append(packer.submit(aside.run, one, step))
                    if len(waiting) > ahead:
                        yield aside.taken(waiting.popleft().result())
                while waiting:
                    yield aside.taken(waiting.popleft().result())
            finally:
                for future in waiting:
                    future.cancel()

    def loss(self, drafter: Drafter, batch: Batch, scale: Tensor | None) -> tuple[Tensor, StepSums]:
        """Unroll the drafter over one batch."""
        config = self.config
        with torch.autocast(self.device.type, torch.bfloat16) if self.bfloat16 else nullcontext():
            states = unroll(drafter, batch, self.embed, steps=config.ttt_steps, aux_scale=scale)
            return unrolled_loss(drafter, batch, states, self.head, self.draft_head, config.step_weight)

    @torch.no_grad()
    def evaluate(
        self, drafter: Drafter, scale: Tensor | None, rows: Corpus, alive: Callable[[], None] = lambda: None
    ) -> list[dict[str, float]]:
        """Loss and accuracies per draft step over held-out rows, from sums over all of them.

        Called after every batch: `alive`.
        """
        sums = StepSums()
        for group in plan_epoch(rows.lengths, self.config.tokens_per_step, 0, 0):
            sums.add(self.loss(drafter, self._pack(rows, group), scale)[1])
            alive()
        return sums.report()
