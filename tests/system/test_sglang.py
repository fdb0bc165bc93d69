"""A real SGLang on a CPU: the generate stage of a pipeline, token for token what the reference engine answers."""

import asyncio
import json
import os
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle3ops.engines.base import ServeSpec
from eagle3ops.engines.client import Sampling
from eagle3ops.engines.places import free_port, refuse_taken_port
from eagle3ops.engines.serving import logged, refuse, running
from eagle3ops.engines.sglang.adapter import SglangAdapter
from eagle3ops.engines.sglang.metrics import parse_metrics
from eagle3ops.engines.sglang.server_info import parse_server_info
from eagle3ops.errors import RequestError
from eagle3ops.runs.family import tree
from eagle3ops.runs.processes import identify
from eagle3ops.targets.tiny import make_tiny

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


class Told:
    """Keeps what a person would be told."""

    def __init__(self) -> None:
        self.infos: list[str] = []
        self.warnings: list[str] = []

    def info(self, text: str) -> None:
        self.infos.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


async def test_a_real_sglang_from_its_start_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    make_tiny(tmp_path / "target")
    log = tmp_path / "engine.log"
    sglang, told = SglangAdapter(), Told()
    spec = ServeSpec(
        model=tmp_path / "target", port=free_port(), dtype="float32", device="cpu", max_running_requests=4,
        python=os.environ["EAGLE3OPS_SGLANG_PYTHON"], arguments=("--skip-tokenizer-init",),
    )  # fmt: skip
    with pytest.raises(RequestError, match="knows no --attn-dp-size"):
        sglang.require(replace(spec, arguments=("--attn-dp-size", "2")))
    with pytest.raises(RequestError, match="is no folder"):
        refuse(sglang, replace(spec, model=tmp_path / "nowhere"))
    async with running(sglang, spec, spawn=logged(log), log=log, tell=told) as client:
        processes = tree()
        assert len(processes) >= 3
        start = client.start
        assert start is not None
        assert start.cache_tokens == 16384
        assert start.load_s is not None
        assert start.max_running_requests == 4
        assert start.phases["importing"] > 1
        with pytest.raises(RequestError, match=r"is taken by .*pid"):
            refuse_taken_port(spec.host, spec.port)
        answer = await client.generate([5, 6, 7, 8], Sampling(max_new_tokens=8, ignore_eos=True))
        assert len(answer.output_ids) == 8
        assert answer.accept_length is None
        facts = parse_server_info(await client.server_info())
        assert (facts.version, facts.attention_backend, facts.token_capacity) == ("0.5.14", "torch_native", 16384)
        metrics = parse_metrics(await asyncio.to_thread(_get, f"{spec.url}/metrics"))
        assert metrics.total("sglang:max_total_num_tokens") == 16384
        assert metrics.total("sglang:num_requests_total") is not None
    assert not [pid for pid, one in processes.items() if identify(pid) == one]
    refuse_taken_port(spec.host, spec.port)
    assert not told.warnings
    assert any("ready after" in text for text in told.infos)


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())
