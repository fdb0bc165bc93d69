"""Is what an engine captures foretold as its own source says, for every class and version in the table?"""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.errors import RequestError
from eagle3ops.wiring.captured import captured, rules


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "eagle3ops", "layers", *arguments], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("engine", "version", "model_class", "layers", "ids", "key_at", "expected"),
    [
        ("sglang", "0.5.14", "LlamaForCausalLM", 30, [1, 14, 26], None, [2, 15, 27]),
        ("sglang", "0.5.23", "LlamaForCausalLM", 30, [2, 15, 27], None, [3, 16, 28]),
        ("sglang", "0.5.14", "LlamaForCausalLM", 30, [2, 15, 27], "top", [2, 15, 27]),
        ("sglang", "0.5.14", "LlamaForCausalLM", 30, [3, 9, 20], "top", [2, 15, 27]),
        ("sglang", "0.5.14", "LlamaForCausalLM", 8, [5, 7, 1], None, [2, 6]),
        ("sglang", "0.5.14", "LlamaForCausalLM", 8, [-1, 3, 5], None, [4, 6]),
        ("sglang", "0.5.23", "LlamaForCausalLM", 8, [-1, 3, 5], None, [0, 4, 6]),
        ("sglang", "0.5.14", "DeepseekV3ForCausalLM", 61, [2, 30, 58], None, [2, 30, 58]),
        ("sglang", "0.5.23", "KimiK25ForConditionalGeneration", 61, [1, 29, 57], None, [2, 30, 58]),
        ("sglang", "0.5.23", "KimiK25ForConditionalGeneration", 61, [29, 1, 57], None, [1, 29, 57]),
        ("sglang", "0.5.14", "GptOssForCausalLM", 36, [24, 30, 36], None, [25, 31]),
        ("sglang", "0.5.23", "GptOssForCausalLM", 36, [24, 30, 36], None, [24, 30, 36]),
        ("sglang", "0.5.23", "GptOssForCausalLM", 36, [1, 17, 32], None, [2, 18, 33]),
        ("sglang", "0.5.23", "MiniMaxM3SparseForConditionalGeneration", 60, None, None, [3, 31, 58]),
        ("sglang", "0.5.14", "Gemma3ForCausalLM", 26, [1, 12, 25], None, [2, 13, 26]),
        ("sglang", "0.5.14.post1+cu130", "Qwen3ForCausalLM", 36, None, None, [2, 18, 33]),
        ("vllm", "0.32.0", "LlamaForCausalLM", 30, [1, 14, 26], "nested", [1, 14, 26]),
        ("vllm", "0.32.0", "LlamaForCausalLM", 30, [27, 2, 15, 2], "top", [2, 15, 27]),
        ("sglang", "0.5.14", "KimiK25ForConditionalGeneration", 61, [0, 30, 61], None, [0, 30]),
        ("sglang", "0.5.18", "DeepseekV3ForCausalLM", 61, [1, 29, 60], None, [2, 30]),
        ("sglang", "0.5.14", "Glm4MoeLiteForCausalLM", 47, [0, 23, 44], None, [23, 44]),
        ("sglang", "0.5.23", "Qwen3VLMoeForConditionalGeneration", 48, [1, 23, 47], None, [2, 24]),
        ("sglang", "0.5.14", "Qwen3_5ForConditionalGeneration", 48, [1, 23, 44], None, []),
        ("sglang", "0.5.23", "Qwen3_5ForConditionalGeneration", 48, [-1, 23, 44], None, [0, 24, 45]),
        ("sglang", "0.5.23", "MiniMaxM3SparseForCausalLM", 60, [1, 29, 59], None, [2, 30, 60]),
        ("vllm", "0.32.0", "LlamaForCausalLM", 61, [0, 30, 61], None, [0, 30, 61]),
        ("vllm", "0.32.0", "DeepseekV3ForCausalLM", 61, [0, 30, 61], None, [30, 61]),
        ("vllm", "0.32.0", "DeepseekV41ForCausalLM", 61, [0, 30, 61], None, [30, 61]),
        ("vllm", "0.32.0", "GlmMoeDsaForCausalLM", 78, [0, 39, 78], None, [0, 39]),
        ("vllm", "0.32.0", "SmolLM3ForCausalLM", 36, [33, 2, 18], None, [33, 2, 18]),
        ("vllm", "0.32.0", "LlamaForCausalLM", 30, [], None, [2, 15, 27]),
        ("vllm", "0.32.0", "LlamaForCausalLM", 30, [2, 15, 31], None, [2, 15]),
        ("reference", None, "LlamaForCausalLM", 30, [26, 1, 14], None, [27, 2, 15]),
        ("specforge", None, "*", 61, None, None, [2, 30, 58]),
        ("eagle", None, "*", 32, [5, 6, 7], None, [2, 16, 29]),
    ],
)
def test_what_is_known(
    engine: str, version: str, model_class: str, layers: int, ids: list[int] | None, key_at: Any, expected: list[int]
) -> None:
    found = captured(engine, version, model_class, layers, ids, key_at)
    assert list(found.boundary) == expected
    assert found.notes[-1].startswith("source: ")
    if ids and len(expected) < len(ids) and key_at != "top" and engine != "eagle":
        assert any("come out" in note for note in found.notes)


