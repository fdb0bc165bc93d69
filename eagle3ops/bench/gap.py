"""Does an engine accept as many drafts as training predicted, and if not, from which draft position on?

Predicted is the renewal walk over held-out answers; served are counters of requests. A gap is an alarm only where it is
larger than what is allowed and beyond noise. Verification steps of one answer are alike (an easy passage is easy for
several steps), so intervals are widened by the design effect that the answers themselves show (Kish, 1965); those of
the rates are Newcombe's hybrid score intervals (1998), which hold at 0 and 1 as well.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import exp, log, sqrt
from statistics import NormalDist
from typing import Any, Literal

from eagle3ops.bench.accept import AcceptStats, combine

CONFIDENCE = 0.95
Kind = Literal["as predicted", "short", "above", "unclear"]
"""short, above: the alarm. unclear: more than is allowed, but too few steps to tell it from noise."""


@dataclass(frozen=True, slots=True)
class Position:
    """One draft position: acceptance given that all drafts before it were accepted."""

    position: int
    """From 1 on."""
    served: float
    predicted: float
    low: float
    """Of `served - predicted`; all positions' intervals hold together at `CONFIDENCE` (Bonferroni)."""
    high: float
    tokens: float
    """What this position adds to the accept length, or takes from it; over all positions this is the whole gap."""

    @property
    def beyond_noise(self) -> bool:
        """The interval leaves 0 out."""
        return self.low > 0.0 or self.high < 0.0


@dataclass(frozen=True, slots=True)
class Gap:
    """Served against predicted."""

    kind: Kind
    served: float
    """Accept length: tokens per verification step, the bonus token included."""
    predicted: float
    relative: float
    """Served over predicted, less one."""
    low: float
    """Of `relative`, at `CONFIDENCE`."""
    high: float
    allowed: float
    start: int | None
    """The first draft position that differs beyond noise, in the direction of the gap; None where none does."""
    positions: tuple[Position, ...]
    """Empty where the engine reports no histogram."""

    @property
    def alarm(self) -> bool:
        """Whether somebody should look."""
        return self.kind in ("short", "above")

    @property
    def words(self) -> str:
        """Size and start, in one sentence."""
        told = (
            f"served {self.served:.3f} against {self.predicted:.3f} predicted ({self.relative:+.1%}, "
            f"{CONFIDENCE:.0%} interval {self.low:+.1%} to {self.high:+.1%}, {self.allowed:.0%} allowed)"
        )
        if self.kind == "unclear":
            return f"{told}: within noise; more prompts (stages.bench.accept_prompts) would tell"
        at = next((one for one in self.positions if one.position == self.start), None)
        if not self.alarm:
            late = f"; draft position {at.position} differs beyond noise" if at is not None else ""
            return told + late
        if at is None:
            return f"{told}; no single draft position differs beyond noise" if self.positions else told
        return (
            f"{told}; it starts at draft position {at.position}: {at.served:.1%} accepted there, {at.predicted:.1%} "
            f"predicted ({at.low:+.1%} to {at.high:+.1%} points), which makes {at.tokens:+.2f} of the "
            f"{self.served - self.predicted:+.2f} tokens"
        )

    def as_json(self) -> dict[str, Any]:
        """For `bench.json`."""
        return asdict(self) | {"alarm": self.alarm, "words": self.words}


def hold_against(predicted: Sequence[int], answers: Sequence[AcceptStats], allowed: float) -> Gap:
    """Compare.

    Args:
        predicted: `[k]` = verification steps of the walk with k correct drafts.
        answers: counters of each served answer.
        allowed: relative gap that is no alarm.

    Raises:
        ValueError: one of the two holds no verification step.
    """
    total = combine(answers)
    if not total.verify_steps or not sum(predicted):
        raise ValueError("no verification steps to compare")
    walked = AcceptStats(sum(predicted), sum(k * n for k, n in enumerate(predicted)), 0, tuple(predicted))
    relative = total.accept_length / walked.accept_length - 1.0
    low, high = _relative_interval(walked, answers, total)
    kind: Kind = "as predicted"
    if abs(relative) > allowed:
        kind = "unclear" if low <= 0.0 <= high else "short" if relative < 0 else "above"
    positions = _positions(walked, answers, total)
    sign = 1.0 if relative > 0 else -1.0
    start = next(
        (one.position for one in positions if one.beyond_noise and (one.served - one.predicted) * sign > 0), None
    )
    return Gap(kind, total.accept_length, walked.accept_length, relative, low, high, allowed, start, positions)


