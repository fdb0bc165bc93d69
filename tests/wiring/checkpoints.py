"""Drafters as their trainers would write them, and the target they are for: small, and with nothing wrong."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

H, INTERMEDIATE, HEADS, KV, DIM, VOCAB, DRAFT, LAYERS = 16, 24, 4, 2, 4, 50, 20, 12
DRAFT_IDS = np.arange(DRAFT) * 2 + 1
INPUTS = [2, LAYERS // 2, LAYERS - 3]
OUTPUTS = [k - 1 for k in INPUTS]


@dataclass
class Made:
    """A drafter's folder before it is written, and its target."""

    config: dict[str, Any]
    tensors: dict[str, Any]
    target: dict[str, Any]
    target_tensors: dict[str, Any]
    after: list[Callable[[Path], object]] = field(default_factory=list)
    """What to do to the written folder."""

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Drafter and target."""
        drafter, target = folder / "drafter", folder / "target"
        for place, config, tensors in (
            (drafter, self.config, self.tensors),
            (target, self.target, self.target_tensors),
        ):
            place.mkdir()
            (place / "config.json").write_text(json.dumps(config))
            if tensors:
                save_file(
                    {name: np.ascontiguousarray(one) for name, one in tensors.items()}, place / "model.safetensors"
                )
        for each in self.after:
            each(drafter)
        return drafter, target


def layer(index: int, wide: int) -> dict[str, Any]:
    chance = np.random.default_rng(index)

    def weight(*shape: int) -> Any:
        return chance.normal(size=shape).astype(np.float32)

    begin = f"layers.{index}."
    return {
        f"{begin}self_attn.q_proj.weight": weight(HEADS * DIM, wide),
        f"{begin}self_attn.k_proj.weight": weight(KV * DIM, wide),
        f"{begin}self_attn.v_proj.weight": weight(KV * DIM, wide),
        f"{begin}self_attn.o_proj.weight": weight(H, HEADS * DIM),
        f"{begin}mlp.gate_proj.weight": weight(INTERMEDIATE, H),
        f"{begin}mlp.up_proj.weight": weight(INTERMEDIATE, H),
        f"{begin}mlp.down_proj.weight": weight(H, INTERMEDIATE),
        f"{begin}input_layernorm.weight": weight(H),
        f"{begin}hidden_norm.weight": weight(H),
        f"{begin}post_attention_layernorm.weight": weight(H),
    }


def vocabulary() -> dict[str, Any]:
    marks = np.zeros(VOCAB, dtype=bool)
    marks[DRAFT_IDS] = True
    return {"d2t": (DRAFT_IDS - np.arange(DRAFT)).astype(np.int64), "t2d": marks}


def good(engine: str, *, layers: int = 1) -> Made:
    """What is right for an engine, for a target like Llama."""
    chance = np.random.default_rng(7)
    tensors = {
        "fc.weight": chance.normal(size=(H, 3 * H)).astype(np.float32),
        "norm.weight": np.ones(H, dtype=np.float32),
        "lm_head.weight": chance.normal(size=(DRAFT, H)).astype(np.float32),
        **vocabulary(),
    }
    for index in range(layers):
        tensors |= layer(index, 2 * H if index == 0 else H)
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": H,
        "intermediate_size": INTERMEDIATE,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "head_dim": DIM,
        "num_hidden_layers": layers,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "rope_theta": 10000.0,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "tie_word_embeddings": False,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": OUTPUTS, "use_aux_hidden_state": True},
    }
    if engine == "vllm":
        config["eagle_aux_hidden_state_layer_ids"] = INPUTS
        del config["eagle_config"]
    target = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": H,
        "num_hidden_layers": LAYERS,
        "vocab_size": VOCAB,
        "max_position_embeddings": 512,
        "rope_theta": 10000.0,
    }
    embedding = chance.normal(size=(VOCAB, H)).astype(np.float32)
    return Made(config, tensors, target, {"model.embed_tokens.weight": embedding})


def latent(made: Made) -> None:
    """The same drafter with attention over a compressed cache (MLA)."""
    query, key, plain, rotary, value = 6, 5, 3, 2, 4
    made.config |= {
        "architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "deepseek_v3", "q_lora_rank": query,
        "kv_lora_rank": key, "qk_nope_head_dim": plain, "qk_rope_head_dim": rotary, "v_head_dim": value,
    }  # fmt: skip
    del made.config["head_dim"]
    begin = "layers.0.self_attn."
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        del made.tensors[f"{begin}{name}.weight"]
    for name, shape in {
        "q_a_proj": (query, 2 * H), "q_a_layernorm": (query,), "q_b_proj": (HEADS * (plain + rotary), query),
        "kv_a_proj_with_mqa": (key + rotary, 2 * H), "kv_a_layernorm": (key,),
        "kv_b_proj": (HEADS * (plain + value), key), "o_proj": (H, HEADS * value),
    }.items():  # fmt: skip
        made.tensors[f"{begin}{name}.weight"] = np.ones(shape, dtype=np.float32)


def normed_heads(made: Made) -> None:
    """The same drafter with norms of each head, as of Qwen3."""
    made.config |= {"architectures": ["Eagle3Qwen3ForCausalLM"], "model_type": "qwen3"}
    made.tensors |= {
        f"layers.0.self_attn.{name}.weight": np.ones(DIM, dtype=np.float32) for name in ("q_norm", "k_norm")
    }