@pytest.mark.parametrize("ids", [[2, 30, 61], [2, 30, 30], [2, 30, 70]])
def test_a_number_of_states_that_the_decoder_counts_is_not_dropped_silently(ids: list[int]) -> None:
    older, newer = (captured("sglang", each, "DeepseekV3ForCausalLM", 61, ids) for each in ("0.5.14", "0.5.23"))
    assert older.boundary == newer.boundary == (2, 30)
    assert not any("makes the engine fail" in note for note in older.notes)
    assert any("makes the engine fail" in note for note in newer.notes)


def test_the_second_runner_of_vllm_reads_the_top_level_only() -> None:
    nested = captured("vllm", "0.32.0", "LlamaForCausalLM", 30, [1, 14, 26], "nested", "v2")
    assert nested.boundary == (2, 15, 27)
    assert any("without a word" in note for note in nested.notes)


@pytest.mark.parametrize(
    ("engine", "version", "model_class", "word"),
    [
        ("tgi", "1.0", "LlamaForCausalLM", "tgi"),
        ("sglang", None, "LlamaForCausalLM", "version"),
        ("sglang", "main", "LlamaForCausalLM", "no version"),
        ("sglang", "0.5.13", "LlamaForCausalLM", "not known"),
        ("sglang", "0.5.24", "LlamaForCausalLM", "not known"),
        ("sglang", "0.5.18", "GptOssForCausalLM", "plus_one_unless_last"),
        ("sglang", "0.5.14", "MiniMaxM3SparseForCausalLM", "not known"),
        ("sglang", "0.5.14", "MixtralForCausalLM", "MixtralForCausalLM"),
        ("vllm", "0.11.0", "LlamaForCausalLM", "not known"),
    ],
)
def test_what_is_not_known_is_refused(engine: str, version: str | None, model_class: str, word: str) -> None:
    with pytest.raises(RequestError, match=word) as refusal:
        captured(engine, version, model_class, 30, [1, 14, 26])
    assert refusal.value.remedy


def test_between_two_versions_that_agree_it_holds_and_says_so() -> None:
    found = captured("sglang", "0.5.18", "LlamaForCausalLM", 30, [1, 14, 26])
    assert found.boundary == (2, 15, 27)
    assert any("was not read" in note for note in found.notes)


@given(
    st.sampled_from(
        sorted({(r.engine, v, c) for r in rules() for v in r.versions for c in r.classes if r.engine != "reference"})
    ),
    st.integers(1, 200),
    st.none() | st.lists(st.integers(-5, 210), max_size=8),
    st.sampled_from([None, "nested", "top"]),
)
def test_whatever_the_ids_what_comes_out_exists(
    known: tuple[str, str, str], layers: int, ids: list[int] | None, key_at: Any
) -> None:
    engine, version, model_class = known
    found = captured(engine, None if version == "*" else version, model_class, layers, ids, key_at)
    assert all(0 <= k <= layers for k in found.boundary)
    assert len(found.boundary) == len(set(found.boundary))
    told = found.as_json()
    assert json.loads(json.dumps(told)) == told
    assert told["layer_outputs"] == [k - 1 for k in told["boundary"]]


