"""Is a running engine judged as it is wired?"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from wide_heads import make_wide, make_wide_drafter_config

from eagle3ops.commands.verify import KEPT
from eagle3ops.eagle3.checkpoint import export_drafter
from eagle3ops.eagle3.drafter import Drafter, DrafterConfig
from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.engines.client import EngineError
from eagle3ops.engines.reference.model import Target
from eagle3ops.runs.family import tree
from eagle3ops.runs.processes import identify, signal_all
from eagle3ops.targets.tiny import HIDDEN, LAYERS, VOCABULARY, make_tiny
from eagle3ops.wiring.live import Asked, explained, judged, probe_tokens
from eagle3ops.wiring.sides import all_boundaries


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    make_tiny(folder)
    return folder


def drafter_of(folder: Path, boundary: tuple[int, ...]) -> Path:
    """An exported drafter that has learnt nothing, for these layers."""
    torch.manual_seed(1)
    config = DrafterConfig(
        hidden_size=HIDDEN, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2,
        head_dim=HIDDEN // 4, vocab_size=VOCABULARY, draft_vocab_size=VOCABULARY, target_hidden_size=HIDDEN,
        aux_layers=AuxLayers(boundary, LAYERS), rms_norm_eps=1e-5, rope_theta=10000.0, max_position_embeddings=512,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    drafter = Drafter(config)
    drafter.t2d.fill_(True)
    return export_drafter(drafter, folder)


def verify(state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "eagle3ops", "verify", "--device", "cpu", "--dtype", "float32", "--json", *arguments],
        env={**os.environ, "EAGLE3OPS_STATE": str(state), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True,
    )  # fmt: skip


def test_the_reference_engine_is_judged(target: Path, tmp_path: Path) -> None:
    drafter = drafter_of(tmp_path / "drafter", (2, 4, 6))
    wired = ("--target", str(target), "--drafter", str(drafter), "--engine", "reference")
    right = verify(tmp_path, *wired, "--trained-on", "2,4,6")
    assert right.returncode == 0, right.stderr
    assert json.loads(right.stdout)["verdict"] == "PASS"
    wrong = verify(tmp_path, *wired, "--trained-on", "1,3,5")
    assert wrong.returncode == 3, wrong.stderr
    answer = json.loads(wrong.stdout)
    assert (answer["verdict"], answer["cause"]["kind"], answer["boundary"]) == ("FAIL", "shifted", [2, 4, 6])
    unknown = verify(tmp_path, *wired)
    # As a pipeline ends: 1 is for what failed, and this was done.
    assert unknown.returncode == 3
    assert json.loads(unknown.stdout)["verdict"] == "UNDECIDED"


def test_a_wrong_request_is_refused(target: Path, tmp_path: Path) -> None:
    for arguments, word in (
        (("--target", str(tmp_path), "--engine", "reference"), "config.json"),
        (("--target", str(target), "--engine", "reference", "--trained-on", "1,99"), "99"),
        (("--target", str(target), "--engine", "reference", "--trained-on", "a"), "layer numbers"),
        (("--target", str(target), "--engine", "tgi"), "tgi"),
        (("--target", str(target), "--engine", "reference", "--max-error", "2"), "--max-error"),
        (("--target", str(target), "--engine", "sglang", "--python", str(tmp_path / "no")), "engine.python"),
    ):
        told = verify(tmp_path, *arguments)
        assert told.returncode == 2, told.stderr
        assert word in told.stderr


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("ids", "verdict"), [([1, 3, 5], "PASS"), ([2, 4, 6], "FAIL"), (None, "FAIL")])
def test_a_real_sglang_is_judged(ids: list[int] | None, verdict: str, target: Path, tmp_path: Path) -> None:
    python = os.environ["EAGLE3OPS_SGLANG_PYTHON"]
    (tmp_path / "config.json").write_text(
        json.dumps({"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}} if ids else {})
    )
    told = verify(tmp_path, "--target", str(target), "--drafter", str(tmp_path), "--engine", "sglang", "--python",
                  python, "--trained-on", "2,4,6")  # fmt: skip
    answer = json.loads(told.stdout)
    assert answer["verdict"] == verdict, told.stderr
    # Its default are inputs 2, n // 2, n - 3.
    assert answer["boundary"] == ([k + 1 for k in ids] if ids else [2, LAYERS // 2, LAYERS - 3])


IDS = "eagle_aux_hidden_state_layer_ids"
BOTH = {IDS: [2, 4, 6], "eagle_config": {IDS: [1, 3, 5]}}
NESTED = {IDS: None, "eagle_config": {IDS: [1, 3, 5]}}
TOP = {IDS: [2, 4, 6], "eagle_config": None}
NOWHERE = {IDS: None, "eagle_config": None}


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("family", "config", "trained", "captured", "kind"),
    [
        # As eagle3ops exports it, for either engine.
        ("llama", BOTH, "2,4,6", [2, 4, 6], None),
        # As SpecForge exports it: SGLang would add 1 to these ids, and vLLM does not.
        ("llama", NESTED, "2,4,6", [1, 3, 5], "shifted"),
        # Its default are inputs 2, n // 2, n - 3, taken without a word.
        ("llama", NOWHERE, "2,4,6", [2, LAYERS // 2, LAYERS - 3], "other_layers"),
        ("qwen3", TOP, "2,4,6", [2, 4, 6], None),
        ("qwen3", {IDS: [3, 5, 7], "eagle_config": None}, "2,4,6", [3, 5, 7], "shifted"),
        # The embedding, and the state after the last layer: before the norm.
        ("qwen3", {IDS: [0, 4, LAYERS], "eagle_config": None}, f"0,4,{LAYERS}", [0, 4, LAYERS], None),
    ],
)
def test_a_real_vllm_is_judged(
    family: str, config: dict[str, Any], trained: str, captured: list[int], kind: str | None, tmp_path: Path
) -> None:
    target = make_wide(tmp_path / "target", family)
    drafter = make_wide_drafter_config(tmp_path / "drafter", **config)
    told = verify(tmp_path, "--target", str(target), "--drafter", str(drafter), "--engine", "vllm", "--python",
                  os.environ["EAGLE3OPS_VLLM_PYTHON"], "--trained-on", trained)  # fmt: skip
    assert told.stdout, told.stderr
    answer = json.loads(told.stdout)
    assert answer["boundary"] == captured, answer["reason"]
    assert answer["verdict"] == ("PASS" if kind is None else "FAIL")
    assert (answer["cause"] or {}).get("kind") == kind
    assert all(error < 1e-4 for error in answer["errors"])
    assert any("model runner V1" in note for note in answer["notes"])


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_real_vllm_that_does_not_start_is_explained_by_its_cause(tmp_path: Path) -> None:
    target = make_wide(tmp_path / "target", "llama")
    drafter = make_wide_drafter_config(tmp_path / "drafter", architectures=["NoSuchEagle3"])
    told = verify(tmp_path, "--target", str(target), "--drafter", str(drafter), "--engine", "vllm", "--python",
                  os.environ["EAGLE3OPS_VLLM_PYTHON"])  # fmt: skip
    assert told.returncode == 1, told.stdout
    assert "NoSuchEagle3" in told.stderr


def left_of(state: Path, sign: str, *arguments: str) -> list[str]:
    """Kill the command as soon as the engine's log says `sign`; the processes of it that still live after a while."""
    argv = [sys.executable, "-m", "eagle3ops", "verify", "--device", "cpu", "--dtype", "float32", *arguments]
    environment = {**os.environ, "EAGLE3OPS_STATE": str(state), "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True) as process:
        try:
            while process.poll() is None and not any(
                sign in log.read_text(errors="replace") for log in state.glob("verify/*/engine.log")
            ):
                time.sleep(0.05)
            everyone = tree(process.pid)
            assert process.poll() is None, process.stdout and process.stdout.read()
        finally:
            process.kill()
    # More than the server and who keeps it: else there would be nothing to leave behind.
    assert len(everyone) > 2
    deadline = time.monotonic() + 25
    while (left := [pid for pid, one in everyone.items() if identify(pid) == one]) and time.monotonic() < deadline:
        time.sleep(0.1)
    told = [Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:80] for pid in left]
    signal_all(everyone, signal.SIGKILL)
    return told


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_of_a_real_sglang_nothing_is_left_when_the_command_is_killed(target: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 5]}}))
    python = os.environ["EAGLE3OPS_SGLANG_PYTHON"]
    wired = ("--target", str(target), "--drafter", str(tmp_path), "--engine", "sglang", "--python", python)
    assert left_of(tmp_path, "max_total_num_tokens=", *wired) == []


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_of_a_real_vllm_nothing_is_left_when_the_command_is_killed(tmp_path: Path) -> None:
    target = make_wide(tmp_path / "target", "llama")
    config: dict[str, Any] = BOTH
    drafter = make_wide_drafter_config(tmp_path / "drafter", **config)
    python = os.environ["EAGLE3OPS_VLLM_PYTHON"]
    wired = ("--target", str(target), "--drafter", str(drafter), "--engine", "vllm", "--python", python)
    assert left_of(tmp_path, "Starting to load model", *wired) == []


