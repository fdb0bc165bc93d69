"""Are SGLang's options known from its own source, and what is chosen for it explained and right for the GPU?"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import sglang_packages
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.engines import footprint
from eagle3ops.engines.base import Explains, ServeSpec, Versioned, on_gpu
from eagle3ops.engines.gpu_memory import Returned, held_by, least_bytes, require_room, wait_returned
from eagle3ops.engines.registry import adapter
from eagle3ops.engines.sglang import adapter as module
from eagle3ops.engines.sglang import flags
from eagle3ops.engines.sglang.adapter import SglangAdapter
from eagle3ops.engines.sglang.defaults import Gpu, choices, own_attention
from eagle3ops.engines.sglang.installation import Installation
from eagle3ops.errors import Refused, RequestError, SpecError
from eagle3ops.jobs.serve.job import refuse_wrong_drafter
from eagle3ops.runs.job import load_registry
from eagle3ops.runs.keys import stage_keys
from eagle3ops.runs.planning import plan_stages
from eagle3ops.spec.load import parse_pipeline
from eagle3ops.telemetry.gpus import GpuFacts, GpuProcess

SGLANG = SglangAdapter()
GPU = ServeSpec(model=Path("/m"), port=30000, device="cuda", max_running_requests=64)
WHOLE = Installation(
    python="/p", version="0.5.14", flags=None, flashinfer="0.6.12", no_flashinfer="", lacks_flashinfer=False, fa3=True
)
STUB = replace(WHOLE, flashinfer=None, no_flashinfer="is there as a stand-in only", fa3=False)
DRAFT = replace(GPU, drafter=Path("/d"))


def words(
    spec: ServeSpec, here: Installation | None, gpu: Gpu | None, target: dict[str, int] | None = None
) -> list[str]:
    return [word for choice in choices(spec, here, gpu, target) for word in choice.words]


def value(argv: list[str], flag: str) -> str | None:
    return argv[argv.index(flag) + 1] if flag in argv else None


@pytest.mark.parametrize("later", [False, True])
def test_options_are_read_in_the_source_of_both_forms(later: bool, tmp_path: Path) -> None:
    found = flags.read_flags(sglang_packages.sglang(tmp_path, later=later))
    assert found is not None
    for name in ("--model-path", "--model", "--tensor-parallel-size", "--no-spread", "--its-own-name", "--config"):
        assert name in found, name
    for name in ("--hidden", "--plain", "--named"):
        assert name not in found, name
    assert found.choices["--attention-backend"] == ("triton", "fa3", "flashinfer", "torch_native")
    assert found.choices["--kv-cache"] == ("auto", "fp8")
    assert "--sampling-backend" not in found.choices


def test_a_source_that_is_not_understood_checks_nothing(tmp_path: Path) -> None:
    assert flags.read_flags(tmp_path) is None
    (tmp_path / "srt").mkdir()
    (tmp_path / "srt/server_args.py").write_text("class ServerArgs:\n    this is no Python\n")
    assert flags.read_flags(tmp_path) is None


@pytest.mark.sglang
def test_options_of_the_real_one_are_all_there_and_no_others() -> None:
    python = os.environ["EAGLE3OPS_SGLANG_PYTHON"]
    ask = (
        "import argparse, json, sglang\n"
        "from sglang.srt.server_args import ServerArgs\n"
        "p = argparse.ArgumentParser(add_help=False); ServerArgs.add_cli_args(p)\n"
        "print(json.dumps([sglang.__path__[0], [s for a in p._actions for s in a.option_strings]]))\n"
    )
    environment = {**os.environ, "PYTHONPATH": "", "SGLANG_USE_CPU_ENGINE": "1"}
    done = subprocess.run([python, "-c", ask], env=environment, capture_output=True, text=True, check=True)
    folder, real = json.loads(done.stdout.splitlines()[-1])
    found = flags.read_flags(Path(folder))
    assert found is not None
    assert found.names == set(real)


def known(*names: str) -> flags.Flags:
    return flags.Flags(frozenset(names), {"--attention-backend": ("triton", "fa3")})


LATER = known("--cuda-graph-max-bs-decode", "--cuda-graph-max-bs-prefill", "--attention-backend", "--tp-size")
OLDER = known("--optimistic-prefill-retries", "--tp-size", "--context-length")


@pytest.mark.parametrize(
    ("found", "given", "says"),
    [
        (
            LATER,
            ["--cuda-graph-max-bs", "8"],
            r"cannot tell what --cuda-graph-max-bs means.*\n.*-decode since 0\.5\.23",
        ),
        (LATER, ["--tp-sise=2"], r"knows no --tp-sise\n.*did you mean --tp-size"),
        (OLDER, ["--optimistic-prefill-attempts", "1"], r"this version calls it --optimistic-prefill-retries"),
        (LATER, ["--torchao-config", "int8"], "leave it out"),
        (LATER, ["--attention-backend", "fa33"], r"has no 'fa33' for --attention-backend\n.*did you mean 'fa3'"),
        (LATER, ["--attention-backend=fa33"], "has no 'fa33'"),
    ],
)
def test_an_option_that_the_version_does_not_know_is_refused(found: flags.Flags, given: list[str], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        flags.check(given, found, "0.5.23", "engine.arguments")


def test_what_argparse_would_take_is_taken() -> None:
    flags.check(["--context", "8", "-v", "--tp-size", "-1", "2"], OLDER, "0.5.14", "x")


@given(st.lists(st.text("-abcdegpstuz=_ 01", max_size=24), max_size=5))
def test_no_command_line_crashes_the_check(given: list[str]) -> None:
    try:
        flags.check(given, LATER, "0.5.23", "x")
    except RequestError:
        return
    assert not any(word.startswith("--z") for word in given)


def test_the_table_of_renamed_options_names_each_once() -> None:
    table = flags.renamed()
    assert table["--cuda-graph-bs"].new == "--cuda-graph-bs-decode"
    assert all(row.old.startswith("--") and row.gone_in == "0.5.23" for row in table.values())
    assert not {row.new for row in table.values()} & set(table)


@pytest.mark.parametrize(
    ("major", "minor", "mla", "chain", "own"),
    [
        (9, 0, False, True, "fa3"),
        (9, 0, False, False, "flashinfer"),
        (9, 0, True, False, "fa3"),
        (10, 0, False, True, "trtllm_mha"),
        (10, 3, True, True, "flashinfer"),
        (12, 0, False, True, "flashinfer"),
        (12, 0, True, True, "triton"),
        (8, 6, False, True, "flashinfer"),
    ],
)
def test_what_it_takes_by_itself(major: int, minor: int, mla: bool, chain: bool, own: str) -> None:
    assert own_attention(Gpu(major, minor), mla=mla, chain=chain, flashinfer=True) == own


def test_where_all_is_installed_the_engine_chooses() -> None:
    argv = words(DRAFT, WHOLE, Gpu(9, 0))
    assert value(argv, "--attention-backend") is None
    assert value(argv, "--sampling-backend") is None
    assert value(argv, "--cuda-graph-max-bs-decode") == "64"
    told = " | ".join(choice.why for choice in choices(DRAFT, WHOLE, Gpu(9, 0), None))
    assert "attention backend fa3: SGLang's own for Hopper (sm_90), plain attention, chain drafts" in told
    assert "would take 48" in told


def test_with_a_stand_in_for_flashinfer_it_is_triton_and_pytorch_and_says_why() -> None:
    argv = words(DRAFT, STUB, Gpu(9, 0))
    assert value(argv, "--attention-backend") == "triton"
    assert value(argv, "--sampling-backend") == "pytorch"
    assert value(argv, "--cuda-graph-backend-prefill") == "disabled"
    chosen = choices(DRAFT, STUB, Gpu(9, 0), None)
    told = " | ".join(choice.why for choice in chosen)
    assert "triton instead of fa3" in told
    assert "FlashAttention 3" in told
    assert "flashinfer is there as a stand-in only" in told
    assert any(choice.variables == {"SGLANG_IS_FLASHINFER_AVAILABLE": "false"} for choice in chosen)


@pytest.mark.parametrize("minor", [0, 1])
def test_on_the_small_blackwell_nothing_is_taken_that_only_the_large_one_has(minor: int) -> None:
    assert value(words(DRAFT, WHOLE, Gpu(12, minor)), "--attention-backend") is None
    assert value(words(DRAFT, STUB, Gpu(12, minor)), "--attention-backend") == "triton"
    assert own_attention(Gpu(12, minor), mla=False, chain=True, flashinfer=True) == "flashinfer"


def test_without_fa3_flashinfer_takes_its_place_but_not_for_latent_attention() -> None:
    here = replace(WHOLE, fa3=False)
    assert value(words(GPU, here, Gpu(9, 0)), "--attention-backend") == "flashinfer"
    assert value(words(GPU, here, Gpu(9, 0), {"kv_lora_rank": 512}), "--attention-backend") == "triton"


def test_what_a_person_chose_is_not_chosen_again() -> None:
    argv = words(replace(GPU, arguments=("--attention-backend=fa3", "--sampling-backend", "flashinfer",
                                         "--cuda-graph-bs-decode", "1")), STUB, Gpu(9, 0))  # fmt: skip
    assert argv == []
    named = replace(GPU, attention_backend="fa4", memory_fraction=0.6, pool_tokens=4096)
    argv = words(named, WHOLE, Gpu(9, 0))
    assert value(argv, "--attention-backend") == "fa4"
    assert value(argv, "--mem-fraction-static") == "0.6"
    assert value(argv, "--max-total-tokens") == "4096"


def test_a_capturing_server_always_says_how_much_memory_and_makes_no_graphs() -> None:
    argv = words(replace(DRAFT, return_hidden_states=True), WHOLE, Gpu(9, 0))
    assert value(argv, "--mem-fraction-static") == "0.7"
    assert value(argv, "--cuda-graph-backend-decode") == "disabled"
    whole = SGLANG.argv(replace(DRAFT, return_hidden_states=True))
    assert value(whole, "--chunked-prefill-size") == "-1"
    assert "--disable-radix-cache" in whole


def test_where_nothing_is_known_the_engine_is_left_alone() -> None:
    argv = words(DRAFT, None, None)
    assert value(argv, "--attention-backend") is None
    assert value(argv, "--sampling-backend") is None


@pytest.fixture
def staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServeSpec:
    """Packages in folders that PYTHONPATH names, without metadata, and a Hopper GPU."""
    site, stub = tmp_path / "site", tmp_path / "stub"
    sglang_packages.sglang(site)
    sglang_packages.kernels(site, fa3=False)
    sglang_packages.flashinfer(stub, stub=True)
    monkeypatch.setattr(module, "capability", lambda spec: (9, 0))
    monkeypatch.setattr(footprint, "require_gpu", lambda spec: None)
    monkeypatch.delenv("SGLANG_IS_FLASHINFER_AVAILABLE", raising=False)
    return replace(DRAFT, python=sys.executable, variables={"PYTHONPATH": f"{stub}:{site}"})


def test_an_unpacked_sglang_without_metadata_serves_with_a_drafter(staged: ServeSpec) -> None:
    SGLANG.require(staged)
    assert SGLANG.version(staged) == "0.5.14"
    argv = SGLANG.argv(staged)
    assert value(argv, "--attention-backend") == "triton"
    assert value(argv, "--sampling-backend") == "pytorch"
    environment = SGLANG.environment(staged)
    assert environment["SGLANG_IS_FLASHINFER_AVAILABLE"] == "false"
    assert environment["PYTHONPATH"] == staged.variables["PYTHONPATH"]
    assert "SGLANG_IS_FLASHINFER_AVAILABLE=false" in SGLANG.launch_line(staged)
    told = "\n".join(SGLANG.explain(staged))
    assert told.startswith("SGLang 0.5.14 of ")
    assert "attention backend triton instead of fa3" in told


def test_sampling_with_a_drafter_is_refused_where_it_would_end_the_server(staged: ServeSpec) -> None:
    with pytest.raises(
        RequestError, match=r"temperature 0\.7 with a drafter needs flashinfer, which is there as a stand"
    ):
        SGLANG.require(replace(staged, temperature=0.7))
    SGLANG.require(replace(staged, temperature=0.7, drafter=None))


def test_an_option_of_another_version_is_refused_before_the_start(staged: ServeSpec, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"engine\.arguments: SGLang 0\.5\.14 knows no --attn-dp-size"):
        SGLANG.require(replace(staged, arguments=("--attn-dp-size", "2")))
    changed = flags.Flags(frozenset({"--dp-size", "--attn-cp-size"}), {})
    with pytest.raises(RequestError, match="this version calls it --dp-size N --enable-dp-attention"):
        flags.check(("--attn-dp-size", "2"), changed, "0.5.14", "engine.arguments")
    with pytest.raises(RequestError, match=r"engine\.attention_backend: .*has no 'tritton'"):
        SGLANG.require(replace(staged, attention_backend="tritton"))
    later = tmp_path / "later"
    sglang_packages.sglang(later, "0.5.23", later=True)
    sglang_packages.flashinfer(later)
    spec = replace(staged, variables={"PYTHONPATH": str(later)})
    SGLANG.require(spec)
    with pytest.raises(RequestError, match=r"0\.5\.23 cannot tell what --cuda-graph-max-bs means"):
        SGLANG.require(replace(spec, arguments=("--cuda-graph-max-bs", "8")))


def test_a_version_in_between_is_taken_by_what_it_knows(staged: ServeSpec, tmp_path: Path) -> None:
    between = tmp_path / "between"
    sglang_packages.sglang(between, "0.5.19")
    sglang_packages.flashinfer(between)
    spec = replace(staged, variables={"PYTHONPATH": str(between)})
    SGLANG.require(spec)
    assert "not tried" in SGLANG.explain(spec)[0]


def test_a_gpu_without_any_flashinfer_is_refused_where_the_source_imports_it(staged: ServeSpec, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    sglang_packages.sglang(alone)
    with pytest.raises(RequestError, match="imports flashinfer on a GPU"):
        SGLANG.require(replace(staged, variables={"PYTHONPATH": str(alone)}))


def test_each_node_has_its_line(staged: ServeSpec) -> None:
    spec = replace(staged, nodes=2, node_rank=0, coordinator="10.0.0.1:20000", gpus=8)
    first, second = SGLANG.launch_lines(spec)
    assert "--tp-size 16 --nnodes 2 --node-rank 0 --dist-init-addr 10.0.0.1:20000" in first
    assert "--node-rank 1" in second
    assert SGLANG.launch_line(spec) == first
    assert "GLOO_SOCKET_IFNAME" not in SGLANG.environment(spec)
    assert second in SGLANG.explain(spec)


def test_adapters_that_explain_are_told_from_those_that_do_not() -> None:
    assert isinstance(adapter("sglang"), Explains)
    assert isinstance(adapter("sglang"), Versioned)
    assert not isinstance(adapter("reference"), Explains)


def gpu(index: int = 0, used: int = 0, *processes: tuple[int, int | None]) -> GpuFacts:
    return GpuFacts(
        index=index,
        uuid=f"GPU-{index}",
        name="H200",
        memory_total=100 << 30,
        pci_bus_id=None,
        memory_used=used,
        processes=tuple(
            GpuProcess(pid=pid, name="python3", user="ann", memory_bytes=held, visible=True) for pid, held in processes
        ),
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(40 << 30)
    return tmp_path


def test_a_target_that_does_not_fit_what_is_free_is_refused_with_figures(model: Path) -> None:
    spec = replace(GPU, model=model)
    need = least_bytes(spec)
    assert need is not None
    require_room(spec, lambda _: [gpu()], 0)
    with pytest.raises(Refused, match=r"needs at least 41\.5 GiB on each of 1 GPU; GPU 0 has 20\.0 GiB free.*ann"):
        require_room(spec, lambda _: [gpu(0, 80 << 30, (7, 80 << 30))], 0)
    require_room(replace(spec, gpus=4), lambda _: [gpu(number, 80 << 30) for number in range(4)], 0)
    require_room(replace(spec, device="cpu"), lambda _: pytest.fail("there is no GPU to ask"), 0)


def test_weights_are_counted_once_and_as_they_will_be_kept(tmp_path: Path) -> None:
    def need(config: dict[str, object], dtype: str = "bfloat16") -> int:
        (tmp_path / "config.json").write_text(json.dumps(config))
        found = least_bytes(replace(GPU, model=tmp_path, dtype=dtype))
        assert found is not None
        return found

    assert least_bytes(replace(GPU, model=tmp_path)) is None
    for name in ("model-00001.safetensors", "consolidated.safetensors"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(8 << 30)
    alone = need({})
    assert need({}, "float32") - alone == 8 << 30
    assert alone - need({"torch_dtype": "float32"}) == 4 << 30
    assert need({"quantization_config": {}}, "float32") == alone
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "consolidated.safetensors"}}')
    assert need({}) == alone


def test_memory_that_is_just_coming_back_is_waited_for(model: Path) -> None:
    looks = iter([[gpu(0, 90 << 30)], [gpu(0, 90 << 30)], [gpu()]])
    require_room(replace(GPU, model=model), lambda _: next(looks), 30)


def test_memory_is_back_when_none_of_its_processes_holds_any() -> None:
    before = [gpu(0, 30 << 30, (11, 20 << 30), (99, 10 << 30))]
    held = held_by([11, 12], before)
    assert held == {0: 20 << 30}
    looks = iter([before, [gpu(0, 10 << 30, (99, 10 << 30))]])
    back = wait_returned([11, 12], held, {0: 30 << 30}, lambda: next(looks), wait_s=30)
    assert back.given_back == {0: 20 << 30}
    assert not back.kept
    assert str(back).startswith("GPU memory is back: 20.0 GiB of GPU 0")


def test_memory_that_stays_is_told_of() -> None:
    before = [gpu(0, 20 << 30, (11, 20 << 30))]
    back = wait_returned([11], {0: 20 << 30}, {0: 20 << 30}, lambda: before, wait_s=0)
    assert back.kept == ["GPU 0: its processes still hold 20.0 GiB"]
    nobody = wait_returned([11], {0: 20 << 30}, {0: 20 << 30}, lambda: [gpu(0, 20 << 30)], wait_s=0)
    assert nobody.kept == ["GPU 0: 20.0 GiB in use by nobody that the driver names"]
    assert "is not back" in str(nobody)
    assert "nothing can be said" in str(Returned())


def test_the_plan_says_what_is_chosen_and_why(staged: ServeSpec, tmp_path: Path) -> None:
    registry = load_registry()
    text = (
        "schema: 1\nname: a\ntarget: {model: tiny-random}\n"
        f"engine: {{name: sglang, device: cuda, replicas: 2, gpus: 2, python: {staged.python}, "
        f"environment: {{PYTHONPATH: '{staged.variables['PYTHONPATH']}'}}}}\n"
        "stages: {generate: {temperature: 0.7}}\n"
    )
    pipeline = parse_pipeline(text, "a.yaml", registry.specs())
    stages = {stage.name: stage for stage in plan_stages(pipeline, registry, tmp_path / "root", tmp_path)}
    notes = "\n".join(stages["serve"].plan.forecast.notes)
    assert "2 replicas, each with 2 GPUs of its own" in notes
    assert "attention backend triton instead of fa3" in notes
    assert "with a drafter greedy answers only" in notes
    assert stages["serve"].plan.refusal is None
    assert stages["generate"].plan.refusal is None
    assert stages["serve"].gpus == 4


@pytest.mark.parametrize(
    "engine",
    [
        "{name: reference, attention_backend: triton}",
        "{name: sglang, replicas: 2, nodes: {count: 2, coordinator: 'a:1'}}",
        "{name: sglang, nodes: {count: 2, rank: 2, coordinator: 'a:1'}}",
        "{name: sglang, nodes: {count: 2, coordinator: 'a'}}",
        "{name: sglang, nodes: {count: 2, coordinator: 'a:70000'}}",
        "{name: sglang, memory_fraction: 1.0}",
        "{name: sglang, attention_backend: --triton}",
    ],
)
def test_settings_that_contradict_are_refused_by_the_file(engine: str) -> None:
    with pytest.raises(SpecError):
        parse_pipeline(f"schema: 1\nname: a\ntarget: {{model: m}}\nengine: {engine}\n", "a", load_registry().specs())


def test_where_a_stage_runs_is_no_part_of_its_key() -> None:
    def key(more: str) -> str:
        text = f"schema: 1\nname: a\ntarget: {{model: m}}\nengine: {{name: sglang{more}}}\n"
        return stage_keys(parse_pipeline(text, "a", load_registry().specs()), load_registry())["generate"]

    assert key("") == key(", replicas: 4, gpus: 2, memory_fraction: 0.5")
    assert key("") == key(", nodes: {count: 2, coordinator: '[fe80::1]:20000'}")
    assert key("") != key(", attention_backend: triton")


DRAFTER = {
    "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 1000, "draft_vocab_size": 1000, "rms_norm_eps": 1e-5,
    "num_hidden_layers": 1, "model_type": "llama", "tie_word_embeddings": False,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 5], "use_aux_hidden_state": True},
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"vocab_size": 900, "draft_vocab_size": 900}, r"vocab_size: is 900; of the target it is 1000"),
        (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [-1, 3, 5]}},
            r"boundary 0 \(embedding\) makes the engine",
        ),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 7]}}, r"boundary 8 .* is dropped without a word"),
    ],
)
def test_a_drafter_that_would_fail_is_refused_by_its_files(
    change: dict[str, object], says: str, staged: ServeSpec, tmp_path: Path
) -> None:
    target, drafter = tmp_path / "target", tmp_path / "drafter"
    for folder, config in (
        (target, {**DRAFTER, "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 8}),
        (drafter, {**DRAFTER, **change}),
    ):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
    spec = replace(staged, model=target, drafter=drafter)
    with pytest.raises(RequestError, match=says) as caught:
        refuse_wrong_drafter("sglang", spec)
    assert "eagle3ops lint" in str(caught.value)
    refuse_wrong_drafter("sglang", replace(spec, return_hidden_states=True))
    refuse_wrong_drafter("reference", spec)


@pytest.mark.parametrize(
    ("given", "setting"),
    [
        (("--speculative-num-steps", "9"), "stages.serve.speculation"),
        (("--speculative-num-s=9",), "stages.serve.speculation"),
        (("--port", "1"), "stages.serve.port"),
        (("--model", "/other"), "target.model"),
        (("--tensor-parallel-size", "4"), "engine.gpus"),
        (("--dtype", "float16"), "engine.dtype"),
    ],
)
def test_an_argument_that_would_override_a_setting_unseen_is_refused(
    staged: ServeSpec, given: tuple[str, ...], setting: str
) -> None:
    with pytest.raises(RequestError, match="would override") as refused:
        SGLANG.require(replace(staged, arguments=given))
    assert refused.value.remedy == f"set {setting}"


def test_settings_that_are_only_choices_may_be_given_as_arguments(staged: ServeSpec) -> None:
    SGLANG.require(replace(staged, arguments=("--mem-fraction-static", "0.8", "--max-running-requests", "8")))


@pytest.mark.skipif(on_gpu("auto"), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_refused_before_anything_starts(tmp_path: Path) -> None:
    text = "schema: 1\nname: x\ntarget: {model: tiny-random}\nengine: {name: reference, device: cuda}\n"
    registry = load_registry()
    planned = plan_stages(parse_pipeline(text, "x.yaml", registry.specs()), registry, tmp_path / "r", tmp_path / "c")
    refused = {stage.name for stage in planned if "no GPU is found" in str(stage.plan.refusal)}
    assert refused >= {"generate", "serve", "bench"}


def test_a_device_that_nobody_has_is_no_cpu() -> None:
    with pytest.raises(SpecError, match=r"engine\.device: expected 'auto', 'cpu' or 'cuda', got 'gpu'"):
        parse_pipeline(
            "schema: 1\nname: x\ntarget: {model: tiny-random}\nengine: {device: gpu}\n",
            "x.yaml",
            load_registry().specs(),
        )


def test_a_plan_shows_launch_lines_that_name_what_is_not_there_yet(staged: ServeSpec, tmp_path: Path) -> None:
    text = (
        f"schema: 1\nname: x\ntarget: {{model: {tmp_path}}}\n"
        f"engine: {{name: sglang, device: cuda, python: {staged.python}, gpus: 8, environment: "
        f"{{PYTHONPATH: {staged.variables['PYTHONPATH']}}}NODES}}\nstages: {{serve: {{port: 30123}}}}\n"
    )
    registry, told = load_registry(), {}
    for nodes in ("", ", nodes: {count: 2, coordinator: 'a:20000'}"):
        pipeline = parse_pipeline(text.replace("NODES", nodes), "x.yaml", registry.specs())
        planned = {one.name: one for one in plan_stages(pipeline, registry, tmp_path / "r", tmp_path / "c")}
        (told[nodes],) = [note for note in planned["serve"].plan.forecast.notes if "launch_server" in note]
    alone, other = told.values()
    assert alone.startswith("launch line: env ")
    for line in (alone, other):
        assert "--model-path TARGET " in line
        assert "--speculative-draft-model-path DRAFTER " in line
        assert "--port 30123" in line
    assert "--node-rank 1" in other
    refused = parse_pipeline(
        text.replace("NODES", "").replace("device: cuda", "device: cpu"), "x.yaml", registry.specs()
    )
    planned = {one.name: one for one in plan_stages(refused, registry, tmp_path / "r", tmp_path / "c")}
    assert planned["serve"].plan.refusal is not None
    assert not any("launch_server" in note for note in planned["serve"].plan.forecast.notes)