def test_the_command(tmp_path: Path) -> None:
    told = run("--engine", "sglang", "--engine-version", "0.5.14", "--model-class", "LlamaForCausalLM",
               "--num-layers", "30", "--ids", "1,14,26", "--json")  # fmt: skip
    assert told.returncode == 0, told.stderr
    answer = json.loads(told.stdout)
    assert (answer["boundary"], answer["layer_outputs"]) == ([2, 15, 27], [1, 14, 26])
    wrong = run("--engine", "sglang", "--engine-version", "0.5.14", "--num-layers", "30", "--ids", "a,b")
    assert wrong.returncode == 2
    assert "list of layer numbers" in wrong.stderr


TREES = [Path(name) for name in os.environ.get("EAGLE3OPS_SGLANG_TREES", "").split(os.pathsep) if name]
"""Folders `sglang` of installed or unpacked versions; their sources are read, nothing is imported."""


LAST = SimpleNamespace(is_last_rank=True)


class Inner:
    """The inside of a target, as far as a setter touches it."""

    def __init__(self, layers: int) -> None:
        self.layers = [SimpleNamespace() for _ in range(layers)]
        self.config = SimpleNamespace(num_hidden_layers=layers, text_config=SimpleNamespace(num_hidden_layers=layers))
        self.layers_to_capture: list[int] = []
        self.pp_group = LAST

    def set_eagle3_layers_to_capture(self, indices: list[int]) -> None:
        self.layers_to_capture = indices


def setters(tree: Path) -> dict[str, Any]:
    """Class -> its own `set_eagle3_layers_to_capture`, compiled alone; those that only hand the ids on are left out."""
    names: dict[str, Any] = {
        "get_pp_group": lambda: LAST,
        "get_parallel": lambda: SimpleNamespace(pp_group=LAST),
    }
    found: dict[str, Any] = {}
    for file in sorted((tree / "srt/models").glob("*.py")):
        classes = [node for node in ast.parse(file.read_text("utf-8-sig")).body if isinstance(node, ast.ClassDef)]
        for node in classes:
            for method in node.body:
                if not isinstance(method, ast.FunctionDef) or method.name != "set_eagle3_layers_to_capture":
                    continue
                if [argument.arg for argument in method.args.args] != ["self", "layer_ids"] or "2" not in ast.unparse(
                    method
                ):
                    continue
                method.returns = None
                for argument in method.args.args:
                    argument.annotation = None
                space = dict(names)
                exec(compile(ast.Module([method], []), str(file), "exec"), space)
                found[node.name] = space[method.name]
    return found


@pytest.mark.sglang
@pytest.mark.skipif(not TREES, reason="EAGLE3OPS_SGLANG_TREES names no sources of SGLang")
@pytest.mark.parametrize("tree", TREES, ids=str)
def test_the_table_says_what_the_sources_do(tree: Path) -> None:
    version = next(tree.parent.glob("sglang-*.dist-info")).name.split("-")[1].removesuffix(".dist")
    known = setters(tree)
    assert len(known) >= 20
    for name, setter in known.items():
        for layers, ids in ((61, [1, 29, 57]), (61, [2, 30, 58]), (36, [24, 30, 36]), (40, [3, 38, -1]), (40, None)):
            model = Inner(layers)
            engine = Inner(layers)
            engine.model = engine.language_model = model  # type: ignore[attr-defined]
            setter(engine, ids)
            expected = {k for k in model.layers_to_capture if 0 <= k <= layers}
            found = captured("sglang", version, name, layers, ids)
            told = set(found.boundary) | {k for k in expected if f"boundary {k} (" in " ".join(found.notes)}
            assert told == expected, (name, ids)
