"""Is each thing that can be wrong with a checkpoint found, alone, and nothing in those that are right?"""

import contextlib
import json
import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import DRAFT, DRAFT_IDS, INPUTS, LAYERS, OUTPUTS, VOCAB, H, Made, good, latent, layer, normed_heads
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3ops.errors import RequestError
from eagle3ops.targets.headers import floats as decoded
from eagle3ops.targets.headers import read_header
from eagle3ops.wiring.lint.layer_lists import PLACES, heard, lists_of
from eagle3ops.wiring.lint.lint import lint
from eagle3ops.wiring.lint.parameters import Latent, Sizes, parameters

SG14, SG23, VLLM, OURS = ("sglang", "0.5.14"), ("sglang", "0.5.23"), ("vllm", "0.32.0"), ("reference", None)
IDS = "eagle_aux_hidden_state_layer_ids"
Change = Callable[[Made], object]


def config(**changes: Any) -> Change:
    return lambda made: made.config.update(changes)


def without(*names: str) -> Change:
    return lambda made: [made.config.pop(name, None) for name in names]


def nested(ids: object) -> Change:
    return lambda made: made.config.update(eagle_config={IDS: ids})


def tensor(name: str, value: Any) -> Change:
    return lambda made: made.tensors.update({name: value})


def drop(*names: str) -> Change:
    return lambda made: [made.tensors.pop(name) for name in names]


def target(**changes: Any) -> Change:
    return lambda made: made.target.update(changes)


def file(change: Callable[[Path], object]) -> Change:
    return lambda made: made.after.append(change)


def both(*changes: Change) -> Change:
    return lambda made: [change(made) for change in changes]


def scaled(**changes: Any) -> Change:
    """A drafter with these in place of its `rope_parameters`."""
    return both(config(**changes), without("rope_parameters"))


def without_length(rope: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in rope.items() if name != ORIGINAL}


def half_target(made: Made) -> None:
    """A target in another type than its drafter."""
    rows = made.target_tensors["model.embed_tokens.weight"]
    made.target_tensors["model.embed_tokens.weight"] = rows.astype("float16")


def padded(made: Made) -> None:
    """A target whose embedding has rows to spare."""
    rows = made.target_tensors["model.embed_tokens.weight"]
    made.target_tensors["model.embed_tokens.weight"] = np.concatenate((rows, np.zeros((3, H), dtype=rows.dtype)))


ORIGINAL = "original_max_position_embeddings"
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, ORIGINAL: 64}
YARN = {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 64}
LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.0], "long_factor": [1.0, 4.0], ORIGINAL: 64}
SECTIONS = {"type": "mrope", "rope_type": "default", "mrope_section": [1, 1]}


def floats(*shape: int) -> Any:
    return np.ones(shape, dtype=np.float32)


def rename(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def write(name: str, text: str) -> Change:
    return file(lambda folder: (folder / name).write_text(text))


INDEX = "model.safetensors.index.json"


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def cut(folder: Path) -> None:
    weights = folder / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 100)


def longer(folder: Path) -> None:
    with (folder / "model.safetensors").open("ab") as weights:
        weights.write(bytes(8))


def overlapping(folder: Path) -> None:
    """Two tensors of one shape at one place, as after an export that wrote a header by hand."""
    weights = folder / "model.safetensors"
    raw = weights.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    header["norm.weight"] = header["layers.0.hidden_norm.weight"]
    text = json.dumps(header).encode()
    weights.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])


