"""A real SGLang on a CPU: the generate stage of a pipeline, token for token what the reference engine answers."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(420)]

PIPELINE = """\
schema: 1
name: {name}
target: {{model: tiny-random}}
engine: {{name: {name}, dtype: float32, device: cpu, max_running_requests: 8{more}}}
stages:
  generate: {{train: 4, heldout: 4, max_new_tokens: 24, batch: 4}}
"""


def answers(folder: Path, name: str, more: str = "") -> dict[str, list[int]]:
    spec = folder / f"{name}.yaml"
    spec.write_text(PIPELINE.format(name=name, more=more))
    root = folder / name
    for job in ("fetch", "generate"):
        done = subprocess.run(
            [sys.executable, "-m", "eagle3ops", "--job", job, "--spec", str(spec), "--root", str(root)],
            env={**os.environ, "EAGLE3OPS_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
    (file,) = (root / "stages").glob("generate-*/answers.jsonl")
    rows: list[dict[str, Any]] = [json.loads(line) for line in file.read_text().splitlines()]
    return {row["id"]: row["output_ids"] for row in rows}


def test_a_real_sglang_generates_what_the_reference_engine_does(tmp_path: Path) -> None:
    python = os.environ["EAGLE3OPS_SGLANG_PYTHON"]
    real = answers(tmp_path, "sglang", f", python: {python}")
    assert len(real) == 8
    # In float32, and greedily: near-ties that rounding could turn are not to be expected in so few tokens.
    assert real == answers(tmp_path, "reference")
