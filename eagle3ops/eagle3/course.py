"""How does one process train its steps? Batch by batch, logged, evaluated, with checkpoints on the way."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from eagle3ops.eagle3.listener import Listener
from eagle3ops.eagle3.losses import StepSums
from eagle3ops.eagle3.optim import Schedule
from eagle3ops.eagle3.train_log import TrainLog
from eagle3ops.eagle3.trainer import Trainer
from eagle3ops.eagle3.training_data import Corpus
from eagle3ops.eagle3.training_state import TrainingState

AHEAD = 3
"""Batches that are packed before a GPU needs them."""


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
    listener: Listener,
    extra: dict[str, Tensor] | None = None,
) -> tuple[int, list[dict[str, float]]]:
    """Train a course to its end, where a checkpoint is durable; returns the positions trained and the last means."""
    config, drafter, total = trainer.config, trainer.drafter, course.total
    schedule = Schedule(config, total, optimizers)
    positions = 0
    sums = StepSums()
    last: list[dict[str, float]] = []
    listener.progress(course.first, total)
    with TrainLog(out, course.first, listener.metric) as log:
        steps = range(course.first, course.last)
        batches = trainer.packed(
            islice(course.batches, len(steps)), ahead=AHEAD if trainer.device.type == "cuda" else 0
        )
        for step, (epoch, batch) in zip(steps, batches, strict=True):
            factor = schedule.set(step)
            if batch is not None:
                loss, part = trainer.loss(drafter, batch, trainer.scale)
                loss.backward()  # type: ignore[no-untyped-call]
                norm = torch.nn.utils.clip_grad_norm_(drafter.parameters(), config.clip)
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
                positions += batch.trained
                sums.add(part)
            else:
                norm = torch.zeros(())
            done = step + 1
            if done % config.log_every == 0 or done == total:
                last = sums.report()
                sums = StepSums()
                log.add(
                    done,
                    {
                        **_flat("train", last),
                        "train/grad_norm": float(norm),
                        "train/lr": config.lr * factor,
                        "train/epoch": float(epoch),
                    },
                )
            if held is not None and config.eval_every and done % config.eval_every == 0 and done < total:
                found = trainer.evaluate(drafter, trainer.scale, held, partial(listener.progress, step, total))
                log.add(done, _flat("heldout", found))
            if done % config.checkpoint_every == 0 or done == course.last:
                state.save(done, drafter, optimizers, extra)
            listener.progress(done, total)
    return positions, last


def _flat(split: str, reports: Sequence[dict[str, float]]) -> dict[str, float]:
    return {f"{split}/{name}_{i}": value for i, report in enumerate(reports) for name, value in report.items()}
