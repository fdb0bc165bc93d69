"""Which tensors does an engine's drafter class have, under which names, in which shapes?

Read in SGLang 0.5.14 and 0.5.23 (`srt/models/llama_eagle3.py`, `kimi_k25_eagle3.py`) and vLLM 0.32.0
(`model_executor/models/llama_eagle3.py`, `deepseek_eagle3.py`). SGLang skips names that it does not know and leaves
parameters that the checkpoint lacks as memory happened to be; vLLM refuses unknown names, and does not miss what lacks
either.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LEGACY = {"midlayer.": "layers.0.", "aux_norm_low.": "fc_norm.0.", "aux_norm_mid.": "fc_norm.1.",
          "aux_norm_high.": "fc_norm.2."}  # fmt: skip
SKIPPED = frozenset({"t2d"})
"""Known, and not used."""
_COMPUTED = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")
"""What older exporters write beside the weights, and every engine computes for itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Of attention over a compressed cache (MLA), as of DeepSeek and Kimi."""

    query_rank: int | None
    """None: the query is not compressed."""
    key_rank: int
    plain: int
    """Of each head, without rotary embedding."""
    rotary: int
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of a drafter with one wide layer."""

    hidden: int
    target_hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    vocab: int
    draft_vocab: int
    aux: int
    """How many of the target's states are put side by side."""
    latent: Latent | None = None
    """None: plain attention, as of Llama."""
    normed_heads: bool = False
    """Queries and keys are normed in each head, as of Qwen3."""
    head: bool = True
    """Whether the engine needs the drafter's own `lm_head`, and does not take the target's."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tensor that the engine looks for."""

    shape: tuple[int, ...]
    optional: bool = False
    """The engine does without, or takes the target's."""


def canonical(name: str, engine: str, *, latent: bool = False) -> str:
    """A checkpoint's name as this engine reads it: without the prefix and in today's words where it takes those."""
    if engine == "vllm":
        return name.replace("midlayer.", "layers.0.")
    if latent:
        return f"layers.0.{name.removeprefix('midlayer.')}" if name.startswith("midlayer.") else name
    if not name.startswith("model.lm_head."):
        name = name.removeprefix("model.")
    for legacy, new in LEGACY.items():
        name = name.replace(legacy, new)
    return name


def computed(name: str) -> bool:
    """Whether an engine computes it, so that it does not matter what becomes of it."""
    return name.endswith(_COMPUTED)


def parameters(engine: str, sizes: Sizes, flags: Mapping[str, Any]) -> dict[str, Parameter]:
    """Canonical name -> what is expected.

    Args:
        engine: `sglang`, `vllm` or `reference`.
        sizes: of the drafter.
        flags: the switches that this engine heeds: `fc_norm`, `norm_before_fc`, `fc_bias`, `qkv_bias`, `output_bias`,
            `mlp_bias`.
    """
    one, wide = sizes.hidden, sizes.aux * sizes.target_hidden
    found = {
        "fc.weight": Parameter((one, wide)),
        "norm.weight": Parameter((one,)),
        "lm_head.weight": Parameter((sizes.draft_vocab, one), optional=not sizes.head),
        "embed_tokens.weight": Parameter((sizes.vocab, one), optional=sizes.target_hidden == sizes.hidden),
        "d2t": Parameter((sizes.draft_vocab,), optional=sizes.draft_vocab == sizes.vocab),
        "t2d": Parameter((sizes.vocab,), optional=True),
    }
    if flags.get("fc_bias"):
        found["fc.bias"] = Parameter((one,))
    if flags.get("norm_before_fc"):
        found["input_norm.weight"] = Parameter((wide,))
    if flags.get("fc_norm"):
        found |= {f"fc_norm.{at}.weight": Parameter((sizes.target_hidden,)) for at in range(sizes.aux)}
    for layer in range(sizes.layers):
        found |= _layer(engine, sizes, flags, layer)
    return found


def _layer(engine: str, sizes: Sizes, flags: Mapping[str, Any], layer: int) -> dict[str, Parameter]:
    one, wide = sizes.hidden, sizes.hidden * (2 if layer == 0 else 1)
    attention = _plain(sizes, flags, wide) if sizes.latent is None else _latent(sizes, sizes.latent, wide)
    found = {f"self_attn.{name}": shape for name, shape in attention.items()} | {
        "mlp.gate_proj.weight": (sizes.intermediate, one),
        "mlp.up_proj.weight": (sizes.intermediate, one),
        "mlp.down_proj.weight": (one, sizes.intermediate),
        "post_attention_layernorm.weight": (one,),
        "input_layernorm.weight": (one,),
        "hidden_norm.weight": (one,),
    }
    if flags.get("mlp_bias"):
        found |= {
            "mlp.gate_proj.bias": (sizes.intermediate,),
            "mlp.up_proj.bias": (sizes.intermediate,),
            "mlp.down_proj.bias": (one,),
        }
    # Below the first layer each engine uses one of the two: SGLang hidden_norm, vLLM input_layernorm.
    unused = "hidden_norm.weight" if engine == "vllm" else "input_layernorm.weight"
    return {
        f"layers.{layer}.{name}": Parameter(shape, optional=layer > 0 and name == unused)
        for name, shape in found.items()
    }


def _plain(sizes: Sizes, flags: Mapping[str, Any], wide: int) -> dict[str, tuple[int, ...]]:
    query, key = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    found: dict[str, tuple[int, ...]] = {
        "q_proj.weight": (query, wide),
        "k_proj.weight": (key, wide),
        "v_proj.weight": (key, wide),
        "o_proj.weight": (sizes.hidden, query),
    }
    if sizes.normed_heads:
        found |= {"q_norm.weight": (sizes.head_dim,), "k_norm.weight": (sizes.head_dim,)}
    if flags.get("output_bias"):
        found["o_proj.bias"] = (sizes.hidden,)
    if flags.get("qkv_bias"):
        found |= {"q_proj.bias": (query,), "k_proj.bias": (key,), "v_proj.bias": (key,)}
    return found


def _latent(sizes: Sizes, latent: Latent, wide: int) -> dict[str, tuple[int, ...]]:
    query = sizes.heads * (latent.plain + latent.rotary)
    found: dict[str, tuple[int, ...]] = {
        "kv_a_proj_with_mqa.weight": (latent.key_rank + latent.rotary, wide),
        "kv_a_layernorm.weight": (latent.key_rank,),
        "kv_b_proj.weight": (sizes.heads * (latent.plain + latent.value), latent.key_rank),
        "o_proj.weight": (sizes.hidden, sizes.heads * latent.value),
    }
    if latent.query_rank is None:
        return found | {"q_proj.weight": (query, wide)}
    return found | {
        "q_a_proj.weight": (latent.query_rank, wide),
        "q_a_layernorm.weight": (latent.query_rank,),
        "q_b_proj.weight": (query, latent.query_rank),
    }