def asked(target: Path, trained: tuple[int, ...] | None, **options: Any) -> Asked:
    layers = None if trained is None else AuxLayers(trained, LAYERS)
    known: dict[str, Any] = {
        "python": None,
        "device": "cpu",
        "dtype": "float32",
        "drafter": None,
        "log": target / "log",
    }
    return Asked(engine="reference", target=target, trained=layers, **(known | options))


@pytest.fixture(scope="module")
def model(target: Path) -> Target:
    return Target.load(target, torch.float32)


def captured(
    model: Target, texts: list[list[int]], boundary: tuple[int, ...], noise: float = 0.0
) -> list[torch.Tensor]:
    chance = torch.Generator().manual_seed(1)
    found = []
    for ids in texts:
        states = all_boundaries(model, ids)[list(boundary)]
        scale = states.norm(dim=-1, keepdim=True) / states.shape[-1] ** 0.5
        states = states + noise * scale * torch.randn(states.shape, generator=chance)
        found.append(states.movedim(0, 1).flatten(1))
    return found


@pytest.mark.parametrize(
    ("served", "noise", "options", "verdict", "word"),
    [
        ((2, 4, 6), 0.0, {}, "PASS", "as in training"),
        # As weights of another revision are: far more than float32 does, and nearest all the same.
        ((2, 4, 6), 0.04, {}, "UNDECIDED", "what would decide it"),
        ((2, 4, 6), 0.04, {"max_error": 0.05}, "PASS", "as in training"),
        ((2, 4, 6), 0.04, {"dtype": "bfloat16"}, "PASS", "as in training"),
        ((3, 5, 7), 0.04, {}, "FAIL", "off by +1"),
        ((2, 4), 0.0, {}, "FAIL", "2 tensors are served"),
        ((2, 4, 6), 30.0, {}, "FAIL", "no state of this target is served"),
    ],
)
def test_what_an_engine_hands_over_is_judged_by_the_noise_of_its_dtype(
    served: tuple[int, ...], noise: float, options: dict[str, Any], verdict: str, word: str, target: Path, model: Target
) -> None:
    texts, _ = probe_tokens(target, VOCABULARY)
    found = judged(asked(target, (2, 4, 6), **options), model, texts, captured(model, texts, served, noise))
    assert found.verdict == verdict, found
    assert word in found.reason


