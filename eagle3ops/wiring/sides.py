"""Data, training, checkpoint and engine of one run: do all four go together? Every check, and one verdict over all.

What has to be asked of a running engine was asked before; nothing here starts or waits for anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3ops.answers import AnswerRow
from eagle3ops.errors import Eagle3opsError
from eagle3ops.wiring.checks import Check
from eagle3ops.wiring.noise import STORED, Limits, coarser, limits
from eagle3ops.wiring.rows import TRAIN_ROWS, Served, Stored, data_checks, without_training
from eagle3ops.wiring.verdict import FEATURES, Outcome, WiringVerdict, judge_states, worst_of

if TYPE_CHECKING:
    from torch import Tensor

    from eagle3ops.eagle3.layers import AuxLayers
    from eagle3ops.engines.reference.model import Target
    from eagle3ops.engines.tokenizer import ChatTokenizer
    from eagle3ops.features import FeatureRow, StoredRow
    from eagle3ops.wiring.cause import Cause

    Kind = FeatureRow | StoredRow

__all__ = ["TRAIN_ROWS", "Judged", "Served", "Stored", "all_boundaries", "judge_all"]

LEAST_FINAL = 5
"""Positions by which a final state is told."""
SAMPLED_TRAIN, SAMPLED_HELDOUT, LEAST_SAMPLED = 16, 4, 16
"""Stored rows from all over the shards that are compared beside the probes, and tokens that each has to have."""
PAIRED_ROWS, PAIRED_TOKENS = 32, 4096
"""Held-out rows, and tokens of them, on which the drafter's own pairing is tried."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict over all four sides."""

    verdict: Outcome
    reason: str
    agreement: float | None
    sides: tuple[WiringVerdict, ...]
    causes: "Mapping[str, Cause]"
    checks: tuple[Check, ...]
    allowed: Mapping[str, Limits] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The record: `verdict.json` but for what every verdict has."""
        return {
            "greedy_agreement": self.agreement,
            "sides": [side.as_dict() for side in self.sides],
            "causes": {side: cause.as_dict() for side, cause in self.causes.items()},
            "checks": [check.as_dict() for check in self.checks],
            "limits": {side: allowed.as_dict() for side, allowed in self.allowed.items()},
        }


def judge_all(
    stored: Stored,
    served: Served,
    *,
    dtype: str,
    device: str,
    least_agreement: float,
    max_error: float | None,
    tokenizer: "ChatTokenizer | None",
    further: Sequence[Check] = (),
) -> Judged:
    """Every check that can be made, and what they come to.

    Args:
        dtype: of the engine, as the pipeline names it; device: likewise.
        least_agreement: see `VerifySpec.min_greedy_agreement`; max_error: see `VerifySpec.max_error`.
        tokenizer: of the served model's folder.
        further: checks that were made elsewhere.

    Raises:
        Eagle3opsError: features, drafter or target cannot be read.
    """
    import torch

    from eagle3ops.engines.reference.model import Target, pick_device
    from eagle3ops.features import FeatureReader
    from eagle3ops.wiring.pairing import behind, check_greedy

    chosen = pick_device(device)
    target = Target.load(stored.target, torch.float32, chosen)
    reader = FeatureReader(stored.features / "heldout")
    wanted = {row.id for row in stored.answers}
    kept = {row.id: row for row in reader.rows() if row.id in wanted}
    train = stored.features / "train"
    if train.is_dir():
        kept |= {row.id: row for row in islice(FeatureReader(train).rows(), TRAIN_ROWS) if row.id in wanted}
    checks = [*data_checks(stored, served, kept, tokenizer), *further]
    of_engine = limits(dtype, chosen.type, most=max_error)
    allowed = {
        FEATURES: coarser(of_engine, limits(reader.header.dtype + STORED, chosen.type, most=max_error))
        if reader.header.dtype != "float32"
        else of_engine,
        served.name: of_engine,
    }
    probes = [row for row in stored.answers if row.split == "heldout"][: len(served.texts)]
    if not probes:
        raise Eagle3opsError(
            "no held-out row was put to the engine, so there is nothing to compare",
            remedy="hold some prompts out (stages.generate.heldout), and generate again",
        )
    sides, causes, final = _fingerprints(stored, served, target, kept, probes, allowed)
    checks.append(final)
    apart = [torch.empty(0)]
    for row in probes:
        if (found := kept.get(row.id)) is None:
            continue
        state = found.final.to(target.device, torch.float32)
        start, text = len(row.prompt_ids), torch.tensor(row.prompt_ids + row.output_ids)[: state.shape[0]]
        if start < len(text):
            logits = target.logits(target.normed(state[start - 1 : -1]))
            apart.append(behind(logits, text[start:].long().to(logits.device)).float().cpu())
    greedy = check_greedy(torch.cat(apart), least_agreement, sampled=stored.temperature)
    checks.append(greedy)
    checks.append(_pairing(stored, target, kept, right=sides[0].passed))
    if why := without_training(stored.answers, kept, there=train.is_dir()):
        checks.append(Check(name="training_rows", between=("data", "training"), verdict="not made", reason=why))
    return _together(sides, causes, checks, allowed, greedy.figures.get("agreement"))


def _fingerprints(
    stored: Stored,
    served: Served,
    target: "Target",
    kept: "Mapping[str, Kind]",
    probes: Sequence[AnswerRow],
    allowed: Mapping[str, Limits],
) -> "tuple[tuple[WiringVerdict, ...], dict[str, Cause], Check]":
    """Verdicts on stored features and engine, why one is no PASS, and the check of the stored final state."""
    from eagle3ops.eagle3.checkpoint import read_drafter_config

    layers = target.config.num_layers
    trained: AuxLayers = read_drafter_config(stored.drafter, layers).aux_layers
    captured: dict[str, list[Tensor]] = {name: [] for name in allowed}
    references, normed, finals = [], [], []

    def refer(ids: Sequence[int]) -> None:
        references.append(all_boundaries(target, ids))
        normed.append(target.normed(references[-1][-1].to(target.device)).float().cpu())

    for row, ids, states in zip(probes, served.texts, served.states, strict=True):
        if (found := kept.get(row.id)) is None:
            raise Eagle3opsError(
                f"the features hold no row {row.id}, which is held out", remedy="extract again from these answers"
            )
        refer(ids)
        captured[served.name].append(states)
        captured[FEATURES].append(found.aux[: len(ids)].float())
        finals.append(found.final[: len(ids)].float())
    longest = max(map(len, served.texts))
    for found in _sampled(stored.features):
        aux, ids = found.aux[:longest].float(), found.token_ids[:longest].tolist()
        refer(ids)
        captured[FEATURES].append(aux)
        finals.append(found.final[:longest].float())
    sides: list[WiringVerdict] = []
    causes: dict[str, Cause] = {}
    for side, states_of in captured.items():
        # The engine was asked for the first of the texts only.
        known, after = references[: len(states_of)], normed[: len(states_of)]
        verdict, cause = judge_states(side, trained, states_of, known, after, allowed[side])
        if cause is not None:
            causes[side] = cause
        sides.append(verdict)
    return tuple(sides), causes, _final(finals, references, normed, allowed[FEATURES], layers)


def _sampled(features: Path) -> "list[Kind]":
    """Stored rows from all over the shards, most of them training's: what is damaged need not come first."""
    from eagle3ops.features import FeatureReader

    found = FeatureReader(features / "heldout").spread(SAMPLED_HELDOUT)
    if (features / "train").is_dir():
        found += FeatureReader(features / "train").spread(SAMPLED_TRAIN)
    return [row for row in found if row.token_ids.numel() >= LEAST_SAMPLED]


