"""Which points go on? Successive halving: more prompts for fewer points, from rung to rung.

Jamieson and Talwalkar, 2016: all points start on a small budget, the best 1/eta of them go on with eta times as much.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from eagle3ops.bench.paired import Ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Halving:
    """How the budget grows and the field shrinks."""

    first: int = 8
    """Pairs that every point gets at the first rung."""
    eta: int = 2
    rungs: int = 3
    by_rank: bool = True
    """False: a point is dropped only where its interval lies below those of all that go on."""

    def pairs(self, rung: int) -> int:
        """Pairs a point gets at a rung, counted from 0."""
        return int(self.first * self.eta**rung)

    def keepers(self, points: int) -> int:
        """How many of so many points go on for their rank."""
        return max(1, math.ceil(points / self.eta)) if points else 0

    def field_from(self, rung: int, points: int) -> list[int]:
        """How many points each rung from this one on has, if none fails and each is dropped for its rank."""
        sizes = []
        for _ in range(rung, self.rungs):
            sizes.append(points)
            points = self.keepers(points)
        return sizes


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of one point after a rung."""

    label: str
    place: int
    """1 is the best."""
    kept: bool
    why: str


def decide(estimates: Mapping[str, Ratio], halving: Halving) -> list[Decision]:
    """Who goes on after a rung, the best first.

    Args:
        estimates: for each point that is still in the race, its speed-up over the baseline so far.
    """
    ranked = sorted(estimates, key=lambda label: (-estimates[label].value, label))
    keep = halving.keepers(len(ranked))
    bar = min((estimates[label].low for label in ranked[:keep]), default=0.0)
    decisions = []
    for place, label in enumerate(ranked, start=1):
        ratio = estimates[label]
        if place <= keep:
            decisions.append(Decision(label, place, True, f"place {place} of {len(ranked)}"))
        elif ratio.high < bar:
            why = f"its upper bound {ratio.high:.2f} lies below {bar:.2f}, the lowest bound of those that go on"
            decisions.append(Decision(label, place, False, why))
        elif halving.by_rank:
            decisions.append(Decision(label, place, False, f"place {place} of {len(ranked)}, {keep} go on"))
        else:
            decisions.append(Decision(label, place, True, f"place {place} of {len(ranked)}, but not beyond noise"))
    return decisions
