"""Is every mistake in a pipeline file named with its place and what to do, and nothing else refused?"""

import contextlib
import json
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.errors import SpecError
from eagle3ops.spec.base import AuxLayersSpec, StageSpec
from eagle3ops.spec.load import dump_pipeline, find_problems, load_pipeline, parse_pipeline
from eagle3ops.spec.models import WatchdogSpec
from eagle3ops.spec.schema import json_schema
from eagle3ops.spec.yamltree import read_tree, scalar


class TrainSpec(StageSpec):
    lr: float = 1e-3
    steps: int = 5
    mode: Literal["packed", "padded"] = "packed"
    """How rows are put
    side by side."""
    aux_layers: AuxLayersSpec | None = None


class GenerateSpec(StageSpec):
    rows: int
    files: tuple[str, ...] = ()


SPECS: dict[str, type[StageSpec]] = {"generate": GenerateSpec, "train": TrainSpec}
HEAD = "schema: 1\nname: demo\ntarget:\n  model: some/model\nstages:\n  generate: {rows: 3}\n"


def message(text: str | bytes, *overrides: str) -> str:
    with pytest.raises(SpecError) as caught:
        parse_pipeline(text, "a.yaml", SPECS, overrides)
    return str(caught.value)


def test_a_file_is_completed_with_every_default_and_survives_its_own_dump() -> None:
    pipeline = parse_pipeline(HEAD, "a.yaml", SPECS)
    assert list(pipeline.stages) == ["generate", "train"]
    text = dump_pipeline(pipeline)
    assert "lr: 0.001" in text
    assert parse_pipeline(text, "b.yaml", SPECS) == pipeline
    assert dump_pipeline(parse_pipeline(text, "b.yaml", SPECS)) == text


def test_overrides_are_yaml_values() -> None:
    layers = "stages.train.aux_layers={convention: layer_outputs, ids: [-1, 2]}"
    pipeline = parse_pipeline(HEAD, "a.yaml", SPECS, ["stages.train.lr=2e-4", layers, "seed=7", "engine.name=vllm"])
    train = pipeline.stages["train"]
    assert isinstance(train, TrainSpec)
    assert train.lr == 2e-4
    assert train.aux_layers is not None
    assert train.aux_layers.ids == (-1, 2)
    assert (pipeline.seed, pipeline.engine.name) == (7, "vllm")


