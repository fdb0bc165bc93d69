"""Why does the wiring fail: what does each segment really hold? Found by search, not by a list of known mistakes.

Every segment is compared with every boundary of the reference, with the final state after the norm, and with all of
these one token earlier and later. What the segments then hold together is put into one cause, and what mends it.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.wiring.noise import limits

if TYPE_CHECKING:
    from torch import Tensor

SHIFTS = (0, -1, 1)
"""Tokens by which the captured rows may be off: row t holds what the reference has at t + shift."""


@dataclass(frozen=True, slots=True)
class Held:
    """What one segment really holds."""

    boundary: int
    """`num_layers` with `normed` is the final state after the norm."""
    normed: bool = False
    shift: int = 0
    error: float = 0.0
    """Relative error, as in `fingerprint`."""

    def words(self, layers: int) -> str:
        """For people."""
        name = "the final state after the norm" if self.normed else AuxLayers.describe(self.boundary, layers)
        if not self.shift:
            return name
        return (
            f"{name}, {abs(self.shift)} token{'s' * (abs(self.shift) > 1)} {'later' if self.shift > 0 else 'earlier'}"
        )


@dataclass(frozen=True, slots=True)
class Cause:
    """Why, in one word for programs and one sentence for people, and what mends it."""

    kind: str
    """`shifted`, `reordered`, `repeated`, `embedding`, `normed`, `tokens`, `other_layers`, `width`, `unknown`."""
    words: str
    detail: str
    """Segment by segment: what it holds, and what it should."""
    fix: str
    held: tuple[Held | None, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For events and reports."""
        return asdict(self)


def search(
    captured: "Sequence[Tensor]",
    references: "Sequence[Tensor]",
    normed: "Sequence[Tensor]",
    most: float | None = None,
) -> list[Held | None]:
    """What each segment holds, over all probes together; None where nothing comes near enough, or two do.

    Args:
        captured: of each probe `[T, A * H]`.
        references: of each probe the boundaries, `[n + 1, T, H]`.
        normed: of each probe the final state after the norm, `[T, H]`.
        most: relative error up to which something comes near enough; None takes the coarsest noise that is known.
    """
    import torch

    from eagle3ops.wiring.fingerprint import FIRST_POSITION

    hidden = references[0].shape[-1]
    segments = captured[0].shape[-1] // hidden
    candidates = references[0].shape[0] + 1
    total = torch.zeros(segments, len(SHIFTS), candidates, dtype=torch.float64)
    for states, boundaries, final in zip(captured, references, normed, strict=True):
        known = torch.cat((boundaries, final[None])).double()
        scale = known.norm(dim=-1).clamp_min(1e-12)
        rows = states.double().view(-1, segments, hidden)
        count = rows.shape[0]
        for at, shift in enumerate(SHIFTS):
            first, last = FIRST_POSITION + max(0, -shift), count - max(0, shift)
            there = slice(first + shift, last + shift)
            for segment in range(segments):
                apart = (rows[first:last, segment] - known[:, there]).norm(dim=-1) / scale[:, there]
                total[segment, at] += apart.mean(dim=-1)
    total /= len(captured)
    near = limits().error if most is None else most
    return [_nearest(each, near) for each in total]


def _nearest(errors: "Tensor", most: float) -> Held | None:
    """The candidate that is near enough, and far nearer than any other."""
    # What is no number is near nothing; compared as it is, it would be nearest to the first.
    flat = errors.flatten().nan_to_num(nan=math.inf)
    order = flat.argsort().tolist()
    best, second = float(flat[order[0]]), float(flat[order[1]])
    if best > most or second < limits().margin * max(best, 1e-9):
        return None
    at, candidate = divmod(order[0], errors.shape[1])
    last = errors.shape[1] - 1
    normed = candidate == last
    return Held(candidate - 1 if normed else candidate, normed, SHIFTS[at], best)


def explain(trained: AuxLayers, held: Sequence[Held | None]) -> Cause | None:
    """What is wrong with what the segments hold; None where nothing is.

    Args:
        trained: the layers that training used.
        held: from `search`.
    """
    layers, wanted = trained.num_layers, list(trained.boundary)
    told = tuple(held)
    if len(held) != len(wanted):
        words = f"{len(held)} tensors are served, and the drafter was trained on {len(wanted)}"
        return Cause("width", words, "", _write(trained), told)
    sure = [one for one in held if one is not None]
    if len(sure) < len(held):
        return _unknown(trained, held)
    if all(one.boundary == k and not one.normed and not one.shift for one, k in zip(sure, wanted, strict=True)):
        return None
    served = [one.boundary for one in sure]
    lines = "; ".join(
        f"segment {at} holds {one.words(layers)}, and training used {AuxLayers.describe(k, layers)}"
        for at, (one, k) in enumerate(zip(sure, wanted, strict=True))
        if one.boundary != k or one.normed or one.shift
    )
    if any(one.shift for one in sure):
        fix = "put the tokens beside the states as training does: row t of both sides has to be one token"
        return Cause("tokens", "the tokens are not aligned", lines, fix, told)
    if any(one.normed for one in sure):
        return Cause("normed", "a state is taken after the final norm", lines, "take it before the norm", told)
    if sorted(served) == sorted(wanted):
        fix = f"put them side by side as training did, {wanted}; engines hand them over in ascending order"
        return Cause("reordered", "the right layers stand in another order", lines, fix, told)
    if len(set(served)) < len(served):
        return Cause("repeated", "a layer is served twice", lines, _write(trained), told)
    steps = {one - k for one, k in zip(served, wanted, strict=True)}
    if len(steps) == 1:
        step = steps.pop()
        words = f"every layer is off by {step:+d}, as where ids of one convention are read in another"
        return Cause("shifted", words, lines, _write(trained), told)
    if 0 in served and 0 not in wanted:
        return Cause("embedding", "the embedding is served for a layer", lines, _write(trained), told)
    return Cause("other_layers", "other layers are served", lines, _write(trained), told)


def of_features(cause: Cause) -> Cause:
    """The cause in stored features: no engine is to be set otherwise, they are to be made again."""
    fix = "extract the features again, and train again: the drafter learnt from these"
    return replace(cause, words=cause.words.replace("served", "stored"), fix=fix)


def _unknown(trained: AuxLayers, held: Sequence[Held | None]) -> Cause:
    lost = ", ".join(str(at) for at, one in enumerate(held) if one is None)
    words = "no state of this target is served: one of another model or revision, quantised, scaled, or damaged"
    fix = "compare model, revision and quantisation of training and serving"
    return Cause("unknown", words, f"nothing of {trained} is near segment {lost}", fix, tuple(held))


def _write(trained: AuxLayers) -> str:
    """Ids by both conventions, as which one an engine reads depends on class and version."""
    outputs = trained.ids("layer_outputs")
    return (
        f"make the engine capture boundaries {list(trained.boundary)}: ids {outputs} where it counts outputs of layers "
        f"(SGLang for most classes), {list(trained.boundary)} where it counts inputs (vLLM); see eagle3ops layers"
    )
