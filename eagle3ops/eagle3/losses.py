"""How far is the drafter from its teacher, and how often would a server accept what it drafts?"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from eagle3ops.eagle3.arithmetic import product, widened
from eagle3ops.eagle3.drafter import Drafter
from eagle3ops.eagle3.packing import Batch
from eagle3ops.eagle3.target_head import TargetHead

ROWS = 256
"""Rows of logits that a CPU turns to float32 at once; the buffers then stay in its cache."""
GPU_VALUES = 1 << 27
"""Logits that a GPU turns to float32 at once (512 MB): blocks that a CPU likes would leave it waiting for launches."""


def block_rows(logits: Tensor, columns: int) -> int:
    """Rows of so many columns that are worked on at once, on the device of `logits`."""
    return max(ROWS, GPU_VALUES // columns) if logits.is_cuda else ROWS


class _SoftCrossEntropy(torch.autograd.Function):
    """Works through the rows in blocks and keeps only the weighted gradient, in the logits' dtype."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, teacher: Tensor, source: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
        gradient = torch.empty_like(logits)
        loss = torch.empty(logits.shape[0], dtype=wide, device=logits.device)
        block = block_rows(logits, logits.shape[1])
        for start in range(0, logits.shape[0], block):
            part = slice(start, start + block)
            target = teacher[source[part]]
            logs = logits[part].to(wide).log_softmax(-1)
            loss[part] = -(target * logs).sum(-1)
            gradient[part] = logs.exp_().sub_(target).mul_(weight[part].to(wide).unsqueeze(-1))
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(loss)
        return (loss * weight).sum(), loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        whole = grads[0]
        # To look at the factor would wait for a GPU longer than the product takes there. In place: a second gradient
        # would take gigabytes. A second backward pass is refused by torch, which sees that the first changed it.
        same = not whole.is_cuda and bool(whole == 1)
        return gradient if same else gradient.mul_(whole.to(gradient.dtype)), None, None, None


