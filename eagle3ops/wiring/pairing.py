"""Is the final state the right one, and does each state stand beside the right token, in the features and in training?

The drafter reads the state of token t together with the embedding of token t + 1, and proposes token t + 2. A trainer
that pairs them otherwise makes a drafter that no engine feeds as it was taught.
"""

from collections.abc import Callable, Sequence
from math import sqrt
from typing import TYPE_CHECKING, Any

from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.wiring.cause import Held
from eagle3ops.wiring.checks import Check, counted
from eagle3ops.wiring.noise import NEAR_TIE, greedy_wrong

if TYPE_CHECKING:
    from torch import Tensor

    from eagle3ops.eagle3.drafter import Drafter
    from eagle3ops.eagle3.training_data import Row

PAIRINGS = (1, 0, 2)
"""Token t + this stands beside the state of token t; 1 is right."""
SURE = 3.0
"""Standard errors by which another pairing has to be better, or the right one has to be better than all others."""


def check_final(held: Held | None, layers: int) -> Check:
    """Whether the stored final state is that before the norm, of the same token.

    Args:
        held: what `cause.search` finds in it; None where nothing is near.
    """
    between: Any = ("data", "training")
    figures = {} if held is None else {"boundary": held.boundary, "normed": held.normed, "shift": held.shift,
                                       "error": held.error}  # fmt: skip
    if held is None:
        return Check(
            name="final_state", between=between, verdict="UNDECIDED", kind="unknown_final", figures=figures,
            reason="the stored final state is near no state of this target, before or after the norm, or near two",
            fix="extract the features again from these weights",
        )  # fmt: skip
    if held.normed and not held.shift:
        return Check(
            name="final_state", between=between, verdict="FAIL", kind="post_norm", figures=figures,
            reason="the final state is stored after the norm, and training norms it again: it teaches other logits",
            fix="store it before the final norm (boundary n): hidden_states[n] of Hugging Face is after it",
        )  # fmt: skip
    if held.shift:
        return Check(
            name="final_state", between=between, verdict="FAIL", kind="final_shifted", figures=figures,
            reason=f"row t holds {held.words(layers)}: teacher and tokens are not aligned",
            fix="keep each state in the row of its own token, then extract again",
        )  # fmt: skip
    if held.boundary != layers:
        return Check(
            name="final_state", between=between, verdict="FAIL", kind="other_final", figures=figures,
            reason=f"the final state is {held.words(layers)}, not {AuxLayers.describe(layers, layers)}",
            fix="store the output of the last layer, before the final norm",
        )  # fmt: skip
    reason = f"the final state is that before the norm (relative error {held.error:.1e})"
    return Check(name="final_state", between=between, verdict="PASS", reason=reason, figures=figures)


def behind(logits: "Tensor", tokens: "Tensor") -> "Tensor":
    """By how much the logit of each token is below the highest, `[T]`; 0 where it is the likeliest.

    Args:
        logits: `[T, V]`, of the stored final states; tokens: `[T]`, what the engine said there.
    """
    return logits.max(-1).values - logits.gather(-1, tokens[:, None])[:, 0]


def check_greedy(apart: "Tensor", least: float, *, sampled: float = 0.0) -> Check:
    """Whether final state, norm and head predict the engine's own greedy tokens.

    Args:
        apart: of every token of the answers, see `behind`; NaN where the state before it is not kept.
        least: share that passes.
        sampled: the temperature of the answers: of sampled ones nobody expects the likeliest token.
    """
    between: Any = ("data", "engine")
    if sampled > 0:
        reason = f"the answers were sampled (temperature {sampled:g}), so the likeliest token is not to be expected"
        return Check(name="greedy", between=between, verdict="not made", reason=reason)
    if not apart.numel():
        return Check(name="greedy", between=between, verdict="not made", reason="no answer is stored")
    # Of states that were not kept nothing is predicted. As they are they would count as right: NaN is not above 0.
    apart = apart[apart.isfinite()]
    count = int(apart.numel())
    if not count:
        return Check(name="greedy", between=between, verdict="not made", reason="no final state of an answer is kept")
    missed = apart > 0
    misses = int(missed.sum())
    ties = int((apart[missed] < NEAR_TIE).sum())
    share = 1 - misses / count
    figures = {"agreement": share, "tokens": count, "misses": misses, "near_ties": ties}
    told = f"stored final states predict {share:.1%} of the engine's own greedy tokens ({count:,}"
    told += f"; of {counted(misses, 'wrong one')} {ties:,} are near-ties)" if misses else ")"
    if share >= least:
        return Check(name="greedy", between=between, verdict="PASS", reason=told, figures=figures)
    # What chance adds or takes away at so few tokens.
    high = share + SURE * sqrt(max(share * (1 - share), 1 / count) / count)
    if high < greedy_wrong():
        return Check(
            name="greedy", between=between, verdict="FAIL", kind="not_greedy", figures=figures,
            reason=f"{told}, at least {least:.0%} expected: wrong final state, norm or head",
            fix="compare the target's fingerprint between extraction and serving, then extract again",
        )  # fmt: skip
    return Check(
        name="greedy", between=between, verdict="UNDECIDED", kind="few_greedy", figures=figures,
        reason=f"{told}, fewer than the {least:.0%} expected, and more than the {greedy_wrong():.0%} below which it "
        "is wrong",
        fix="compare more tokens (more held-out prompts), or serve in float32; quantised weights show like this too",
    )  # fmt: skip


