"""How does a Llama model in a GGUF file become a checkpoint that every engine loads?

Config, tokenizer and chat template come from the file's own metadata. Quantised tensors are dequantised and rounded to
bf16, so the checkpoint is as exact as the GGUF was, and no more.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3ops.errors import Eagle3opsError

if TYPE_CHECKING:
    from torch import Tensor

    from eagle3ops.targets.info import Progress

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_SPECIAL = 3
"""Token type of a control token (GGUF specification, `tokenizer.ggml.token_type`)."""


def convert(gguf: Path, folder: Path, *, progress: "Progress") -> None:
    """Write `model.safetensors`, config, tokenizer and chat template of `gguf` into `folder`.

    Raises:
        Eagle3opsError: the file is damaged, or not a Llama model with a tokenizer that is understood.
    """
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise Eagle3opsError(
            "the package gguf is not installed; the embedded target is converted with it",
            remedy="pip install 'eagle3ops[train,gguf]'",
        ) from error
    try:
        reader = GGUFReader(gguf)
        metadata = {key: field.contents() for key, field in reader.fields.items()}
    except (ValueError, IndexError, KeyError) as error:
        raise Eagle3opsError(f"{gguf}: not a readable GGUF file: {error}", remedy="fetch it again") from error
    if metadata.get("general.architecture") != "llama" or metadata.get("tokenizer.ggml.pre") != "smollm":
        raise Eagle3opsError(f"{gguf}: not a Llama model with SmolLM's tokenizer")
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    config = config_of(metadata, tied)
    _write(folder / "config.json", config)
    _write(
        folder / "generation_config.json",
        {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
    )
    write_tokenizer(metadata, folder)
    write_weights(reader.tensors, config, folder, progress)


def config_of(metadata: Mapping[str, Any], tied: bool) -> dict[str, Any]:
    """Hugging Face's `config.json` of a Llama model out of GGUF metadata."""
    heads = metadata["llama.attention.head_count"]
    theta = float(metadata["llama.rope.freq_base"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
        "head_dim": metadata["llama.embedding_length"] // heads,
        "hidden_act": "silu",
        "hidden_size": metadata["llama.embedding_length"],
        "initializer_range": 0.02,
        "intermediate_size": metadata["llama.feed_forward_length"],
        "max_position_embeddings": metadata["llama.context_length"],
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": metadata["llama.block_count"],
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        # Stored as a float32 there; its shortest decimal form is the value that was meant.
        "rms_norm_eps": float(f"{metadata['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": theta,
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": metadata["llama.vocab_size"],
    }


def write_tokenizer(metadata: Mapping[str, Any], folder: Path) -> None:
    """Write the byte-level BPE tokenizer (digits one by one, as SmolLM was trained) and the chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: k for k, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = metadata["tokenizer.ggml.token_type"]
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _SPECIAL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    write_tokenizer_config(
        folder,
        bos=tokens[metadata["tokenizer.ggml.bos_token_id"]],
        eos=tokens[metadata["tokenizer.ggml.eos_token_id"]],
        pad=tokens[metadata["tokenizer.ggml.padding_token_id"]],
        unk=tokens[metadata["tokenizer.ggml.unknown_token_id"]],
        context=metadata["llama.context_length"],
        template=metadata["tokenizer.chat_template"],
    )


def write_tokenizer_config(
    folder: Path, *, bos: str, eos: str, pad: str, unk: str | None, context: int, template: str
) -> None:
    """Write what `AutoTokenizer` needs beside `tokenizer.json`."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": bos,
        "eos_token": eos,
        "pad_token": pad,
        "unk_token": unk,
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }
    _write(folder / "tokenizer_config.json", {key: value for key, value in config.items() if value is not None})
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def write_weights(tensors: Any, config: Mapping[str, Any], folder: Path, progress: "Progress") -> None:
    """Dequantise every tensor and write them as bf16 under Hugging Face's names."""
    import torch
    from gguf.quants import dequantize
    from safetensors.torch import save_file

    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    converted: dict[str, torch.Tensor] = {}
    for done, source in enumerate(tensors, start=1):
        if not source.name.startswith("rope_freqs"):
            name = hf_name(source.name)
            shape = [int(size) for size in reversed(source.shape)]
            weight = torch.from_numpy(dequantize(source.data, source.tensor_type).reshape(shape).copy())
            projection = name.split(".")[-2]
            if projection in heads:
                weight = rope_halves(weight, heads[projection])
            converted[name] = weight.to(torch.bfloat16).contiguous()
        progress(done, len(tensors), "tensors")
    save_file(converted, folder / "model.safetensors", metadata={"format": "pt"})


def hf_name(gguf_name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    stem = gguf_name.removesuffix(".weight")
    if stem.startswith("blk."):
        _, layer, part = stem.split(".")
        return f"model.layers.{layer}.{_LAYER[part]}.weight"
    return f"{_TOP[stem]}.weight"


def rope_halves(weight: "Tensor", heads: int) -> "Tensor":
    """GGUF interleaves the two halves that RoPE rotates, Hugging Face keeps them apart: `[H * d, D]` -> the same."""
    rows, columns = weight.shape
    pairs = weight.view(heads, rows // heads // 2, 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns)


def _write(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