@pytest.mark.parametrize(
    ("more", "place", "words"),
    [
        ("  train:\n    lr: fast\n", "a.yaml:8:9: stages.train.lr", "expected a number, got 'fast'"),
        ("  train:\n    steps: 2.5\n", "a.yaml:8:12: stages.train.steps", "expected a whole number, got 2.5"),
        ("  train:\n    steps: '5'\n", "a.yaml:8:12: stages.train.steps", "expected a whole number, got '5'"),
        ("  train:\n    steps: true\n", "a.yaml:8:12: stages.train.steps", "expected a whole number, got true"),
        ("  train:\n    stesp: 5\n", "a.yaml:8:5: stages.train.stesp", "did you mean 'steps'?"),
        ("  trian: {}\n", "a.yaml:7:3: stages.trian", "did you mean 'train'?"),
        ("  train: [1, 2]\n", "a.yaml:7:10: stages.train", "expected a map, got a list"),
        ("  train:\n    mode: paked\n", "a.yaml:8:11: stages.train.mode", "did you mean 'packed'?"),
        ("  train:\n    lr: 1\n    lr: 2\n", "a.yaml:9:5: stages.train.lr", "twice, first on line 8"),
        ("  train:\n\t  lr: 1\n", "a.yaml:8:", "a tab in the indentation"),
        ("  train:\n    aux_layers: [2, 15]\n", "a.yaml:8:17: stages.train.aux_layers", "convention: boundary, ids:"),
        ("  train:\n    aux_layers: {ids: [2]}\n", "stages.train.aux_layers.convention: missing", "hf_hidden_states"),
        ("  train:\n    aux_layers: {convention: boundary, ids: [-1]}\n", "aux_layers.ids", "-1 does not exist"),
        ("  train:\n    aux_layers: {convention: boundary, ids: [2, 2]}\n", "aux_layers.ids", "named twice"),
        ("  train:\n    aux_layers: {convention: sglang, ids: [2]}\n", "a.yaml:8:30", "expected 'boundary'"),
        ("  train: {lr: !!python/name:os.system }\n", "a.yaml:7:15", "tags"),
        ("hf_token: abc\n", "a.yaml:7:1: hf_token", "environment variable"),
        ("engine: {api_key: abc}\n", "a.yaml:7:10: engine.api_key", "environment variable"),
        ("seed: -1\n", "a.yaml:7:7: seed", "greater than or equal to 0"),
        ("a: b: c\n", "a.yaml:7:5", "not YAML"),
    ],
)
def test_a_mistake_is_named_with_its_place(more: str, place: str, words: str) -> None:
    told = message(HEAD + more)
    assert place in told
    assert words in told


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("# only a comment\n", "the file is empty"),
        ("- a\n- b\n", "a.yaml:1:1: expected a map of sections, got a list"),
        (HEAD.replace("schema: 1\n", ""), "add the line: schema: 1"),
        (HEAD.replace("schema: 1", "schema: 2"), "a.yaml:1:9: schema: expected 1, got 2"),
        (HEAD.replace("{rows: 3}", "{}"), "a.yaml:6:13: stages.generate.rows: missing"),
        ("schema: 1\nname: demo\ntarget: {model: m}\n", "stages.generate.rows: missing"),
        (HEAD + "---\na: 1\n", "not YAML"),
        (b"\xff\xfe\x00", "not UTF-8"),
        ("x: " + "a" * (1 << 20), "larger than"),
        ("[" * 5000, "nested too deeply"),
        ("a: &a\n  b: *a\n", "alias contain itself"),
        ("a: 1\n? [b]\n: 2\n", "a key must be a word"),
        ("a: &x {b: 1}\nc:\n  <<: *x\n", "merge keys"),
        ("a: \x07\n", "not allowed"),
    ],
)
def test_a_file_that_is_no_pipeline_is_explained(text: str | bytes, words: str) -> None:
    assert words in message(text)


def test_an_alias_bomb_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    assert "aliases" in message("\n".join(lines))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("stages.train.lr=fast", "--set stages.train.lr=fast: stages.train.lr: expected a number"),
        ("stages.train.lrr=1", "did you mean 'lr'?"),
        ("nonsense", "expected KEY=VALUE"),
        ("seed.a=1", "seed is"),
        ("a..b=1", "expected KEY=VALUE"),
        ("stages.train.lr=[", "--set stages.train.lr=["),
    ],
)
def test_an_override_is_checked_like_the_file(override: str, words: str) -> None:
    assert words in message(HEAD + "seed: 3\n", override)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="there is no such file"):
        load_pipeline(tmp_path / "none.yaml", SPECS)
    with pytest.raises(SpecError, match="a folder"):
        load_pipeline(tmp_path, SPECS)