BROKEN: dict[str, tuple[tuple[str, str | None], Change, str]] = {
    "no config": (SG14, file(lambda folder: (folder / "config.json").unlink()), "config-missing"),
    "config is cut": (SG14, file(lambda folder: (folder / "config.json").write_text('{"hid')), "config-unreadable"),
    "config is a list": (SG14, file(lambda folder: (folder / "config.json").write_text("[]")), "config-unreadable"),
    "no weights": (SG14, file(lambda folder: (folder / "model.safetensors").unlink()), "weights-missing"),
    "weights are a pickle": (
        SG14, file(rename), "weights-pickle",
    ),
    "weights are cut": (SG14, file(cut), "weights-damaged"),
    "weights with bytes to spare": (SG14, file(longer), "weights-damaged"),
    "weights that overlap": (VLLM, file(overlapping), "weights-damaged"),
    "weights are text": (SG14, write("model.safetensors", "version 1\noid"), "weights-damaged"),
    "a part is missing": (
        SG14,
        write(INDEX, '{"weight_map": {"fc.weight": "model-2.safetensors"}}'),
        "weights-file-missing",
    ),
    "the index is cut": (SG14, write(INDEX, "{"), "index-unreadable"),
    "no architecture": (SG14, without("architectures"), "architecture-missing"),
    "no model_type": (SG14, without("model_type"), "model-type-missing"),
    "a model_type that is null, on vLLM": (VLLM, config(model_type=None), "model-type-missing"),
    "vLLM's class on SGLang": (SG14, config(architectures=["Eagle3LlamaForCausalLM"]), "architecture-unknown"),
    "EAGLE's own class on SGLang": (SG14, config(architectures=["LlamaForCausalLM"]), "architecture-unknown"),
    "AngelSlim's class on our engine": (OURS, config(architectures=["Eagle3LlamaForCausalLM"]), "architecture-unknown"),
    "speculators on SGLang": (
        SG14, config(architectures=["Eagle3DraftModel"], transformer_layer_config={}), "speculators-form",
    ),
    "no hidden_size": (SG14, without("hidden_size"), "size-wrong"),
    "a size below zero": (VLLM, config(intermediate_size=-3), "size-wrong"),
    "a size in words": (VLLM, config(num_attention_heads="four"), "size-wrong"),
    "target_hidden_size is null": (SG14, config(target_hidden_size=None), "size-wrong"),
    "heads that cannot be shared": (SG14, config(num_key_value_heads=3), "heads-uneven"),
    "an odd head": (SG14, config(head_dim=5), "head-odd"),
    "no draft vocabulary": (SG14, without("draft_vocab_size"), "draft-vocab-missing"),
    "a draft vocabulary above all": (VLLM, config(draft_vocab_size=VOCAB + 1), "draft-vocab-large"),
    "residual normed, on SGLang": (SG23, config(norm_before_residual=True), "residual-not-normed"),
    "fc normed, on an SGLang without": (
        SG14, both(config(norm_before_fc=True), tensor("input_norm.weight", floats(3 * H))), "fc-not-normed",
    ),
    "the head is tied": (SG14, config(tie_word_embeddings=True), "head-tied"),
    "a window, on SGLang": (SG14, config(sliding_window=2048), "window-not-read"),
    "use_aux_norm on vLLM": (VLLM, config(use_aux_norm=True), "aux-norm-not-read"),
    "the norm feeds back": (SG23, config(norm_output=True), "norm-output"),
    "gelu": (SG14, config(hidden_act="gelu"), "activation-unknown"),
    "a variant on our engine": (OURS, config(norm_output=True), "switch-unsupported"),
    "rope of no kind": (SG14, config(rope_parameters={"rope_type": "spiral"}), "rope-unknown"),
    "rope without its factor": (SG14, config(rope_parameters={"rope_type": "yarn"}), "rope-incomplete"),
    "rope is a word": (VLLM, config(rope_scaling="yarn"), "rope-unknown"),
    "rope of a list": (SG14, config(rope_parameters={"rope_type": []}), "rope-unknown"),
    "the config is a pipe": (
        SG14, file(lambda folder: pipe(folder / "config.json")), "config-unreadable",
    ),
    "the weights are a pipe": (
        SG14, file(lambda folder: pipe(folder / "model.safetensors")), "weights-missing",
    ),
    "rope told twice": (SG14, config(rope_theta=5e5), "rope-twice"),
    "rope not told": (SG14, without("rope_theta", "rope_parameters"), "rope-missing"),
    "rope of another target": (SG14, config(rope_theta=5e5, rope_parameters=None), "rope-differs"),
    "rope told twice, in both forms": (
        SG14, config(rope_scaling={"rope_type": "linear", "factor": 2.0}, rope_parameters={"rope_type": "default"}),
        "rope-twice",
    ),
    "rope of two types": (
        SG14, config(rope_parameters={"rope_type": "linear", "type": "dynamic", "factor": 2.0}), "rope-twice",
    ),
    "rope for each type of layer": (
        VLLM, config(rope_parameters={"full_attention": {"rope_type": "default"}}), "rope-nested",
    ),
    "long rope without its factors": (VLLM, config(rope_parameters={"rope_type": "longrope"}), "rope-incomplete"),
    "dynamic rope of no size": (VLLM, config(rope_parameters={"rope_type": "dynamic"}), "rope-incomplete"),
    "DeepSeek's rope without its length": (
        VLLM, both(latent, config(rope_parameters={"rope_type": "deepseek_yarn", "factor": 4.0})), "rope-incomplete",
    ),
    "llama3's rope without its length": (
        SG14, both(scaled(rope_scaling=without_length(LLAMA3)), target(rope_scaling={**LLAMA3, ORIGINAL: 256})),
        "rope-original-missing",
    ),
    "rope not scaled, for a target that is": (SG14, target(rope_scaling=LLAMA3), "rope-scaling-differs"),
    "rope scaled, for a target that is not": (VLLM, scaled(rope_scaling=LLAMA3), "rope-scaling-differs"),
    "rope scaled by another factor": (
        SG23, both(scaled(rope_scaling=YARN), target(rope_scaling={**YARN, "factor": 8.0})), "rope-scaling-differs",
    ),
    "rope scaled from another length": (
        VLLM, both(scaled(rope_scaling=YARN), target(rope_scaling={**YARN, ORIGINAL: 128})), "rope-scaling-differs",
    ),
    "rope scaled in another way": (
        VLLM, both(scaled(rope_scaling=YARN), target(rope_scaling=LLAMA3)), "rope-scaling-differs",
    ),
    "long rope by other factors": (
        VLLM, both(scaled(rope_scaling=LONG), target(rope_scaling={**LONG, "long_factor": [1.0, 9.0]})),
        "rope-scaling-differs",
    ),
    "rope scaled, on our engine": (
        OURS, both(scaled(rope_scaling=LLAMA3), target(rope_scaling=LLAMA3)), "rope-unsupported",
    ),
    "half a head turned, for a target that turns all": (
        VLLM, config(partial_rotary_factor=0.5), "rope-scaling-differs",
    ),
    "half a head turned, said where SGLang does not look": (
        SG14,
        both(config(rope_parameters={"rope_type": "default", "partial_rotary_factor": 0.5}),
             target(partial_rotary_factor=0.5)),
        "rope-share-not-read",
    ),
    "no sections, for a target of text and pictures": (SG14, target(rope_scaling=SECTIONS), "rope-sections-missing"),
    "a factor of attention, on SGLang": (
        SG14,
        both(*(change(rope_scaling={**YARN, "attention_factor": 1.2}) for change in (scaled, target))),
        "rope-not-read",
    ),
    "linear rope, with a compressed cache": (
        SG14, both(latent, config(rope_parameters={"rope_type": "linear", "factor": 2.0})), "rope-type-taken",
    ),
    "no context": (SG14, without("max_position_embeddings"), "context-missing"),
    "a shorter context": (SG14, config(max_position_embeddings=128), "context-shorter"),
    "no epsilon": (SG14, without("rms_norm_eps"), "eps-missing"),
    "eagle_config is a list": (SG14, config(eagle_config=[1, 2]), "eagle-config-wrong"),
    "aux layers are off": (
        SG14, config(eagle_config={IDS: OUTPUTS, "use_aux_hidden_state": False}), "aux-off",
    ),
    "aux layers are null": (
        SG23, config(eagle_config={IDS: OUTPUTS, "use_aux_hidden_state": None}), "aux-off",
    ),
    "aux layers are 0, on vLLM": (VLLM, config(eagle_config={"use_aux_hidden_state": 0}), "aux-off"),
    "ids in words": (SG14, nested(["1", "5", "8"]), "ids-wrong"),
    "a number for ids": (VLLM, config(**{IDS: 3}), "ids-wrong"),
    "no ids": (SG14, without("eagle_config"), "ids-missing"),
    "no ids on our engine": (OURS, without("eagle_config"), "ids-missing"),
    "ids at the top, on our engine": (
        OURS, both(without("eagle_config"), config(**{IDS: INPUTS})), "ids-not-read",
    ),
    "ids at the top, on SGLang": (
        SG14, both(without("eagle_config"), config(**{IDS: [3, 5, 8]})), "ids-not-read",
    ),
    "ids at the top, by chance the default": (
        SG14, both(without("eagle_config"), config(**{IDS: INPUTS})), "ids-not-read",
    ),
    "inputs of layers, on SGLang": (SG14, nested(INPUTS), "ids-shifted"),
    "outputs of layers, on vLLM": (VLLM, both(without(IDS), nested(OUTPUTS)), "ids-shifted"),
    "outputs of layers at the top, on vLLM": (VLLM, config(**{IDS: OUTPUTS}), "ids-shifted"),
    "the last layer, on SGLang": (SG14, nested([1, 5, 11]), "ids-dropped"),
    "a layer that does not exist": (SG23, nested([1, 5, 40]), "ids-dropped"),
    "an id twice": (SG14, nested([1, 5, 5]), "ids-dropped"),
    "the embedding, on SGLang 0.5.14": (SG14, nested([-1, 5, 8]), "ids-fail"),
    "more ids than fc is made for": (VLLM, config(**{IDS: [2, 4, 6, 9]}), "aux-count"),
    "ids out of order": (SG14, nested([8, 5, 1]), "ids-order"),
    "one layer as wide as the drafter": (
        SG14, both(nested([5]), tensor("fc.weight", floats(H, H))), "fc-skipped",
    ),
    "a target whose layers nobody counted": (SG14, target(architectures=["NoSuchForCausalLM"]), "capture-unknown"),
    "no norm": (SG14, drop("norm.weight"), "tensor-missing"),
    "no head": (VLLM, drop("lm_head.weight"), "tensor-missing"),
    "no embedding where it is needed": (
        SG14, both(target(hidden_size=32), config(target_hidden_size=32), tensor("fc.weight", floats(H, 96))),
        "tensor-missing",
    ),
    "a second layer that is not there": (SG14, config(num_hidden_layers=2), "tensor-missing"),
    "a name of nobody": (SG14, tensor("midlayer.self_attn.rotary.weight", floats(4)), "tensor-unknown"),
    "norms of aux states, not switched on": (SG14, tensor("aux_norm_low.weight", floats(H)), "tensor-unknown"),
    "a prefix that vLLM does not take": (
        VLLM, lambda made: made.tensors.update({"model.norm.weight": made.tensors["norm.weight"]}), "tensor-unknown",
    ),
    "biases that SGLang does not load": (
        SG14,
        both(
            config(attention_bias=True),
            tensor("layers.0.self_attn.o_proj.bias", floats(H)),
            tensor("layers.0.self_attn.q_proj.bias", floats(16)),
        ),
        "tensor-unknown",
    ),
    "one parameter under two names": (
        SG14, lambda made: made.tensors.update({"midlayer.hidden_norm.weight": floats(H)}), "tensor-twice",
    ),
    "fc for two states": (SG14, tensor("fc.weight", floats(H, 2 * H)), "fc-width"),
    "a narrow q_proj": (SG14, tensor("layers.0.self_attn.q_proj.weight", floats(16, H)), "tensor-shape"),
    "a head of another vocabulary": (VLLM, tensor("lm_head.weight", floats(DRAFT - 1, H)), "tensor-shape"),
    "weights as bytes": (SG14, tensor("norm.weight", np.ones(H, dtype=np.int8)), "tensor-type"),
    "floats of two kinds": (SG14, tensor("norm.weight", np.ones(H, dtype=np.float16)), "tensor-types-mixed"),
    "no d2t": (SG14, drop("d2t"), "d2t-missing"),
    "d2t of another type": (SG14, tensor("d2t", np.zeros(DRAFT, dtype=np.int32)), "d2t-type"),
    "d2t is lost": (SG14, tensor("d2t", np.zeros(DRAFT, dtype=np.int64)), "d2t-zero"),
    "d2t holds ids": (SG14, tensor("d2t", DRAFT_IDS.astype(np.int64)), "d2t-ids"),
    "d2t leads outside": (SG14, tensor("d2t", np.full(DRAFT, 45, dtype=np.int64)), "d2t-range"),
    "d2t names a token twice": (
        SG14, tensor("d2t", np.array([1, 0, *([5] * (DRAFT - 2))], dtype=np.int64)), "d2t-order",
    ),
    "t2d of another vocabulary": (SG14, tensor("t2d", np.zeros(VOCAB, dtype=bool)), "t2d-differs"),
    "an embedding of its own, on vLLM": (VLLM, tensor("embed_tokens.weight", floats(VOCAB, H)), "embedding-differs"),
    "an embedding of its own, on SGLang": (SG14, tensor("embed_tokens.weight", floats(VOCAB, H)), "embedding-differs"),
    "an embedding of its own, in another type": (
        VLLM, both(tensor("embed_tokens.weight", floats(VOCAB, H)), half_target), "embedding-differs",
    ),
    "an embedding of its own, for a target that is padded": (
        SG14, both(tensor("embed_tokens.weight", floats(VOCAB, H)), padded), "embedding-differs",
    ),
    "an embedding of its own, for a target with another name for it": (
        SG14,
        both(tensor("embed_tokens.weight", floats(VOCAB, H)),
             lambda made: made.target_tensors.update(
                 {"transformer.wte.weight": made.target_tensors.pop("model.embed_tokens.weight")})),
        "embedding-differs",
    ),
    "another vocabulary": (SG14, target(vocab_size=VOCAB + 14), "vocab-differs"),
    "a wider target": (SG14, target(hidden_size=2 * H), "hidden-differs"),
    "other boundaries, nested, on vLLM": (VLLM, both(without(IDS), nested([3, 5, 8])), "ids-not-read"),
    "nested and top ids of other layers, on SGLang": (SG14, config(**{IDS: [3, 5, 8]}), "ids-differ"),
    "nested and top ids of other layers, on vLLM": (VLLM, nested([2, 4, 7]), "ids-differ"),
    "the same numbers nested and at the top, on SGLang": (SG23, config(**{IDS: OUTPUTS}), "ids-differ"),
    "the same numbers nested and at the top, on vLLM": (VLLM, nested(INPUTS), "ids-differ"),
    "nested and top ids of other layers, on our engine": (OURS, config(**{IDS: [3, 5, 8]}), "ids-differ"),
    "as many as three lists": (
        SG14,
        config(**{IDS: INPUTS, "target_layer_ids": [2, 4, 7], "aux_hidden_states_layer_ids": OUTPUTS}),
        "ids-differ",
    ),
    "AngelSlim's own ids of other layers": (VLLM, config(aux_hidden_states_layer_ids=INPUTS), "ids-differ"),
    "target_layer_ids of other layers, on SGLang": (SG14, config(target_layer_ids=INPUTS), "ids-differ"),
    "target_layer_ids of other layers, on vLLM": (VLLM, config(target_layer_ids=INPUTS), "ids-differ"),
    "layer_ids inside eagle_config of other layers": (
        SG23, config(eagle_config={IDS: OUTPUTS, "layer_ids": [3, 5, 8]}), "ids-differ",
    ),
    "speculators, inside and outside": (
        VLLM, both(lambda made: speculators(made), lambda made: made.config["transformer_layer_config"].update(
            {IDS: [3, 5, 8]})), "ids-differ",
    ),
    "target_layer_ids alone, on SGLang": (
        SG14, both(without("eagle_config"), config(target_layer_ids=[2, 4, 7])), "ids-not-read",
    ),
    "target_layer_ids alone, on vLLM": (VLLM, both(without(IDS), config(target_layer_ids=[2, 4, 7])), "ids-not-read"),
    "layer_ids inside eagle_config alone, on vLLM": (
        VLLM, both(without(IDS), config(eagle_config={"layer_ids": [3, 5, 8]})), "ids-not-read",
    ),
    "AngelSlim's own ids alone, on vLLM": (
        VLLM, both(without(IDS), config(aux_hidden_states_layer_ids=[2, 4, 7])), "ids-not-read",
    ),
    "what V1 reads and what V2 reads, on vLLM": (
        VLLM, both(without(IDS), nested([3, 5, 8]), config(target_layer_ids=[2, 3, 6])), "ids-not-read",
    ),
    "an empty list of ids, on SGLang": (SG14, nested([]), "ids-wrong"),
    "a target that does not say how deep it is": (
        SG14, lambda made: made.target.pop("num_hidden_layers"), "target-unknown",
    ),
    "a target that does not say its sizes": (
        VLLM, lambda made: [made.target.pop(name) for name in ("hidden_size", "vocab_size")], "target-unknown",
    ),
    "an embedding, for a target without weights": (
        VLLM, both(tensor("embed_tokens.weight", floats(VOCAB, H)), lambda made: made.target_tensors.clear()),
        "embedding-not-compared",
    ),
    "an embedding, for a target whose own is smaller": (
        SG14,
        both(tensor("embed_tokens.weight", floats(VOCAB, H)), lambda made: made.target_tensors.update(
            {"model.embed_tokens.weight": floats(VOCAB - 8, H)})),
        "embedding-not-compared",
    ),
    "an embedding, for a target whose own is in bytes": (
        VLLM,
        both(tensor("embed_tokens.weight", floats(VOCAB, H)), lambda made: made.target_tensors.update(
            {"model.embed_tokens.weight": np.ones((VOCAB, H), dtype=np.int8)})),
        "embedding-not-compared",
    ),
    "a switch inside eagle_config": (
        SG23, config(eagle_config={IDS: OUTPUTS, "norm_output": True}), "switch-not-read",
    ),
    "the whole vocabulary with a mapping, on vLLM": (
        VLLM,
        both(config(draft_vocab_size=VOCAB), tensor("lm_head.weight", floats(VOCAB, H)),
             tensor("d2t", np.zeros(VOCAB, dtype=np.int64)), drop("t2d")),
        "d2t-unwanted",
    ),
    "a head that the target's replaces": (
        SG14,
        both(config(draft_vocab_size=None), tensor("lm_head.weight", floats(VOCAB, H)), drop("d2t", "t2d")),
        "head-replaced",
    ),
    "ids that the decoder never hears of": (
        SG14, target(architectures=["Qwen3_5ForConditionalGeneration"]), "ids-fail",
    ),
    "an id twice, where states are counted": (
        SG23, both(target(architectures=["DeepseekV3ForCausalLM"]), latent, nested([1, 5, 5])), "ids-fail",
    ),
    "MLA: no rank of the query, on SGLang": (SG14, both(latent, config(q_lora_rank=None)), "size-wrong"),
    "MLA: no rank of the key": (VLLM, both(latent, without("kv_lora_rank")), "size-wrong"),
    "MLA: two layers on SGLang": (SG23, both(latent, config(num_hidden_layers=2)), "layers-many"),
    "MLA: a missing norm": (VLLM, both(latent, drop("layers.0.self_attn.kv_a_layernorm.weight")), "tensor-missing"),
    "MLA: attention like Llama's": (
        SG14, both(latent, tensor("layers.0.self_attn.q_proj.weight", floats(16, 2 * H))), "tensor-unknown",
    ),
    "MLA: half as wide": (
        SG23, both(latent, tensor("layers.0.self_attn.kv_a_proj_with_mqa.weight", floats(7, H))), "tensor-shape",
    ),
    "MLA: a prefix that SGLang takes elsewhere": (
        SG14, both(latent, tensor("model.norm.weight", floats(H))), "tensor-unknown",
    ),
    "MLA: fc normed": (
        SG23, both(latent, config(norm_before_fc=True), tensor("input_norm.weight", floats(3 * H))), "fc-not-normed",
    ),
    "MLA: the number of states, which SGLang does not read": (
        SG23,
        both(latent, config(num_aux_hidden_states=4), tensor("fc.weight", floats(H, 4 * H))),
        "fc-width",
    ),
    "Qwen3: a missing norm of a head": (
        VLLM, both(normed_heads, drop("layers.0.self_attn.k_norm.weight")), "tensor-missing",
    ),
    "Qwen3 on SGLang": (SG23, normed_heads, "architecture-unknown"),
    "drafts in parallel": (VLLM, config(architectures=["PeagleLlamaForCausalLM"]), "architecture-unchecked"),
    "a target with latent attention": (
        SG14, target(architectures=["DeepseekV3ForCausalLM"], kv_lora_rank=8), "attention-backend",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_one_thing_is_wrong_and_one_is_found(name: str, tmp_path: Path) -> None:
    (engine, version), change, code = BROKEN[name]
    made = good(engine)
    change(made)
    found = lint(*made.write(tmp_path), engine, version)
    assert [finding.code for finding in found] == [code], found
    assert all((one.where, one.what, one.cause, one.fix) for one in found)


def test_what_is_no_number_is_not_called_missing(tmp_path: Path) -> None:
    made = good("sglang")
    config(rms_norm_eps="1e-5", max_position_embeddings="512")(made)
    told = {one.code: one.what for one in lint(*made.write(tmp_path), *SG14)}
    assert told == {
        "eps-missing": "is '1e-5', which is no such number",
        "context-missing": "is '512', which is no such number",
    }


def test_lists_that_differ_are_named_also_for_a_target_that_nobody_knows(tmp_path: Path) -> None:
    made = good("sglang")
    made.target["architectures"] = ["NoSuchForCausalLM"]
    made.config[IDS] = [3, 5, 8]
    found = {one.code: one for one in lint(*made.write(tmp_path), *SG14)}
    assert set(found) == {"capture-unknown", "ids-differ"}
    assert f"{OUTPUTS} names {INPUTS}; {IDS} [3, 5, 8] names [3, 5, 8]" in found["ids-differ"].what


def test_lists_that_differ_are_named_with_what_each_engine_reads_and_what_to_delete(tmp_path: Path) -> None:
    made = good("sglang")
    made.config |= {IDS: [3, 5, 8], "target_layer_ids": [2, 4, 7], "aux_hidden_states_layer_ids": OUTPUTS}
    folders = made.write(tmp_path)
    (on_sglang,) = lint(*folders, *SG14)
    # The one that is read may be right, and then it serves: serve and compare refuse what has errors.
    assert on_sglang.severity == "warn"
    assert on_sglang.where == f"config.json: eagle_config.{IDS}, {IDS}, target_layer_ids"
    assert f"eagle_config.{IDS} {OUTPUTS} names boundaries {INPUTS}" in on_sglang.what
    assert f"{IDS} [3, 5, 8] names [3, 5, 8]; target_layer_ids [2, 4, 7] names [3, 5, 8]" in on_sglang.what
    assert f"sglang 0.5.14 reads eagle_config.{IDS}: boundaries {INPUTS}" in on_sglang.cause
    assert f"vLLM reads {IDS}: boundaries [3, 5, 8]" in on_sglang.cause
    assert on_sglang.fix.startswith(f"delete {IDS} and target_layer_ids, if it was trained on boundaries {INPUTS}")
    (on_vllm,) = lint(*folders, *VLLM)
    assert f"vllm 0.32.0 reads {IDS}: boundaries [3, 5, 8]" in on_vllm.cause
    assert f"SGLang reads eagle_config.{IDS}: boundaries {INPUTS}" in on_vllm.cause
    # Two lists that are not read name the layers that are: they are no fault.
    assert on_vllm.where == f"config.json: {IDS}, eagle_config.{IDS}, aux_hidden_states_layer_ids"


def test_the_table_is_long_enough() -> None:
    assert len(BROKEN) >= 40


def twin(made: Made) -> None:
    """Ids for both engines at once."""
    made.config |= {IDS: INPUTS, "eagle_config": {IDS: OUTPUTS}}


def every_list(made: Made) -> None:
    """The same layers wherever anybody may look, each in the numbers of that place."""
    twin(made)
    made.config |= {
        "target_layer_ids": OUTPUTS, "dspark_target_layer_ids": OUTPUTS, "aux_hidden_states_layer_ids": OUTPUTS,
        "aux_hidden_state_layer_ids": INPUTS, "dflash_config": {"target_layer_ids": OUTPUTS, "layer_ids": INPUTS},
    }  # fmt: skip
    made.config["eagle_config"] |= {"layer_ids": INPUTS, "target_layer_ids": OUTPUTS}


def speculators(made: Made) -> None:
    inner = {
        key: made.config.pop(key) for key in list(made.config) if key not in ("architectures", IDS, "draft_vocab_size")
    }
    made.config |= {"architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3",
                    "transformer_layer_config": inner, "norm_before_residual": False}  # fmt: skip
    made.tensors["embed_tokens.weight"] = made.target_tensors["model.embed_tokens.weight"]


def midlayer(made: Made) -> None:
    made.tensors = {name.replace("layers.0.", "midlayer."): one for name, one in made.tensors.items()}


def full(made: Made) -> None:
    """The whole vocabulary, without a mapping."""
    made.config["draft_vocab_size"] = VOCAB
    made.tensors["lm_head.weight"] = floats(VOCAB, H)
    del made.tensors["d2t"], made.tensors["t2d"]


def normed(made: Made) -> None:
    made.config |= {"fc_norm": True, "norm_before_fc": True}
    made.tensors |= {f"fc_norm.{at}.weight": floats(H) for at in range(3)} | {"input_norm.weight": floats(3 * H)}


def second(made: Made) -> None:
    made.config["num_hidden_layers"] = 2
    made.tensors |= layer(1, H)


def headless(made: Made) -> None:
    """The target's head, as its trainer used it."""
    full(made)
    del made.tensors["lm_head.weight"]


def speculators_like_qwen3(made: Made) -> None:
    normed_heads(made)
    speculators(made)


RIGHT: dict[str, tuple[tuple[str, str | None], Change]] = {
    "SpecForge for SGLang": (SG14, midlayer),
    "for a newer SGLang": (SG23, midlayer),
    "ModelOpt without t2d": (SG14, drop("t2d")),
    "both engines, on SGLang": (SG23, twin),
    "both engines, on vLLM": (VLLM, twin),
    "every list, of the same layers, on SGLang": (SG14, lambda made: every_list(made)),
    "every list, of the same layers, on vLLM": (VLLM, lambda made: every_list(made)),
    "every list, of the same layers, on our engine": (OURS, lambda made: every_list(made)),
    "a target whose ids are inputs on SGLang unless the first is 1": (
        SG14,
        both(latent, target(architectures=["DeepseekV3ForCausalLM"], kv_lora_rank=5),
             config(**{IDS: [3, 6, 9], "eagle_config": {IDS: [3, 6, 9]}})),
    ),
    "the same target, on vLLM": (
        VLLM,
        both(latent, target(architectures=["DeepseekV3ForCausalLM"], kv_lora_rank=5),
             config(**{IDS: [3, 6, 9], "eagle_config": {IDS: [3, 6, 9]}})),
    ),
    "the state after the last layer, which SGLang does not hand over, on vLLM": (
        VLLM, config(**{IDS: [2, 6, LAYERS], "eagle_config": {IDS: [1, 5, LAYERS - 1]}}),
    ),
    "lists that are no lists of ids": (SG14, config(target_layer_ids="all", layer_ids=[1.5], dflash_config=[])),
    "plain, on vLLM": (VLLM, lambda made: None),
    "midlayer, on vLLM": (VLLM, midlayer),
    "speculators, on vLLM": (VLLM, speculators),
    "the whole vocabulary": (SG14, full),
    "all norms, on vLLM": (VLLM, normed),
    "all norms, on SGLang 0.5.23": (SG23, normed),
    "two layers": (VLLM, second),
    "our own": (OURS, midlayer),
    "our own on SGLang between two versions": (("sglang", "0.5.18"), midlayer),
    "MLA on SGLang": (SG14, both(latent, target(architectures=["DeepseekV3ForCausalLM"], kv_lora_rank=5))),
    "MLA on a newer SGLang": (SG23, both(latent, midlayer, without("draft_vocab_size"), full)),
    "MLA on vLLM": (VLLM, latent),
    "rope as DeepSeek says it": (
        VLLM, both(latent, config(rope_parameters={"rope_type": "deepseek_yarn", "factor": 4.0, ORIGINAL: 64})),
    ),
    "the target's scaled rope": (SG14, both(scaled(rope_scaling=LLAMA3), target(rope_scaling=LLAMA3))),
    "the target's scaled rope, in the newer form": (
        VLLM, both(config(rope_parameters={**YARN, "rope_theta": 10000.0}), target(rope_scaling=YARN)),
    ),
    "the target's scaled rope, in both forms": (
        VLLM, both(config(rope_parameters=YARN, rope_scaling=YARN), target(rope_scaling=YARN)),
    ),
    "the target's scaled rope, in the older words": (
        SG23, both(scaled(rope_scaling={"type": "yarn", **{k: v for k, v in YARN.items() if k != "rope_type"}}),
                   target(rope_parameters=YARN)),
    ),
    "the target's scaled rope, with what goes without saying": (
        VLLM, both(scaled(rope_scaling={**YARN, "beta_fast": 32.0, "beta_slow": 1}), target(rope_scaling=YARN)),
    ),
    "the target's scaled rope, with its length outside": (
        VLLM, both(scaled(rope_scaling=without_length(YARN), **{ORIGINAL: 64}), target(rope_scaling=YARN)),
    ),
    "the target's sections": (SG14, both(scaled(rope_scaling=SECTIONS), target(rope_scaling=SECTIONS))),
    "half a head, as the target": (
        SG14, both(config(partial_rotary_factor=0.5), target(rope_parameters={"partial_rotary_factor": 0.5})),
    ),
    "a target with one rope a type of layer": (
        SG14, target(rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 10000.0},
                                      "sliding_attention": {"rope_type": "linear", "factor": 2.0}}),
    ),
    "DeepSeek's rope by two names": (
        SG14,
        both(latent, config(rope_parameters={**YARN, "mscale": 1.0}),
             target(kv_lora_rank=5, rope_scaling={"type": "deepseek_yarn", "factor": 4.0, ORIGINAL: 64})),
    ),
    "plain attention, for a target of DeepSeek's rope": (
        VLLM, target(kv_lora_rank=5, rope_scaling={"type": "yarn", "factor": 40.0, ORIGINAL: 64}),
    ),
    "MLA of a width that is null, on SGLang": (SG23, both(latent, config(target_hidden_size=None))),
    "MLA with a plain query, on vLLM": (
        VLLM,
        both(latent, without("q_lora_rank"), tensor("layers.0.self_attn.q_proj.weight", floats(20, 2 * H)),
             drop(*(f"layers.0.self_attn.{name}.weight" for name in ("q_a_proj", "q_a_layernorm", "q_b_proj")))),
    ),
    "like Qwen3, on vLLM": (VLLM, normed_heads),
    "like Qwen3, by speculators, on vLLM": (VLLM, speculators_like_qwen3),
    "the target's head, on vLLM": (VLLM, headless),
    "the target's head, on SGLang": (SG14, both(headless, config(draft_vocab_size=None))),
    "an old exporter's frequencies": (SG14, tensor("layers.0.self_attn.rotary_emb.inv_freq", floats(2))),
    "an old exporter's frequencies, on vLLM": (VLLM, tensor("layers.0.self_attn.rotary_emb.inv_freq", floats(2))),
    "a window that is off": (SG14, config(sliding_window=4096, use_sliding_window=False)),
    "biases of the output alone, on vLLM": (
        VLLM, both(config(bias=True), tensor("layers.0.self_attn.o_proj.bias", floats(H))),
    ),
    "Llama 4 on SGLang": (SG14, config(model_type="llama4_text", intermediate_size=7, intermediate_size_mlp=24)),
    "the target's embedding in another type": (
        VLLM,
        both(
            lambda made: made.tensors.update({"embed_tokens.weight": made.target_tensors["model.embed_tokens.weight"]}),
            half_target,
        ),
    ),
    "the target's embedding, which is padded": (
        SG14,
        both(padded, lambda made: made.tensors.update(
            {"embed_tokens.weight": made.target_tensors["model.embed_tokens.weight"][:VOCAB]})),
    ),
    "an embedding beside one for multi-token prediction": (
        SG14,
        lambda made: (
            made.tensors.update({"embed_tokens.weight": made.target_tensors["model.embed_tokens.weight"]}),
            made.target_tensors.update({"aux.layers.61.embed_tokens.weight": floats(VOCAB, H)}),
        ),
    ),
    "Kimi's numbers": (
        ("sglang", "0.5.23"), both(target(architectures=["Qwen3ForCausalLM"]), lambda made: None),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_nothing_is_found_where_nothing_is_wrong(name: str, tmp_path: Path) -> None:
    (engine, version), change = RIGHT[name]
    made = good(engine)
    change(made)
    assert lint(*made.write(tmp_path), engine, version) == []


def test_a_recorded_drafter_that_was_served_is_right(recordings: Path, tmp_path: Path) -> None:
    drafter = recordings / "gpu/drafter"
    config = json.loads((drafter / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps({
            "architectures": ["LlamaForCausalLM"], "hidden_size": 576, "num_hidden_layers": 30, "vocab_size": 49152,
            "max_position_embeddings": config["max_position_embeddings"], "rope_theta": config["rope_theta"],
        })
    )  # fmt: skip
    assert lint(drafter, tmp_path, "sglang", "0.5.14") == []
    on_vllm = lint(drafter, tmp_path, "vllm", "0.32.0")
    assert [finding.code for finding in on_vllm] == ["ids-shifted"]


@pytest.mark.parametrize(
    ("engine", "version", "word"),
    [("tgi", "1", "tgi"), ("sglang", None, "--engine-version"), ("sglang", "new", "no version")],
)
def test_a_wrong_request_is_refused(engine: str, version: str | None, word: str, tmp_path: Path) -> None:
    drafter, aim = good("sglang").write(tmp_path)
    with pytest.raises(RequestError) as refusal:
        lint(drafter, aim, engine, version)
    assert word in str(refusal.value)
    with pytest.raises(RequestError):
        lint(tmp_path / "nowhere", aim, "sglang", "0.5.14")
    (aim / "config.json").unlink()
    with pytest.raises(RequestError, match="target"):
        lint(drafter, aim, "sglang", "0.5.14")


def test_the_command_ends_with_3_where_something_is_wrong(tmp_path: Path) -> None:
    made = good("sglang")
    made.config["eagle_config"] = {IDS: INPUTS}
    drafter, aim = made.write(tmp_path)
    command = [sys.executable, "-m", "eagle3ops", "lint", str(drafter), "--target", str(aim), "--engine", "sglang"]
    told = subprocess.run([*command, "--engine-version", "0.5.14", "--json"], capture_output=True, text=True)
    assert told.returncode == 3, told.stderr
    answer = json.loads(told.stdout)
    assert [one["code"] for one in answer["findings"]] == ["ids-shifted"]
    lines = subprocess.run([*command, "--engine-version", "0.5.14"], capture_output=True, text=True)
    assert lines.returncode == 3
    assert str(OUTPUTS) in lines.stdout
    assert subprocess.run(command, capture_output=True).returncode == 2


LATENT = good("sglang")
latent(LATENT)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.dictionaries(st.sampled_from(sorted({**good("sglang").config, **LATENT.config})), JSON, max_size=4),
    family=st.sampled_from([midlayer, latent, normed_heads]),
    engine=st.sampled_from([SG14, VLLM, OURS]),
)
def test_any_config_is_read(
    changes: dict[str, Any], family: Change, engine: tuple[str, str | None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = good(engine[0])
    family(made)
    made.config |= changes
    for finding in lint(*made.write(tmp_path_factory.mktemp("any")), *engine):
        assert finding.what


ROPES = st.none() | JSON | st.dictionaries(
    st.sampled_from(["rope_type", "type", "factor", "rope_theta", "mrope_section", "long_factor", "full_attention",
                     "partial_rotary_factor", ORIGINAL]),
    st.sampled_from(["yarn", "llama3", "linear", "longrope", "mrope", "default"]) | JSON,
    max_size=5,
)  # fmt: skip


@given(own=st.tuples(ROPES, ROPES), theirs=st.tuples(ROPES, ROPES), engine=st.sampled_from([SG14, SG23, VLLM, OURS]))
def test_any_rope_is_read(
    own: tuple[Any, Any],
    theirs: tuple[Any, Any],
    engine: tuple[str, str | None],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    made = good(engine[0])
    for place, told in ((made.config, own), (made.target, theirs)):
        place.update(rope_scaling=told[0], rope_parameters=told[1])
    for finding in lint(*made.write(tmp_path_factory.mktemp("rope")), *engine):
        assert finding.what


WHERE = [where for where in PLACES if not where.startswith("transformer_layer_config")]
LISTS = st.dictionaries(st.sampled_from(WHERE), st.lists(st.integers(0, 30), max_size=4) | st.none(), max_size=6)


def placed(lists: Mapping[str, Any], *, eagle_config: bool) -> dict[str, Any]:
    """A config with lists at these keys."""
    made: dict[str, Any] = {"eagle_config": {}} if eagle_config else {}
    for where, ids in lists.items():
        outer, dot, inner = where.partition(".")
        if dot:
            made.setdefault(outer, {})[inner] = ids
        else:
            made[where] = ids
    return made


@given(lists=LISTS, eagle_config=st.booleans(), engine=st.sampled_from([SG14, SG23, VLLM, OURS]))
def test_any_lists_are_read_and_one_finding_is_enough(
    lists: dict[str, Any],
    eagle_config: bool,
    engine: tuple[str, str | None],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    made = good(engine[0])
    without("eagle_config", IDS)(made)
    made.config |= placed(lists, eagle_config=eagle_config)
    found = [one for one in lint(*made.write(tmp_path_factory.mktemp("lists")), *engine) if one.code.startswith("ids-")]
    # Out of order and contradicted as well are two faults.
    assert len([one for one in found if one.severity == "error"]) <= 1, found


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_vllm_reads_ids_where_its_own_runners_do(tmp_path: Path) -> None:
    """Both of its functions, called with configs of all kinds."""
    chance = random.Random(3)
    ids = [None, [], [2, 6, 9], [1, 5, 8], [3], [4, 7]]
    configs = [
        placed({where: chance.choice(ids) for where in chance.sample(WHERE, chance.randrange(5))},
               eagle_config=chance.random() < 0.5)
        for _ in range(400)
    ]  # fmt: skip
    (tmp_path / "configs.json").write_text(json.dumps(configs))
    script = """
import json, sys
from types import SimpleNamespace as Some
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils import get_eagle3_aux_layers_from_config
for config in json.load(open(sys.argv[1])):
    spec = Some(draft_model_config=Some(hf_config=Some(**config)))
    one = GPUModelRunner._get_eagle3_aux_layers_from_config(Some(speculative_config=spec))
    print(json.dumps([one, get_eagle3_aux_layers_from_config(spec)]))
"""
    command = [str(PYTHONS["vllm"]), "-c", script, str(tmp_path / "configs.json")]
    told = subprocess.run(command, capture_output=True, text=True)
    answers = [json.loads(line) for line in told.stdout.splitlines() if line.startswith("[")]
    assert len(answers) == len(configs), told.stderr[-2000:]
    for made, (one, two) in zip(configs, answers, strict=True):
        runners = heard("vllm", lists_of(made, "LlamaForCausalLM", 12), eagle_config=bool(made.get("eagle_config")))
        assert [None if read is None else read.inputs for read in runners.values()] == [one, two], made


@given(st.lists(st.floats(width=16, allow_nan=False), max_size=20))
def test_floats_of_every_type_are_decoded(values: list[float]) -> None:
    for name, dtype in (("F16", "<f2"), ("F32", "<f4"), ("F64", "<f8")):
        assert decoded(np.array(values, dtype=dtype).tobytes(), name) == tuple(values)
    # Of BF16 numpy knows nothing: it is the upper half of a float32.
    wide = np.array(values, dtype="<f4").view("<u4") & 0xFFFF0000
    half = (wide >> 16).astype("<u2")
    assert decoded(half.tobytes(), "BF16") == tuple(wide.astype("<u4").view("<f4").tolist())


@given(st.binary(max_size=200), st.none() | st.dictionaries(st.text(max_size=6), JSON, max_size=4))
def test_any_header_is_read_or_refused_by_name(junk: bytes, header: dict[str, Any] | None) -> None:
    import tempfile

    raw = junk if header is None else json.dumps(header).encode()
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as weights:
        weights.write((struct.pack("<Q", len(raw)) if header is not None else b"") + raw + junk)
        weights.flush()
        with contextlib.suppress(ValueError):
            assert isinstance(read_header(Path(weights.name)), dict)


FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "fused_qkv_a_proj_with_mqa": ("q_a_proj", "kv_a_proj_with_mqa"),
    "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
}
PYTHONS = {name: os.environ.get(f"EAGLE3OPS_{name.upper()}_PYTHON") for name in ("sglang", "vllm")}
SMALL = Sizes(
    hidden=64, target_hidden=80, intermediate=96, heads=4, kv_heads=2, head_dim=16, layers=1, vocab=128, draft_vocab=64,
    aux=3,
)  # fmt: skip
FAMILY = {
    "llama": SMALL,
    "qwen3": replace(SMALL, normed_heads=True),
    "latent": replace(SMALL, latent=Latent(query_rank=24, key_rank=16, plain=12, rotary=8, value=20)),
}


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param(name, marks=[
            getattr(pytest.mark, name),
            pytest.mark.skipif(not python, reason=f"EAGLE3OPS_{name.upper()}_PYTHON names no Python that has {name}"),
        ])
        for name, python in PYTHONS.items()
    ],
)  # fmt: skip
def test_the_parameters_are_those_that_the_engine_builds(engine: str, tmp_path: Path) -> None:
    given = {
        "hidden_size": 64, "target_hidden_size": 80, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16,
        "num_key_value_heads": 2, "vocab_size": 128, "draft_vocab_size": 64, "num_hidden_layers": 1,
        "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 20,
        "max_position_embeddings": 256, "rope_theta": 10000.0, "fc_norm": True, "tie_word_embeddings": False,
    }  # fmt: skip
    script = Path(__file__).with_name("runtime_parameters.py")
    command = [str(PYTHONS[engine]), str(script), engine, str(tmp_path / "store"), json.dumps(given)]
    told = subprocess.run(command, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr[-2000:]
    answers = json.loads(told.stdout.splitlines()[-1])
    assert set(answers) == {"llama", "latent"} | ({"qwen3"} if engine == "vllm" else set())
    for family, built in answers.items():
        real = {
            one.removeprefix("model.").replace("midlayer.", "layers.0."): tuple(shape) for one, shape in built.items()
        }
        real.pop("draft_id_to_target_id", None)
        known = {one: each.shape for one, each in parameters(engine, FAMILY[family], {"fc_norm": True}).items()}
        for fused, parts in FUSED.items():
            for one in [one for one in real if f".{fused}." in one]:
                names = [one.replace(fused, part) for part in parts]
                assert real.pop(one) == (sum(known[each][0] for each in names), *known[names[0]][1:])
                for each in names:
                    del known[each]
        assert {one: shape for one, shape in known.items() if one not in ("d2t", "t2d")} == real, family