def _final(
    finals: "Sequence[Tensor]", references: "Sequence[Tensor]", normed: "Sequence[Tensor]", allowed: Limits, layers: int
) -> Check:
    """What the stored final states are, by those positions of the probes that are kept."""
    import torch

    from eagle3ops.wiring.cause import search
    from eagle3ops.wiring.pairing import check_final

    found = []
    for final, known, after in zip(finals, references, normed, strict=True):
        # Where only those are kept that teach something: the last run of them, without the row's end, which does not.
        there = torch.isfinite(final).all(-1)
        last = int(there.nonzero().max()) + 1 if bool(there.any()) else 0
        gone = (~there[:last]).nonzero().flatten()
        first = int(gone[-1]) + 1 if gone.numel() else 0
        if last - first >= LEAST_FINAL:
            found.append((final[first:last], known[:, first:last], after[first:last]))
    if not found:
        why = "of the probes no final state is kept (stages.verify.probe_tokens reaches no answer)"
        return Check(name="final_state", between=("data", "training"), verdict="not made", reason=why)
    states, boundaries, afters = zip(*found, strict=True)
    (held,) = search(states, boundaries, afters, allowed.unrelated)
    return check_final(held, layers)


def all_boundaries(target: "Target", ids: Sequence[int]) -> "Tensor":
    """Every boundary of the reference for one text, float32 `[n + 1, T, H]` on the CPU."""
    import torch

    row = torch.tensor([list(ids)], device=target.device)
    lengths = torch.tensor([len(ids)], device=target.device)
    return target.boundaries(row, lengths, range(target.config.num_layers + 1))[:, 0].float().cpu()


