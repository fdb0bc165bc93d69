"""Do training and serving feed the drafter the same tensors? PASS, FAIL or UNDECIDED, with the layer that is wrong."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.errors import Eagle3opsError
from eagle3ops.wiring.cause import Cause, explain, of_features, search
from eagle3ops.wiring.noise import Limits, limits

if TYPE_CHECKING:
    from torch import Tensor

    from eagle3ops.wiring.fingerprint import SegmentMatch

MIN_MARGIN = limits().margin
"""The nearest boundary must be this many times nearer than the second."""

MAX_ERROR = limits().error
"""Above this relative error a state is no sure match, in the coarsest dtype that was measured."""

Outcome = Literal["PASS", "FAIL", "UNDECIDED"]
FEATURES = "stored features"
"""The side of what training read."""
WORST: tuple[Outcome, ...] = ("FAIL", "UNDECIDED", "PASS")


def worst_of(outcomes: "Sequence[Outcome]") -> Outcome:
    """What several come to together: one FAIL fails all, and one that is undecided leaves all so; none is undecided."""
    return min(outcomes, key=WORST.index, default="UNDECIDED")


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
    verdict: Outcome = "PASS"
    decides: str = ""
    """What would decide it, where it is UNDECIDED."""


@dataclass(frozen=True, slots=True)
class WiringVerdict:
    """The wiring of one side (stored features or a running engine) against the layers that training used."""

    side: str
    passed: bool
    reason: str
    segments: tuple[SegmentVerdict, ...]
    verdict: Outcome = "PASS"
    decides: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For events and reports."""
        return asdict(self)

    def settled(self, cause: Cause | None) -> "WiringVerdict":
        """With what the search found: what is UNDECIDED by the boundaries alone is FAIL where each segment is known."""
        if self.verdict != "UNDECIDED" or cause is None or cause.kind == "unknown":
            return self
        return replace(self, verdict="FAIL", decides="", reason=f"{self.side}: {cause.words}")


def judge_states(
    side: str,
    trained: AuxLayers,
    captured: "Sequence[Tensor]",
    references: "Sequence[Tensor]",
    normed: "Sequence[Tensor]",
    allowed: Limits,
) -> "tuple[WiringVerdict, Cause | None]":
    """The verdict on what was captured, and the cause where it is no PASS and one is known.

    Args:
        side, trained, allowed: see `judge`.
        captured: of each probe `[T, A * H]`.
        references: of each probe the boundaries, `[n + 1, T, H]`.
        normed: of each probe the final state after the norm, `[T, H]`.

    Raises:
        Eagle3opsError: they cannot be compared: other shapes, too few tokens, values that are no numbers.
    """
    from eagle3ops.wiring.fingerprint import match_segments

    hidden = references[0].shape[-1] if references else 0
    width = next((states.shape[-1] for states in captured if hidden and states.shape[-1] % hidden), None)
    if width is not None:
        reason = f"{side}: {width} numbers a token, which is no multiple of the target's {hidden}"
        return WiringVerdict(side, False, reason, (), "FAIL"), None
    try:
        matches = [match_segments(states, known) for states, known in zip(captured, references, strict=True)]
        verdict = judge(side, trained, matches, allowed)
    except ValueError as error:
        raise Eagle3opsError(
            f"{side}: {error}",
            remedy="nothing was compared: look into the engine's log, or extract the features again",
        ) from error
    if verdict.passed:
        return verdict, None
    cause = explain(trained, search(captured, references, normed, allowed.unrelated))
    if cause is not None and side == FEATURES:
        cause = of_features(cause)
    return verdict.settled(cause), cause


def judge(
    side: str, trained: AuxLayers, probes: "Sequence[Sequence[SegmentMatch]]", allowed: Limits | None = None
) -> WiringVerdict:
    """Compare the boundaries that were matched with those that training used.

    Args:
        side: what was captured, in words: `engine reference over HTTP`, `stored features`.
        trained: the layers in the drafter's own record of its training.
        probes: for each probe text, the segments as matched against the reference.
        allowed: noise that was measured for the dtype and device of this side; None takes the coarsest known.

    Raises:
        ValueError: no probe was given, or they do not hold the same number of segments.
    """
    if not probes:
        raise ValueError("a wiring verdict needs at least one probe")
    allowed = limits() if allowed is None else allowed
    counts = {len(probe) for probe in probes}
    if len(counts) > 1:
        raise ValueError(f"the probes hold different numbers of segments: {sorted(counts)}")
    (count,) = counts
    if count != len(trained.boundary):
        reason = f"{side}: {count} segments, but the drafter was trained on {len(trained.boundary)} ({trained})"
        return WiringVerdict(side, False, reason, (), "FAIL")
    segments = tuple(
        _judge_segment(trained, index, [probe[index] for probe in probes], allowed) for index in range(count)
    )
    outcome = worst_of([segment.verdict for segment in segments])
    decides = ""
    if outcome == "PASS":
        # Rounded down: a margin of 16.7 is not "at least 17".
        nearest = math.floor(min(min(segment.margin for segment in segments), 1e6))
        reason = (
            f"{side}: {trained}, as in training; the next best boundary is at least {nearest} times "
            f"farther on {len(probes)} probes"
        )
    else:
        told = [segment for segment in segments if segment.verdict == outcome]
        if side == FEATURES:
            told = [replace(segment, reason=_of_features(trained, segment)) for segment in told]
        reason = f"{side}: " + "; ".join(segment.reason for segment in told)
        decides = "; ".join(dict.fromkeys(segment.decides for segment in told if segment.decides))
    return WiringVerdict(side, outcome == "PASS", reason, segments, outcome, decides)


