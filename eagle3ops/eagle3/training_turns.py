"""How is a drafter trained when the hidden states of only some rows are there at a time?

Every turn (`turns.Turn`) is trained by a process of its own: it takes the newest checkpoint, trains the turn's steps
and leaves a checkpoint at their end; from then on the turn's hidden states are not needed again. What ordinary training
takes from all rows comes from elsewhere: the vocabulary from the token ids alone, which are known beforehand; the scale
of the aux states and the first weights from the rows of turn 0, kept in every checkpoint.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from eagle3ops.eagle3.conclusion import TrainResult, conclude, heldout_corpus
from eagle3ops.eagle3.course import Course, run_course
from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.eagle3.listener import SILENT, Listener
from eagle3ops.eagle3.optim import build_optimizers
from eagle3ops.eagle3.packing import batches_from
from eagle3ops.eagle3.target_head import TargetHead
from eagle3ops.eagle3.train_config import TrainConfig
from eagle3ops.eagle3.trainer import Trainer
from eagle3ops.eagle3.training import reproducible, total_steps, training_key
from eagle3ops.eagle3.training_data import Row
from eagle3ops.eagle3.training_state import TrainingState
from eagle3ops.eagle3.turns import Turn
from eagle3ops.errors import Eagle3opsError

SCALE = "aux_scale"
COUNT_AT_ONCE = 1 << 20
"""Tokens; a count has the size of the vocabulary, so one a row would take longer than reading the rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """What is known of all rows before any hidden state is there.

    Attributes:
        lengths: tokens of every row that trains something.
        counts: occurrences of every token that the target wrote in them, int64 `[V]`.
        positions: trained positions of an epoch, summed over the draft steps.
        digest: changes whenever the rows do.
    """

    lengths: Sequence[int]
    counts: Tensor
    positions: int
    digest: str


class TextBuilder:
    """Builds a `Text` row by row."""

    def __init__(self, vocab_size: int, ttt_steps: int) -> None:
        self._counts = torch.zeros(vocab_size, dtype=torch.int64)
        self._uncounted: list[Tensor] = []
        self._waiting = 0
        self._lengths: list[int] = []
        self._steps = ttt_steps
        self._positions = 0
        self._digest = hashlib.sha256()

    def add(self, token_ids: Sequence[int], prompt: int) -> None:
        """Add a row whose first `prompt` tokens were not written by the target."""
        ids = torch.tensor(token_ids, dtype=torch.int64)
        if int(ids.max()) >= self._counts.numel():
            raise Eagle3opsError(
                f"token {int(ids.max())} does not exist in a vocabulary of {self._counts.numel()}",
                remedy="generate the answers with the target that is trained for",
            )
        self._uncounted.append(ids[prompt:])
        self._waiting += ids.numel()
        if self._waiting >= COUNT_AT_ONCE:
            self._count()
        self._lengths.append(len(token_ids))
        self._positions += sum(max(0, len(token_ids) - max(prompt, 2 + step)) for step in range(self._steps))
        self._digest.update(ids.numpy().tobytes() + prompt.to_bytes(8, "little"))

    def _count(self) -> None:
        if self._uncounted:
            self._counts += torch.bincount(torch.cat(self._uncounted), minlength=self._counts.numel())
            self._uncounted, self._waiting = [], 0

    def text(self) -> Text:
        """What has been added."""
        self._count()
        return Text(tuple(self._lengths), self._counts, self._positions, self._digest.hexdigest())


def train_turn(
    rows: Mapping[int, Row],
    turn: Turn,
    text: Text,
    heldout: Sequence[Row],
    layers: AuxLayers,
    head: TargetHead,
    out: Path,
    config: TrainConfig,
    *,
    data_key: str,
    listener: Listener = SILENT,
    init_from: Path | None = None,
) -> None:
    """Train the steps of one turn, from the newest checkpoint on; a checkpoint at their end is durable afterwards.

    Args:
        rows: by their index in `text`; what is missing (rows that the scan rejected) is left out of its step.
        heldout: for evaluations along the way.
        data_key: changes whenever the hidden states would.

    Raises:
        Eagle3opsError: the newest checkpoint lies outside of the turn, or does not fit.
    """
    indices = sorted(rows)
    places = {index: place for place, index in enumerate(indices)}
    with reproducible(config):
        state = TrainingState(out / "checkpoint", _key(text, layers, head, config, data_key, init_from))
        begun, extra = state.newest(listener.warn)
        if not turn.first <= begun < turn.last:
            raise Eagle3opsError(
                f"the newest sound checkpoint is at step {begun}, these rows are for steps {turn.first} to {turn.last}",
                remedy="resume the run; the turns are then counted from that checkpoint",
            )
        trainer = Trainer(
            [rows[index] for index in indices], layers, head, config, counts=text.counts, scale=extra.get(SCALE)
        )
        if begun == 0:
            listener.info(trainer.beginning(trainer.start(init_from)))
        else:
            trainer.drafter.to(trainer.device)
        optimizers = build_optimizers(trainer.drafter, config)
        if state.load(trainer.drafter, optimizers, listener.warn) != begun:
            raise Eagle3opsError("a checkpoint changed while it was read", remedy="resume the run")
        trainer.place()
        held = heldout_corpus(heldout, head, config) if config.eval_every else None
        course = Course(
            first=begun,
            last=turn.last,
            total=total_steps(config, text.lengths),
            batches=_present(batches_from(text.lengths, config.tokens_per_step, config.seed, begun), places),
        )
        run_course(trainer, optimizers, course, state, held, out, listener, {SCALE: trainer.scale})


def conclude_turns(
    text: Text,
    heldout: Sequence[Row],
    layers: AuxLayers,
    head: TargetHead,
    out: Path,
    config: TrainConfig,
    *,
    data_key: str,
    warn: Callable[[str], None] = lambda text: None,
    init_from: Path | None = None,
) -> TrainResult:
    """Export the drafter of the last turn's checkpoint, check it, and predict how it will be served.

    Raises:
        Eagle3opsError: training has not come to its end.
    """
    began = time.monotonic()
    total = total_steps(config, text.lengths)
    with reproducible(config):
        state = TrainingState(out / "checkpoint", _key(text, layers, head, config, data_key, init_from))
        step, extra = state.newest(warn)
        if step != total or SCALE not in extra:
            raise Eagle3opsError(f"the newest sound checkpoint is at step {step} of {total}", remedy="resume the run")
        trainer = Trainer([], layers, head, config, counts=text.counts, scale=extra[SCALE])
        trainer.drafter.to(trainer.device)
        state.load(trainer.drafter, build_optimizers(trainer.drafter, config), warn)
        trainer.place()
        result = conclude(trainer, heldout_corpus(heldout, head, config), layers, out)
    return replace(
        result,
        steps=total,
        positions=text.positions * config.epochs,
        initial="from the target" if init_from is None else f"{init_from}",
        seconds=time.monotonic() - began,
    )


def _key(
    text: Text, layers: AuxLayers, head: TargetHead, config: TrainConfig, data_key: str, init_from: Path | None
) -> str:
    parts = [config, data_key, text.digest, layers, head.shape, "turns", torch.get_num_threads()]
    return training_key(parts, init_from)


def _present(batches: Iterator[tuple[int, list[int]]], places: Mapping[int, int]) -> Iterator[tuple[int, list[int]]]:
    """Batches with the places of those rows that are there."""
    for epoch, batch in batches:
        yield epoch, [places[index] for index in batch if index in places]
