"""How large does the engine build the drafter by its config, and can it?"""

from collections.abc import Mapping
from typing import Any

from eagle3ops.wiring.lint.case import IDS, Case, whole
from eagle3ops.wiring.lint.parameters import Latent, Sizes

_SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
_LATENT = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


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
