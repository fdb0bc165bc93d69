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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from eagle3ops.eagle3.conclusion import TrainResult, conclude, heldout_corpus
from eagle3ops.eagle3.course import Course, run_course
from eagle3ops.eagle3.durable import sha256_of
from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.eagle3.listener import SILENT, Listener
from eagle3ops.eagle3.optim import build_optimizers
from eagle3ops.eagle3.packing import batches_from, plan_epoch
from eagle3ops.eagle3.target_head import TargetHead
from eagle3ops.eagle3.train_config import TrainConfig
from eagle3ops.eagle3.trainer import Trainer
from eagle3ops.eagle3.training_data import Row
from eagle3ops.eagle3.training_state import TrainingState


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
    listener: Listener = SILENT,
    init_from: Path | None = None,
) -> TrainResult:
    """Train a drafter, or go on where a killed training stopped; blocks until the export is checked.

    Args:
        rows, heldout: with their hidden states; `heldout` may be empty.
        layers: the boundaries that the rows' aux states hold.
        data_key: changes whenever the rows change.
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
        if skipped := trainer.corpus.skipped:
            listener.warn(f"{len(skipped)} rows train nothing and are left out: {skipped[0]}, ...")
        listener.info(trainer.beginning(initial))
        held = heldout_corpus(heldout, head, config)
        key = training_key([config, data_key, layers, head.shape, trainer.bfloat16, torch.get_num_threads()], init_from)
        total = total_steps(config, trainer.corpus.lengths)
        state = TrainingState(out / "checkpoint", key)
        optimizers = build_optimizers(trainer.drafter, config)
        first = state.load(trainer.drafter, optimizers, listener.warn)
        batches = batches_from(trainer.corpus.lengths, config.tokens_per_step, config.seed, first)
        course = Course(first=first, last=total, total=total, batches=batches)
        positions, last = run_course(trainer, optimizers, course, state, held, out, listener)
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
