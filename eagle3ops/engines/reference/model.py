"""What does the target compute? Inference of Llama, Qwen2 and Qwen3 in torch, with every boundary open to be read.

One implementation serves the engine, the extraction of hidden states and the fingerprints, so what a drafter is
trained on and what it is served with come from the same code. Query, key and value weights are fused, and so are gate
and up: at batch 1 a pass is bound by memory and by the number of calls.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from eagle3ops.eagle3.arithmetic import product, widened
from eagle3ops.eagle3.blocks import rope_table
from eagle3ops.eagle3.target_head import TargetShape, TargetTensors
from eagle3ops.engines.reference.attention import attend_causal
from eagle3ops.errors import Eagle3opsError

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Qwen2 adds a bias to queries, keys and values, Qwen3 a norm to each head of queries and keys; else they are Llama."""

_NO_VARIANT = ("attention_bias", "mlp_bias", "quantization_config", "sliding_window")
"""Keys of a config that change the numbers in ways that are not computed here, when set."""


_TYPES = dict(zip(ARCHITECTURES, ("llama", "qwen2", "qwen3"), strict=True))


class ModelError(Eagle3opsError):
    """A model folder cannot be served as it is."""


Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""`(layer, q [B, T, heads, D], k [B, T, kv_heads, D], v) -> [B, T, heads, D]`; keys and queries are rotated."""


@dataclass(slots=True)
class _Layer:
    input_norm: Tensor
    qkv: Tensor
    out: Tensor
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor
    qkv_bias: Tensor | None = None
    head_norm: Tensor | None = None
    """Of every head of queries, then of keys: `[heads + kv_heads, D]`."""


def read_config(model_dir: Path) -> TargetShape:
    """The config of a target that can be computed here.

    Raises:
        ModelError: no readable config, another architecture, or a variant that is not supported; each named.
    """
    path = model_dir / "config.json"
    try:
        raw = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: cannot be read: {error}", remedy="fetch the model again") from error
    return parse_config(raw, str(path))


def parse_config(raw: object, where: str) -> TargetShape:
    """Check a parsed `config.json`; raises ModelError."""
    if not isinstance(raw, Mapping):
        raise ModelError(f"{where}: a JSON object was expected")
    named = raw.get("architectures")
    if not isinstance(named, list) or not named or named[0] not in ARCHITECTURES:
        raise ModelError(
            f"{where}: architecture {named!r} is not supported by the reference engine; it computes "
            + ", ".join(ARCHITECTURES),
            remedy="serve this model with another engine (engine.name: sglang or vllm)",
        )
    for key in _NO_VARIANT:
        # Qwen's configs name a window that they then switch off.
        off = key == "sliding_window" and named[0] != "LlamaForCausalLM" and raw.get("use_sliding_window") is not True
        if raw.get(key) and not off:
            raise ModelError(f"{where}: {key}={raw[key]!r} is a variant that the reference engine does not compute")
    if (act := raw.get("hidden_act", "silu")) != "silu":
        raise ModelError(f"{where}: hidden_act={act!r} is not supported, only silu")
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, Mapping) else rope
    if kind != "default":
        raise ModelError(f"{where}: rope scaling {kind!r} is not supported")
    try:
        shape = TargetShape.from_config(raw, where)
    except (Eagle3opsError, OverflowError) as error:
        raise ModelError(str(error)) from error
    if shape.model_type not in ("", _TYPES[named[0]]):
        raise ModelError(f"{where}: model_type {shape.model_type!r} does not belong to {named[0]}")
    shape = replace(shape, model_type=_TYPES[named[0]])
    sizes = {
        "num_hidden_layers": shape.num_layers, "hidden_size": shape.hidden_size, "vocab_size": shape.vocab_size,
        "intermediate_size": shape.intermediate_size, "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads, "head_dim": shape.head_dim,
        "max_position_embeddings": shape.max_position_embeddings, "rope_theta": shape.rope_theta,
    }  # fmt: skip
    for name, value in sizes.items():
        if not 0 < value < 2**31:
            raise ModelError(f"{where}: {name} is {value}, which is not a size")
    if shape.num_attention_heads % shape.num_key_value_heads or shape.head_dim % 2:
        raise ModelError(
            f"{where}: {shape.num_attention_heads} heads of {shape.head_dim} over {shape.num_key_value_heads} "
            "key heads do not divide"
        )
    return shape


def eos_ids(model_dir: Path) -> tuple[int, ...]:
    """Stop tokens: those of `generation_config.json`, else of `config.json`."""
    for name in ("generation_config.json", "config.json"):
        try:
            raw: Any = json.loads((model_dir / name).read_text())
        except (OSError, ValueError):
            continue
        value = raw.get("eos_token_id") if isinstance(raw, dict) else None
        ids = value if isinstance(value, list) else [value]
        if found := tuple(k for k in ids if type(k) is int):
            return found
    return ()


def pick_dtype(name: str) -> torch.dtype:
    """`auto` is bfloat16; other names are torch's own. Raises ModelError for a name that is not one of the engine's."""
    known = {"auto": torch.bfloat16, "bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
    if name not in known:
        raise ModelError(f"unknown dtype {name!r}: use {', '.join(known)}")
    return known[name]


def pick_device(device: str) -> torch.device:
    """`auto` is the first GPU where there is one; raises ModelError where the wanted one does not exist."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise ModelError(f"unknown device {device!r}: use auto, cpu or cuda") from error
    if wanted.type == "cuda" and not torch.cuda.is_available():
        raise ModelError("device cuda was asked for, but torch sees no GPU", remedy="use --device cpu or auto")
    return wanted


