"""How does a checkpoint look in the form of an engine, or in one that serves two?

    sglang   LlamaForCausalLMEagle3 (Eagle3DeepseekV2ForCausalLM for MLA), `midlayer.` names, ids in eagle_config in the
             numbers that this version of SGLang turns into the wanted tensors for this class of target
    vllm     the same architecture (Eagle3Qwen3ForCausalLM where heads are normed), `layers.` names, inputs of layers at
             the top level
    both     SGLang's form with vLLM's ids beside: each engine looks at its own place

Tensors are copied byte by byte, whatever their type. A `d2t` that maps every id to itself is left out for vLLM, which
has no parameter for it.
"""

import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.version import Version

from eagle3ops.errors import RequestError
from eagle3ops.runs.files import write_json
from eagle3ops.targets.headers import TensorInfo
from eagle3ops.wiring.captured import captured
from eagle3ops.wiring.convert.forms import ConversionRefused, Meaning
from eagle3ops.wiring.lint.case import IDS, Family, Target
from eagle3ops.wiring.lint.checkpoint import CONFIG, Checkpoint, read_checkpoint

ENGINES = ("sglang", "vllm", "both")
WEIGHTS = "model.safetensors"
ARCHITECTURES: Mapping[Family, str] = {
    "llama": "LlamaForCausalLMEagle3", "latent": "Eagle3DeepseekV2ForCausalLM", "qwen3": "Eagle3Qwen3ForCausalLM",
}  # fmt: skip
NORM_BEFORE_FC = Version("0.5.23")
"""Of SGLang: it was read there, and is not in 0.5.14."""
_CHUNK = 1 << 24


def render_config(meaning: Meaning, target: Target, engine: str, sglang: str) -> dict[str, Any]:
    """`config.json` in the form of an engine.

    Raises:
        ConversionRefused: that engine has no words for what this drafter is.
    """
    config = {"architectures": [ARCHITECTURES[meaning.family]], **meaning.config}
    config.setdefault("model_type", {"latent": "deepseek_v3"}.get(meaning.family, meaning.family))
    config.setdefault("tie_word_embeddings", False)
    config.setdefault("draft_vocab_size", config.get("vocab_size"))
    _refuse(meaning, engine, sglang)
    for key, value in (
        ("norm_before_residual", meaning.norm_before_residual),
        ("norm_before_fc", meaning.norm_before_fc),
        ("fc_norm", meaning.fc_norm),
        ("norm_output", meaning.feeds_normed),
    ):
        if value:
            config[key] = True
    if len(meaning.layers.boundary) != 3 and engine == "vllm":
        config["num_aux_hidden_states"] = len(meaning.layers.boundary)
    if engine in ("sglang", "both"):
        config["eagle_config"] = {IDS: _for_sglang(meaning, target, sglang), "use_aux_hidden_state": True}
    if engine in ("vllm", "both"):
        config[IDS] = _ascending(meaning)
    return config


def _refuse(meaning: Meaning, engine: str, sglang: str) -> None:
    if meaning.norm_before_fc and meaning.family == "latent":
        raise ConversionRefused(
            "it was trained with norm_before_fc, and neither engine has such a switch for a compressed cache (MLA)",
            remedy="train it without, or with fc_norm",
        )
    if engine == "vllm":
        return
    if meaning.family == "qwen3":
        raise ConversionRefused(
            "it norms queries and keys in each head, as Qwen3 does, and SGLang has no such drafter",
            remedy="serve it with vLLM (--to vllm)",
        )
    if meaning.norm_before_residual:
        raise ConversionRefused(
            "it was trained with norm_before_residual, and SGLang has no such switch",
            remedy="serve it with vLLM (--to vllm), or train it without",
        )
    if meaning.norm_before_fc and Version(sglang).release < NORM_BEFORE_FC.release:
        raise ConversionRefused(
            f"it was trained with norm_before_fc, and SGLang {sglang} is not known to have such a switch",
            remedy=f"use SGLang {NORM_BEFORE_FC}",
        )


def _ascending(meaning: Meaning) -> list[int]:
    """Engines hand tensors over in ascending order, whatever the config says."""
    boundary = list(meaning.layers.boundary)
    if boundary != sorted(boundary):
        raise ConversionRefused(
            f"it was trained on boundaries {boundary} in this order, and engines hand them over in ascending order",
            remedy="the columns of fc would have to be permuted; train it again, or do that first",
        )
    return boundary


