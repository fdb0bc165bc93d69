"""Exported drafters: what SGLang would pass over in silence is named here."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from eagle3ops.eagle3.checkpoint import CheckpointError, check_export, export_drafter, load_drafter, parse_config
from eagle3ops.eagle3.drafter import Drafter
from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.eagle3.target_head import TargetHead, target_fingerprint

Tensors = dict[str, torch.Tensor]


@pytest.fixture
def folder(tmp_path: Path, drafter_of: Callable[..., Drafter]) -> Path:
    return export_drafter(drafter_of(), tmp_path / "drafter")


def edit(folder: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors")


def test_round_trip(folder: Path, drafter_of: Callable[..., Drafter]) -> None:
    assert check_export(folder, 4) == []
    loaded, made = load_drafter(folder, 4), drafter_of()
    assert loaded.config == made.config
    for name, value in made.state_dict().items():
        wanted = value.bfloat16().float() if value.is_floating_point() else value
        assert torch.equal(loaded.state_dict()[name], wanted), name


def test_the_layer_ids_are_written_as_sglang_counts_them(folder: Path) -> None:
    eagle = json.loads((folder / "config.json").read_text())["eagle_config"]
    assert eagle == {"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "use_aux_hidden_state": True}
    assert load_drafter(folder, 4).config.aux_layers == AuxLayers((1, 2, 3), 4)


def nan(tensors: Tensors) -> None:
    tensors["fc.weight"][0, 0] = float("nan")


DAMAGE: list[tuple[str, Callable[[Tensors], object]]] = [
    ("norm.weight is missing", lambda t: t.pop("norm.weight")),
    ("surprise is not a tensor of this architecture", lambda t: t.update(surprise=torch.ones(1))),
    ("lm_head.weight is [23, 16], not [24, 16]", lambda t: t.update({"lm_head.weight": t["lm_head.weight"][:23]})),
    ("fc.weight holds NaN or infinity", nan),
    ("lm_head.weight is all zeros", lambda t: t["lm_head.weight"].zero_()),
    ("float tensors of several dtypes", lambda t: t.update({"norm.weight": t["norm.weight"].float()})),
    ("are they ids instead of offsets?", lambda t: t["d2t"].copy_(torch.arange(24).flip(0) - torch.arange(24))),
    ("d2t points outside the vocabulary", lambda t: t["d2t"].add_(40)),
    ("t2d does not mark exactly the ids", lambda t: t["t2d"].logical_not_()),
    ("d2t is torch.int32, not torch.int64", lambda t: t.update(d2t=t["d2t"].int())),
]


@pytest.mark.parametrize(("said", "change"), DAMAGE, ids=[said for said, _ in DAMAGE])
def test_each_damage_is_named(folder: Path, said: str, change: Callable[[Tensors], object]) -> None:
    edit(folder, change)
    assert said in "; ".join(check_export(folder, 4))


def test_loading_names_what_does_not_fit(folder: Path) -> None:
    edit(folder, lambda t: (t.pop("norm.weight"), t.update(surprise=torch.ones(1))))
    with pytest.raises(CheckpointError, match=r"missing: norm.weight; unexpected: surprise"):
        load_drafter(folder, 4)


def test_layers_0_is_another_name_for_midlayer_and_the_embedding_is_ignored(folder: Path) -> None:
    wanted = load_drafter(folder, 4).state_dict()

    def rename(tensors: Tensors) -> None:
        for name in [n for n in tensors if n.startswith("midlayer.")]:
            tensors["layers.0." + name.removeprefix("midlayer.")] = tensors.pop(name)
        tensors["embed_tokens.weight"] = torch.ones(40, 16)

    edit(folder, rename)
    assert all(torch.equal(value, wanted[name]) for name, value in load_drafter(folder, 4).state_dict().items())


def test_a_truncated_file_is_a_clear_error(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(CheckpointError, match=r"model.safetensors: cannot be read"):
        load_drafter(folder, 4)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"eagle_config": {}}, "must be a list of layer numbers"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 9]}}, "boundary 10 does not exist"),
        ({"norm_before_residual": True}, "norm_before_residual"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        ({"num_hidden_layers": 2}, "num_hidden_layers is 2"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope scaling 'yarn'"),
        ({"draft_vocab_size": 99}, "larger than vocab_size"),
        ({"hidden_size": None}, "NoneType"),
    ],
)
def test_configs_that_mean_something_else_are_refused(folder: Path, change: dict[str, Any], said: str) -> None:
    raw = json.loads((folder / "config.json").read_text())
    with pytest.raises(CheckpointError, match=said):
        parse_config({**raw, **change}, 4)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=5,
)
KEYS = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
    "draft_vocab_size", "rms_norm_eps", "rope_theta", "rope_parameters", "max_position_embeddings", "eagle_config",
    "target_hidden_size", "bos_token_id",
)  # fmt: skip
GOOD = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 40,
    "draft_vocab_size": 24,
    "rms_norm_eps": 1e-5,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]},
}


@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4))
def test_any_config_gives_sizes_or_a_named_error(change: dict[str, Any]) -> None:
    with suppress(CheckpointError):
        parse_config({**GOOD, **change}, 4)


def write_target(folder: Path, head: TargetHead, prefix: str = "") -> Path:
    shape = head.shape
    folder.mkdir()
    config = {name: getattr(shape, name) for name in shape.__slots__ if name != "num_layers"}
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": shape.num_layers}))
    tensors = {
        "model.embed_tokens.weight": head.embed_weight,
        "model.norm.weight": head.norm_weight,
        "model.layers.3.self_attn.q_proj.weight": torch.ones(16, 16),
    }
    save_file({prefix + name: t for name, t in tensors.items()}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("prefix", ["", "language_model."])
def test_the_targets_ends_are_read(tmp_path: Path, head: TargetHead, prefix: str) -> None:
    read = TargetHead.load(write_target(tmp_path / "target", head, prefix))
    assert read.shape == head.shape
    assert torch.equal(read.lm_head_weight, head.embed_weight), "a target without lm_head ties it to the embedding"


def test_the_fingerprint_tells_targets_apart(tmp_path: Path, head: TargetHead) -> None:
    one = write_target(tmp_path / "a", head)
    two = write_target(tmp_path / "b", head)
    assert target_fingerprint(one) == target_fingerprint(two)
    edit(two, lambda tensors: tensors["model.norm.weight"].mul_(2))
    assert target_fingerprint(one) != target_fingerprint(two)


@pytest.mark.recordings
def test_the_recorded_drafter_is_exported_as_it_was_recorded(recordings: Path, tmp_path: Path) -> None:
    recorded = recordings / "gpu" / "drafter"
    assert check_export(recorded, 30) == []
    export_drafter(load_drafter(recorded, 30), tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == (recorded / "model.safetensors").read_bytes()
    config = json.loads((tmp_path / "config.json").read_text())
    # Where vLLM looks; the recorded one was for SGLang alone.
    boundary = config.pop("eagle_aux_hidden_state_layer_ids")
    assert config == json.loads((recorded / "config.json").read_text())
    assert boundary == [k + 1 for k in config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]]