class Target:
    """A target ready for inference.

    Attributes:
        config: its sizes.
        dtype, device: of the weights and of everything computed.
    """

    def __init__(self, config: TargetShape, tensors: Mapping[str, Tensor]) -> None:
        """Build from tensors by Hugging Face's names, already of one dtype and on one device; `load` reads a folder."""
        self.config = config
        self.embed_weight = tensors["model.embed_tokens.weight"]
        self.norm_weight = tensors["model.norm.weight"]
        self.dtype = self.embed_weight.dtype
        self.device = self.embed_weight.device
        wide = widened(self.dtype, self.device)
        self.head_weight = tensors.get("lm_head.weight", self.embed_weight).to(wide)
        self.layers = [self._layer(config, tensors, f"model.layers.{k}.", wide) for k in range(config.num_layers)]
        self._norm_shape = (config.hidden_size,)
        self._rope = torch.empty(0)
        self._grow_rope(1024)

    @staticmethod
    def _layer(config: TargetShape, tensors: Mapping[str, Tensor], at: str, wide: torch.dtype) -> _Layer:
        attention, mlp = at + "self_attn.", at + "mlp."
        bias = head_norm = None
        if config.model_type == "qwen2":
            bias = torch.cat([tensors[f"{attention}{name}_proj.bias"] for name in "qkv"]).to(wide)
        if config.model_type == "qwen3":
            heads = (("q", config.num_attention_heads), ("k", config.num_key_value_heads))
            head_norm = torch.cat([tensors[f"{attention}{name}_norm.weight"].expand(n, -1) for name, n in heads])
        return _Layer(
            qkv_bias=bias,
            head_norm=head_norm,
            input_norm=tensors[at + "input_layernorm.weight"],
            qkv=torch.cat([tensors[f"{attention}{name}_proj.weight"] for name in "qkv"]).to(wide),
            out=tensors[attention + "o_proj.weight"].to(wide),
            post_norm=tensors[at + "post_attention_layernorm.weight"],
            gate_up=torch.cat([tensors[f"{mlp}{name}_proj.weight"] for name in ("gate", "up")]).to(wide),
            down=tensors[mlp + "down_proj.weight"].to(wide),
        )

    @staticmethod
    def shapes(config: TargetShape) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor that is read; `lm_head.weight` comes beside them where it is not tied."""
        hidden, inner = config.hidden_size, config.intermediate_size
        query, kv = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (config.vocab_size, hidden),
            "model.norm.weight": (hidden,),
        }
        for k in range(config.num_layers):
            at = f"model.layers.{k}."
            shapes[at + "input_layernorm.weight"] = shapes[at + "post_attention_layernorm.weight"] = (hidden,)
            shapes[at + "self_attn.q_proj.weight"] = (query, hidden)
            shapes[at + "self_attn.k_proj.weight"] = shapes[at + "self_attn.v_proj.weight"] = (kv, hidden)
            shapes[at + "self_attn.o_proj.weight"] = (hidden, query)
            if config.model_type == "qwen2":
                shapes[at + "self_attn.q_proj.bias"] = (query,)
                shapes[at + "self_attn.k_proj.bias"] = shapes[at + "self_attn.v_proj.bias"] = (kv,)
            if config.model_type == "qwen3":
                shapes[at + "self_attn.q_norm.weight"] = shapes[at + "self_attn.k_norm.weight"] = (config.head_dim,)
            shapes[at + "mlp.gate_proj.weight"] = shapes[at + "mlp.up_proj.weight"] = (inner, hidden)
            shapes[at + "mlp.down_proj.weight"] = (hidden, inner)
        return shapes

    @classmethod
    def load(cls, model_dir: Path, dtype: torch.dtype = torch.bfloat16, device: torch.device | str = "cpu") -> "Target":
        """Read `config.json` and the safetensors weights.

        Raises:
            ModelError: the architecture is not supported, a tensor is missing or misshapen, or a file is corrupt.
        """
        config = read_config(model_dir)
        try:
            files = TargetTensors(model_dir)
        except Eagle3opsError as error:
            raise ModelError(error.what, remedy=error.remedy) from error
        shapes = cls.shapes(config)
        if "lm_head.weight" in files:
            shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
        names = set(files)
        if missing := [name for name in shapes if name not in names]:
            shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
            raise ModelError(
                f"{model_dir}: the weights lack {shown}",
                remedy="config.json and the weights belong to different models, or a file is missing; fetch it again",
            )
        tensors: dict[str, Tensor] = {}
        for name, shape in shapes.items():
            try:
                tensor = files.read(name)
            except Eagle3opsError as error:
                raise ModelError(error.what, remedy=error.remedy) from error
            if tuple(tensor.shape) != shape:
                raise ModelError(
                    f"{model_dir}: {name} is {list(tensor.shape)}, config.json says {list(shape)}",
                    remedy="config.json and the weights belong to different models; fetch the model again",
                )
            tensors[name] = tensor.to(device=device, dtype=dtype)
        return cls(config, tensors)

    def _grow_rope(self, positions: int) -> None:
        config = self.config
        cos, sin = rope_table(config.head_dim, positions, config.rope_theta, self.device)
        half = config.head_dim // 2
        # The sign of the turned half is folded into the sine, which saves a negation and a concatenation a layer.
        sin = torch.cat((-sin[:, :half], sin[:, half:]), dim=-1)
        self._rope = torch.stack((cos, sin)).to(self.dtype)

    def rope(self, positions: Tensor, highest: int) -> tuple[Tensor, Tensor]:
        """Cosine and signed sine `[..., 1, D]` of `positions` `[...]`, none above `highest`."""
        if highest >= self._rope.shape[1]:
            self._grow_rope(max(highest + 1, 2 * self._rope.shape[1]))
        table = self._rope[:, positions].unsqueeze(-2)
        return table[0], table[1]

    def run(
        self, x: Tensor, rope: tuple[Tensor, Tensor], attend: Attend, want: Sequence[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """All layers.

        Args:
            x: embeddings `[B, T, H]`.
            rope: from `rope`.
            attend: attention, with whatever cache the caller keeps.
            want: boundaries to return.

        Returns:
            The final state before the norm `[B, T, H]`, and the wanted boundaries by their number.
        """
        config, shape, eps = self.config, self._norm_shape, self.config.rms_norm_eps
        rows, steps, _ = x.shape
        heads, kv_heads, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        cos, sin = rope
        halves = (rows, steps, heads + kv_heads, 2, size // 2)
        whole = (rows, steps, heads + kv_heads, size)
        turned, inner = (heads + kv_heads) * size, config.intermediate_size
        linear, norm = product, F.rms_norm
        kept: dict[int, Tensor] = {}
        for index, layer in enumerate(self.layers):
            if index in want:
                kept[index] = x
            qkv = linear(norm(x, shape, layer.input_norm, eps), layer.qkv, layer.qkv_bias)
            qk = qkv[..., :turned].view(whole)
            if layer.head_norm is not None:
                qk = norm(qk, (size,), None, eps) * layer.head_norm
            swapped = qk.view(halves).flip(-2).view(whole)
            qk = torch.addcmul(qk * cos, swapped, sin)
            v = qkv[..., turned:].view(rows, steps, kv_heads, size)
            attended = attend(index, qk[:, :, :heads], qk[:, :, heads:], v)
            x = x + linear(attended.flatten(-2), layer.out)
            gate_up = linear(norm(x, shape, layer.post_norm, eps), layer.gate_up)
            x = x + linear(F.silu(gate_up[..., :inner]).mul_(gate_up[..., inner:]), layer.down)
        if config.num_layers in want:
            kept[config.num_layers] = x
        return x, kept

    @torch.inference_mode()
    def boundaries(self, ids: Tensor, lengths: Tensor, want: Sequence[int]) -> Tensor:
        """Hidden states of whole texts, without a cache.

        Args:
            ids: token ids `[B, T]`, padded on the right.
            lengths: real tokens of each row `[B]`; what lies behind them is zero in the result.
            want: boundaries, 0 = embedding ... n = final state before the norm.

        Returns:
            `[len(want), B, T, H]` in the target's dtype.

        Raises:
            ValueError: a boundary or a token id does not exist.
        """
        if bad := [k for k in want if not 0 <= k <= self.config.num_layers]:
            raise ValueError(f"boundaries {bad} do not exist in a target of {self.config.num_layers} layers")
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < self.config.vocab_size:
            raise ValueError(f"token ids must be below {self.config.vocab_size}")
        ids = ids.to(self.device)
        steps = ids.shape[1]
        positions = torch.arange(steps, device=self.device)[None]
        _, kept = self.run(
            self.embed(ids), self.rope(positions, steps - 1), lambda _layer, q, k, v: attend_causal(q, k, v), want
        )
        out = torch.stack([kept[k] for k in want])
        padding = positions >= lengths.to(self.device)[:, None]
        return out.masked_fill_(padding[None, :, :, None], 0)

    def embed(self, ids: Tensor) -> Tensor:
        """Token ids `[...]` -> embeddings `[..., H]`."""
        return F.embedding(ids, self.embed_weight)

    def normed(self, x: Tensor) -> Tensor:
        """Final state before the norm -> after it, `[..., H]`."""
        return F.rms_norm(x, self._norm_shape, self.norm_weight, self.config.rms_norm_eps)

    def logits(self, normed: Tensor) -> Tensor:
        """Final state after the norm `[..., H]` -> logits `[..., V]`."""
        return product(normed, self.head_weight)
