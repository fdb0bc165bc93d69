"""Is SGLang started with flags it knows, understood by its log and answers, and refused with reason where it cannot?"""

import gzip
import json
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.engines.base import LogFact, ServeSpec
from eagle3ops.engines.client import EngineError, parse_answer
from eagle3ops.engines.installed import interpreter, numbers, parse_versions
from eagle3ops.engines.registry import adapter
from eagle3ops.engines.serving import free_port, patience_s, running
from eagle3ops.engines.sglang.adapter import PLUGIN, SglangAdapter, drafter_ids
from eagle3ops.engines.sglang.installation import installed
from eagle3ops.engines.sglang.requirements import check
from eagle3ops.errors import RequestError, SpecError
from eagle3ops.runs.job import load_registry
from eagle3ops.runs.keys import stage_keys
from eagle3ops.runs.planning import StagePlan, admit, plan_stages
from eagle3ops.spec.load import parse_pipeline

SGLANG = adapter("sglang")
CPU = ServeSpec(model=Path("/models/a b"), port=31000, device="cpu", dtype="float32", max_running_requests=8)


def add_package(folder: Path, package: str) -> None:
    site = folder / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    info = site / f"{package}.dist-info"
    info.mkdir(parents=True)
    name, version = package.rsplit("-", 1)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def environment_with(folder: Path, *packages: str) -> Path:
    """A Python of its own environment in which packages seem to be installed."""
    for package in packages:
        add_package(folder, package)
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    (folder / "bin/python").symlink_to(Path(sys.executable).resolve())
    return folder / "bin/python"


def test_a_cpu_server_is_started_as_one_was_seen_to_serve() -> None:
    argv = SGLANG.argv(CPU)
    assert argv[:3] == [sys.executable, "-m", "sglang.launch_server"]
    assert argv[argv.index("--model-path") + 1] == "/models/a b"
    assert argv[argv.index("--attention-backend") + 1] == "torch_native"
    assert argv[argv.index("--max-total-tokens") + 1] == "16384"
    assert "--disable-overlap-schedule" in argv
    assert "--tp-size" not in argv
    assert SGLANG.environment(CPU)["SGLANG_USE_CPU_ENGINE"] == "1"
    assert SGLANG.launch_line(CPU).startswith("env SGLANG_")
    assert "'/models/a b'" in SGLANG.launch_line(CPU)


def test_a_port_near_the_last_is_no_obstacle() -> None:
    # As the kernel gives them out: 0.5.14 would want port 70905 as well, and end with a ValueError.
    environment = SGLANG.environment(ServeSpec(model=Path("/m"), port=60905, device="cpu"))
    assert environment["SGLANG_GRPC_PORT"] == "50905"
    assert "SGLANG_GRPC_PORT" not in SGLANG.environment(CPU)


def test_on_gpus_the_engine_chooses_its_kernels_and_drafts() -> None:
    spec = ServeSpec(
        model=Path("/m"),
        port=1,
        device="cuda",
        drafter=Path("/d"),
        gpus=4,
        context_length=4096,
        python="/opt/s/bin/python",
    )
    argv = SGLANG.argv(spec)
    assert argv[0] == "/opt/s/bin/python"
    assert argv[argv.index("--tp-size") + 1] == "4"
    assert argv[argv.index("--speculative-num-draft-tokens") + 1] == "4"
    assert not {"--device", "--attention-backend", "--max-total-tokens"} & set(argv)
    assert "SGLANG_USE_CPU_ENGINE" not in SGLANG.environment(spec)


def test_the_python_of_an_environment_keeps_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = environment_with(tmp_path / "sgl", "sglang-0.5.14")
    assert interpreter(str(python)) == str(python)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert interpreter("~/sgl/bin/python") == str(python)
    assert interpreter(None) == sys.executable


def demand(python: Path | str | None, **asked: bool) -> str:
    return check(
        ServeSpec(
            model=Path("/m"),
            port=1,
            device="cuda" if asked.get("on_gpu") else "cpu",
            python=None if python is None else str(python),
            drafter=Path("/d") if asked.get("drafter") else None,
            aux_layers=AuxLayers((1,), 8) if asked.get("aux_layers") else None,
        )
    ).version


def test_a_server_that_hands_over_states_does_not_speculate(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 5]}}')
    spec = replace(CPU, drafter=tmp_path, return_hidden_states=True)
    assert "--enable-return-hidden-states" in SGLANG.argv(spec)
    assert "--disable-radix-cache" in SGLANG.argv(spec)
    assert not any("speculative" in one for one in SGLANG.argv(spec))
    environment = SGLANG.environment(spec)
    assert environment["EAGLE3OPS_CAPTURE"] == "[1, 3, 5]"
    assert (Path(environment["PYTHONPATH"]) / "eagle3ops_capture.py").is_file()
    assert "EAGLE3OPS_CAPTURE" not in SGLANG.environment(CPU)


