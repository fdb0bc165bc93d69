"""Which of two contenders is better beyond noise? Paired by block for speed, by prompt for acceptance."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any, Literal

from eagle3ops.bench.load import LoadResult
from eagle3ops.bench.paired import Ratio, bootstrap, ratio
from eagle3ops.engines.client import Answer

Verdict = Literal["better", "worse", "no difference beyond noise", "not comparable"]


@dataclass(frozen=True, slots=True)
class Difference:
    """Accept length of one less that of another, with its 95 % interval over the prompts."""

    value: float
    low: float
    high: float
    prompts: int


@dataclass(frozen=True, slots=True)
class Duel:
    """Two contenders that were up together.

    Attributes:
        speed: throughput of `one` over that of `other`.
        accept: accept length of `one` less that of `other`; None where either does not speculate.
    """

    one: str
    other: str
    speed: Ratio
    accept: Difference | None

    @property
    def verdict(self) -> Verdict:
        """On the speed of `one`: what is wanted of a drafter."""
        if self.speed.pairs < 2:
            return "not comparable"
        if self.speed.low > 1.0:
            return "better"
        return "worse" if self.speed.high < 1.0 else "no difference beyond noise"

    def as_json(self) -> dict[str, Any]:
        """For the record."""
        accept = None if self.accept is None else asdict(self.accept)
        return {
            "one": self.one,
            "other": self.other,
            "speed": asdict(self.speed),
            "accept_length": accept,
            "verdict": self.verdict,
        }

    @property
    def words(self) -> str:
        """One sentence."""
        speed = f"{self.speed.value:.2f}x ({self.speed.low:.2f} to {self.speed.high:.2f})"
        told = f"{self.one} against {self.other}: {self.verdict}, {speed} in speed"
        if self.accept is None:
            return told
        return f"{told}, accept length {self.accept.value:+.2f} ({self.accept.low:+.2f} to {self.accept.high:+.2f})"


def duels(results: Mapping[str, LoadResult]) -> list[Duel]:
    """Every pair of what was measured together."""
    return [duel(one, results[one], other, results[other]) for one, other in combinations(results, 2)]


def duel(one: str, left: LoadResult, other: str, right: LoadResult) -> Duel:
    """Hold two results of one load against each other.

    Raises:
        ValueError: they are not of one load.
    """
    return Duel(one, other, ratio(left.blocks, right.blocks), accept_difference(left.answers, right.answers))


def accept_difference(one: Sequence[Answer], other: Sequence[Answer], *, seed: int = 0) -> Difference | None:
    """Of paired answers; None where either does not speculate, or no step was verified."""
    counts = [(_counts(a), _counts(b)) for a, b in zip(one, other, strict=True)]
    if not counts or any(a is None or b is None for a, b in counts):
        return None
    known = [(a, b) for a, b in counts if a is not None and b is not None]

    def of(picks: Sequence[int]) -> float:
        left = _length([known[i][0] for i in picks])
        return left - _length([known[i][1] for i in picks])

    low, high = bootstrap(of, len(known), seed=seed)
    return Difference(of(range(len(known))), low, high, len(known))


def _counts(answer: Answer) -> tuple[int, int] | None:
    return None if answer.verify_steps is None else (answer.verify_steps, answer.correct_drafts or 0)


def _length(counts: Sequence[tuple[int, int]]) -> float:
    steps = sum(one for one, _ in counts)
    return 1.0 + sum(correct for _, correct in counts) / steps if steps else 1.0
