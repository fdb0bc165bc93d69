"""How many tokens does one verification step yield? Accept statistics, summed from counters and never averaged."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AcceptStats:
    """Counters of speculative decoding over any number of requests.

    Accept length counts tokens per verification step with the bonus token included, so it is 1 where every draft is
    rejected; accept rate is accepted over proposed draft tokens.
    """

    verify_steps: int
    correct_drafts: int
    proposed_drafts: int
    histogram: tuple[int, ...]
    """`histogram[k]`: verification steps in which k drafts were correct."""

    @property
    def accept_length(self) -> float:
        """Tokens per verification step; 1.0 before the first step."""
        return 1.0 + self.correct_drafts / self.verify_steps if self.verify_steps else 1.0

    @property
    def accept_rate(self) -> float:
        """Accepted over proposed draft tokens."""
        return self.correct_drafts / self.proposed_drafts if self.proposed_drafts else 0.0

    @property
    def by_position(self) -> tuple[float, ...]:
        """Chance that draft position i is accepted, given that all before it were: a_1, a_2, ..."""
        return conditional_acceptance(self.histogram)


def conditional_acceptance(histogram: Sequence[float]) -> tuple[float, ...]:
    """`histogram[k]` = steps with k correct drafts -> acceptance of position i given its prefix, `len - 1` values."""
    reached = sum(histogram)
    rates = []
    for count in histogram[:-1]:
        passed = reached - count
        rates.append(passed / reached if reached else 0.0)
        reached = passed
    return tuple(rates)


def combine(parts: Iterable[AcceptStats]) -> AcceptStats:
    """Sum counters; histograms of different length are padded with zeros."""
    steps = correct = proposed = 0
    histogram: list[int] = []
    for part in parts:
        steps += part.verify_steps
        correct += part.correct_drafts
        proposed += part.proposed_drafts
        histogram += [0] * (len(part.histogram) - len(histogram))
        for k, count in enumerate(part.histogram):
            histogram[k] += count
    return AcceptStats(steps, correct, proposed, tuple(histogram))
