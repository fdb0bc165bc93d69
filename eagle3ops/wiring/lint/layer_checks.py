"""Which tensors will the engine hand over by the drafter's config, and can these be what was trained?"""

import json
from collections.abc import Mapping
from typing import Any

from eagle3ops.errors import RequestError
from eagle3ops.wiring.captured import Captured, captured, find_rule
from eagle3ops.wiring.lint.case import IDS, Case
from eagle3ops.wiring.lint.layer_lists import NESTED, TOP, Listed, heard, lists_of

_OWN = {"sglang": NESTED, "vllm": TOP, "reference": NESTED}
"""Where each engine looks first."""


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
    if nested == [] and case.engine == "sglang":
        case.error(
            "ids-wrong",
            f"config.json: {NESTED}",
            "is an empty list",
            f"{case.name} takes it as it is, and hands over nothing",
            "write the ids it was trained with, or null for the default layers",
        )
        return
    if layers is not None:
        # Where the target does not say, that is told once for all its sizes.
        _captured(case, layers)


def _captured(case: Case, layers: int) -> None:
    assert case.sizes is not None
    lists = lists_of(_as_written(case), case.target.architecture, layers)
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
        if lists and not frozenset.intersection(*(one.meant for one in lists.values())):
            case.warn(
                "ids-differ",
                f"config.json: {', '.join(lists)}",
                "; ".join(map(str, lists.values())),
                "as those count who write ids there; not all can be what it was trained on",
                "delete those that it was not trained on",
            )
        return
    runners = heard(case.engine, lists, eagle_config=bool(case.eagle))
    read = next(iter(runners.values()))
    where = f"config.json: {read.where if read else next(iter(lists), _OWN[case.engine])}"
    if not any(runners.values()) and _unheard(case, layers, lists, where):
        return
    ids = _ids(case, read)
    found = _capture(case, layers, read)
    if read is not None and _suspect(case, read.where, layers, list(ids or []), where, found.boundary):
        return
    if _apart(case, layers, runners):
        return
    before = len(case.findings)
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
    if read is not None and not any(one.severity == "error" for one in case.findings[before:]):
        _contradicted(case, lists, read, found.boundary)


def _as_written(case: Case) -> Mapping[str, Any]:
    """The config of the file; what speculators nest counts only where the engine unfolds it."""
    written = case.drafter.config or {}
    unfolded = case.config is not case.drafter.config
    return {key: value for key, value in written.items() if unfolded or key != "transformer_layer_config"}


def _ids(case: Case, read: Listed | None) -> list[int] | None:
    if read is None:
        return None
    return read.inputs if case.engine == "vllm" else list(read.ids)


def _capture(case: Case, layers: int, read: Listed | None) -> Captured:
    return captured(case.engine, case.version_text, case.target.architecture, layers, _ids(case, read))


def _unheard(case: Case, layers: int, lists: Mapping[str, Listed], where: str) -> bool:
    """The engine reads no ids at all; whether that is all there is to say."""
    ignored = next(iter(lists.values()), None)
    if case.engine == "reference":
        case.error(
            "ids-missing" if ignored is None else "ids-not-read",
            where,
            "no layer ids" + ("" if ignored is None else f": {list(ignored.ids)} stand where it does not look"),
            f"{case.name} has no default, and refuses the drafter",
            "write the ids it was trained with into eagle_config, as outputs of layers",
        )
        return True
    if ignored is None:
        fix = "write the ids it was trained with, in this engine's numbers: eagle3ops layers"
        case.warn("ids-missing", where, "no layer ids", f"{case.name} takes its default", fix)
        return False
    default = _capture(case, layers, None).boundary
    same = all(tuple(sorted(default)) in one.meant for one in lists.values())
    (case.warn if same else case.error)(
        "ids-not-read",
        where,
        f"{list(ignored.ids)} stand where {case.name} does not look",
        f"it takes its default, boundaries {list(default)}{'; by chance those are the same tensors' if same else ''}",
        f"write them into {_OWN[case.engine]}, in this engine's numbers: eagle3ops layers",
    )
    return True


def _apart(case: Case, layers: int, runners: Mapping[str, Listed | None]) -> bool:
    """vLLM has two model runners, which look at different places."""
    taken = {name: _capture(case, layers, read).boundary for name, read in runners.items()}
    if len(set(taken.values())) < 2:
        return False
    one, two = runners["V1"], runners["V2"]
    read = one or two
    assert read is not None
    if one is not None and two is not None:
        what = f"{one.where} is what vLLM's V1 model runner reads, and {two.where} what V2 does"
        cause = f"V1 captures boundaries {list(taken['V1'])}, and V2 {list(taken['V2'])}"
    else:
        blind, seeing = ("V2", "V1") if two is None else ("V1", "V2")
        what = f"{list(read.ids)} stand where vLLM's {blind} model runner does not look"
        cause = f"it takes its default, boundaries {list(taken[blind])}; {seeing} alone reads them there"
    fix = f"write the inputs of layers that it was trained on at the top level: {TOP}"
    case.error("ids-not-read", f"config.json: {read.where}", what, cause, fix)
    return True


def _contradicted(case: Case, lists: Mapping[str, Listed], read: Listed, boundary: tuple[int, ...]) -> None:
    """Other lists than the one that is read, which name other tensors: one of them is not what was trained."""
    others = [one for one in lists.values() if one is not read and tuple(sorted(boundary)) not in one.meant]
    if not others:
        return
    eagle = bool(case.eagle)
    words = [f"{case.name} reads {read.where}: boundaries {list(boundary)}"]
    for engine, name in (("sglang", "SGLang"), ("vllm", "vLLM")):
        if engine != case.engine:
            theirs = next(iter(heard(engine, lists, eagle_config=eagle).values()))
            told = f"{theirs.where}: boundaries {theirs.boundaries}" if theirs else "none, and takes its default"
            words.append(f"{name} reads {told}")
    keys = " and ".join(one.where for one in others)
    # What this engine reads may well be right: it is the other that nobody can be sure of.
    case.warn(
        "ids-differ",
        f"config.json: {', '.join(one.where for one in (read, *others))}",
        f"{read.where} {list(read.ids)} names boundaries {list(boundary)}, but {'; '.join(map(str, others))}",
        f"{'; '.join(words)}; not all can be what it was trained on",
        f"delete {keys}, if it was trained on boundaries {list(boundary)}; otherwise delete {read.where} and have "
        "eagle3ops convert write it for the engine",
    )


def _suspect(case: Case, place: str, layers: int, ids: list[int], where: str, boundary: tuple[int, ...]) -> bool:
    """Ids in the numbers of the other convention: the same three tensors that everybody defaults to, shifted by one."""
    inputs = [2, layers // 2, layers - 3]
    outputs = [k - 1 for k in inputs]
    shifted = list(boundary) not in ([], inputs) and ids in (inputs, outputs)
    nested = place == NESTED
    by = " with its V1 model runner, and its default with V2" if case.engine == "vllm" and nested else ""
    if layers >= 6 and shifted and (nested or case.engine == "vllm"):
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