def _for_sglang(meaning: Meaning, target: Target, version: str) -> list[int]:
    """The ids that make SGLang capture the wanted tensors."""
    wanted, layers = _ascending(meaning), meaning.layers.num_layers
    why = ""
    for ids in ([k - 1 for k in wanted], wanted):
        try:
            found = captured("sglang", version, target.architecture, layers, ids)
        except RequestError as refusal:
            raise ConversionRefused(refusal.what, remedy=refusal.remedy) from refusal
        sure = not any("makes the engine fail" in note or "never seen" in note for note in found.notes)
        if list(found.boundary) == wanted and sure:
            return ids
        why = why or "; ".join(found.notes[:-1])
    raise ConversionRefused(
        f"SGLang {version} captures boundaries {wanted} of {target.architecture} for no ids{': ' + why if why else ''}",
        remedy="serve it with vLLM, or train on layers that SGLang captures",
    )


def _name(canonical: str, engine: str) -> str:
    if engine != "vllm" and canonical.startswith("layers.0."):
        return "midlayer." + canonical.removeprefix("layers.0.")
    return canonical


def write(checkpoint: Checkpoint, meaning: Meaning, target: Target, engine: str, out: Path, sglang: str) -> None:
    """Write a checkpoint into a new folder; it has no config.json before it is whole.

    Raises:
        ConversionRefused: see `render_config`, or the folder is there already.
        OSError: it cannot be written.
    """
    config = render_config(meaning, target, engine, sglang)
    if out.exists() and any(out.iterdir()):
        raise ConversionRefused(f"{out}: exists already and is not empty", remedy="name another folder")
    out.mkdir(parents=True, exist_ok=True)
    assert checkpoint.tensors is not None
    if engine != "sglang" and config["draft_vocab_size"] in (None, target.size("vocab_size")):
        meaning = replace(meaning, names=_unmapped(checkpoint.tensors, meaning.names))
    tensors = {_name(new, engine): checkpoint.tensors[old] for new, old in sorted(meaning.names.items())}
    try:
        _write_tensors(out / WEIGHTS, tensors)
    except OSError:
        with suppress(OSError):
            (out / WEIGHTS).unlink()
        raise
    if differ := differences(checkpoint, meaning, read_checkpoint(out), engine):
        raise ConversionRefused(
            f"{out}: was not written as it should be: {', '.join(differ[:5])}", remedy="is the disk full?"
        )
    write_json(out / CONFIG, config)


def _unmapped(tensors: Mapping[str, TensorInfo], names: Mapping[str, str]) -> dict[str, str]:
    """The names without a `d2t` that maps every id to itself."""
    nothing = "d2t" in names and not any(any(piece) for piece in _pieces(tensors[names["d2t"]]))
    return {new: old for new, old in names.items() if not (nothing and new == "d2t")}


def _write_tensors(path: Path, tensors: Mapping[str, TensorInfo]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, one in tensors.items():
        size = one.end - one.begin
        header[name] = {"dtype": one.dtype, "shape": list(one.shape), "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(header, separators=(",", ":")).encode()
    # As the library pads it, so that tensors begin at a multiple of 8.
    raw += b" " * (-len(raw) % 8)
    with path.open("xb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        for one in tensors.values():
            for piece in _pieces(one):
                file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def _pieces(one: TensorInfo) -> Iterator[bytes]:
    size = one.end - one.begin
    for begin in range(0, size, _CHUNK):
        piece = one.read(begin, min(begin + _CHUNK, size))
        if len(piece) != min(_CHUNK, size - begin):
            raise OSError(f"{one.file}: is shorter than its header says")
        yield piece


def differences(source: Checkpoint, meaning: Meaning, made: Checkpoint, engine: str) -> list[str]:
    """Tensors that are not the same bytes in both: none, where every forward agrees to the last bit."""
    theirs = made.tensors or {}
    assert source.tensors is not None
    found = []
    for canonical, old in meaning.names.items():
        one, other = source.tensors[old], theirs.get(_name(canonical, engine))
        if other is None or (one.dtype, one.shape) != (other.dtype, other.shape) or _hash(one) != _hash(other):
            found.append(canonical)
    return found


def _hash(one: TensorInfo) -> str:
    digest = hashlib.sha256()
    for piece in _pieces(one):
        digest.update(piece)
    return digest.hexdigest()