def _pairing(stored: Stored, target: "Target", kept: "Mapping[str, Kind]", *, right: bool) -> Check:
    """How the drafter was trained, tried on states that are right with the tokens of the answers."""
    import torch

    from eagle3ops.eagle3.checkpoint import load_drafter
    from eagle3ops.features import FeatureRow
    from eagle3ops.wiring.pairing import check_pairing

    between: Any = ("training", "checkpoint")
    if not right:
        why = "the stored states are not what they should be, so the drafter cannot be tried on them"
        return Check(name="pairing", between=between, verdict="not made", reason=why)
    drafter = load_drafter(stored.drafter, target.config.num_layers, torch.float32, target.device)
    rows: list[FeatureRow] = []
    left = PAIRED_TOKENS
    for row in stored.answers:
        found = kept.get(row.id)
        if row.split != "heldout" or found is None or left <= 0 or len(rows) >= PAIRED_ROWS:
            continue
        length = min(left, int(found.token_ids.numel()))
        text = torch.tensor((row.prompt_ids + row.output_ids)[:length])
        mask = torch.arange(len(text)) >= len(row.prompt_ids)
        if bool(mask[2:].any()):
            rows.append(
                FeatureRow(row.id, text, mask, found.aux[: len(text)].float(), found.final[: len(text)].float())
            )
            left -= length
    return check_pairing(drafter, rows, target.embed)


def _together(
    sides: Sequence[WiringVerdict],
    causes: "Mapping[str, Cause]",
    checks: Sequence[Check],
    allowed: Mapping[str, Limits],
    agreement: float | None,
) -> Judged:
    """One verdict, and its reason: what failed, or else what is open and what decides it, or else what was proven."""
    made = [check for check in checks if check.verdict != "not made"]
    outcomes: list[Outcome] = [side.verdict for side in sides]
    outcomes += [check.verdict for check in made if check.verdict != "not made"]
    verdict = worst_of(outcomes)
    reasons = [side.reason for side in sides if side.verdict == verdict]
    told = [check for check in made if check.verdict == verdict]
    if verdict == "PASS":
        reasons += [f"{len(told)} of {len(checks)} further checks pass"]
        reasons += [f"{check.name.replace('_', ' ')} not made: {check.reason}" for check in checks if check not in made]
    else:
        reasons += [f"{check.reason}; {check.fix}" if check.fix else check.reason for check in told]
        reasons += [f"{cause.words}; {cause.fix}" for cause in causes.values() if verdict == "FAIL"]
    if verdict == "UNDECIDED":
        decides = dict.fromkeys(side.decides for side in sides if side.verdict == verdict and side.decides)
        reasons += [f"what would decide it: {words}" for words in decides]
    return Judged(verdict, "; ".join(dict.fromkeys(reasons)), agreement, tuple(sides), causes, tuple(checks), allowed)