def test_the_schema_describes_the_file() -> None:
    schema = json_schema(SPECS)
    assert set(schema["properties"]) >= {"schema", "name", "target", "engine", "host", "seed", "stages"}
    assert json.loads(json.dumps(schema)) == schema
    assert set(schema["$defs"]["AuxLayersSpec"]["required"]) == {"convention", "ids"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2e-4", 2e-4),
        ("1.", 1.0),
        ("-.5", -0.5),
        ("0o17", 15),
        ("0x1F", 31),
        ("012", 12),
        ("no", "no"),
        ("on", "on"),
        ("12:30", "12:30"),
        ("2026-11-30", "2026-11-30"),
        ("True", True),
        ("~", None),
        (".inf", float("inf")),
        ("1_000", "1_000"),
        ("", None),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    assert scalar(text) == value
    assert type(scalar(text)) is type(value)


@given(st.text(alphabet="ab:-[]{}&*!|>'\"#,?\t\n 01.e%@`", max_size=60) | st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(SpecError):
        read_tree(text, "a.yaml")
        parse_pipeline(HEAD + text, "a.yaml", SPECS)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    with contextlib.suppress(SpecError):
        parse_pipeline(content, "a.yaml", SPECS)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_survive_the_dump(value: float) -> None:
    pipeline = parse_pipeline(HEAD, "a.yaml", SPECS, [f"stages.train.lr={value!r}"])
    again = parse_pipeline(dump_pipeline(pipeline), "b.yaml", SPECS)
    assert again == pipeline


def test_every_mistake_is_named_at_once_with_the_keys_that_lead_to_it() -> None:
    text = HEAD.replace("rows: 3", "rows: x, flies: []") + "  train: {lr: fast, aux_layers: [1], mode: paked}\nsed: 1\n"
    found = find_problems(text, "a.yaml", SPECS)
    assert {problem.path for problem in found} == {
        ("sed",),
        ("stages", "generate", "flies"),
        ("stages", "generate", "rows"),
        ("stages", "train", "lr"),
        ("stages", "train", "mode"),
        ("stages", "train", "aux_layers"),
    }
    assert str(found[0].remedy).startswith("did you mean")
    assert find_problems(HEAD, "a.yaml", SPECS) == []
    (secret,) = find_problems(HEAD + "hf_token: x\n", "a.yaml", SPECS)
    assert secret.path == ("hf_token",)
    missing = find_problems("schema: 1\nname: x\n", "a.yaml", SPECS)
    assert ("target",) in {problem.path for problem in missing}


@given(st.sampled_from([HEAD, ""]), st.text(alphabet="lr: x1\n{}[]stagesmode", max_size=40))
def test_a_file_has_problems_exactly_when_it_is_refused(head: str, more: str) -> None:
    found = find_problems(head + more, "a.yaml", SPECS)
    refusal = ""
    try:
        parse_pipeline(head + more, "a.yaml", SPECS)
    except SpecError as error:
        refusal = error.what
    assert bool(found) == bool(refusal)
    assert all(refusal.startswith(problem.what) for problem in found[:1])


def test_the_schema_says_what_stands_below_each_setting() -> None:
    parts = json_schema(SPECS)
    train = parts["$defs"]["TrainSpec"]["properties"]
    assert train["mode"]["description"] == "How rows are put side by side."
    assert "description" not in train["lr"]
    assert parts["$defs"]["EngineSpec"]["properties"]["gpus"]["description"].startswith("GPUs that a stage uses")
    assert parts["properties"]["seed"]["description"]


def test_the_watchdog_is_told_by_phases_that_exist() -> None:
    def watchdog(text: str) -> WatchdogSpec:
        return parse_pipeline(f"{HEAD}watchdog: {text}\n", "f.yaml", SPECS).watchdog

    assert parse_pipeline(HEAD, "f.yaml", SPECS).watchdog == WatchdogSpec()
    made = watchdog("{on: false, action: restart, deadlines: {loading: 7200}}")
    assert (made.on, made.action, dict(made.deadlines)) == (False, "restart", {"loading": 7200.0})
    for wrong, words in [
        (
            "{deadlines: {loadin: 4}}",
            r"f\.yaml:7:24: watchdog\.deadlines\.loadin: unknown key\n.*did you mean 'loading'",
        ),
        ("{deadlines: {loading: -1}}", r"watchdog\.deadlines\.loading: .*greater than or equal to 0"),
        ("{action: kill}", "expected 'notify' or 'restart', got 'kill'"),
        ("{on: off}", "expected true or false"),
    ]:
        with pytest.raises(SpecError, match=words):
            watchdog(wrong)
