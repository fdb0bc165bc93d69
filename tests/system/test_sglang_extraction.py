"""A real SGLang on a CPU: the hidden states that it hands over are those of the reference model."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
import torch

from eagle3ops.answers import AnswerRow
from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.engines.base import ServeSpec
from eagle3ops.engines.client import EngineError
from eagle3ops.engines.registry import adapter
from eagle3ops.engines.serving import free_port, logged, running
from eagle3ops.engines.sglang.extraction import server
from eagle3ops.engines.sglang.extraction.server import extraction_spec
from eagle3ops.engines.sglang.extraction.spool import Spool
from eagle3ops.engines.sglang.extraction.states import EngineStates
from eagle3ops.features import FeatureRow
from eagle3ops.jobs.extract.source import features_of
from eagle3ops.jobs.extract.spec import ExtractSpec

sys.path.insert(0, str(Path(__file__).parents[1] / "engines"))
from reference_tiny import HIDDEN, VOCAB, tiny_target, write_tiny_model

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(420)]

LAYERS = AuxLayers((2, 1), 3)
RING = 1 << 15


def rows_of(lengths: list[int]) -> list[AnswerRow]:
    generator = torch.Generator().manual_seed(5)
    rows = []
    for number, length in enumerate(lengths):
        ids = torch.randint(0, VOCAB - 1, (length,), generator=generator).tolist()
        prompt = max(1, length // 3)
        rows.append(
            AnswerRow(
                id=str(number),
                split="train",
                messages=[],
                prompt_ids=ids[:prompt],
                output_ids=ids[prompt:],
                finish_reason="length",
            )
        )
    return rows


async def test_what_sglang_hands_over_is_what_the_reference_model_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Requests are longer than a pass, and all of them together many times what the ring holds.
    monkeypatch.setattr(server, "PREFILL_TOKENS", {True: 64, False: 64})
    base = ServeSpec(
        model=write_tiny_model(tmp_path / "model"),
        port=free_port(),
        device="cpu",
        dtype="float32",
        max_running_requests=8,
        python=os.environ["EAGLE3OPS_SGLANG_PYTHON"],
    )
    log = tmp_path / "engine.log"
    rows = rows_of([200, 5, 64, 65, 17, 130, 3, 90, 33, 1, 250, 12])
    chunks = [rows[:5], rows[5:8], rows[8:]]
    with Spool(LAYERS, HIDDEN, "float32", RING) as spool:
        async with running(adapter("sglang"), extraction_spec(base, spool), spawn=logged(log), log=log) as client:
            await asyncio.to_thread(spool.connected)
            source = EngineStates(client, asyncio.get_running_loop(), spool, max_tokens=240)
            found = await asyncio.to_thread(lambda: list(source.shards(chunks)))
            assert client.process is not None
            assert spool.bytes > 2 * RING
            # An end of the server in the middle of it is told, not waited for.
            os.killpg(client.process.pid, 9)  # type: ignore[attr-defined]
            with pytest.raises(EngineError):
                await asyncio.to_thread(lambda: list(source.shards([rows])))
    target = tiny_target()
    worst = 0.0
    for chunk, got in zip(chunks, found, strict=True):
        wanted = features_of(target, LAYERS, chunk, ExtractSpec(dtype="float32", max_tokens=240))
        for one, other in zip(got, wanted, strict=True):
            assert isinstance(one, FeatureRow)
            assert one.id == other.id
            assert torch.equal(one.token_ids, other.token_ids)
            assert torch.equal(one.loss_mask, other.loss_mask)
            for name in ("aux", "final"):
                mine, theirs = getattr(one, name), getattr(other, name)
                worst = max(worst, float((mine - theirs).norm() / theirs.norm()))
    # float32 on both sides, other kernels: 7e-7 were measured.
    assert worst < 1e-5
