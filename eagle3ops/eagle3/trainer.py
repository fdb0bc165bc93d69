"""How do extracted hidden states become a drafter?

    out/checkpoint/     what a resume goes on from
    out/metrics.jsonl   loss and accuracy per draft step
    out/tensorboard/    the same as event files
    out/drafter/        the export, written last and checked

Data order, initial noise and schedule are functions of seed and step. Killed at any moment and started again on the
same machine, training ends with the same export, bit by bit.
"""

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from eagle3ops.eagle3.checkpoint import export_drafter, load_drafter
from eagle3ops.eagle3.drafter import Drafter
from eagle3ops.eagle3.durable import sha256_of
from eagle3ops.eagle3.initial import from_drafter, from_target
from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.eagle3.losses import StepSums, unrolled_loss
from eagle3ops.eagle3.optim import Schedule, build_optimizers
from eagle3ops.eagle3.packing import Batch, batches_from, pack, plan_epoch
from eagle3ops.eagle3.renewal import Renewal, predict_rows
from eagle3ops.eagle3.target_head import TargetHead
from eagle3ops.eagle3.train_config import TrainConfig
from eagle3ops.eagle3.train_log import TrainLog
from eagle3ops.eagle3.training_data import Corpus, Row, aux_rms
from eagle3ops.eagle3.training_state import TrainingState
from eagle3ops.eagle3.ttt import unroll
from eagle3ops.eagle3.vocab import build_vocabulary, count_tokens, coverage_of

