"""A real vLLM on a CPU: it answers as the reference engine does, with a drafter too, and a whole pipeline passes."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from wide_heads import HEAD, HEADS, KV_HEADS, make_wide

from eagle3ops.eagle3.checkpoint import export_drafter
from eagle3ops.eagle3.drafter import Drafter, DrafterConfig
from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.engines.base import ServeSpec
from eagle3ops.engines.client import EngineRefused, Sampling
from eagle3ops.engines.registry import adapter
from eagle3ops.engines.serving import free_port, logged, running
from eagle3ops.targets.tiny import HIDDEN, LAYERS, VOCABULARY

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1800)]

PROMPTS = [[1, 300 + k, 40 + 7 * k, 77, 5 * k + 3] for k in range(4)]
PIPELINE = """\
schema: 1
name: vllm
target: {{model: {model}}}
engine: {{name: vllm, dtype: float32, device: cpu, max_running_requests: 8, python: {python}}}
stages:
  generate: {{train: 12, heldout: 4, max_new_tokens: 24, batch: 8}}
  extract: {{rows_per_shard: 16, dtype: float32}}
  train: {{draft_vocab_size: 384, dtype: float32, epochs: 1}}
  verify: {{probe_tokens: 32}}
"""


def random_drafter(folder: Path) -> Path:
    torch.manual_seed(1)
    config = DrafterConfig(
        hidden_size=HIDDEN, intermediate_size=128, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS,
        head_dim=HEAD, vocab_size=VOCABULARY, draft_vocab_size=384, target_hidden_size=HIDDEN,
        aux_layers=AuxLayers((2, 4, 6), LAYERS), rms_norm_eps=1e-5, rope_theta=10000.0, max_position_embeddings=512,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    drafter = Drafter(config)
    # The first tokens: with the whole vocabulary vLLM refuses a d2t.
    drafter.t2d[:384] = True
    return export_drafter(drafter, folder)


@asynccontextmanager
async def served(engine: str, spec: ServeSpec, log: Path) -> AsyncIterator[Any]:
    async with running(adapter(engine), spec, spawn=logged(log), log=log) as client:
        yield client


async def test_it_answers_as_the_reference_engine_does_and_counts_what_it_drafted(tmp_path: Path) -> None:
    target, drafter = make_wide(tmp_path / "target", "llama"), random_drafter(tmp_path / "drafter")

    def spec(**more: Any) -> ServeSpec:
        return ServeSpec(model=target, port=free_port(), dtype="float32", device="cpu", **more)

    greedy = Sampling(max_new_tokens=24)
    async with served("reference", spec(), tmp_path / "reference.log") as client:
        wanted = await client.generate_batch(PROMPTS, greedy)
    real = spec(drafter=drafter, python=os.environ["EAGLE3OPS_VLLM_PYTHON"])
    async with served("vllm", real, tmp_path / "vllm.log") as client:
        answers = await client.generate_batch(PROMPTS, greedy)
        for answer, known in zip(answers, wanted, strict=True):
            # In float32, and greedily: near-ties that rounding could turn are not to be expected in so few tokens.
            assert answer.output_ids == known.output_ids
            assert (answer.finish_reason, answer.prompt_tokens) == (known.finish_reason, known.prompt_tokens)
            assert answer.completion_tokens == known.completion_tokens
            # The first token of an answer is no verification step.
            assert answer.verify_steps is not None
            assert answer.correct_drafts is not None
            assert answer.verify_steps + answer.correct_drafts >= answer.completion_tokens - 1
            assert sum(answer.histogram or ()) == answer.verify_steps
        assert (await client.server_info())["version"].startswith("0.32")
        assert (await client.model_info())["max_model_len"] == 2048
        wrong = [1, VOCABULARY + 7]
        with pytest.raises(EngineRefused, match="out of vocabulary"):
            await client.generate(wrong, greedy)
        with pytest.raises(EngineRefused, match="out of vocabulary"):
            await client.generate_batch([PROMPTS[0], wrong], greedy)
        assert await client.health()
        # While it speculates, the same seed draws something else each time.
        drawn = await client.generate(PROMPTS[0], Sampling(max_new_tokens=8, temperature=1.0, seed=5, ignore_eos=True))
        assert len(drawn.output_ids) == 8
    assert any(fact.kind == "ready" for fact in facts(tmp_path / "vllm.log"))


def facts(log: Path) -> list[Any]:
    parse = adapter("vllm").parse_log
    return [fact for line in log.read_text(errors="replace").splitlines() if (fact := parse(line))]


def test_a_pipeline_is_generated_served_and_verified_by_it(tmp_path: Path) -> None:
    target = make_wide(tmp_path / "target", "llama")
    file = tmp_path / "vllm.yaml"
    file.write_text(PIPELINE.format(model=target, python=os.environ["EAGLE3OPS_VLLM_PYTHON"]))
    root = tmp_path / "root"
    environment = {
        **os.environ,
        "EAGLE3OPS_CACHE": str(tmp_path / "cache"),
        "EAGLE3OPS_STATE": str(tmp_path / "state"),
        "OMP_NUM_THREADS": "1",
        "NO_COLOR": "1",
    }
    for job in ("fetch", "generate", "extract", "train", "serve", "verify"):
        done = subprocess.run(
            [sys.executable, "-m", "eagle3ops", "--job", job, "--spec", str(file), "--root", str(root)],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{job}: {done.stdout[-2000:]} {done.stderr[-4000:]}"
    (answers,) = (root / "stages").glob("generate-*/answers.jsonl")
    assert len(answers.read_text().splitlines()) == 16
    (found,) = (root / "stages").glob("verify-*/verdict.json")
    verdict = json.loads(found.read_text())
    assert verdict["passed"], verdict["reason"]
