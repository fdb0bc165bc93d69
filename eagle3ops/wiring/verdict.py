"""Do training and serving feed the drafter the same tensors? PASS or FAIL, with the layer that is wrong."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from eagle3ops.eagle3.layers import AuxLayers

if TYPE_CHECKING:
    from eagle3ops.wiring.fingerprint import SegmentMatch

MIN_MARGIN = 5.0
"""The nearest boundary must be this many times nearer than the second; measured on a real engine: 15 to 97."""

MAX_ERROR = 0.1
"""Above this relative error no boundary matches at all; measured for right wiring: 0.006 to 0.021, wrong: 0.23 up."""


@dataclass(frozen=True, slots=True)
class SegmentVerdict:
    """What one segment should hold and what it holds."""

    segment: int
    trained: int
    served: int
    error: float
    margin: float
    runner_up: int
    cosine: float
    passed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class WiringVerdict:
    """The wiring of one side (stored features or a running engine) against the layers that training used."""

    side: str
    passed: bool
    reason: str
    segments: tuple[SegmentVerdict, ...]

    def as_dict(self) -> dict[str, Any]:
        """For events and reports."""
        return asdict(self)


def judge(side: str, trained: AuxLayers, probes: "Sequence[Sequence[SegmentMatch]]") -> WiringVerdict:
    """Compare the boundaries that were matched with those that training used.

    Args:
        side: what was captured, in words: `engine reference over HTTP`, `stored features`.
        trained: the layers in the drafter's own record of its training.
        probes: for each probe text, the segments as matched against the reference.

    Raises:
        ValueError: no probe was given.
    """
    if not probes:
        raise ValueError("a wiring verdict needs at least one probe")
    count = len(probes[0])
    if count != len(trained.boundary):
        reason = f"{side}: {count} segments, but the drafter was trained on {len(trained.boundary)} ({trained})"
        return WiringVerdict(side, False, reason, ())
    segments = tuple(_judge_segment(trained, index, [probe[index] for probe in probes]) for index in range(count))
    wrong = [segment for segment in segments if not segment.passed]
    if wrong:
        reason = f"{side}: " + "; ".join(segment.reason for segment in wrong)
    else:
        # Rounded down: a margin of 16.7 is not "at least 17".
        nearest = math.floor(min(min(segment.margin for segment in segments), 1e6))
        reason = (
            f"{side}: {trained}, as in training; the next best boundary is at least {nearest} times "
            f"farther on {len(probes)} probes"
        )
    return WiringVerdict(side, not wrong, reason, segments)


def _judge_segment(trained: AuxLayers, index: int, matches: "Sequence[SegmentMatch]") -> SegmentVerdict:
    expected = trained.boundary[index]
    # A single dissenting probe is enough to fail: wiring does not depend on the text.
    worst = next((match for match in matches if match.boundary != expected), max(matches, key=lambda m: m.error))
    margin = min(match.margin for match in matches)
    layers = trained.num_layers
    name = f"segment {index}"
    if worst.error > MAX_ERROR:
        reason = (
            f"{name} matches no boundary of the target (nearest: {AuxLayers.describe(worst.boundary, layers)}, "
            f"relative error {worst.error:.3f}); training used {AuxLayers.describe(expected, layers)}"
        )
    elif worst.boundary != expected:
        reason = (
            f"{name} was trained on {AuxLayers.describe(expected, layers)}, "
            f"but {AuxLayers.describe(worst.boundary, layers)} is served"
        )
    elif margin < MIN_MARGIN:
        reason = (
            f"{name} is ambiguous: {AuxLayers.describe(expected, layers)} is only {margin:.1f} times nearer than "
            f"{AuxLayers.describe(worst.runner_up, layers)} (at least {MIN_MARGIN:.0f} are needed)"
        )
    else:
        reason = ""
    return SegmentVerdict(
        segment=index,
        trained=expected,
        served=worst.boundary,
        error=fmean(match.error for match in matches),
        margin=margin,
        runner_up=worst.runner_up,
        cosine=fmean(match.cosine for match in matches),
        passed=not reason,
        reason=reason,
    )
