"""How is a drafter written for serving, checked tensor by tensor, and read back?

The form is the one SGLang loads as `LlamaForCausalLMEagle3`. Its loader skips names it does not know and leaves
tensors it misses uninitialised, so nothing is called done here before `check_export` has found nothing.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from eagle3ops.eagle3.drafter import Drafter, DrafterConfig
from eagle3ops.eagle3.durable import write_bytes_durably, write_durably
from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.errors import Eagle3opsError

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
ARCHITECTURE = "LlamaForCausalLMEagle3"

_IGNORED = frozenset({"embed_tokens.weight", "model.embed_tokens.weight"})
"""Every engine overwrites the drafter's embedding by the target's."""

_UNSUPPORTED_FLAGS = (
    "fc_norm", "norm_output", "norm_before_fc", "norm_before_residual", "use_aux_norm", "bias",
    "attention_bias", "mlp_bias", "tie_word_embeddings",
)  # fmt: skip
"""Variants of the architecture that change the numbers without changing a tensor's shape: refused, never ignored."""


class CheckpointError(Eagle3opsError):
    """A drafter's folder cannot be used as it is."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a checkpoint's tensors did to a drafter; everything but `loaded` empty means a perfect fit."""

    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    misshapen: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Whether every tensor found its place."""
        return not (self.missing or self.unexpected or self.misshapen)

    def __str__(self) -> str:
        names = ("missing", "unexpected", "misshapen")
        parts = [f"{name}: {', '.join(values)}" for name in names if (values := getattr(self, name))]
        return "; ".join([f"{len(self.loaded)} loaded", *parts])


def expected_shapes(config: DrafterConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor in an exported drafter."""
    with torch.device("meta"):
        return {name: tuple(t.shape) for name, t in Drafter(config).state_dict().items()}


def render_config(config: DrafterConfig, dtype: torch.dtype) -> dict[str, Any]:
    """The `config.json` of an export; each engine finds the layer ids where it looks, and in its own convention.

    SGLang reads them in `eagle_config`, as 0-based layer outputs; vLLM reads the top level first, as inputs of layers.
    """
    name = str(dtype).removeprefix("torch.")
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "num_hidden_layers": 1,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "rms_norm_eps": config.rms_norm_eps,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_position_embeddings,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_theta": config.rope_theta, "rope_type": "default"},
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_id,
        "pad_token_id": config.eos_token_id,
        "torch_dtype": name,
        "dtype": name,
        "target_hidden_size": config.target_hidden_size,
        **_layer_keys(config.aux_layers),
    }


def _layer_keys(layers: AuxLayers) -> dict[str, Any]:
    """Where engines look for the layers that a drafter reads: SGLang in `eagle_config`, vLLM at the top level."""
    return {
        "eagle_aux_hidden_state_layer_ids": layers.ids("boundary"),
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": layers.ids("layer_outputs"),
            "use_aux_hidden_state": True,
        },
    }


def name_layers(config: Mapping[str, Any], layers: AuxLayers) -> dict[str, Any]:
    """The config of a drafter that says it reads these layers, whatever it was trained on."""
    return {**config, **_layer_keys(layers)}


def parse_config(raw: object, num_target_layers: int, where: str = CONFIG) -> DrafterConfig:
    """A drafter's `config.json` -> its sizes.

    Raises:
        CheckpointError: a key is missing or wrong, or asks for a variant that is not computed here.
    """
    if not isinstance(raw, Mapping):
        raise CheckpointError(f"{where}: a JSON object was expected")
    for flag in _UNSUPPORTED_FLAGS:
        for source in (raw, raw.get("eagle_config")):
            if isinstance(source, Mapping) and source.get(flag):
                raise CheckpointError(f"{where}: {flag}={source[flag]!r} is a variant that is not supported")
    try:
        eagle = raw.get("eagle_config") or {}
        ids = eagle.get("eagle_aux_hidden_state_layer_ids")
        if not isinstance(ids, list) or not all(type(k) is int for k in ids):
            raise CheckpointError(
                f"{where}: eagle_config.eagle_aux_hidden_state_layer_ids must be a list of layer numbers, not {ids!r}",
                remedy="write the ids the drafter was trained with (0-based, layer outputs); engines guess otherwise",
            )
        if (rope := raw.get("rope_parameters") or raw.get("rope_scaling") or {}) and (
            kind := rope.get("rope_type", rope.get("type", "default"))
        ) != "default":
            raise CheckpointError(f"{where}: rope scaling {kind!r} is not supported")
        if (layers := raw.get("num_hidden_layers", 1)) != 1:
            raise CheckpointError(f"{where}: num_hidden_layers is {layers!r}; an EAGLE-3 drafter has 1")
        heads, hidden, vocab = int(raw["num_attention_heads"]), int(raw["hidden_size"]), int(raw["vocab_size"])
        config = DrafterConfig(
            hidden_size=hidden,
            intermediate_size=int(raw["intermediate_size"]),
            num_attention_heads=heads,
            num_key_value_heads=int(raw.get("num_key_value_heads") or heads),
            head_dim=int(raw.get("head_dim") or hidden // heads),
            vocab_size=vocab,
            draft_vocab_size=int(raw.get("draft_vocab_size") or vocab),
            target_hidden_size=int(raw.get("target_hidden_size") or hidden),
            aux_layers=AuxLayers.from_ids(ids, "layer_outputs", num_target_layers),
            rms_norm_eps=float(raw["rms_norm_eps"]),
            rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0),
            max_position_embeddings=int(raw.get("max_position_embeddings", 8192)),
            bos_token_id=raw.get("bos_token_id"),
            eos_token_id=raw.get("eos_token_id"),
        )
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError, OverflowError) as error:
        what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise CheckpointError(f"{where}: {what}") from error
    _check_sizes(config, where)
    return config