def check_pairing(drafter: "Drafter", rows: "Sequence[Row]", embed: "Callable[[Tensor], Tensor]") -> Check:
    """With which token beside each state the drafter proposes best: that is how it was trained.

    Args:
        rows: held-out rows whose aux states are right, with the tokens of the answers.
        embed: the target's embedding.
    """
    between: Any = ("training", "checkpoint")
    hits: dict[int, int] = {}
    total = 0
    for pairing in PAIRINGS:
        hits[pairing], total = _hits(drafter, rows, embed, pairing)
    if not total:
        return Check(name="pairing", between=between, verdict="not made", reason="no held-out row is long enough")
    shares = {pairing: count / total for pairing, count in hits.items()}
    figures = {"tokens": total, "right": shares[1], "same_token": shares[0], "two_ahead": shares[2]}
    other = max((0, 2), key=lambda each: shares[each])
    pooled = (shares[1] + shares[other]) / 2
    error = sqrt(max(2 * pooled * (1 - pooled), 1 / total) / total)
    gap = shares[1] - shares[other]
    if gap > SURE * error:
        reason = (
            f"the drafter proposes {shares[1]:.1%} rightly with token t + 1 beside the state of token t, as engines "
            f"feed it, and {shares[other]:.1%} with another"
        )
        return Check(name="pairing", between=between, verdict="PASS", reason=reason, figures=figures)
    if gap < -SURE * error:
        beside = "token t itself" if other == 0 else "token t + 2"
        return Check(
            name="pairing", between=between, verdict="FAIL", kind="pairing", figures=figures,
            reason=f"the drafter was trained with {beside} beside the state of token t: so it proposes "
            f"{shares[other]:.1%} rightly, and {shares[1]:.1%} with token t + 1, as engines feed it",
            fix="shift the token ids left by one against the states, once, and train again",
        )  # fmt: skip
    reason = (
        f"the drafter proposes too little rightly to tell how it was trained ({shares[1]:.1%} of {total:,} tokens; "
        f"{shares[other]:.1%} with another token beside the state)"
    )
    return Check(name="pairing", between=between, verdict="not made", reason=reason, figures=figures)


def _hits(
    drafter: "Drafter", rows: "Sequence[Row]", embed: "Callable[[Tensor], Tensor]", pairing: int
) -> tuple[int, int]:
    """Right proposals, and positions, where token t + `pairing` stands beside the state of token t."""
    import torch

    from eagle3ops.eagle3.packing import Document, pack, trained_positions
    from eagle3ops.eagle3.ttt import unroll

    weight = drafter.fc.weight
    hits = total = 0
    with torch.no_grad():
        for row in rows:
            positions = trained_positions(row.loss_mask, 0)
            # A row is packed with the tokens that its pairing puts beside the states; of those beyond its end is none.
            positions = positions[positions + 2 < row.token_ids.numel()]
            tokens = row.token_ids.long()
            moved = tokens.roll(1 - pairing)
            argmax = torch.zeros_like(tokens)
            document = Document(moved, row.loss_mask, row.aux.to(weight.dtype), row.final.to(weight.dtype), argmax)
            batch = pack([document], 1, weight.device)
            if batch is None:
                continue
            hidden = unroll(drafter, batch, embed, steps=1)[0]
            proposed = drafter.target_ids(drafter.logits(hidden).argmax(-1)).cpu()
            hits += int((proposed[: len(positions)] == tokens[positions + 2]).sum())
            total += len(positions)
    return hits, total