def test_between_two_layers_it_is_open_and_says_so(target: Path, model: Target) -> None:
    texts, _ = probe_tokens(target, VOCABULARY)
    pairs = zip(captured(model, texts, (2, 4, 6)), captured(model, texts, (2, 5, 6)), strict=True)
    between = [0.51 * one + 0.49 * other for one, other in pairs]
    found = judged(asked(target, (2, 4, 6)), model, texts, between)
    assert found.verdict == "UNDECIDED"
    assert "segment 1 is ambiguous" in found.reason
    assert "what would decide it" in found.reason
    assert "no state of this target is served" not in found.reason


def test_states_of_no_fitting_width_fail(target: Path, model: Target) -> None:
    texts, _ = probe_tokens(target, VOCABULARY)
    right = captured(model, texts, (2, 4, 6))
    for wrong in (
        [one[:, :-1] for one in right],
        [right[0], right[1], right[2][:, :HIDDEN]],
        [one[:, :0] for one in right],
    ):
        for trained in ((2, 4, 6), None):
            found = judged(asked(target, trained), model, texts, wrong)
            assert found.verdict == "FAIL"
            assert "no multiple" in found.reason


def test_made_up_tokens_are_told(target: Path, tmp_path: Path) -> None:
    ids, why = probe_tokens(target, VOCABULARY)
    assert why is None
    assert all(0 <= token < VOCABULARY for row in ids for token in row)
    bare, why = probe_tokens(tmp_path, 64)
    assert why is not None
    assert why.startswith("made-up token ids were sent instead of text: ")
    assert bare == probe_tokens(tmp_path, 64)[0]
    assert all(0 <= token < 64 for row in bare for token in row)
    # A vocabulary that the tokenizer does not fit.
    assert "some that the model does not have" in (probe_tokens(target, 20)[1] or "")


def test_a_verdict_on_made_up_tokens_says_so(target: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        (bare / name).write_bytes((target / name).read_bytes())
    drafter = drafter_of(tmp_path / "drafter", (2, 4, 6))
    told = verify(tmp_path, "--target", str(bare), "--drafter", str(drafter), "--engine", "reference",
                  "--trained-on", "2,4,6")  # fmt: skip
    assert told.returncode == 0, told.stderr
    (note,) = json.loads(told.stdout)["notes"]
    assert note.startswith("made-up token ids were sent")


def test_only_the_newest_logs_are_kept(target: Path, tmp_path: Path) -> None:
    logs = tmp_path / "verify"
    for number in range(KEPT + 3):
        old = logs / f"engine-{number:02}"
        old.mkdir(parents=True)
        (old / "engine.log").write_text("old\n")
        os.utime(old, (number, number))
    (logs / "mine.txt").write_text("not a log")
    # The target's config is read first, and its ids make no sense: an engine need not start for this.
    told = verify(tmp_path, "--target", str(target), "--engine", "tgi")
    assert told.returncode == 2, told.stdout
    left = sorted(path.name for path in logs.glob("engine-*"))
    assert len(left) == KEPT
    assert {f"engine-{number:02}" for number in range(4, KEPT + 3)} < set(left)
    assert (logs / "mine.txt").is_file()


@pytest.mark.recordings
def test_an_engine_that_ends_is_explained_by_its_log(recordings: Path, tmp_path: Path) -> None:
    log = recordings / "vllm-cpu" / "noeagle3.log"
    told = explained(EngineError("the engine did not start"), log)
    assert "does not support EAGLE3 interface" in told.what
    assert told.what.endswith("the engine did not start")
    assert told.remedy
    unchanged = EngineError("it did not start")
    assert explained(unchanged, tmp_path / "nowhere.log") is unchanged
