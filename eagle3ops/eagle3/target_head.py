"""What does training need of the target? Its embedding, its final norm and its head.

Only those tensors are read from the target's safetensors files, so a target of any size costs a few gigabytes here.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn import functional as F

from eagle3ops.eagle3.arithmetic import product
from eagle3ops.eagle3.drafter import DrafterConfig
from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.errors import Eagle3opsError

_SAMPLES = 64
_SAMPLE_BYTES = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetShape:
    """The target's sizes as its `config.json` gives them."""

    model_type: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    bos_token_id: int | None
    eos_token_id: int | None

    @classmethod
    def from_config(cls, raw: Mapping[str, Any], where: str) -> "TargetShape":
        """Read a Hugging Face config; a nested `text_config` (multi-modal targets) is followed.

        Raises:
            Eagle3opsError: a size is missing or is no number.
        """
        text = raw.get("text_config", raw)
        if not isinstance(text, Mapping):
            raise Eagle3opsError(f"{where}: text_config must be a mapping")
        try:
            heads = int(text["num_attention_heads"])
            hidden = int(text["hidden_size"])
            eos = text.get("eos_token_id")
            rope = text.get("rope_parameters") or {}
            return cls(
                model_type=str(text.get("model_type", "")),
                num_layers=int(text["num_hidden_layers"]),
                hidden_size=hidden,
                intermediate_size=int(text["intermediate_size"]),
                num_attention_heads=heads,
                num_key_value_heads=int(text.get("num_key_value_heads") or heads),
                head_dim=int(text.get("head_dim") or hidden // heads),
                vocab_size=int(text["vocab_size"]),
                rms_norm_eps=float(text.get("rms_norm_eps", 1e-6)),
                rope_theta=float(rope.get("rope_theta") or text.get("rope_theta") or 10000.0),
                max_position_embeddings=int(text.get("max_position_embeddings", 8192)),
                bos_token_id=text.get("bos_token_id"),
                eos_token_id=next(iter(eos), None) if isinstance(eos, list) else eos,
            )
        except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
            raise Eagle3opsError(
                f"{where}: not a config of a causal language model: {type(error).__name__}: {error}"
            ) from error


class TargetTensors:
    """Tensors of a target's checkpoint by name, read lazily; one file or several with an index."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        index = folder / "model.safetensors.index.json"
        self._file_of: dict[str, Path] = {}
        try:
            if index.exists():
                names = json.loads(index.read_text())["weight_map"]
                self._file_of = {str(k): folder / str(v) for k, v in names.items()}
            else:
                single = folder / "model.safetensors"
                with safe_open(single, framework="pt") as handle:
                    self._file_of = dict.fromkeys(handle.keys(), single)
        except FileNotFoundError as error:
            raise Eagle3opsError(
                f"{folder}: no model.safetensors and no index of several",
                remedy="point to a folder with safetensors weights",
            ) from error
        except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise Eagle3opsError(
                f"{folder}: the weights cannot be read: {error}", remedy="fetch the target again"
            ) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def ending(self, suffix: str) -> str | None:
        """The shortest name that ends with `suffix`, so a prefix such as `language_model.` does not matter."""
        found = [name for name in self._file_of if name == suffix or name.endswith("." + suffix)]
        return min(found, key=len) if found else None

    def read(self, name: str) -> Tensor:
        """One tensor, on the CPU in the file's dtype."""
        try:
            with safe_open(self._file_of[name], framework="pt") as handle:
                tensor: Tensor = handle.get_tensor(name)
                return tensor
        except (SafetensorError, OSError) as error:
            raise Eagle3opsError(
                f"{self._file_of[name]}: {name} cannot be read: {error}", remedy="fetch the target again"
            ) from error

    def files(self) -> list[Path]:
        """Every weight file, sorted."""
        return sorted(set(self._file_of.values()))


def read_shape(model_dir: Path) -> TargetShape:
    """Sizes of the target in `model_dir`.

    Raises:
        Eagle3opsError: there is no readable `config.json`.
    """
    path = model_dir / "config.json"
    try:
        raw = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Eagle3opsError(f"{path}: cannot be read: {error}", remedy="fetch the target again") from error
    if not isinstance(raw, dict):
        raise Eagle3opsError(f"{path}: a JSON object was expected")
    return TargetShape.from_config(raw, str(path))


def target_fingerprint(model_dir: Path) -> str:
    """Identify a target's weights: SHA-256 over its sizes and over samples of every weight file.

    Reads at most 4 MiB a file, so it costs the same for 270 MB and for half a terabyte; it finds another checkpoint
    or another quantisation, not a single flipped bit.
    """
    digest = hashlib.sha256(repr(read_shape(model_dir)).encode())
    for path in TargetTensors(model_dir).files():
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}".encode())
        with path.open("rb") as handle:
            for i in range(_SAMPLES):
                handle.seek(size * i // _SAMPLES)
                digest.update(handle.read(_SAMPLE_BYTES))
    return digest.hexdigest()


class TargetHead:
    """The target's ends: token embedding below, norm and head above.

    Attributes:
        shape: the target's sizes.
        embed_weight: `[V, H]`; norm_weight: `[H]`; lm_head_weight: `[V, H]` (the embedding itself where tied).
    """

    def __init__(
        self,
        shape: TargetShape,
        embed_weight: Tensor,
        norm_weight: Tensor,
        lm_head_weight: Tensor,
    ) -> None:
        self.shape = shape
        self.embed_weight = embed_weight
        self.norm_weight = norm_weight
        self.lm_head_weight = lm_head_weight

    @classmethod
    def load(
        cls, model_dir: Path, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
    ) -> "TargetHead":
        """Read from a folder with `config.json` and safetensors weights.

        Args:
            dtype: converts; None keeps the file's.

        Raises:
            Eagle3opsError: a tensor is missing, misshapen or unreadable, or the target's norm is not a plain RMSNorm.
        """
        shape = read_shape(model_dir)
        if shape.model_type.startswith("gemma"):
            raise Eagle3opsError(
                f"{model_dir}: {shape.model_type} scales its norm by 1 + weight, which the trainer does not compute"
            )
        tensors = TargetTensors(model_dir)

        def read(name: str) -> Tensor:
            return tensors.read(name).to(device=device, dtype=dtype)

        def required(suffix: str, size: tuple[int, ...]) -> Tensor:
            name = tensors.ending(suffix)
            if name is None:
                raise Eagle3opsError(f"{model_dir}: the weights hold no tensor named ...{suffix}")
            tensor = read(name)
            if tuple(tensor.shape) != size:
                raise Eagle3opsError(
                    f"{model_dir}: {name} is {list(tensor.shape)}, the config says {list(size)}",
                    remedy="config.json and weights are of different models; fetch the target again",
                )
            return tensor

        table = (shape.vocab_size, shape.hidden_size)
        embed = required("embed_tokens.weight", table)
        norm = required("model.norm.weight", (shape.hidden_size,))
        head = embed if tensors.ending("lm_head.weight") is None else required("lm_head.weight", table)
        return cls(shape, embed, norm, head)

    def embed(self, ids: Tensor) -> Tensor:
        """Token ids `[...]` -> embeddings `[..., H]`."""
        return F.embedding(ids, self.embed_weight)

    def normed(self, final: Tensor) -> Tensor:
        """Final states before the norm `[..., H]` -> after it."""
        weight = self.norm_weight.to(final.dtype)
        return F.rms_norm(final, (self.shape.hidden_size,), weight, self.shape.rms_norm_eps)

    def logits(self, final: Tensor) -> Tensor:
        """Final states *before* the norm `[..., H]` -> logits over the whole vocabulary `[..., V]`."""
        normed = self.normed(final)
        return product(normed, self.lm_head_weight)

    def drafter_config(self, draft_vocab_size: int, aux_layers: AuxLayers) -> DrafterConfig:
        """Sizes of a drafter whose one layer has the shape of the target's."""
        shape = self.shape
        return DrafterConfig(
            hidden_size=shape.hidden_size,
            intermediate_size=shape.intermediate_size,
            num_attention_heads=shape.num_attention_heads,
            num_key_value_heads=shape.num_key_value_heads,
            head_dim=shape.head_dim,
            vocab_size=shape.vocab_size,
            draft_vocab_size=draft_vocab_size,
            target_hidden_size=shape.hidden_size,
            aux_layers=aux_layers,
            rms_norm_eps=shape.rms_norm_eps,
            rope_theta=shape.rope_theta,
            max_position_embeddings=shape.max_position_embeddings,
            bos_token_id=shape.bos_token_id,
            eos_token_id=shape.eos_token_id,
        )
