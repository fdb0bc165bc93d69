"""Where two greedy outputs part, was it a near-tie of the target or an error of the speculative path?

In float32 the outputs with and without speculation have to be equal. In bf16 they part often, since verifying four
tokens at once rounds differently from decoding one; then every first divergence has to be a near-tie: the two tokens'
logits lie closer, in float32, than bf16 rounding can move them. The rounding is measured, not assumed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3ops.bench.parting import first_divergence
from eagle3ops.engines.reference.model import Target


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first token at which two outputs of one prompt differ."""

    prompt: int
    position: int
    token_a: int
    token_b: int
    gap: float
    """Difference of the two tokens' float32 logits of the target at that position."""


def logits_of(target: Target, ids: Sequence[int]) -> Tensor:
    """The target's logits after every token of one text, float32 `[T, V]`."""
    row = torch.tensor([list(ids)], device=target.device)
    final = target.config.num_layers
    states = target.boundaries(row, torch.tensor([len(ids)], device=target.device), [final])
    return target.logits(target.normed(states[0, 0])).float()


def rounding_noise(exact: Target, rounded: Target, texts: Sequence[Sequence[int]]) -> float:
    """How far rounding moves the gap between the two likeliest tokens: the largest change over all positions.

    Args:
        exact: the target in float32.
        rounded: the same target in the dtype that is served.
        texts: token ids of prompts with answers.
    """
    worst = 0.0
    for ids in texts:
        fine, coarse = logits_of(exact, ids), logits_of(rounded, ids)
        top = fine.topk(2, dim=-1).indices
        change = fine.gather(-1, top).diff(dim=-1) - coarse.gather(-1, top).diff(dim=-1)
        worst = max(worst, float(change.abs().max()))
    return worst


def divergences(
    exact: Target, prompts: Sequence[Sequence[int]], a: Sequence[Sequence[int]], b: Sequence[Sequence[int]]
) -> list[Divergence]:
    """First divergences of paired outputs, each with the target's own float32 logit gap there."""
    found = []
    for index, (prompt, left, right) in enumerate(zip(prompts, a, b, strict=True)):
        at = first_divergence(left, right)
        if at is None or at >= min(len(left), len(right)):
            # A clean prefix: one side was cut at its token limit, no token differs.
            continue
        logits = logits_of(exact, [*prompt, *left[:at]])[-1]
        gap = float((logits[left[at]] - logits[right[at]]).abs())
        found.append(Divergence(index, at, left[at], right[at], gap))
    return found