def _of_features(trained: AuxLayers, segment: SegmentVerdict) -> str:
    """Training read what is stored: where that is another layer, it is the record that is wrong about it."""
    if segment.verdict != "FAIL" or segment.served == segment.trained or "matches no boundary" in segment.reason:
        return segment.reason
    recorded, held = (AuxLayers.describe(k, trained.num_layers) for k in (segment.trained, segment.served))
    return f"segment {segment.segment} is recorded as {recorded}, but {held} is stored"


def _judge_segment(
    trained: AuxLayers, index: int, matches: "Sequence[SegmentMatch]", allowed: Limits
) -> SegmentVerdict:
    expected = trained.boundary[index]
    # A single dissenting probe is enough to fail: wiring does not depend on the text.
    told = [(*_judge_probe(trained, index, match, allowed), match) for match in matches]
    outcome, reason, decides, worst = min(told, key=lambda one: (WORST.index(one[0]), -one[3].error))
    return SegmentVerdict(
        segment=index,
        trained=expected,
        served=worst.boundary,
        error=fmean(match.error for match in matches),
        margin=min(match.margin for match in matches),
        runner_up=worst.runner_up,
        cosine=fmean(match.cosine for match in matches),
        passed=outcome == "PASS",
        reason=reason,
        verdict=outcome,
        decides=decides,
    )


def _judge_probe(trained: AuxLayers, index: int, match: "SegmentMatch", allowed: Limits) -> tuple[Outcome, str, str]:
    """One text: the outcome, why, and what would decide it."""
    expected, layers = trained.boundary[index], trained.num_layers
    name, wanted = f"segment {index}", AuxLayers.describe(expected, layers)
    nearest = AuxLayers.describe(match.boundary, layers)
    # Asked so that what is no number fails, as it would not where it is compared the other way round.
    if not match.error < allowed.unrelated:
        reason = (
            f"{name} matches no boundary of the target (nearest: {nearest}, relative error {match.error:.3f}); "
            f"training used {wanted}"
        )
        return "FAIL", reason, ""
    if match.boundary != expected:
        apart = match.error_of(expected) / match.error if match.error > 0 else math.inf
        if apart >= allowed.margin:
            return "FAIL", f"{name} was trained on {wanted}, but {nearest} is served", ""
        reason = (
            f"{name} is ambiguous: {wanted}, on which it was trained, is only {apart:.1f} times farther than {nearest} "
            f"(at least {allowed.margin:.1f} are needed to tell)"
        )
        return "UNDECIDED", reason, MORE_PROBES
    if match.margin < allowed.margin:
        reason = (
            f"{name} is ambiguous: {wanted} is only {match.margin:.1f} times nearer than "
            f"{AuxLayers.describe(match.runner_up, layers)} (at least {allowed.margin:.1f} are needed)"
        )
        return "UNDECIDED", reason, MORE_PROBES
    if match.error > allowed.error:
        reason = (
            f"{name} is nearest to {wanted}, as in training, but with a relative error of {match.error:.3f}, more than "
            f"the noise that is known: {allowed.source} is {allowed.error:.3g}"
        )
        return "UNDECIDED", reason, MEASURE
    return "PASS", "", ""


MORE_PROBES = (
    "verify in float32 (engine.dtype), and raise stages.verify.probes and probe_tokens; if it stays so, the layers of "
    "this target hardly change anything there"
)
MEASURE = (
    "measure how far this engine moves where its wiring is known to be right (benchmarks/wiring_noise.py), and set "
    "stages.verify.max_error to what it shows; or verify in float32; other weights, another revision or quantisation "
    "show like this too"
)