def _check_sizes(config: DrafterConfig, where: str) -> None:
    positive = (
        "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
        "draft_vocab_size", "target_hidden_size", "max_position_embeddings", "rope_theta", "rms_norm_eps",
    )  # fmt: skip
    for name in positive:
        value = getattr(config, name)
        if not 0 < value < 2**31:
            raise CheckpointError(f"{where}: {name} is {value}, which is not a size")
    if config.num_attention_heads % config.num_key_value_heads:
        raise CheckpointError(
            f"{where}: {config.num_attention_heads} attention heads cannot share {config.num_key_value_heads} key heads"
        )
    if config.head_dim % 2:
        raise CheckpointError(f"{where}: head_dim {config.head_dim} is odd; rotary embedding needs pairs")
    if config.draft_vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{where}: draft_vocab_size {config.draft_vocab_size} is larger than vocab_size {config.vocab_size}"
        )
    if config.target_hidden_size != config.hidden_size:
        raise CheckpointError(
            f"{where}: a drafter narrower than its target ({config.hidden_size} against "
            f"{config.target_hidden_size}) is not supported"
        )


def export_drafter(
    drafter: Drafter, folder: Path, *, aux_scale: Tensor | None = None, dtype: torch.dtype = torch.bfloat16
) -> Path:
    """Write `config.json` and `model.safetensors` to `folder`, and check what was written.

    Args:
        aux_scale: `[3H]`; training divided the aux states by it, so `fc`'s columns are divided instead: the same
            numbers from states as they are, with no tensor that an engine would not know.
        dtype: of the float tensors written.

    Raises:
        CheckpointError: what was written does not pass `check_export`; the names are in the message.
        OSError: the folder cannot be written.
    """
    tensors: dict[str, Tensor] = {}
    for name, value in drafter.state_dict().items():
        tensor = value.detach().cpu()
        if name == "fc.weight" and aux_scale is not None:
            tensor = (tensor.double() / aux_scale.detach().cpu().double()).to(tensor.dtype)
        tensors[name] = tensor.to(dtype).contiguous() if tensor.is_floating_point() else tensor.contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    # The weights first: a folder with a config but no weights would look loadable.
    write_durably(folder / WEIGHTS, lambda path: save_file(tensors, path, metadata={"format": "pt"}))
    text = json.dumps(render_config(drafter.config, dtype), indent=1)
    write_bytes_durably(folder / CONFIG, text.encode())
    if problems := check_export(folder, drafter.config.aux_layers.num_layers):
        raise CheckpointError(f"{folder}: the export is not sound: " + "; ".join(problems))
    return folder


def read_drafter_config(folder: Path, num_target_layers: int) -> DrafterConfig:
    """`config.json` of a drafter's folder; raises CheckpointError."""
    path = folder / CONFIG
    try:
        raw = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    return parse_config(raw, num_target_layers, str(path))


def _canonical(name: str) -> str:
    """Names as the drafter's modules have them; engines accept `layers.0.` for the same layer."""
    return "midlayer." + name.removeprefix("layers.0.") if name.startswith("layers.0.") else name


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a drafter's folder by canonical name, on the CPU; raises CheckpointError."""
    path = folder / WEIGHTS
    try:
        with safe_open(path, framework="pt") as handle:
            return {_canonical(n): handle.get_tensor(n) for n in handle.keys() if n not in _IGNORED}  # noqa: SIM118
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder}: has no {WEIGHTS}") from error
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}", remedy="export the drafter again") from error


