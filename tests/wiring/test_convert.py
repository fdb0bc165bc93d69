"""Does a drafter stay the same through every form, and is it right where it arrives?"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import DRAFT, INPUTS, LAYERS, OUTPUTS, VOCAB, H, Made, good, latent, normed_heads
from safetensors.torch import load_file

from eagle3ops.eagle3.checkpoint import load_drafter
from eagle3ops.eagle3.drafter import Drafter
from eagle3ops.errors import RequestError
from eagle3ops.wiring.convert.convert import convert
from eagle3ops.wiring.convert.forms import ConversionRefused
from eagle3ops.wiring.lint.rope_checks import read_rope

IDS = "eagle_aux_hidden_state_layer_ids"
ENGINES = ("sglang", "vllm", "both")


def specforge(made: Made) -> None:
    made.tensors = {name.replace("layers.0.", "midlayer."): one for name, one in made.tensors.items()}


def modelopt(made: Made) -> None:
    del made.tensors["t2d"]


def plain_vllm(made: Made) -> None:
    made.config[IDS] = INPUTS
    del made.config["eagle_config"]


def speculators(made: Made) -> None:
    outer = ("architectures", "draft_vocab_size", "eagle_config")
    inner = {key: made.config.pop(key) for key in list(made.config) if key not in outer}
    del made.config["eagle_config"]
    made.config |= {
        "architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3", IDS: INPUTS,
        "transformer_layer_config": inner, "norm_before_residual": False, "speculators_config": {"algorithm": "eagle3"},
        "model_type": "speculator_model", "tie_word_embeddings": True, "target_hidden_size": None,
    }  # fmt: skip


def angelslim(made: Made) -> None:
    specforge(made)
    made.config |= {"architectures": ["Eagle3LlamaForCausalLM"], "aux_hidden_states_layer_ids": OUTPUTS, IDS: INPUTS}
    del made.config["eagle_config"]


def eagle(made: Made) -> None:
    specforge(made)
    made.config["architectures"] = ["LlamaForCausalLM"]
    del made.config["eagle_config"]

    def pickled(folder: Path) -> None:
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()

    made.after.append(pickled)


FORMS: dict[str, Callable[[Made], None]] = {
    "sglang": specforge,
    "modelopt": modelopt,
    "vllm": plain_vllm,
    "speculators": speculators,
    "angelslim": angelslim,
    "eagle": eagle,
}


def drafted(drafter: Drafter) -> torch.Tensor:
    """Logits of one draft step over 5 positions, from fixed states; the same bits where it is the same drafter."""
    with torch.no_grad():
        aux = torch.randn(1, 5, 3 * H, generator=torch.Generator().manual_seed(3))
        embeds = torch.randn(1, 5, H, generator=torch.Generator().manual_seed(4))
        g = drafter.fuse(aux)
        q, k, v = (one.transpose(-3, -2) for one in drafter.project(embeds, g, torch.arange(5)[None]))
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return drafter.logits(drafter.finish(g, attended.transpose(-3, -2)))


@pytest.mark.parametrize("to", ENGINES)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_arrives_whole(form: str, to: str, tmp_path: Path) -> None:
    made = good("sglang")
    original = dict(made.tensors)
    FORMS[form](made)
    drafter, target = made.write(tmp_path)
    found = convert(drafter, target, to, tmp_path / "out")
    assert found.form == ("sglang" if form == "modelopt" else form)
    assert list(found.layers.boundary) == INPUTS
    assert found.findings == ()
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert ("eagle_config" in config) == (to != "vllm")
    if to != "vllm":
        assert config["eagle_config"][IDS] == OUTPUTS
    assert config.get(IDS) == (INPUTS if to != "sglang" else None)
    written = {
        name.replace("midlayer.", "layers.0."): one
        for name, one in load_file(tmp_path / "out/model.safetensors").items()
    }
    for name, one in written.items():
        assert torch.equal(one, torch.from_numpy(original[name])), name
    assert set(original) - set(written) <= ({"t2d"} if form == "modelopt" else set())


@pytest.mark.parametrize("to", ENGINES)
@pytest.mark.parametrize("form", FORMS)
def test_a_scaled_rope_arrives_as_it_was(form: str, to: str, tmp_path: Path) -> None:
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64}  # fmt: skip
    made = good("sglang")
    made.config["rope_parameters"] = {"rope_theta": 10000.0, **rope}
    made.target["rope_scaling"] = rope
    FORMS[form](made)
    drafter, target = made.write(tmp_path)
    assert convert(drafter, target, to, tmp_path / "out").findings == ()
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert read_rope(config) == read_rope(made.target)
    assert read_rope(config).scaled == "llama3 (factor 8, original_max_position_embeddings 64)"


@pytest.mark.parametrize("to", ENGINES)
@pytest.mark.parametrize("form", ["sglang", "vllm", "speculators"])
def test_a_compressed_cache_stays_one(form: str, to: str, tmp_path: Path) -> None:
    made = good("sglang")
    latent(made)
    FORMS[form](made)
    drafter, target = made.write(tmp_path)
    assert convert(drafter, target, to, tmp_path / "out").findings == ()
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["architectures"], config["model_type"]) == (["Eagle3DeepseekV2ForCausalLM"], "deepseek_v3")


def test_heads_that_are_normed_are_for_vllm(tmp_path: Path) -> None:
    made = good("sglang")
    normed_heads(made)
    speculators(made)
    drafter, target = made.write(tmp_path)
    assert convert(drafter, target, "vllm", tmp_path / "out").findings == ()
    with pytest.raises(ConversionRefused, match="in each head"):
        convert(drafter, target, "both", tmp_path / "other")


def test_a_map_of_every_id_to_itself_is_no_obstacle(tmp_path: Path) -> None:
    made = good("sglang")
    made.config["draft_vocab_size"] = VOCAB
    made.tensors |= {
        "lm_head.weight": np.ones((VOCAB, H), dtype=np.float32), "d2t": np.zeros(VOCAB, dtype=np.int64),
        "t2d": np.ones(VOCAB, dtype=bool),
    }  # fmt: skip
    drafter, target = made.write(tmp_path)
    for to in ENGINES:
        assert convert(drafter, target, to, tmp_path / to).findings == ()
        assert ("d2t" in load_file(tmp_path / to / "model.safetensors")) == (to == "sglang")


@pytest.mark.parametrize("versions", [{"sglang": "new"}, {"vllm": "new"}])
def test_no_version_is_told_before_anything_is_written(versions: dict[str, str], tmp_path: Path) -> None:
    drafter, target = good("sglang").write(tmp_path)
    with pytest.raises(RequestError, match="no version"):
        convert(drafter, target, "both", tmp_path / "out", **versions)
    assert not (tmp_path / "out").exists()


def test_a_forward_agrees_to_the_last_bit(tmp_path: Path) -> None:
    made = good("sglang")
    specforge(made)
    drafter, target = made.write(tmp_path)
    convert(drafter, target, "vllm", tmp_path / "a")
    convert(tmp_path / "a", target, "both", tmp_path / "b")
    convert(tmp_path / "b", target, "sglang", tmp_path / "c")
    before, after = (load_drafter(folder, LAYERS) for folder in (drafter, tmp_path / "c"))
    assert torch.equal(drafted(before), drafted(after))
    assert before.config == after.config


@pytest.mark.parametrize("engine", ["sglang", "both"])
def test_what_an_engine_has_no_word_for_is_refused(engine: str, tmp_path: Path) -> None:
    made = good("sglang")
    speculators(made)
    made.config["norm_before_residual"] = True
    drafter, target = made.write(tmp_path)
    with pytest.raises(ConversionRefused, match="norm_before_residual"):
        convert(drafter, target, engine, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    convert(drafter, target, "vllm", tmp_path / "other")
    assert json.loads((tmp_path / "other" / "config.json").read_text())["norm_before_residual"] is True


def test_the_same_word_of_two_trainers(tmp_path: Path) -> None:
    made = good("sglang")
    made.config["norm_output"] = True
    drafter, target = made.write(tmp_path)
    convert(drafter, target, "sglang", tmp_path / "one", form="specforge")
    assert "norm_output" not in json.loads((tmp_path / "one" / "config.json").read_text())
    told = convert(drafter, target, "sglang", tmp_path / "other")
    assert [one.code for _, one in told.findings] == ["norm-output"]


def test_ids_are_written_in_the_numbers_of_the_class(tmp_path: Path) -> None:
    made = good("sglang")
    plain_vllm(made)
    made.target["architectures"] = ["DeepseekV3ForCausalLM"]
    drafter, target = made.write(tmp_path)
    convert(drafter, target, "both", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["eagle_config"][IDS] == OUTPUTS
    made.config[IDS] = [3, 6, 9]
    (tmp_path / "again").mkdir()
    drafter, target = made.write(tmp_path / "again")
    convert(drafter, target, "both", tmp_path / "raw")
    # 3 as an output is 2; but this class adds 1 only where the first id is 1.
    assert json.loads((tmp_path / "raw" / "config.json").read_text())["eagle_config"][IDS] == [3, 6, 9]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda made: made.config.update({IDS: [3, 5, 8]}), "different tensors"),
        (lambda made: made.config["eagle_config"].update({IDS: "1,5"}), "no list"),
        (lambda made: made.config["eagle_config"].update({IDS: [1, 5, 11]}), "does not capture"),
        (
            lambda made: made.tensors.update({"midlayer.hidden_norm.weight": made.tensors["norm.weight"]}),
            "same parameter",
        ),
        (
            lambda made: made.after.append(lambda folder: (folder / "model.safetensors").write_bytes(b"x")),
            "safetensors",
        ),
        (lambda made: made.target.pop("num_hidden_layers"), "num_hidden_layers"),
    ],
)
def test_what_would_be_a_guess_is_refused(change: Callable[[Made], object], words: str, tmp_path: Path) -> None:
    made = good("sglang")
    change(made)
    drafter, target = made.write(tmp_path)
    with pytest.raises(RequestError, match=words):
        convert(drafter, target, "both", tmp_path / "out")
    assert not (tmp_path / "out" / "config.json").exists()


@pytest.mark.parametrize("form", ["sglang", "specforge", "vllm"])
def test_layers_that_nobody_named_are_said_to_be_assumed(form: str, tmp_path: Path) -> None:
    """Lint warns of such a drafter; of the converted one, which names them, it does not."""
    made = good("sglang")
    made.config["eagle_config"].pop(IDS)
    drafter, target = made.write(tmp_path)
    done = convert(drafter, target, "both", tmp_path / "out", form=form)
    assert done.assumed
    assert list(done.layers.boundary) == INPUTS
    made.config["eagle_config"][IDS], made.config[IDS] = OUTPUTS, INPUTS
    (tmp_path / "named").mkdir()
    named = made.write(tmp_path / "named")
    assert not convert(*named, "both", tmp_path / "again", form=form).assumed


class Harmful:
    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("ran",))


def test_a_pickle_runs_nothing(tmp_path: Path) -> None:
    drafter, target = good("sglang").write(tmp_path)
    (drafter / "model.safetensors").unlink()
    torch.save({"fc.weight": Harmful()}, drafter / "pytorch_model.bin")
    with pytest.raises(ConversionRefused, match="tensors alone"):
        convert(drafter, target, "sglang", tmp_path / "out")


def test_the_command(tmp_path: Path) -> None:
    drafter, target = good("sglang").write(tmp_path)
    command = [sys.executable, "-m", "eagle3ops", "convert", str(drafter), "--target", str(target), "--out",
               str(tmp_path / "out"), "--to", "both", "--json"]  # fmt: skip
    told = subprocess.run(command, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["boundary"] == INPUTS
    config = json.loads((drafter / "config.json").read_text())
    del config["eagle_config"]
    (drafter / "config.json").write_text(json.dumps(config))
    unnamed = subprocess.run([*command[:-1], "--out", str(tmp_path / "other")], capture_output=True, text=True)
    assert "names no layers" in unnamed.stdout
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 2
    assert "not empty" in again.stderr
    assert DRAFT < VOCAB