AHEAD = 3
"""Batches that are packed before a GPU needs them."""
Progress = Callable[[int, int], None]
Metric = Callable[[str, float, int | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """What a training made.

    Attributes:
        drafter: folder of the checked export.
        steps: optimiser steps; resumed_from: the step at which this process went on, 0 for a start from nothing.
        positions: trained positions of this process, summed over the draft steps.
        vocab_unique, vocab_coverage: different tokens in the training text, and share of it that can be drafted.
        heldout_coverage: the same share of the held-out text.
        train: per draft step, means over the last `log_every` steps.
        heldout: per draft step, on the held-out rows, of the export; empty without held-out rows.
        renewals: predicted accept statistics of the export, by number of draft steps; empty without held-out rows.
        initial: where the weights came from, in words.
        seconds: wall time of this process.
    """

    drafter: Path
    steps: int
    resumed_from: int
    positions: int
    vocab_unique: int
    vocab_coverage: float
    heldout_coverage: float | None
    train: list[dict[str, float]]
    heldout: list[dict[str, float]]
    renewals: dict[int, Renewal]
    initial: str
    seconds: float


def fast_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 matrix products are faster than float32 ones here."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(bool(probe()) for name in probes if (probe := getattr(torch.cpu, name, None)) is not None)


def total_steps(config: TrainConfig, lengths: Sequence[int]) -> int:
    """Optimiser steps of a whole training."""
    if config.steps is not None:
        return config.steps
    return sum(len(plan_epoch(lengths, config.tokens_per_step, config.seed, epoch)) for epoch in range(config.epochs))


@contextmanager
def reproducible(config: TrainConfig) -> Iterator[None]:
    """Fix what torch would otherwise choose by the machine's mood, and give it back afterwards."""
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    random = torch.get_rng_state()
    try:
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        if torch.device(config.device).type == "cpu":
            torch.use_deterministic_algorithms(True)
        torch.manual_seed(config.seed)
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(strict)
        torch.set_rng_state(random)


class Trainer:
    """One drafter in training; `train_rows` drives it, or `training_turns` where the rows come part by part."""

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

    def start(self, init_from: Path | None) -> str:
        """Give the drafter its first weights; says where they came from."""
        if init_from is not None:
            said = f"{init_from}: {from_drafter(self.drafter, init_from, self.scale)}"
        else:
            copied = from_target(self.drafter, self.head, self.scale, self.corpus.rows(), self.config.seed)
            said = "from the target: " + ", ".join(copied)
        self.place()
        return said

    def place(self) -> None:
        """Move the drafter to its device and take the target's head over its vocabulary."""
        self.drafter.to(self.device)
        self.scale = self.scale.to(self.device)
        ids = self.drafter.d2t + torch.arange(self.drafter.d2t.numel(), device=self.device)
        self.draft_head = self.head.lm_head_weight.to(self.device)[ids]

    def embed(self, ids: Tensor) -> Tensor:
        """The target's embedding."""
        return F.embedding(ids, self.head.embed_weight)

    def batch(self, indices: Sequence[int]) -> Batch:
        """Pack documents; every document of the corpus trains something, so there is always a batch."""
        batch = pack([self.corpus.document(i) for i in indices], self.config.ttt_steps, self.device)
        assert batch is not None
        return batch

    def packed(self, course: Iterator[tuple[int, list[int]]], ahead: int) -> Iterator[tuple[int, Batch | None]]:
        """The batches of a course, packed; None for a step without documents.

        Args:
            ahead: how many are packed before they are asked for, in a thread: hundreds of small copies from mapped
                files take as long as a GPU takes for a step. The order, and so the result, is the same.
        """

        def one(step: tuple[int, list[int]]) -> tuple[int, Batch | None]:
            return step[0], self.batch(step[1]) if step[1] else None

        if not ahead:
            yield from map(one, course)
            return
        with ThreadPoolExecutor(max_workers=1) as packer:
            waiting: deque[Future[tuple[int, Batch | None]]] = deque()
            try:
                for step in course:
                    waiting.append(packer.submit(one, step))
                    if len(waiting) > ahead:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    def loss(self, drafter: Drafter, batch: Batch, scale: Tensor | None) -> tuple[Tensor, list[StepSums]]:
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
        sums = [StepSums() for _ in range(self.config.ttt_steps)]
        for group in plan_epoch(rows.lengths, self.config.tokens_per_step, 0, 0):
            batch = pack([rows.document(i) for i in group], self.config.ttt_steps, self.device)
            assert batch is not None
            for total, part in zip(sums, self.loss(drafter, batch, scale)[1], strict=True):
                total.add(part)
            alive()
        return [total.report() for total in sums]


def training_key(parts: Sequence[Any], init_from: Path | None) -> str:
    """Identifies what a checkpoint belongs to: data, configuration, target and start."""
    digest = hashlib.sha256(repr(list(parts)).encode())
    if init_from is not None:
        digest.update(sha256_of(init_from / "model.safetensors").encode())
    return digest.hexdigest()


def train_rows(
    rows: Sequence[Row],
    heldout: Sequence[Row],
    layers: AuxLayers,
    head: TargetHead,
    out: Path,
    config: TrainConfig,
    *,
    data_key: str,
    progress: Progress = lambda done, total: None,
    metric: Metric = lambda name, value, step: None,
    info: Callable[[str], None] = lambda text: None,
    warn: Callable[[str], None] = lambda text: None,
    init_from: Path | None = None,
) -> TrainResult:
    """Train a drafter, or go on where a killed training stopped; blocks until the export is checked.

    Args:
        rows, heldout: with their hidden states; `heldout` may be empty.
        layers: the boundaries that the rows' aux states hold.
        data_key: changes whenever the rows change.
        progress: called with steps done and steps in all.
        init_from: an exported drafter to go on from.

    Raises:
        Eagle3opsError: data, settings or an earlier checkpoint do not fit; the message says which.
        OSError: `out` cannot be written.
    """
    began = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    with reproducible(config):
        trainer = Trainer(rows, layers, head, config)
        initial = trainer.start(init_from)
        if trainer.corpus.skipped:
            warn(f"{len(trainer.corpus.skipped)} rows train nothing and are left out: {trainer.corpus.skipped[0]}, ...")
        info(
            f"draft vocabulary {config.draft_vocab_size}: {trainer.vocabulary.unique} different tokens in the text, "
            f"{trainer.vocabulary.coverage:.1%} of it covered; start {initial}"
        )
        held = heldout_corpus(heldout, head, config)
        key = training_key([config, data_key, layers, head.shape, trainer.bfloat16, torch.get_num_threads()], init_from)
        total = total_steps(config, trainer.corpus.lengths)
        state = TrainingState(out / "checkpoint", key)
        optimizers = build_optimizers(trainer.drafter, config)
        first = state.load(trainer.drafter, optimizers, warn)
        batches = batches_from(trainer.corpus.lengths, config.tokens_per_step, config.seed, first)
        course = Course(first=first, last=total, total=total, batches=batches)
        positions, last = run_course(trainer, optimizers, course, state, held, out, progress, metric)
        result = conclude(trainer, held, layers, out)
        return replace(
            result,
            steps=total,
            resumed_from=first,
            positions=positions,
            train=last,
            initial=initial,
            seconds=time.monotonic() - began,
        )


def heldout_corpus(heldout: Sequence[Row], head: TargetHead, config: TrainConfig) -> Corpus | None:
    """The held-out rows that are evaluated; None where none of them holds anything to predict."""
    kept = [row for row in heldout if bool(row.loss_mask[2:].any())][: config.eval_rows]
    return Corpus(kept, head) if kept else None


def conclude(trainer: Trainer, held: Corpus | None, layers: AuxLayers, out: Path) -> TrainResult:
    """Export the drafter as it is now, check the export and predict how it will be served."""
    began = time.monotonic()
    head, config = trainer.head, trainer.config
    folder = export_drafter(trainer.drafter, out / "drafter", aux_scale=trainer.scale)
    served = load_drafter(folder, layers.num_layers, device=trainer.device)
    ids = (served.d2t + torch.arange(served.d2t.numel(), device=trainer.device)).cpu()
    coverage = None
    if held is not None:
        seen = count_tokens(((r.token_ids, r.loss_mask) for r in held.rows()), head.shape.vocab_size)
        coverage = coverage_of(ids, seen)
    return TrainResult(
        drafter=folder,
        steps=0,
        resumed_from=0,
        positions=0,
        vocab_unique=trainer.vocabulary.unique,
        vocab_coverage=coverage_of(ids, trainer.counts),
        heldout_coverage=coverage,
        train=[],
        heldout=trainer.evaluate(served, None, held) if held is not None else [],
        renewals=predict_rows(served, held.rows(), trainer.embed, config.predict_steps) if held is not None else {},
        initial="",
        seconds=time.monotonic() - began,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The steps that one process trains.

    Attributes:
        first, last: steps `first` to `last - 1`, of `total` in all.
        batches: epoch and documents (indices into the trainer's corpus) of every one of them; a step without
            documents changes nothing.
    """

    first: int
    last: int
    total: int
    batches: Iterator[tuple[int, list[int]]]


def run_course(
    trainer: Trainer,
    optimizers: Sequence[torch.optim.Optimizer],
    course: Course,
    state: TrainingState,
    held: Corpus | None,
    out: Path,
    progress: Progress,
    metric: Metric,
    extra: dict[str, Tensor] | None = None,
) -> tuple[int, list[dict[str, float]]]:
    """Train a course to its end, where a checkpoint is durable; returns the positions trained and the last means."""
    config, drafter, total = trainer.config, trainer.drafter, course.total
    schedule = Schedule(config, total, optimizers)
    positions = 0
    sums = [StepSums() for _ in range(config.ttt_steps)]
    last: list[dict[str, float]] = []
    progress(course.first, total)
    with TrainLog(out, course.first, metric) as log:
        steps = range(course.first, course.last)
        batches = trainer.packed(
            islice(course.batches, len(steps)), ahead=AHEAD if trainer.device.type == "cuda" else 0
        )
        for step, (epoch, batch) in zip(steps, batches, strict=True):
            factor = schedule.set(step)
            if batch is not None:
                loss, parts = trainer.loss(drafter, batch, trainer.scale)
                loss.backward()  # type: ignore[no-untyped-call]
                norm = float(torch.nn.utils.clip_grad_norm_(drafter.parameters(), config.clip))
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
                positions += batch.trained
                for whole, part in zip(sums, parts, strict=True):
                    whole.add(part)
            else:
                norm = 0.0
            done = step + 1
            if done % config.log_every == 0 or done == total:
                last = [part.report() for part in sums]
                sums = [StepSums() for _ in range(config.ttt_steps)]
                log.add(
                    done,
                    {
                        **_flat("train", last),
                        "train/grad_norm": norm,
                        "train/lr": config.lr * factor,
                        "train/epoch": float(epoch),
                    },
                )
            if held is not None and config.eval_every and done % config.eval_every == 0 and done < total:
                found = trainer.evaluate(drafter, trainer.scale, held, partial(progress, step, total))
                log.add(done, _flat("heldout", found))
            if done % config.checkpoint_every == 0 or done == course.last:
                state.save(done, drafter, optimizers, extra)
            progress(done, total)
    return positions, last


def _flat(split: str, reports: Sequence[dict[str, float]]) -> dict[str, float]:
    return {f"{split}/{name}_{i}": value for i, report in enumerate(reports) for name, value in report.items()}
