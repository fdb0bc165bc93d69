"""A real SGLang on a CPU under our load: blocks, arrivals, log probabilities, and its own tool beside it."""

import os
from pathlib import Path

import pytest
from reference_tiny import write_tiny_model

from eagle3ops.bench.load import measure
from eagle3ops.bench.parting import engine_gap, engine_noise
from eagle3ops.engines.base import ServeSpec
from eagle3ops.engines.client import Sampling
from eagle3ops.engines.registry import adapter
from eagle3ops.engines.serving import free_port, logged, running

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(420)]


async def test_a_real_sglang_is_measured(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model")
    python = os.environ["EAGLE3OPS_SGLANG_PYTHON"]
    spec = ServeSpec(
        model=model, port=free_port(), dtype="bfloat16", device="cpu", python=python, max_running_requests=8,
        arguments=("--skip-tokenizer-init",),
    )  # fmt: skip
    prompts = [[1 + k, 5, 9, 20, 3] for k in range(12)]
    sampling = Sampling(max_new_tokens=16, ignore_eos=True)
    log = tmp_path / "engine.log"
    async with running(adapter("sglang"), spec, spawn=logged(log), log=log) as client:
        assert await client.flush_cache()
        (plain,) = (await measure({"baseline": client}, prompts, sampling, concurrency=4)).values()
        assert [sample.tokens for sample in plain.blocks] == [64, 64, 64]
        assert plain.accept is None
        streamed = (await measure({"baseline": client}, prompts, sampling, concurrency=4, stream=True, flush=True))[
            "baseline"
        ]
        for request in streamed.requests:
            assert request.arrivals is not None
            # Without a drafter a piece is a token; where the server is busy, the first may hold several.
            assert 10 <= len(request.arrivals.gaps_s) <= 15
            assert 0 < request.arrivals.first_s < request.seconds
        gap = await engine_gap(client, prompts[0], 4, 7)
        assert gap is not None
        assert await engine_gap(client, prompts[0], 4, 4) == 0.0
        noise = await engine_noise(client, prompts[:2], 8)
        assert noise is not None
        assert 0.0 <= noise < 1.0
