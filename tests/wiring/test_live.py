"""Is a running engine judged as it is wired?"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from eagle3ops.eagle3.checkpoint import export_drafter
from eagle3ops.eagle3.drafter import Drafter, DrafterConfig
from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.targets.tiny import HIDDEN, LAYERS, VOCABULARY, make_tiny


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
    assert unknown.returncode == 1
    assert json.loads(unknown.stdout)["verdict"] == "UNDECIDED"


def test_a_wrong_request_is_refused(target: Path, tmp_path: Path) -> None:
    for arguments, word in (
        (("--target", str(tmp_path), "--engine", "reference"), "config.json"),
        (("--target", str(target), "--engine", "reference", "--trained-on", "1,99"), "99"),
        (("--target", str(target), "--engine", "reference", "--trained-on", "a"), "layer numbers"),
        (("--target", str(target), "--engine", "tgi"), "tgi"),
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