@pytest.mark.parametrize("config", ["{}", '{"eagle_config": 3}', '{"eagle_config": {"use_aux_hidden_state": true}}'])
def test_without_ids_it_takes_its_default(config: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(config)
    assert drafter_ids(tmp_path) is None
    assert drafter_ids(None) is None


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ("", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"eagle_config": {"eagle_aux_hidden_state_layer_ids": "1"}}', "no list of layer numbers"),
        ('{"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, "3"]}}', "no list of layer numbers"),
        ('{"eagle_config": {"use_aux_hidden_state": false}}', "is off"),
        ('{"eagle_config": {"use_aux_hidden_state": null, "eagle_aux_hidden_state_layer_ids": [1]}}', "is off"),
    ],
)
def test_a_config_with_which_it_would_capture_nothing_is_refused(config: str, word: str, tmp_path: Path) -> None:
    """Its default in their place would be called right, where the engine itself fails or hands over one state."""
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(RequestError, match=word):
        drafter_ids(tmp_path)
    with pytest.raises(RequestError, match="cannot be read"):
        drafter_ids(tmp_path / "nowhere")


def test_what_it_cannot_do_is_refused_with_reason(tmp_path: Path) -> None:
    right = environment_with(tmp_path / "right", "sglang-0.5.14")
    assert demand(right) == "0.5.14"
    with pytest.raises(RequestError, match="cannot speculate on a CPU") as caught:
        demand(right, drafter=True)
    assert "run --job fetch, generate, extract and train" in str(caught.value)
    assert "engine.name: reference" in str(caught.value)
    assert demand(right, on_gpu=True, drafter=True) == "0.5.14"
    with pytest.raises(RequestError, match="drafter's config names"):
        demand(right, on_gpu=True, aux_layers=True)
    newer = environment_with(tmp_path / "newer", "sglang-0.5.23.post1")
    assert demand(newer, on_gpu=True) == "0.5.23.post1"
    with pytest.raises(RequestError, match="does not serve on a CPU"):
        demand(newer)
    for version in ("0.4.9", "0.6.0", "1.0", "garbled"):
        other = environment_with(tmp_path / version, f"sglang-{version}")
        with pytest.raises(RequestError, match="not known"):
            demand(other, on_gpu=True)


def test_an_engine_that_is_not_there_is_missed_by_name(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="No such file"):
        demand(tmp_path / "nowhere/bin/python")
    with pytest.raises(RequestError, match="is not a program"):
        demand(tmp_path)
    empty = environment_with(tmp_path / "empty")
    with pytest.raises(RequestError, match="not installed") as caught:
        demand(empty)
    assert "pip install sglang==0.5.14" in str(caught.value)
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'libpython3.12.so: cannot open shared object file' >&2\nexit 127\n")
    broken.chmod(0o755)
    with pytest.raises(RequestError, match=r"exit code 127: libpython3\.12\.so: cannot open"):
        demand(broken)
    liar = tmp_path / "liar"
    liar.write_text("#!/bin/sh\necho '[1]'\n")
    liar.chmod(0o755)
    with pytest.raises(RequestError, match="no Python"):
        demand(liar)


def test_an_installation_that_changed_is_asked_again(tmp_path: Path) -> None:
    python = environment_with(tmp_path / "env")
    assert "sglang" not in installed(str(python))
    add_package(tmp_path / "env", "sglang-0.5.14")
    assert installed(str(python))["sglang"] == "0.5.14"


@given(st.text() | st.recursive(st.none() | st.text() | st.integers(), st.lists, max_leaves=9).map(json.dumps))
def test_no_answer_of_an_interpreter_crashes(text: str) -> None:
    try:
        found = parse_versions(text)
    except ValueError:
        return
    assert "python" in found


@given(st.text())
def test_no_version_crashes(text: str) -> None:
    assert len(numbers(text)) <= 3


