"""Which rows' hidden states are on disk during which optimiser steps, when they do not all fit?

The data order is that of ordinary training: `plan_epoch` decides it by seed and epoch. Every epoch's batches are cut,
in that order, into parts whose rows fit the space; a *turn* extracts the rows of one part and trains its steps. So
training by turns takes the same steps over the same batches at the same rates, and only the initial statistics (from
the first turn's rows instead of all) tell it from training on everything at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from eagle3ops.eagle3.packing import plan_epoch
from eagle3ops.eagle3.train_config import TrainConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One part of one epoch.

    Attributes:
        number: counted from 0 over all epochs.
        epoch, part: counted from 0; parts: of that epoch.
        first, last: trains the steps `first` to `last - 1`.
        rows: indices of the rows that those steps read, ascending.
        tokens: of these rows; bytes: an upper bound of their disk space.
    """

    number: int
    epoch: int
    part: int
    parts: int
    first: int
    last: int
    rows: tuple[int, ...]
    tokens: int
    bytes: int

    def said(self, epochs: int) -> str:
        """`epoch 1 of 3, part 2 of 5`, for people."""
        return f"epoch {self.epoch + 1} of {epochs}, part {self.part + 1} of {self.parts}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What rows take on disk, as upper bounds, and how much there is.

    Attributes:
        capacity: bytes for one part.
        rows: bytes of every row.
        shard: bytes of a shard beside its rows; rows_per_shard: its most rows.
    """

    capacity: int
    rows: Sequence[int]
    shard: int
    rows_per_shard: int

    def needed(self, row_bytes: int, count: int) -> int:
        """Bytes of a part with `count` rows that take `row_bytes` together."""
        return row_bytes + self.shard * -(-count // self.rows_per_shard)


class TooSmall(Exception):
    """A single step's rows do not fit; `needed` bytes would do for the largest."""

    def __init__(self, needed: int) -> None:
        self.needed = needed
        super().__init__(f"the rows of one step need {needed} bytes")


def plan_turns(lengths: Sequence[int], space: Space, config: TrainConfig) -> list[Turn]:
    """Cut the steps of all epochs into turns, each as long as the space allows.

    Args:
        lengths: tokens of every row that is trained on.

    Raises:
        TooSmall: the rows of one step need more than the capacity.
    """
    turns: list[Turn] = []
    step = 0
    largest = 0
    for epoch in range(config.epochs):
        parts: list[list[list[int]]] = [[]]
        filled = count = 0
        for batch in plan_epoch(lengths, config.tokens_per_step, config.seed, epoch):
            size = sum(space.rows[index] for index in batch)
            largest = max(largest, space.needed(size, len(batch)))
            if parts[-1] and space.needed(filled + size, count + len(batch)) > space.capacity:
                parts.append([])
                filled = count = 0
            parts[-1].append(batch)
            filled, count = filled + size, count + len(batch)
        for part, batches in enumerate(parts):
            rows = sorted(index for batch in batches for index in batch)
            turns.append(
                Turn(
                    number=len(turns),
                    epoch=epoch,
                    part=part,
                    parts=len(parts),
                    first=step,
                    last=step + len(batches),
                    rows=tuple(rows),
                    tokens=sum(lengths[index] for index in rows),
                    bytes=space.needed(sum(space.rows[index] for index in rows), len(rows)),
                )
            )
            step += len(batches)
    if largest > space.capacity:
        raise TooSmall(largest)
    return turns
