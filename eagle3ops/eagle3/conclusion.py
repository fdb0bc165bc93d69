"""What is left when training ends? The export, checked, and a prediction of how it will be served."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from eagle3ops.eagle3.checkpoint import export_drafter, load_drafter
from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.eagle3.renewal import Renewal, predict_rows
from eagle3ops.eagle3.target_head import TargetHead
from eagle3ops.eagle3.train_config import TrainConfig
from eagle3ops.eagle3.trainer import Trainer
from eagle3ops.eagle3.training_data import Corpus, Row
from eagle3ops.eagle3.vocab import count_tokens, coverage_of


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