async def test_nothing_is_started_that_is_refused_and_what_is_gets_its_variables(tmp_path: Path) -> None:
    asked: list[tuple[list[str], Mapping[str, str]]] = []
    (tmp_path / "config.json").write_text("{}")

    @asynccontextmanager
    async def spawn(argv: list[str], *, role: str, env: Mapping[str, str]) -> AsyncIterator[SimpleNamespace]:
        asked.append((argv, env))
        yield SimpleNamespace(returncode=1, pid=1 << 30)

    def spec(python: Path) -> ServeSpec:
        return ServeSpec(model=tmp_path, port=free_port(), device="cpu", python=str(python))

    with pytest.raises(RequestError, match="No such file"):
        async with running(SGLANG, spec(tmp_path / "nowhere"), spawn=spawn):
            pytest.fail("it cannot have started")
    assert not asked
    there = environment_with(tmp_path / "env", "sglang-0.5.14")
    with pytest.raises(EngineError, match="did not start"):
        async with running(SGLANG, spec(there), spawn=spawn):
            pytest.fail("it cannot have started")
    ((argv, env),) = asked
    assert argv[0] == str(there)
    assert env["SGLANG_USE_CPU_ENGINE"] == "1"


def test_a_large_target_may_take_longer_to_load(tmp_path: Path) -> None:
    small = patience_s(ServeSpec(model=tmp_path, port=1, device="cpu"))
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(300_000_000_000)
    assert patience_s(ServeSpec(model=tmp_path, port=1, device="cpu")) == pytest.approx(small + 1000)
    assert patience_s(ServeSpec(model=tmp_path, port=1, device="cuda")) > small + 1000


def facts(text: str) -> list[LogFact]:
    return [fact for line in re.split(r"[\r\n]", text) if (fact := SGLANG.parse_log(line))]


def phases(found: list[LogFact]) -> list[str]:
    """Phases in their order, each told once where it is told several times in a row."""
    told = [
        str(fact.data["phase"]) if fact.kind == "phase" else fact.kind
        for fact in found
        if fact.kind in ("phase", "ready", "error")
    ]
    return [name for place, name in enumerate(told) if place == 0 or told[place - 1] != name]


@pytest.mark.recordings
@pytest.mark.parametrize("name", ["cpu2", "cpu5", "c23a"])
def test_a_real_start_is_read_phase_by_phase(recordings: Path, name: str) -> None:
    text = (recordings / "sglang-cpu" / f"{name}.log").read_text(errors="replace")
    assert phases(facts(text)) == ["starting", "connecting", "loading", "allocating", "warming_up", "ready"]


@pytest.mark.recordings
def test_real_trouble_is_an_error_and_options_are_not(recordings: Path) -> None:
    logs = {path.stem: facts(path.read_text(errors="replace")) for path in (recordings / "sglang-cpu").glob("*.log")}
    first = next(fact.data["message"] for fact in logs["cpu3"] if fact.kind == "error")
    assert str(first).startswith("Scheduler hit an exception")
    assert any("Health check failed" in str(fact.data) for fact in logs["wd2"])
    assert not [fact for fact in logs["cpu5"] + logs["c23a"] if fact.kind == "error"]


@pytest.mark.recordings
def test_the_accept_length_of_a_speculating_server_is_read(recordings: Path) -> None:
    with gzip.open(recordings / "gpu/logs/E-server_s3k1d4.log.gz", "rt", errors="replace") as file:
        text = file.read()
    decodes = [fact.data for fact in facts(text) if fact.kind == "decode"]
    assert len(decodes) == text.count("Decode batch")
    lengths = [float(data["accept_len"]) for data in decodes]
    assert all(1.0 <= length <= 4.0 for length in lengths)
    assert "capturing" in phases(facts(text))


def test_ranks_are_told() -> None:
    fact = SGLANG.parse_log("[2026-11-30 02:21:11 DP0 TP3] Load weight begin. avail mem=10.00 GB")
    assert fact == LogFact("phase", {"phase": "loading", "rank": "DP0 TP3"})


@given(st.text(), st.sampled_from(["", "Decode batch, #running-req: 1, ", "Capture target ", "server_args="]))
@settings(max_examples=200)
def test_no_line_crashes_the_parser(text: str, beginning: str) -> None:
    for prefix in ("", "[2026-11-30 02:21:11 TP0] "):
        fact = SGLANG.parse_log(prefix + beginning + text)
        assert fact is None or fact.kind


@pytest.mark.recordings
def test_answers_with_and_without_a_tokenizer_are_read(recordings: Path) -> None:
    full = parse_answer(json.loads((recordings / "gpu/http/generate_one_full.json").read_text()))
    assert full.text
    # As 0.5.14 answered on a CPU, without a tokenizer.
    bare = parse_answer(
        {
            "output_ids": [329, 302, 453, 18, 2],
            "meta_info": {
                "id": "37d77fa971f947b4a52d369c2d458cb0",
                "finish_reason": {"type": "stop", "matched": 2},
                "prompt_tokens": 3,
                "completion_tokens": 5,
                "cached_tokens": 0,
                "dp_rank": None,
                "e2e_latency": 0.0611,
            },
        }
    )
    assert bare.output_ids[-1] == 2
    assert (bare.finish_reason, bare.verify_steps, bare.text) == ("stop", None, "")