def fit(config: DrafterConfig, tensors: Mapping[str, Tensor]) -> LoadReport:
    """Compare a checkpoint's tensors with what a drafter of `config` holds."""
    wanted = expected_shapes(config)
    optional = {"t2d"} | ({"d2t"} if config.draft_vocab_size == config.vocab_size else set())
    misshapen = [
        f"{name} is {list(tensors[name].shape)}, not {list(shape)}"
        for name, shape in wanted.items()
        if name in tensors and tuple(tensors[name].shape) != shape
    ]
    return LoadReport(
        loaded=tuple(n for n, s in wanted.items() if n in tensors and tuple(tensors[n].shape) == s),
        missing=tuple(n for n in wanted if n not in tensors and n not in optional),
        unexpected=tuple(n for n in tensors if n not in wanted),
        misshapen=tuple(misshapen),
    )


def check_export(folder: Path, num_target_layers: int | None = None) -> list[str]:
    """Everything that is wrong with an exported drafter, in words; an empty list means it is sound.

    Args:
        num_target_layers: layers of the target; None leaves out the check that the layer ids exist in it.
    """
    try:
        config = read_drafter_config(folder, 2**20 if num_target_layers is None else num_target_layers)
        tensors = read_tensors(folder)
    except CheckpointError as error:
        return [error.what]
    report = fit(config, tensors)
    problems = [f"{name} is missing" for name in report.missing]
    problems += [f"{name} is not a tensor of this architecture" for name in report.unexpected]
    problems += list(report.misshapen)
    if "t2d" not in tensors:
        problems.append("t2d is missing")
    kinds = {t.dtype for t in tensors.values() if t.is_floating_point()}
    if len(kinds) > 1:
        problems.append("float tensors of several dtypes: " + ", ".join(sorted(map(str, kinds))))
    for name, tensor in tensors.items():
        wanted = {"d2t": torch.int64, "t2d": torch.bool}.get(name)
        if wanted is not None and tensor.dtype != wanted:
            problems.append(f"{name} is {tensor.dtype}, not {wanted}")
        elif wanted is None and not tensor.is_floating_point():
            problems.append(f"{name} is {tensor.dtype}, not a float")
        elif wanted is None and not torch.isfinite(tensor).all():
            problems.append(f"{name} holds NaN or infinity")
        elif wanted is None and not tensor.any():
            problems.append(f"{name} is all zeros")
    if not report.misshapen and tensors.get("d2t") is not None:
        problems += check_vocabulary(tensors["d2t"], tensors.get("t2d"), config.vocab_size)
    return problems


def check_vocabulary(d2t: Tensor, t2d: Tensor | None, vocab_size: int) -> list[str]:
    """What is wrong with a draft vocabulary: `d2t` int64 offsets `[N]`, `t2d` bool `[V]`."""
    if d2t.dtype != torch.int64:
        return [f"d2t is {d2t.dtype}, not torch.int64"]
    ids = d2t + torch.arange(d2t.numel(), device=d2t.device)
    if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= vocab_size):
        return [f"d2t points outside the vocabulary of {vocab_size}"]
    if not bool((ids.diff() > 0).all()):
        return ["d2t does not list distinct ids in ascending order (are they ids instead of offsets?)"]
    if t2d is not None and (t2d.dtype != torch.bool or not torch.equal(t2d.nonzero().flatten(), ids)):
        return ["t2d does not mark exactly the ids that d2t lists"]
    return []


def load_drafter(
    folder: Path,
    num_target_layers: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Drafter:
    """Read an exported drafter.

    Args:
        num_target_layers: of the target it drafts for; the layer ids are checked against it.

    Raises:
        CheckpointError: config or tensors are missing, unknown, misshapen or not finite; each is named.
    """
    config = read_drafter_config(folder, num_target_layers)
    tensors = read_tensors(folder)
    report = fit(config, tensors)
    if not report.clean:
        raise CheckpointError(f"{folder}: the tensors do not fit the config: {report}")
    broken = [n for n, t in tensors.items() if t.is_floating_point() and not bool(torch.isfinite(t).all())]
    if broken:
        raise CheckpointError(f"{folder}: NaN or infinity in {', '.join(broken)}", remedy="export the drafter again")
    full = config.draft_vocab_size == config.vocab_size
    d2t = tensors.setdefault("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64)) if full else tensors["d2t"]
    if problems := check_vocabulary(d2t, tensors.get("t2d"), config.vocab_size):
        raise CheckpointError(f"{folder}: " + "; ".join(problems))
    if "t2d" not in tensors:
        t2d = torch.zeros(config.vocab_size, dtype=torch.bool)
        t2d[d2t + torch.arange(d2t.numel())] = True
        tensors["t2d"] = t2d
    drafter = Drafter(config)
    drafter.load_state_dict(tensors)
    floats = {torch.float32, torch.bfloat16, torch.float16, torch.float64}
    if dtype not in floats:
        raise CheckpointError(f"{dtype} is not a dtype a drafter can compute in")
    rope = drafter.rope
    drafter = drafter.to(device=device, dtype=dtype)
    # The rotary table stays float32: in bf16 it would lose the phase of far positions.
    drafter.rope = rope.to(device)
    return drafter.eval()
