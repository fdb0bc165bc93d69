"""Does the engine understand the drafter's config, and mean by it what its trainer meant?"""

import json
from collections.abc import Mapping
from typing import Any

from eagle3ops.errors import RequestError
from eagle3ops.wiring.captured import captured, find_rule
from eagle3ops.wiring.lint.case import AUTHOR, FAMILIES, IDS, OTHER, SPECULATORS, Case, whole
from eagle3ops.wiring.lint.parameters import Latent, Sizes

_SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
_LATENT = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_SWITCHES = ("norm_before_residual", "norm_before_fc", "norm_output", "fc_norm", "use_aux_norm", "bias",
             "attention_bias", "mlp_bias", "tie_word_embeddings")  # fmt: skip


def architecture(case: Case) -> bool:
    """Whether the engine has this architecture, and its parameters are known here."""
    value = case.config.get("architectures")
    names = [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
    families = FAMILIES[case.engine]
    known = sorted(families)
    if not names:
        case.error(
            "architecture-missing",
            "config.json: architectures",
            "names no class",
            f"{case.name} looks the class up by it",
            f'write "architectures": ["{known[-1]}"]',
        )
        return False
    name = names[0]
    if name in families:
        case.family = families[name]
        return True
    if name in OTHER[case.engine]:
        case.warn(
            "architecture-unchecked",
            "config.json: architectures",
            f"{name} is known to {case.name}, and its tensors are not known here",
            "names and shapes are not checked",
            "hold it against a measurement: eagle3ops verify",
        )
    elif name in SPECULATORS or "transformer_layer_config" in case.config:
        case.error(
            "speculators-form",
            "config.json",
            f"{name} is the form of speculators, with a nested config",
            f"{case.name} does not read it",
            f"eagle3ops convert --to {case.engine if case.engine == 'vllm' else 'sglang'}",
        )
    else:
        case.error(
            "architecture-unknown",
            "config.json: architectures",
            f"{case.name} has no drafter class {name!r}",
            "it refuses to start, or loads it as something else",
            f"it has {', '.join(known)}; eagle3ops convert writes the right name, and turns ids that count otherwise",
        )
    return False


def model_type(case: Case) -> None:
    """Both engines load the config through transformers, which picks its class by `model_type`."""
    value = case.config.get("model_type")
    unfolded = case.config is not case.drafter.config
    if case.engine == "reference" or (isinstance(value, str) and value) or unfolded:
        return
    like = {"latent": "deepseek_v3"}.get(case.family, case.family)
    case.error(
        "model-type-missing",
        "config.json: model_type",
        "is missing" if value is None else f"is {value!r}"[:200],
        f"{case.name} cannot tell what config it is, and does not start",
        f'write "model_type": "{like}"',
    )


def sizes(case: Case) -> None:
    """Fill in `case.sizes`, where the config gives them."""
    config = case.config
    latent = case.family == "latent"
    wanted = [*_SIZES, *(_LATENT if latent else ())]
    if latent and case.engine == "sglang":
        wanted.append("q_lora_rank")
    bad = [
        (name, "is missing" if name not in config else f"is {config[name]!r}")
        for name in (
            *_SIZES,
            *(_LATENT if latent else ()),
            *(("q_lora_rank",) if latent and case.engine == "sglang" else ()),
        )
        if whole(config.get(name)) is None
    ]
    bad += [
        (name, f"is {config[name]!r}")
        for name in ("num_key_value_heads", "head_dim", "num_hidden_layers", "draft_vocab_size", "q_lora_rank")
        if config.get(name) is not None and whole(config[name]) is None
    ]
    null = config.get("target_hidden_size") is None and latent and case.engine == "sglang"
    if "target_hidden_size" in config and whole(config["target_hidden_size"]) is None and not null:
        bad.append(("target_hidden_size", f"is {config['target_hidden_size']!r}"))
    if bad:
        told = "; ".join(f"{name} {what}" for name, what in bad)
        case.error(
            "size-wrong",
            "config.json",
            told,
            f"{case.name} cannot build the class",
            "write the sizes it was trained with",
        )
        return
    hidden, heads, vocab = config["hidden_size"], config["num_attention_heads"], config["vocab_size"]
    kv = config.get("num_key_value_heads") or heads
    dim = config.get("head_dim") or hidden // heads
    if heads % kv and not latent:
        case.error(
            "heads-uneven",
            "config.json: num_key_value_heads",
            f"{heads} heads cannot share {kv} key heads",
            f"{case.name} cannot build the attention",
            "write the numbers it was trained with",
        )
        return
    turned = config["qk_rope_head_dim"] if latent else dim
    if turned % 2 or not turned:
        case.error(
            "head-odd",
            f"config.json: {'qk_rope_head_dim' if latent else 'head_dim'}",
            f"{turned} is odd",
            "rotary embedding turns pairs",
            "write the head_dim it was trained with",
        )
        return
    layers = config.get("num_hidden_layers") or 1
    if latent and case.engine == "sglang" and layers != 1:
        case.error(
            "layers-many",
            "config.json: num_hidden_layers",
            f"is {layers}",
            f"{case.name} refuses such a drafter of more than one layer",
            "serve it with vLLM",
        )
        return
    if case.engine == "sglang" and not latent and "draft_vocab_size" not in config:
        case.error(
            "draft-vocab-missing",
            "config.json: draft_vocab_size",
            "is missing",
            f"{case.name} reads it without a default, and fails",
            "write it; vocab_size where it is not reduced",
        )
        return
    draft = config.get("draft_vocab_size") or vocab
    if draft > vocab:
        case.error(
            "draft-vocab-large",
            "config.json: draft_vocab_size",
            f"{draft} is above the vocab_size of {vocab}",
            "it cannot be a part of the vocabulary",
            "write the number of rows of lm_head",
        )
        return
    case.sizes = Sizes(
        hidden=hidden,
        target_hidden=config.get("target_hidden_size") or hidden,
        intermediate=_intermediate(case),
        heads=heads,
        kv_heads=kv,
        head_dim=dim,
        layers=layers,
        vocab=vocab,
        draft_vocab=draft,
        aux=_aux(case),
        latent=_latent(config) if latent else None,
        normed_heads=case.family == "qwen3",
        head=_needs_head(case, draft, vocab),
    )


def _intermediate(case: Case) -> int:
    wide = whole(case.config.get("intermediate_size_mlp"))
    if case.engine == "sglang" and case.config.get("model_type") == "llama4_text" and wide:
        return wide
    return int(case.config["intermediate_size"])


def _latent(config: Mapping[str, Any]) -> Latent:
    return Latent(
        query_rank=config.get("q_lora_rank"),
        key_rank=config["kv_lora_rank"],
        plain=config["qk_nope_head_dim"],
        rotary=config["qk_rope_head_dim"],
        value=config["v_head_dim"],
    )


def _needs_head(case: Case, draft: int, vocab: int) -> bool:
    """vLLM takes the target's head where the checkpoint has none, SGLang where the config names no draft vocabulary."""
    if case.engine == "vllm":
        return draft != vocab
    return case.engine != "sglang" or case.config.get("draft_vocab_size") is not None


def _aux(case: Case) -> int:
    """How wide the engine makes `fc`: an explicit number, the lists that this class counts, or 3."""
    nested, top = case.eagle.get(IDS), case.config.get(IDS)
    explicit = whole(case.config.get("num_aux_hidden_states"))
    lists = [nested]
    if case.family == "latent" and case.engine == "sglang":
        explicit, lists = None, [nested, top]
    elif case.family == "qwen3":
        explicit, lists = whole(case.config.get("num_aux_layers")) or explicit, [top, nested]
    return explicit or next((len(one) for one in lists if isinstance(one, list) and one), 3)


def switches(case: Case) -> None:
    """What changes the numbers without changing a shape."""
    config, engine = case.config, case.engine
    on = {name for name in _SWITCHES if config.get(name)}
    for name in _SWITCHES:
        if case.eagle.get(name) and name not in on and name != "norm_before_fc":
            case.error(
                "switch-not-read",
                f"config.json: eagle_config.{name}",
                "is on",
                f"{case.name} reads {name} at the top level only, and goes without it",
                f'write "{name}" at the top level',
            )
    fc_before = bool(case.eagle.get("norm_before_fc", config.get("norm_before_fc")))
    if engine == "reference":
        for name in sorted(on | ({"norm_before_fc"} if fc_before else set())):
            case.error(
                "switch-unsupported",
                f"config.json: {name}",
                "is on",
                "the reference engine has no such variant",
                "serve it with another engine",
            )
        return
    if fc_before and case.family == "latent":
        case.error(
            "fc-not-normed",
            "config.json: norm_before_fc",
            "is on",
            f"{case.name} has no such switch for a drafter with a compressed cache (MLA)",
            "train it without, or with fc_norm",
        )
    if engine == "sglang":
        if "norm_before_residual" in on:
            case.error(
                "residual-not-normed",
                "config.json: norm_before_residual",
                "is on",
                f"{case.name} has no such switch: it adds the state as it is, without a word",
                "serve it with vLLM, or train it without",
            )
        if fc_before and case.family != "latent" and case.older_than("0.5.23"):
            case.error(
                "fc-not-normed",
                "config.json: norm_before_fc",
                "is on",
                f"{case.name} is not known to have such a switch: 0.5.14 has none, 0.5.23 has it",
                "use SGLang 0.5.23, or train it without",
            )
        if config.get("tie_word_embeddings"):
            case.error(
                "head-tied",
                "config.json: tie_word_embeddings",
                "is on",
                f"{case.name} takes the embedding for lm_head, whatever lm_head.weight says",
                'write "tie_word_embeddings": false',
            )
        if whole(config.get("sliding_window")) is not None and config.get("use_sliding_window") is not False:
            case.warn(
                "window-not-read",
                "config.json: sliding_window",
                f"is {config['sliding_window']}",
                f"{case.name} does not read it: the drafter attends to everything",
                f"add --speculative-draft-window-size {config['sliding_window']}",
            )
    elif "use_aux_norm" in on and not config.get("fc_norm"):
        case.error(
            "aux-norm-not-read",
            "config.json: use_aux_norm",
            "is on",
            f"{case.name} reads fc_norm only",
            'write "fc_norm": true, and name the tensors fc_norm.0 to fc_norm.2',
        )
    if "norm_output" in on:
        case.warn(
            "norm-output",
            "config.json: norm_output",
            "is on",
            f"{case.name} then feeds the state AFTER the norm to the next step; SpecForge writes the same word and "
            "trains with the state before it, speculators with the state after it",
            AUTHOR,
        )
    if config.get("hidden_act", "silu") != "silu":
        case.error(
            "activation-unknown",
            "config.json: hidden_act",
            f"is {config['hidden_act']!r}",
            f"{case.name} computes silu and refuses others",
            "train it with silu",
        )
    case.flags = {
        "fc_norm": bool(config.get("fc_norm") or (engine == "sglang" and config.get("use_aux_norm"))),
        "norm_before_fc": fc_before,
        "fc_bias": bool(config.get("bias")) and engine == "sglang",
        "qkv_bias": bool(config.get("attention_bias")) and engine == "vllm",
        "output_bias": bool(config.get("attention_bias") or config.get("bias")) and case.family == "llama",
        "mlp_bias": bool(config.get("mlp_bias")) and engine == "vllm" and case.family == "llama",
    }


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
