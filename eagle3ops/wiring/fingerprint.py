"""Which boundaries of the target does a captured tensor hold? Matched by value against a reference, per segment.

A drafter of three aux layers reads `[T, 3H]`, three segments of H. Each segment is compared with every boundary of the
reference model for the same token ids. Relative error decides, not cosine: on a real engine a wrong neighbour
reached a cosine of 0.97, while the right boundary was 15 to 97 times nearer than the second best by relative error.
Position 0 is an attention sink with a norm two orders of magnitude above the rest and is left out of every figure.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

FIRST_POSITION = 1
"""Statistics start here: position 0 is the attention sink."""


@dataclass(frozen=True, slots=True)
class SegmentMatch:
    """One segment of a captured tensor and the boundary whose values it holds."""

    segment: int
    boundary: int
    """The boundary that is nearest by relative error."""
    error: float
    """Mean over positions of |captured - reference| / |reference| (L2 over the hidden dimension)."""
    cosine: float
    """Mean cosine with the nearest boundary."""
    runner_up: int
    """The second nearest boundary."""
    runner_up_error: float
    norm: float
    """Mean L2 norm of the captured vectors."""
    first_values: tuple[float, ...]
    """First values of the last position, to be compared by eye with another tool's print-out."""
    errors: tuple[float, ...] = ()
    """Relative error to every boundary."""

    def error_of(self, boundary: int) -> float:
        """Relative error to one boundary; infinite where it was not kept, or there is no such boundary."""
        if 0 <= boundary < len(self.errors):
            return self.errors[boundary]
        known = {self.runner_up: self.runner_up_error, self.boundary: self.error}
        return known.get(boundary, float("inf"))

    @property
    def margin(self) -> float:
        """How many times farther the second best boundary is."""
        return self.runner_up_error / self.error if self.error > 0 else float("inf")


def match_segments(captured: Tensor, reference: Tensor) -> list[SegmentMatch]:
    """Match every segment of `captured` against every boundary of `reference`.

    Args:
        captured: `[T, A * H]`, what the drafter was fed, or what is stored, for some token ids.
        reference: `[n + 1, T, H]`, the reference model's boundaries for the same ids.

    Raises:
        ValueError: the shapes do not fit each other, or fewer than two positions are left to compare.
    """
    boundaries, positions, hidden = reference.shape
    if captured.ndim != 2 or captured.shape[0] != positions or captured.shape[1] % hidden:
        raise ValueError(
            f"captured states have the shape {list(captured.shape)}; expected [{positions}, A x {hidden}] for a target "
            f"of hidden size {hidden} and {positions} tokens"
        )
    if positions - FIRST_POSITION < 2:
        raise ValueError(f"a fingerprint needs at least {FIRST_POSITION + 2} tokens, got {positions}")
    if not torch.isfinite(captured).all():
        raise ValueError("captured states hold NaN or infinite values")
    segments = captured[FIRST_POSITION:].double().view(positions - FIRST_POSITION, -1, hidden)  # [T', A, H]
    known = reference[:, FIRST_POSITION:].double()  # [n + 1, T', H]
    scale = known.norm(dim=-1).clamp_min(1e-12)
    matches = []
    for index in range(segments.shape[1]):
        values = segments[:, index]
        error = ((values - known).norm(dim=-1) / scale).mean(dim=-1)  # [n + 1]
        order = error.argsort().tolist()
        best, second = order[0], order[1] if boundaries > 1 else order[0]
        cosine = torch.nn.functional.cosine_similarity(values, known[best], dim=-1).mean()
        matches.append(
            SegmentMatch(
                segment=index,
                boundary=best,
                error=float(error[best]),
                cosine=float(cosine),
                runner_up=second,
                runner_up_error=float(error[second]),
                norm=float(values.norm(dim=-1).mean()),
                first_values=tuple(round(float(x), 5) for x in values[-1, :5]),
                errors=tuple(error.tolist()),
            )
        )
    return matches


def greedy_agreement(predicted: Tensor, following: Tensor) -> float:
    """Share of positions whose greedy token equals the token that follows: proof of the final state, norm and head.

    Args:
        predicted: argmax of the head over the normed final states, `[T]`.
        following: the tokens that the engine produced there, `[T]`.
    """
    if predicted.shape != following.shape or predicted.numel() == 0:
        raise ValueError(f"cannot compare {list(predicted.shape)} predictions with {list(following.shape)} tokens")
    return float((predicted == following).double().mean())