def soft_cross_entropy(logits: Tensor, teacher: Tensor, source: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """`-sum_v p_v log softmax(logits)_v` for p = `teacher[source]`.

    Args:
        logits: `[n, N]`.
        teacher: probabilities `[M, N]`, float32; every row sums to one.
        source: `[n]`, the teacher row of every row of logits.
        weight: `[n]`, of every row in the sum.

    Returns:
        The weighted sum, differentiable in `logits`; and every row's loss without its weight `[n]`, which is not.
    """
    out: tuple[Tensor, Tensor] = _SoftCrossEntropy.apply(logits, teacher, source, weight)  # type: ignore[no-untyped-call]
    return out


@torch.no_grad()
def full_argmax(head: TargetHead, final: Tensor, chunk: int = 8192) -> Tensor:
    """The target's most likely token at every row of `final` `[n, H]` (before the norm), streamed over the vocabulary.

    Never holds more than `[n, chunk]` logits.
    """
    normed = head.normed(final)
    best = torch.full((final.shape[0],), float("-inf"), device=final.device)
    ids = torch.zeros(final.shape[0], dtype=torch.int64, device=final.device)
    for start in range(0, head.shape.vocab_size, chunk):
        logits = product(normed, head.lm_head_weight[start : start + chunk])
        value, index = logits.max(-1)
        value = value.float()
        better = value > best
        best = torch.where(better, value, best)
        ids = torch.where(better, index + start, ids)
    return ids


@torch.no_grad()
def draft_teacher(head: TargetHead, draft_head: Tensor, final: Tensor) -> Tensor:
    """The target's distribution restricted to the draft vocabulary and renormalised, float32 `[n, N]`.

    Args:
        draft_head: the rows of the target's head that belong to the draft vocabulary, `[N, H]`.
        final: final states before the norm, `[n, H]`.
    """
    normed, weight = head.normed(final), draft_head.to(widened(final.dtype, final.device))
    wide = torch.float64 if final.dtype == torch.float64 else torch.float32
    out = torch.empty(final.shape[0], draft_head.shape[0], dtype=wide, device=final.device)
    block = block_rows(final, draft_head.shape[0])
    for start in range(0, final.shape[0], block):
        part = slice(start, start + block)
        torch.softmax(product(normed[part], weight).to(wide), -1, out=out[part])
    return out


class StepSums:
    """Sums over positions for every draft step; they add up over batches, ratios are taken at the end.

    They stay where they were computed until somebody asks: reading a number from a GPU waits for all of its work.
    """

    NAMES = (
        "loss",
        "loss_rows",  # trained, and the teacher's token is in the draft vocabulary
        "rows",  # trained; a teacher token outside the draft vocabulary counts as wrong
        "correct",
        "prefix_rows",  # trained at this step and at all before
        "prefix_correct",  # of those, right at this step and at all before
        "condition_rows",  # of those in prefix_rows, right at all steps before
    )

    def __init__(self, values: Tensor | None = None) -> None:
        """`values`: float64 `[steps, len(NAMES)]`; None for sums over nothing yet."""
        self._values = values

    def add(self, other: "StepSums") -> None:
        """Add another batch's sums."""
        self._values = other._values if self._values is None or other._values is None else self._values + other._values

    def rows(self) -> list[dict[str, float]]:
        """The sums of every step by name."""
        values = [] if self._values is None else self._values.tolist()
        return [dict(zip(self.NAMES, row, strict=True)) for row in values]

    def report(self) -> list[dict[str, float]]:
        """Of every step: mean loss, accuracy, accuracy of the whole prefix, accuracy given a right prefix."""
        return [
            {
                "loss": row["loss"] / max(1, row["loss_rows"]),
                "acc": row["correct"] / max(1, row["rows"]),
                "full_acc": row["prefix_correct"] / max(1, row["prefix_rows"]),
                "cond_acc": row["prefix_correct"] / max(1, row["condition_rows"]),
            }
            for row in self.rows()
        ]


def unrolled_loss(
    drafter: Drafter,
    batch: Batch,
    states: Sequence[Tensor],
    head: TargetHead,
    draft_head: Tensor,
    decay: float,
) -> tuple[Tensor, StepSums]:
    """`sum_i decay**i * (mean loss over the valid rows of step i)`, and every step's sums for its metrics.

    Logits are computed on rows in the loss only; those of all steps go through the head together. Nothing in here
    waits for a GPU.

    Args:
        batch: packed with the drafter's vocabulary as `draftable`.
        states: from `unroll`, h of every step `[N, H]`.
        draft_head: the target's head, rows of the draft vocabulary, `[draft_vocab, H]`.
    """
    teacher = draft_teacher(head, draft_head, batch.teacher_final)
    rows = [step.rows[step.known] for step in batch.steps]
    source = torch.cat([step.teacher[step.known] for step in batch.steps])
    counts = [row.numel() for row in rows]
    weight = torch.cat([teacher.new_full((n,), decay**i / max(1, n)) for i, n in enumerate(counts)])
    logits = drafter.logits(torch.cat([state[row] for state, row in zip(states, rows, strict=True)]))
    total, row_losses = soft_cross_entropy(logits, teacher, source, weight)
    with torch.no_grad():
        hits = drafter.target_ids(logits.argmax(-1)) == batch.teacher_argmax[source]
        sums = _sums(batch, rows, torch.split(row_losses, counts), torch.split(hits, counts), states[0].shape[0])
    return total, sums


def _sums(
    batch: Batch, rows: Sequence[Tensor], losses: Sequence[Tensor], hits: Sequence[Tensor], queries: int
) -> StepSums:
    trained_all = torch.ones(queries, dtype=torch.bool, device=batch.query_rows.device)
    right_all = trained_all.clone()
    sums: list[Tensor] = []
    for step, row, loss, hit in zip(batch.steps, rows, losses, hits, strict=True):
        trained_all = trained_all & torch.zeros_like(trained_all).index_fill_(0, step.rows, True)
        condition = right_all & trained_all
        right_all = condition & torch.zeros_like(trained_all).index_copy_(0, row, hit)
        wide = loss.double()
        sums += [
            wide.sum(),
            wide.new_full((), row.numel()),
            wide.new_full((), step.rows.numel()),
            *(flags.sum().double() for flags in (hit, trained_all, right_all, condition)),
        ]
    return StepSums(torch.stack(sums).view(len(rows), len(StepSums.NAMES)))
