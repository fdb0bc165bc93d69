"""Does the target compute what transformers computes, and does it say what is wrong with a folder?"""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_tiny import CONFIG, HIDDEN, LAYERS, VOCAB, tiny_target, tiny_tensors, write_tiny_model
from safetensors.torch import load_file, save_file
from torch import Tensor

from eagle3ops.engines.reference.model import ModelError, Target, eos_ids, parse_config, pick_device
from eagle3ops.errors import Eagle3opsError


def _reference(ids: Tensor) -> tuple[list[Tensor], Tensor]:
    """Boundaries and logits by transformers; `hidden_states[n]` is post-norm there, so n comes from a hook."""
    from transformers import LlamaConfig, LlamaForCausalLM

    known = {k: v for k, v in CONFIG.items() if k not in ("architectures", "model_type")}
    model = LlamaForCausalLM(LlamaConfig(**known, attn_implementation="eager")).eval()
    model.load_state_dict(tiny_tensors())
    final: list[Tensor] = []
    model.model.norm.register_forward_pre_hook(lambda _m, args: final.append(args[0]))
    with torch.inference_mode():
        out = model(ids, output_hidden_states=True)
    return [*out.hidden_states[:LAYERS], final[0]], out.logits


def test_boundaries_and_logits_equal_transformers() -> None:
    ids = torch.randint(0, VOCAB, (2, 11), generator=torch.Generator().manual_seed(5))
    want, logits = _reference(ids)
    target = tiny_target()
    got = target.boundaries(ids, torch.tensor([11, 11]), range(LAYERS + 1))
    for boundary in range(LAYERS + 1):
        torch.testing.assert_close(got[boundary], want[boundary], atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(target.logits(target.normed(got[LAYERS])), logits, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["Qwen2", "Qwen3"])
def test_other_families_equal_transformers(family: str, tmp_path: Path) -> None:
    import transformers

    sizes = {k: v for k, v in CONFIG.items() if k not in ("architectures", "model_type")}
    if family == "Qwen2":
        # Its heads are as wide as hidden_size makes them.
        sizes["head_dim"] = HIDDEN // int(str(CONFIG["num_attention_heads"]))
    config = getattr(transformers, f"{family}Config")(**sizes, attn_implementation="eager", use_sliding_window=False)
    torch.manual_seed(3)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(1 + 0.1 * torch.randn_like(weight) if weight.ndim == 1 else 0.4 * torch.randn_like(weight))
            assert name
    model.save_pretrained(tmp_path)
    ids = torch.randint(0, VOCAB, (2, 9), generator=torch.Generator().manual_seed(6))
    final: list[Tensor] = []
    model.model.norm.register_forward_pre_hook(lambda _m, args: final.append(args[0]))
    with torch.inference_mode():
        out = model(ids, output_hidden_states=True)
    target = Target.load(tmp_path, torch.float32)
    got = target.boundaries(ids, torch.tensor([9, 9]), range(LAYERS + 1))
    for boundary, want in enumerate([*out.hidden_states[:LAYERS], final[0]]):
        torch.testing.assert_close(got[boundary], want, atol=2e-4, rtol=1e-3)
    torch.testing.assert_close(target.logits(target.normed(got[LAYERS])), out.logits, atol=2e-3, rtol=1e-3)


def test_a_type_that_does_not_belong_to_the_architecture_is_refused() -> None:
    with pytest.raises(ModelError, match="does not belong"):
        parse_config({**CONFIG, "architectures": ["Qwen3ForCausalLM"]}, "config.json")
    with pytest.raises(ModelError, match="sliding_window"):
        parse_config(
            {**CONFIG, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "sliding_window": 64,
             "use_sliding_window": True}, "config.json",
        )  # fmt: skip


def test_padding_changes_nothing_and_is_zero() -> None:
    target = tiny_target()
    ids = torch.randint(0, VOCAB, (1, 7))
    padded = torch.cat((ids, torch.zeros((1, 5), dtype=torch.long)), dim=1)
    alone = target.boundaries(ids, torch.tensor([7]), (0, LAYERS))
    beside = target.boundaries(padded, torch.tensor([7]), (0, LAYERS))
    torch.testing.assert_close(beside[:, :, :7], alone)
    assert not beside[:, :, 7:].any()


def test_boundaries_come_in_the_order_asked_for() -> None:
    target, ids, length = tiny_target(), torch.tensor([[1, 2, 3]]), torch.tensor([3])
    one, two = target.boundaries(ids, length, (2, 0)), target.boundaries(ids, length, (0, 2))
    assert torch.equal(one[0], two[1])
    assert torch.equal(one[1], target.embed(ids))


@pytest.mark.parametrize("want", [(LAYERS + 1,), (-1,)])
def test_a_boundary_that_does_not_exist_is_named(want: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="do not exist"):
        tiny_target().boundaries(torch.tensor([[1]]), torch.tensor([1]), want)


def test_long_positions_grow_the_rotary_table() -> None:
    target = tiny_target()
    ids = torch.randint(0, VOCAB, (1, 1100))
    got = target.boundaries(ids, torch.tensor([1100]), (LAYERS,))
    assert torch.isfinite(got).all()


def test_load_round_trip(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "m")
    loaded = Target.load(folder, torch.float32)
    ids, length = torch.tensor([[1, 2, 3]]), torch.tensor([3])
    assert torch.equal(loaded.boundaries(ids, length, (LAYERS,)), tiny_target().boundaries(ids, length, (LAYERS,)))
    assert Target.load(folder).dtype == torch.bfloat16
    assert eos_ids(folder) == (VOCAB - 1,)


def test_tied_head_is_the_embedding(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors")
    target = Target.load(folder, torch.float32)
    assert target.head_weight is target.embed_weight


def test_an_unsupported_architecture_is_named(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "m")
    (folder / "config.json").write_text(json.dumps({**CONFIG, "architectures": ["MambaForCausalLM"]}))
    with pytest.raises(ModelError, match="MambaForCausalLM"):
        Target.load(folder)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        Target.load(folder)


def test_a_misshapen_tensor_is_named_with_both_shapes(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(HIDDEN + 1)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelError, match=rf"model\.norm\.weight is \[{HIDDEN + 1}\].*\[{HIDDEN}\]"):
        Target.load(folder)


@pytest.mark.parametrize("damage", ["truncate", "header", "empty", "absent"])
def test_a_corrupt_file_is_an_explained_error(tmp_path: Path, damage: str) -> None:
    folder = write_tiny_model(tmp_path / "m")
    path = folder / "model.safetensors"
    data = path.read_bytes()
    if damage == "absent":
        path.unlink()
    else:
        path.write_bytes({"truncate": data[:-100], "header": b"\xff" * 16 + data[16:], "empty": b""}[damage])
    with pytest.raises(ModelError) as caught:
        Target.load(folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"architectures": 3}'])
def test_a_broken_config_is_an_explained_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError):
        Target.load(tmp_path)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted([*CONFIG, "rope_scaling", "rope_parameters"])), _JSON))
@settings(max_examples=100, deadline=None)
def test_no_config_crashes_the_parser(changes: dict[str, object]) -> None:
    try:
        shape = parse_config({**CONFIG, **changes}, "config.json")
    except Eagle3opsError:
        return
    assert shape.num_layers > 0


def test_an_absent_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto").type == "cpu"
    with pytest.raises(ModelError, match="sees no GPU"):
        pick_device("cuda")
    with pytest.raises(ModelError, match="unknown device"):
        pick_device("toaster")
