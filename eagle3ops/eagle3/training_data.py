"""What does training read, row by row, and what does it need to know of all rows before it starts?

Feature rows are taken as they come (views into memory-mapped files); anything with the attributes of `Row` will do, so
this room does not depend on how features are stored.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from eagle3ops.eagle3.losses import full_argmax
from eagle3ops.eagle3.packing import Document
from eagle3ops.eagle3.target_head import TargetHead
from eagle3ops.errors import RequestError


class Row(Protocol):
    """One conversation with its hidden states."""

    @property
    def id(self) -> str: ...
    @property
    def token_ids(self) -> Tensor: ...
    @property
    def loss_mask(self) -> Tensor: ...
    @property
    def aux(self) -> Tensor: ...
    @property
    def final(self) -> Tensor: ...


class Corpus:
    """Rows with something to train, and the target's own tokens on them, computed on first use and kept.

    Attributes:
        lengths: tokens of every row.
        skipped: ids of rows that hold no trained position.
    """

    def __init__(self, rows: Sequence[Row], head: TargetHead, *, allow_empty: bool = False) -> None:
        """Raises RequestError where no row can be trained on, unless that is allowed."""
        self._rows = [row for row in rows if bool(row.loss_mask[2:].any())]
        self.skipped = tuple(row.id for row in rows if not bool(row.loss_mask[2:].any()))
        if not self._rows and not allow_empty:
            raise RequestError(
                "no row holds a token that the target wrote at position 2 or later: there is nothing to train on",
                remedy="check the chat template and the loss mask of the extracted rows",
            )
        self.lengths = [int(row.token_ids.numel()) for row in self._rows]
        self._head = head
        self._argmax: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self) -> Sequence[Row]:
        """The rows that are trained on."""
        return self._rows

    def document(self, index: int) -> Document:
        """One row, ready to be packed."""
        row = self._rows[index]
        argmax = self._argmax.get(index)
        if argmax is None:
            argmax = self._argmax[index] = self._compute_argmax(row)
        return Document(row.token_ids, row.loss_mask, row.aux, row.final, argmax)

    def _compute_argmax(self, row: Row) -> Tensor:
        # A row at a time: the same matrix shape on every visit, so a resumed run sees the same ties in bf16.
        taught = torch.zeros_like(row.loss_mask)
        taught[:-1] = row.loss_mask[1:]
        out = torch.full((row.token_ids.numel(),), -1, dtype=torch.int32)
        final = row.final[taught].to(self._head.lm_head_weight.device)
        out[taught] = full_argmax(self._head, final).cpu().int()
        return out


SCALE_TOKENS = 1_000_000
"""Tokens that tell the scale of the aux states; reading all states once more just for it can take hours."""


def aux_rms(rows: Sequence[Row]) -> Tensor:
    """Root mean square of every aux dimension, float32 `[A*H]`; where there are many rows, over some drawn of them.

    Position 0 is left out: it is an attention sink whose norm is two orders of magnitude above the others'.
    """
    total, count = torch.zeros(rows[0].aux.shape[-1], dtype=torch.float64), 0
    tokens = sum(row.token_ids.numel() for row in rows)
    some = math.ceil(len(rows) * min(1.0, SCALE_TOKENS / max(1, tokens)))
    # Drawn, always the same ones: at equal distances only one kind would be seen of texts that take turns.
    drawn = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:some]
    for index in sorted(drawn.tolist()):
        states = rows[index].aux[1:].float()
        total += states.square().sum(0).double()
        count += states.shape[0]
    rms = (total / max(1, count)).sqrt()
    # A dimension that is always zero would be divided by zero; one that is nearly so would be blown up at export.
    return rms.clamp_min(max(1e-6, 1e-3 * float(rms.median()))).float()
