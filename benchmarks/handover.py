"""How fast can this side take hidden states and make shards of them, if the engine were never the slower one?

    python benchmarks/handover.py OUT [--rows 3072] [--rows-per-shard 64] [--rounds 3] [--arms ...] [--hidden 576]

A process stands in for the engine: it hands over blocks of 16,384 tokens through the real shared memory, with our
plugin's own sender, as soon as rows are asked for. What a GPU would do there, computing and sorting the states, is done
once before. Everything on this side is real. Arms, in turn:

    bf16, fp8                  all states have arrived, and were checked
    bf16_shards, fp8_shards    all states are durable shards in a folder of its own in OUT, which is removed at the end

Prints one JSON object: tokens a second of every arm, round by round, and the best of each.
"""

import argparse
import asyncio
import json
import multiprocessing
import shutil
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import torch

from eagle3ops.answers import AnswerRow
from eagle3ops.assets.sglang_plugin import eagle3ops_extract as plugin
from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.engines.client import Answer, EngineClient, Sampling
from eagle3ops.engines.sglang.extraction.spool import SETTINGS, Spool
from eagle3ops.engines.sglang.extraction.states import EngineStates
from eagle3ops.features.format import Dtype
from eagle3ops.jobs.extract.shards import extract_split
from eagle3ops.jobs.extract.spec import ExtractSpec

BLOCK_TOKENS = 16384
LAYERS = AuxLayers((2, 15, 27), 30)
DTYPES: dict[str, Dtype] = {"bf16": "bfloat16", "fp8": "float8_e4m3fn"}
ARMS = ("bf16", "fp8", "bf16_shards", "fp8_shards")


def stand_in(told: str, hidden: int, asked: Connection) -> None:
    """The engine's process: hands over the states of every request it is told of."""
    settings: dict[str, Any] = json.loads(told)
    dtype: torch.dtype = getattr(torch, settings["dtype"])
    torch.set_num_threads(1)
    states = [torch.randn(BLOCK_TOKENS, hidden).bfloat16() for _ in range(len(LAYERS.boundary) + 1)]
    whole = plugin.build(torch.zeros(BLOCK_TOKENS, dtype=torch.int64), states, dtype)
    end = plugin.parts_of(BLOCK_TOKENS, hidden, len(states), dtype)[2]
    zero_sum = int(whole[end:].view(torch.int64))
    build = plugin.build

    def ready_made(ids: torch.Tensor, states: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        if ids.numel() != BLOCK_TOKENS:
            return build(ids, states, dtype)
        written = whole[: ids.numel() * 4].view(torch.int32)
        written.copy_(ids)
        whole[end:].view(torch.int64)[0] = zero_sum + int(written.view(torch.int64).sum())
        return whole

    plugin.build = ready_made
    sender = plugin.Sender(settings, "stand-in")
    spans: list[tuple[str, int, int]] = []
    waiting: list[torch.Tensor] = []
    while (post := asked.recv()) is not None:
        for rid, ids in post:
            spans.append((rid, 0, len(ids)))
            waiting.append(torch.tensor(ids))
        # A pass over as many tokens as it takes; the last one of a post over what is left.
        tokens = torch.cat(waiting)
        while spans and (tokens.numel() >= BLOCK_TOKENS or not asked.poll()):
            room = min(BLOCK_TOKENS, tokens.numel())
            passed, first = [], 0
            while first < room:
                rid, start, count = spans.pop(0)
                taken = min(count, room - first)
                passed.append((rid, start, first, taken))
                first += taken
                if taken < count:
                    spans.insert(0, (rid, start + taken, count - taken))
            sender.send(passed, tokens[:room], [part[:room] for part in states])
            tokens = tokens[room:]
        waiting = [tokens]


class StandIn:
    """The client of that engine, as far as extraction asks it."""

    log = None

    def __init__(self, asked: Connection) -> None:
        self._asked = asked

    async def generate_batch(self, texts: list[list[int]], sampling: Sampling, *, rids: list[str]) -> list[Answer]:
        """Told what is asked, as JSON too, whose making is part of the work."""
        json.dumps({"input_ids": texts, "rid": rids})
        self._asked.send(list(zip(rids, texts, strict=True)))
        await asyncio.sleep(0)
        return [
            Answer(
                output_ids=[],
                text="",
                finish_reason="length",
                prompt_tokens=len(text),
                completion_tokens=0,
                latency_s=0.0,
            )
            for text in texts
        ]


def rows_of(count: int) -> list[AnswerRow]:
    """Rows of 64 to 406 tokens, as answers of a small target are."""
    lengths = torch.randint(64, 407, (count,), generator=torch.Generator().manual_seed(0)).tolist()
    return [
        AnswerRow(
            id=str(number), split="train", messages=[], prompt_ids=list(range(40)),
            output_ids=list(range(40, length)), finish_reason="length",
        )
        for number, length in enumerate(lengths)
    ]  # fmt: skip


def measure(given: argparse.Namespace, out: Path) -> dict[str, list[int]]:
    """Tokens a second of every arm, round by round; each kind has one stand-in, which stays."""
    rows = rows_of(given.rows)
    tokens = sum(len(row.prompt_ids) + len(row.output_ids) for row in rows)
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    found: dict[str, list[int]] = {arm: [] for arm in given.arms}
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        sources: dict[str, EngineStates] = {}
        for kind in sorted({arm.split("_")[0] for arm in given.arms}):
            spool = stack.enter_context(Spool(LAYERS, given.hidden, DTYPES[kind]))
            mine, theirs = context.Pipe()
            context.Process(
                target=stand_in, args=(spool.variables()[SETTINGS], given.hidden, theirs), daemon=True
            ).start()
            stack.callback(mine.send, None)
            spool.connected(60)
            sources[kind] = EngineStates(cast(EngineClient, StandIn(mine)), loop, spool, max_tokens=2048)
        for number in range(-1, given.rounds):
            for arm in given.arms:
                shutil.rmtree(out, ignore_errors=True)
                began = time.perf_counter()
                take(sources[arm.split("_")[0]], rows, given.rows_per_shard, out if arm.endswith("_shards") else None)
                speed = tokens / (time.perf_counter() - began)
                # The first round fills caches.
                if number >= 0:
                    found[arm].append(round(speed))
    return found


def take(source: EngineStates, rows: list[AnswerRow], size: int, out: Path | None) -> None:
    """All states once; as shards in `out`, where one is given."""
    if out is None:
        for _ in source.shards(rows[k : k + size] for k in range(0, len(rows), size)):
            pass
        return
    spec = ExtractSpec(dtype="fp8" if source.spool.dtype == "float8_e4m3fn" else "bfloat16", rows_per_shard=size)
    extract_split(source, rows, out, spec, fingerprint="benchmark", advance=lambda tokens: None, warn=sys.stderr.write)


def main() -> None:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="a folder; on /dev/shm the disk plays no part")
    parser.add_argument("--rows", type=int, default=3072)
    parser.add_argument("--rows-per-shard", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=576)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="handover-", dir=given.out) as folder:
        found = measure(given, Path(folder) / "round")
    best = {arm: max(speeds) for arm, speeds in found.items()}
    sys.stdout.write(json.dumps({"rows": given.rows, "tokens_per_s": found, "best": best}) + "\n")


if __name__ == "__main__":
    main()