def test_the_adapter_asks_for_what_the_settings_need(tmp_path: Path) -> None:
    python = environment_with(tmp_path / "env", "sglang-0.5.14")
    spec = ServeSpec(model=tmp_path, port=1, device="cpu", python=str(python))
    SGLANG.require(spec)
    layered = ServeSpec(model=tmp_path, port=1, device="cuda", python=str(python), aux_layers=AuxLayers((1, 2, 3), 8))
    with pytest.raises(RequestError, match="aux_layers"):
        SGLANG.require(layered)
    adapter("reference").require(layered)


def planned(text: str, tmp_path: Path, *also: str) -> dict[str, StagePlan]:
    registry = load_registry()
    pipeline = parse_pipeline(text, "a.yaml", registry.specs())
    return {stage.name: stage for stage in plan_stages(pipeline, registry, tmp_path, tmp_path, also)}


def test_only_the_stages_that_need_it_are_refused_and_before_they_start(tmp_path: Path) -> None:
    python = environment_with(tmp_path / "env", "sglang-0.5.14")
    engine = f"{{name: sglang, device: cpu, python: {python}}}"
    text = f"schema: 1\nname: a\ntarget: {{model: tiny-random}}\nengine: {engine}\n"
    stages = planned(text, tmp_path, "compare", "profile", "sweep")
    refused = {name for name, stage in stages.items() if stage.plan.refusal is not None}
    assert refused & set(load_registry().order("pipeline")) == {"serve", "bench"}
    assert {"compare", "profile", "sweep"} <= refused
    admit([stages["fetch"], stages["generate"]], tmp_path)
    with pytest.raises(RequestError, match="cannot speculate on a CPU"):
        admit(list(stages.values()), tmp_path)
    assert "cannot speculate" in stages["serve"].as_json()["refusal"]


def test_a_missing_engine_stops_the_stage_that_would_start_it(tmp_path: Path) -> None:
    engine = f"{{name: sglang, device: cpu, python: {tmp_path}/bin/python}}"
    stages = planned(f"schema: 1\nname: a\ntarget: {{model: tiny-random}}\nengine: {engine}\n", tmp_path)
    with pytest.raises(RequestError, match=r"engine\.python: .*No such file"):
        admit([stages["generate"]], tmp_path)


@pytest.mark.parametrize("engine", ["{name: sglang, python: bin/python}", "{name: reference, python: /bin/python}"])
def test_a_python_is_named_absolutely_and_for_another_engine(engine: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="python"):
        planned(f"schema: 1\nname: a\ntarget: {{model: m}}\nengine: {engine}\n", tmp_path)


def test_another_environment_is_another_result() -> None:
    def generated(engine: str) -> str:
        text = f"schema: 1\nname: a\ntarget: {{model: m}}\nengine: {engine}\n"
        return stage_keys(parse_pipeline(text, "a.yaml", load_registry().specs()), load_registry())["generate"]

    keys = [generated(f"{{name: sglang{more}}}") for more in ("", ", python: /a/python", ", python: /b/python")]
    assert len(set(keys)) == 3
    assert generated("{name: sglang, gpus: 2}") == keys[0]


def test_further_words_and_variables_come_last_and_the_plugin_stays_first() -> None:
    spec = ServeSpec(
        model=Path("/m"), port=1, device="cuda", arguments=("--attention-backend", "triton"),
        variables={"PYTHONPATH": "/stub:/site", "SGLANG_PLUGINS": "mine"}, drafter=Path("/d"),
    )  # fmt: skip
    adapter = SglangAdapter()
    assert adapter.argv(spec)[-2:] == ["--attention-backend", "triton"]
    assert adapter.environment(spec)["PYTHONPATH"] == "/stub:/site"
    capturing = adapter.environment(replace(spec, drafter=None, return_hidden_states=True))
    assert capturing["PYTHONPATH"].split(":") == [str(PLUGIN), "/stub", "/site"]
    assert "PYTHONPATH=/stub:/site" in adapter.launch_line(spec)


def test_sglang_is_looked_for_where_its_environment_says(tmp_path: Path) -> None:
    found = tmp_path / "sglang-0.5.14.dist-info"
    found.mkdir()
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.14\n")
    assert installed(sys.executable, {"PYTHONPATH": str(tmp_path)})["sglang"] == "0.5.14"