def _relative_interval(walked: AcceptStats, answers: Sequence[AcceptStats], total: AcceptStats) -> tuple[float, float]:
    """Of served over predicted, less one, by the delta method on the logarithm."""
    mean = walked.correct_drafts / walked.verify_steps
    spread = sum(n * (k - mean) ** 2 for k, n in enumerate(walked.histogram)) / walked.verify_steps
    independent = spread / walked.verify_steps
    clustered = _ratio_variance([(one.correct_drafts, one.verify_steps) for one in answers])
    # The walk keeps no answers apart; its steps hang together as those that were served.
    alike = max(1.0, clustered * total.verify_steps / spread) if spread else 1.0
    error = sqrt(
        max(clustered, spread / total.verify_steps) / total.accept_length**2
        + independent * alike / walked.accept_length**2
    )
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    middle = log(total.accept_length / walked.accept_length)
    return exp(middle - z * error) - 1.0, exp(middle + z * error) - 1.0


def _positions(walked: AcceptStats, answers: Sequence[AcceptStats], total: AcceptStats) -> tuple[Position, ...]:
    count = min(len(walked.histogram), len(total.histogram)) - 1
    if count < 1:
        return ()
    z = NormalDist().inv_cdf(1.0 - (1.0 - CONFIDENCE) / (2 * count))
    served, predicted = total.by_position[:count], walked.by_position[:count]
    found, before = [], _length(predicted)
    for at in range(count):
        parts = [(sum(one.histogram[at + 1 :]), sum(one.histogram[at:])) for one in answers]
        reached, walked_to = sum(n for _, n in parts), sum(walked.histogram[at:])
        if not reached or not walked_to:
            break
        effect = _design_effect(parts, served[at])
        low, high = _difference(served[at], reached / effect, predicted[at], walked_to / effect, z)
        after = _length((*served[: at + 1], *predicted[at + 1 :]))
        found.append(Position(at + 1, served[at], predicted[at], low, high, after - before))
        before = after
    return tuple(found)


def _length(rates: Sequence[float]) -> float:
    """Accept length of a chain with these conditional acceptances."""
    length, reached = 1.0, 1.0
    for rate in rates:
        reached *= rate
        length += reached
    return length


def _ratio_variance(parts: Sequence[tuple[int, int]]) -> float:
    """Variance of sum(a) / sum(b) over answers that were drawn one by one (Cochran, 1977, 6.4)."""
    whole, count = sum(b for _, b in parts), len(parts)
    if count < 2 or not whole:
        return 0.0
    ratio = sum(a for a, _ in parts) / whole
    return sum((a - ratio * b) ** 2 for a, b in parts) / whole**2 * count / (count - 1)


def _design_effect(parts: Sequence[tuple[int, int]], rate: float) -> float:
    """How many times wider in variance the rate is than that of independent steps; at least 1."""
    independent = rate * (1.0 - rate) / sum(b for _, b in parts)
    return max(1.0, _ratio_variance(parts) / independent) if independent else 1.0


def _difference(one: float, n: float, other: float, m: float, z: float) -> tuple[float, float]:
    """Newcombe's interval of `one - other`, rates of n and m trials."""
    (a, b), (c, d) = _wilson(one, n, z), _wilson(other, m, z)
    middle = one - other
    return middle - sqrt((one - a) ** 2 + (d - other) ** 2), middle + sqrt((b - one) ** 2 + (other - c) ** 2)


def _wilson(rate: float, n: float, z: float) -> tuple[float, float]:
    centre, half = rate + z * z / (2 * n), z * sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)
