"""Given how a run is wired and what verify says of it, what should a person do?"""

from collections.abc import Mapping, Sequence
from typing import Any

_WRITTEN = {
    "boundary": "boundaries {} (EAGLE, vLLM, speculators)",
    "layer_outputs": "layer outputs {} (SpecForge, ModelOpt, SGLang's eagle_config)",
}


def advise(answer: Mapping[str, Any]) -> list[str]:
    """Sentences, the most urgent first; empty when there is nothing to say yet."""
    verdict = answer.get("verdict")
    told = _declared(answer)
    if verdict is None:
        if told:
            return [*told, "Unless that is an experiment, put it right before verify runs; its verdict will be FAIL."]
        return []
    if verdict["passed"]:
        return ["Nothing to do: bench and promotion rest on sound wiring."]
    needed, sides = answer["needed"], verdict["sides"]
    open_ = [side for side in sides if side["verdict"] == "UNDECIDED"]
    if verdict["verdict"] == "UNDECIDED":
        return _undecided(open_, verdict["checks"])
    said, told = told, []
    for check in verdict["checks"]:
        if check["verdict"] == "FAIL" and check["fix"]:
            told.append(f"{_WHAT.get(check['name'], check['name'])}: {check['fix']}.")
    # Verify judges the stored features first, then the engine.
    for at, side in enumerate(verdict["sides"]):
        if side["passed"] or side in open_:
            continue
        cause = side["cause"]
        if cause is not None and cause["kind"] in _OF_STATES:
            told.append(f"{side['side'].capitalize()}: {cause['words']}; {cause['fix']}.")
        elif at == 0:
            told += _features(side, verdict["sides"][1] if len(verdict["sides"]) > 1 else None, needed)
        else:
            told += _engine(side, answer)
    agreement, least = verdict["greedy_agreement"], needed["greedy_agreement"]
    judged = any(check["name"] == "greedy" for check in verdict["checks"])
    if not judged and agreement is not None and least is not None and agreement < least:
        told.append(
            "The final states do not predict the engine's own tokens: the final norm, the head or the weights differ "
            "between the reference and the engine. Compare the target's fingerprint and engine.dtype, then extract "
            "again."
        )
    return list(dict.fromkeys(told)) or said


_OF_STATES = ("tokens", "normed", "width")
"""Causes that no choice of layers mends."""
_WHAT = {
    "template": "Chat template",
    "engine_template": "Chat template",
    "tokens": "Tokens of the features",
    "loss_mask": "Loss mask",
    "final_state": "Final state",
    "greedy": "Greedy agreement",
    "pairing": "Training",
    "lint": "Checkpoint",
}


def _undecided(sides: Sequence[Mapping[str, Any]], checks: Sequence[Mapping[str, Any]]) -> list[str]:
    """What would decide it."""
    told = [f"To decide it: {side['decides']}." for side in sides if side["decides"]]
    told += [f"To decide it: {check['fix']}." for check in checks if check["verdict"] == "UNDECIDED" and check["fix"]]
    return list(dict.fromkeys(told)) or [_MORE_PROBES]


def _declared(answer: Mapping[str, Any]) -> list[str]:
    """What the sides say of themselves and does not agree."""
    said = {side["side"]: side for side in answer["sides"] if side["boundaries"] is not None}
    trained = said.get("trained")
    told = []
    for name in ("stored", "served"):
        side = said.get(name)
        if trained is not None and side is not None and side["boundaries"] != trained["boundaries"]:
            told.append(
                f"By its own account the {side['label']} {'holds' if name == 'stored' else 'reads'} boundaries "
                f"{_listed(side['boundaries'])}, but the drafter was trained on {_listed(trained['boundaries'])}."
            )
    return [sentence.replace("the stored features holds", "the stored features hold") for sentence in told]


def _features(side: Mapping[str, Any], engine: Mapping[str, Any] | None, needed: Mapping[str, Any]) -> list[str]:
    if _unmatched(side, needed):
        return [
            "The stored features match no boundary of this target: they were extracted from other weights, or are "
            "damaged. Extract them again and train on them."
        ]
    if _ambiguous(side, needed):
        return [_MORE_PROBES]
    if engine is not None and _served(engine) == _served(side):
        return [
            f"Features and engine agree on boundaries {_listed(_served(side))}; the drafter's config.json is the odd "
            "one out. Mend its eagle_aux_hidden_state_layer_ids, if it was trained on these features."
        ]
    return ["The stored features are of other layers than the drafter's record says: extract again, then train again."]


def _engine(side: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
    needed = answer["needed"]
    if _unmatched(side, needed):
        return [
            "What the engine feeds matches no boundary: other weights or dtype than the reference, states taken "
            "behind a norm, or a prefix cache that leaves positions out. Compare engine.dtype and the target, switch "
            "the prefix cache off, and verify again."
        ]
    if _ambiguous(side, needed):
        return [_MORE_PROBES]
    trained = [segment["trained"] for segment in side["segments"]]
    served = _served(side)
    if answer["asked"]["serve"] is not None:
        asked = answer["asked"]["serve"]
        return [
            f"stages.serve.aux_layers asks the engine for {asked['convention']} {_listed(asked['ids'])}: take it out "
            f"(--set stages.serve.aux_layers=null), and the engine reads what the drafter names, boundaries "
            f"{_listed(trained)}."
        ]
    names: dict[str, list[int] | None] = next(
        (one["names"] for one in answer["sides"] if one["side"] == "trained" and one["names"]), {}
    )
    right = " or ".join(_WRITTEN[name].format(_listed(ids)) for name, ids in names.items() if ids and name in _WRITTEN)
    shifts = {one - other for one, other in zip(served, trained, strict=True) if one is not None and other is not None}
    if len(shifts) == 1 and 0 not in shifts:
        by = shifts.pop()
        told = f"Every layer is off by {by:+d}: the engine counts by another convention than its ids were given in."
    elif sorted(served, key=str) == sorted(trained, key=str):
        told = "The right layers in the wrong order: the segments must be joined in the order of training."
    else:
        told = "The engine reads other layers than the drafter was trained on."
    return [f"{told} Give it {right}, whichever it counts by." if right else told]


_MORE_PROBES = (
    "Two boundaries are too much alike to tell apart: raise stages.verify.probes and probe_tokens. If it stays so, the "
    "layers of this target hardly change anything there, and either would serve."
)


def _served(side: Mapping[str, Any]) -> list[int | None]:
    return [segment["served"] for segment in side["segments"]]


def _unmatched(side: Mapping[str, Any], needed: Mapping[str, Any]) -> bool:
    return any(
        segment["error"] is not None and segment["error"] > needed["error"]
        for segment in side["segments"]
        if not segment["passed"]
    )


def _ambiguous(side: Mapping[str, Any], needed: Mapping[str, Any]) -> bool:
    wrong = [segment for segment in side["segments"] if not segment["passed"]]
    return bool(wrong) and all(
        segment["served"] == segment["trained"]
        and segment["margin"] is not None
        and segment["margin"] < needed["margin"]
        for segment in wrong
    )


def _listed(ids: Sequence[object]) -> str:
    return ", ".join("?" if k is None else str(k) for k in ids)
