"""Which tiny models does vLLM serve on a CPU? Ours with heads of 32, as it has kernels for: a Llama and a Qwen3."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from eagle3ops.eagle3.checkpoint import render_config
from eagle3ops.eagle3.drafter import DrafterConfig
from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.targets.tiny import HIDDEN, LAYERS, VOCABULARY, make_tiny

HEADS, KV_HEADS, HEAD = 2, 1, 32
"""The tiny target's own are 4 and 2 of 16: the same weights, cut otherwise."""
CLASSES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def make_wide(folder: Path, family: str) -> Path:
    """A target whose family is `llama` or `qwen3`."""
    folder.mkdir(parents=True, exist_ok=True)
    make_tiny(folder)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    config |= {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD}
    config |= {"model_type": family, "architectures": [CLASSES[family]]}
    (folder / "config.json").write_text(json.dumps(config))
    if family == "qwen3":
        tensors = load_file(folder / "model.safetensors")
        chance = torch.Generator().manual_seed(3)
        for layer in range(LAYERS):
            for name in ("q_norm", "k_norm"):
                weight = 1 + 0.1 * torch.randn(HEAD, generator=chance)
                tensors[f"model.layers.{layer}.self_attn.{name}.weight"] = weight.to(torch.bfloat16)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def make_wide_drafter_config(folder: Path, boundary: tuple[int, ...] = (2, 4, 6), **other: Any) -> Path:
    """A drafter's folder with a `config.json` and no weights; of `other`, None leaves a key out."""
    folder.mkdir(parents=True, exist_ok=True)
    config = DrafterConfig(
        hidden_size=HIDDEN, intermediate_size=128, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS,
        head_dim=HEAD, vocab_size=VOCABULARY, draft_vocab_size=VOCABULARY, target_hidden_size=HIDDEN,
        aux_layers=AuxLayers(boundary, LAYERS), rms_norm_eps=1e-5, rope_theta=10000.0, max_position_embeddings=512,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    raw = {key: value for key, value in (render_config(config, torch.bfloat16) | other).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(raw))
    return folder
