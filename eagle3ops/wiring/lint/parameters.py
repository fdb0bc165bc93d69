"""Which tensors does an engine's drafter class have, under which names, in which shapes?

Read in SGLang 0.5.14 and 0.5.23 (`srt/models/llama_eagle3.py`) and vLLM 0.32.0
(`model_executor/models/llama_eagle3.py`). SGLang skips names that it does not know and leaves parameters that the
checkpoint lacks as memory happened to be; vLLM refuses unknown names, and does not miss what lacks either.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LEGACY = {"midlayer.": "layers.0.", "aux_norm_low.": "fc_norm.0.", "aux_norm_mid.": "fc_norm.1.",
          "aux_norm_high.": "fc_norm.2."}  # fmt: skip
SKIPPED = frozenset({"t2d"})
"""Known, and not used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of a drafter like Llama with one wide layer."""

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


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tensor that the engine looks for."""

    shape: tuple[int, ...]
    optional: bool = False
    """The engine does without, or takes the target's."""


def canonical(name: str, engine: str) -> str:
    """A checkpoint's name as this engine reads it: without the prefix and in today's words where it takes those."""
    if engine != "vllm":
        name = name.removeprefix("model.")
        for legacy, new in LEGACY.items():
            name = name.replace(legacy, new)
        return name
    return name.replace("midlayer.", "layers.0.")


def parameters(engine: str, sizes: Sizes, flags: Mapping[str, Any]) -> dict[str, Parameter]:
    """Canonical name -> what is expected.

    Args:
        engine: `sglang`, `vllm` or `reference`.
        sizes: of the drafter.
        flags: the switches that this engine heeds: `fc_norm`, `norm_before_fc`, `bias` of fc, `attention_bias`,
            `mlp_bias`.
    """
    one, wide = sizes.hidden, sizes.aux * sizes.target_hidden
    found = {
        "fc.weight": Parameter((one, wide)),
        "norm.weight": Parameter((one,)),
        "lm_head.weight": Parameter((sizes.draft_vocab, one)),
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
    query, key = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    begin = f"layers.{layer}."
    found = {
        f"{begin}self_attn.q_proj.weight": Parameter((query, wide)),
        f"{begin}self_attn.k_proj.weight": Parameter((key, wide)),
        f"{begin}self_attn.v_proj.weight": Parameter((key, wide)),
        f"{begin}self_attn.o_proj.weight": Parameter((one, query)),
        f"{begin}mlp.gate_proj.weight": Parameter((sizes.intermediate, one)),
        f"{begin}mlp.up_proj.weight": Parameter((sizes.intermediate, one)),
        f"{begin}mlp.down_proj.weight": Parameter((one, sizes.intermediate)),
        f"{begin}post_attention_layernorm.weight": Parameter((one,)),
        # Below the first layer each engine uses one of the two: SGLang hidden_norm, vLLM input_layernorm.
        f"{begin}input_layernorm.weight": Parameter((one,), optional=layer > 0 and engine != "vllm"),
        f"{begin}hidden_norm.weight": Parameter((one,), optional=layer > 0 and engine == "vllm"),
    }
    if flags.get("attention_bias"):
        found[f"{begin}self_attn.o_proj.bias"] = Parameter((one,))
        if engine == "vllm":
            found |= {
                f"{begin}self_attn.{name}_proj.bias": Parameter((size,))
                for name, size in (("q", query), ("k", key), ("v", key))
            }
    if flags.get("mlp_bias") and engine == "vllm":
        found |= {
            f"{begin}mlp.gate_proj.bias": Parameter((sizes.intermediate,)),
            f"{begin}mlp.up_proj.bias": Parameter((sizes.intermediate,)),
            f"{begin}mlp.down_proj.bias": Parameter((one,)),
        }
    return found
