"""What a person sees when the target, the prompts or the person gets in the way of a real run."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eagle3ops.runs.directory import RunDirectory
from eagle3ops.targets.tiny import make_tiny

pytestmark = pytest.mark.timeout(300)


def eagle3ops(root: Path, *args: str, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "eagle3ops", *args, "--root", str(root)],
        env={
            **os.environ,
            "EAGLE3OPS_CACHE": str(root / "cache"),
            "EAGLE3OPS_STATE": str(root / "state"),
            "NO_COLOR": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=280)
    return process.returncode, out, err


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    make_tiny(folder)
    return folder


def test_a_torn_model_file_is_named(tmp_path: Path, model: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    code, _, err = ended(eagle3ops(tmp_path, "--job", "fetch", "--spec", "tiny", "--set", f"target.model={model}"))
    assert code == 1
    assert f"{weights}: torn" in err
    assert "Traceback" not in err


def test_broken_prompt_rows_go_to_quarantine_and_the_rest_is_answered(tmp_path: Path, model: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    good = [json.dumps({"prompt": f"Tell me about number {k}."}) for k in range(6)]
    prompts.write_text("\n".join([*good[:3], "{not json", '{"prompt": 7}', *good[3:]]) + "\n")
    settings = [
        "--set", f"target.model={model}", "--set", f"stages.generate.prompts={prompts}",
        "--set", "stages.generate.train=4", "--set", "stages.generate.heldout=2",
        "--set", "stages.generate.max_new_tokens=4",
    ]  # fmt: skip
    assert ended(eagle3ops(tmp_path, "--job", "fetch", "--spec", "tiny", *settings))[0] == 0
    code, _, err = ended(eagle3ops(tmp_path, "--job", "generate", "--spec", "tiny", *settings))
    assert code == 0, err
    (out,) = (tmp_path / "stages").glob("generate-*/")
    quarantined = [json.loads(line) for line in (out / "quarantine.jsonl").read_text().splitlines()]
    assert [row["id"].rsplit(":", 1)[1] for row in quarantined] == ["4", "5"]
    assert all(row["reason"] for row in quarantined)
    answers = [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()]
    assert [row["split"] for row in answers] == ["heldout"] * 2 + ["train"] * 4
    assert "2 rows went to quarantine.jsonl" in err


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interrupted_run_says_how_to_go_on_and_does(tmp_path: Path, model: Path, number: signal.Signals) -> None:
    settings = ["--set", f"target.model={model}", "--set", "stages.generate.train=200"]
    assert ended(eagle3ops(tmp_path, "--job", "fetch", "--spec", "tiny", *settings))[0] == 0
    process = eagle3ops(tmp_path, "--job", "generate", "--spec", "tiny", *settings, "--json")
    assert process.stdout is not None
    for line in process.stdout:
        if '"role":"engine-generate"' in line:  # the engine is on its way
            break
    time.sleep(1.0)
    process.send_signal(number)
    code, _, err = ended(process)
    assert code == 130
    runs = sorted((tmp_path / "runs").iterdir())
    assert f"runs resume {runs[-1].name}" in err
    assert not RunDirectory(runs[-1]).alive()
    code, _, err = ended(eagle3ops(tmp_path, "runs", "resume", runs[-1].name))
    assert code == 0, err
