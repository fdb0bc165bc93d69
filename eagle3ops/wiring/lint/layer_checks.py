"""Which tensors will the engine hand over by the drafter's config, and can these be what was trained?"""

import json
from collections.abc import Mapping

from eagle3ops.errors import RequestError
from eagle3ops.wiring.captured import captured, find_rule
from eagle3ops.wiring.lint.case import IDS, Case


def layer_ids(case: Case) -> None:
    """Which of the target's tensors the engine will hand over, and whether that can be what was trained."""
    config, layers = case.config, case.target.size("num_hidden_layers")
    if config.get("eagle_config") is not None and not isinstance(config["eagle_config"], Mapping):
        case.error(
            "eagle-config-wrong",
            "config.json: eagle_config",
            f"is {type(config['eagle_config']).__name__}",
            f"{case.name} falls back to its default layers without a word",
            "write an object",
        )
        return
    # Engines ask whether it is true of itself, so that null and 0 count as off, and the word "false" as on.
    if not case.eagle.get("use_aux_hidden_state", True):
        case.error(
            "aux-off",
            "config.json: eagle_config.use_aux_hidden_state",
            f"is off: {json.dumps(case.eagle['use_aux_hidden_state'])}",
            f"{case.name} hands over the last state alone, and no aux layers",
            "write true for EAGLE-3",
        )
        return
    nested, top = case.eagle.get(IDS), config.get(IDS)
    for where, value in ((f"eagle_config.{IDS}", nested), (IDS, top)):
        if value is not None and not (isinstance(value, list) and all(type(k) is int for k in value)):
            case.error(
                "ids-wrong",
                f"config.json: {where}",
                f"is {value!r}"[:200],
                "it is no list of layer numbers",
                "write the ids it was trained with",
            )
            return
    if layers is None or case.sizes is None:
        return
    _captured(case, layers, nested, top)


def _captured(case: Case, layers: int, nested: list[int] | None, top: list[int] | None) -> None:
    assert case.sizes is not None
    try:
        rule, _ = find_rule(case.engine, case.version_text, case.target.architecture)
    except RequestError as refusal:
        case.warn(
            "capture-unknown",
            "config.json of the target: architectures",
            refusal.what,
            "which tensors come out is not known",
            "measure it: eagle3ops verify",
        )
        return
    read = {"nested": nested, "top": top}
    place = next((key for key in rule.keys if read[key]), None)
    ignored = next((key for key in read if read[key] and key not in rule.keys), None)
    where = f"config.json: {f'eagle_config.{IDS}' if (place or ignored or rule.keys[0]) == 'nested' else IDS}"
    if place is None and case.engine == "reference":
        found_at = "" if ignored is None else f": {read[ignored]} stand where it does not look"
        case.error(
            "ids-missing" if ignored is None else "ids-not-read",
            where,
            f"no layer ids{found_at}",
            f"{case.name} has no default, and refuses the drafter",
            "write the ids it was trained with into eagle_config, as outputs of layers",
        )
        return
    if place is None and ignored is None:
        fix = "write the ids it was trained with, in this engine's numbers: eagle3ops layers"
        case.warn("ids-missing", where, "no layer ids", f"{case.name} takes its default", fix)
    ids = read[place] if place else None
    found = captured(case.engine, case.version_text, case.target.architecture, layers, ids)
    if place is None and ignored is not None:
        meant = sorted(read[ignored] or [])
        same = list(found.boundary) == meant
        make = case.warn if same else case.error
        luck = "; by chance those are the same tensors" if same else ""
        make(
            "ids-not-read",
            where,
            f"{read[ignored]} stand where {case.name} does not look",
            f"it takes its default, boundaries {list(found.boundary)}{luck}",
            "write them into eagle_config, in this engine's numbers: eagle3ops layers",
        )
        return
    if place is not None and _suspect(case, place, layers, list(ids or []), where, found.boundary):
        return
    if case.engine == "vllm" and place == "nested":
        default = captured(case.engine, case.version_text, case.target.architecture, layers).boundary
        if default != found.boundary:
            case.error(
                "ids-not-read",
                where,
                f"{ids} stand where vLLM's V2 model runner does not look",
                f"it takes its default, boundaries {list(default)}; V1 alone reads them there",
                f"write them at the top level: {IDS}",
            )
            return
    told = [
        note
        for note in found.notes
        if "makes the engine fail" in note or "dropped without" in note or "named twice" in note
    ]
    if told:
        broken = any("makes the engine fail" in note for note in told)
        case.error(
            "ids-fail" if broken else "ids-dropped",
            where,
            "; ".join(note.removeprefix("error: ") for note in told),
            f"{len(found.boundary)} tensors come out, and fc reads {case.sizes.aux}",
            "train with layers that this engine captures",
        )
    elif len(found.boundary) != case.sizes.aux:
        case.error(
            "aux-count",
            where,
            f"{len(found.boundary)} tensors come out, and fc is made for {case.sizes.aux}",
            "num_aux_hidden_states, the nested ids or 3 decide how wide fc is",
            f'write "num_aux_hidden_states": {len(found.boundary)}',
        )
    elif ids and ids != sorted(ids) and not rule.ordered:
        case.warn(
            "ids-order",
            where,
            f"{ids} are not in ascending order",
            f"{case.name} hands them over in ascending order",
            "right only where training put them side by side in that order as well",
        )
    elif case.engine == "sglang" and case.sizes.aux == 1 and case.sizes.target_hidden == case.sizes.hidden:
        case.error(
            "fc-skipped",
            where,
            "one aux layer, as wide as the drafter",
            f"{case.name} applies fc only where widths differ, and skips it here without a word",
            "use two layers or more",
        )


def _suspect(case: Case, place: str, layers: int, ids: list[int], where: str, boundary: tuple[int, ...]) -> bool:
    """Ids in the numbers of the other convention: the same three tensors that everybody defaults to, shifted by one."""
    inputs = [2, layers // 2, layers - 3]
    outputs = [k - 1 for k in inputs]
    shifted = list(boundary) not in ([], inputs) and ids in (inputs, outputs)
    by = " with its V1 model runner, and its default with V2" if case.engine == "vllm" and place == "nested" else ""
    if layers >= 6 and shifted and (place == "nested" or case.engine == "vllm"):
        case.error(
            "ids-shifted",
            where,
            f"{ids} are everybody's default layers, written as {'inputs' if ids == inputs else 'outputs'} of layers",
            f"{case.name} captures boundaries {list(boundary)} for them{by}, one off from {inputs}",
            f"write {inputs if ids == outputs else outputs}{' at the top level' if by else ''}, if it was trained on "
            f"boundaries {inputs}",
        )
        return True
    return False
