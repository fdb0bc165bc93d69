"""How fast do hidden states come out of SGLang, beside its own prefill of the same rows, and what do eight bits cost?

    python benchmarks/extraction.py --model DIR --answers answers.jsonl --out OUT [--accept]
        [--python PYTHON] [--set-variable NAME=VALUE ...] [--argument WORD ...] [--device cuda]

Up to three servers stand side by side, all idle but the one that is asked: one without our plugin ("prefill"), one that
hands states over in bfloat16, one in eight bits. Every round asks all of them for the same rows, in another order:

    prefill        the engine alone: all rows answered
    plugin, off    our plugin is loaded, the rows are not ours: what capturing alone costs
    bf16, fp8      all states have arrived in this process, and were checked
    bf16 shards    all states are durable shards under OUT; fp8 shards likewise

Tokens a second are those of the rows. A ratio is that of two arms of one round; the median over the rounds is given.
With --accept a drafter is trained on each kind of shards, with the same settings, and its accept length is predicted.
Prints one JSON object. Without --answers the rows are random, which is enough for speed.
"""

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from eagle3ops.answers import AnswerRow, iter_answers
from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.eagle3.target_head import TargetHead, TargetShape
from eagle3ops.eagle3.train_config import TrainConfig
from eagle3ops.engines.base import ServeSpec
from eagle3ops.engines.client import EngineClient, Sampling
from eagle3ops.engines.registry import adapter
from eagle3ops.engines.serving import free_port, logged, running
from eagle3ops.engines.sglang.extraction.server import extraction_spec
from eagle3ops.engines.sglang.extraction.spool import Spool
from eagle3ops.engines.sglang.extraction.states import AHEAD_BYTES, ROWS_A_POST, EngineStates
from eagle3ops.features.format import Dtype, state_bytes
from eagle3ops.features.training import train
from eagle3ops.jobs.extract.shards import extract_split
from eagle3ops.jobs.extract.spec import ExtractSpec

DTYPES: dict[str, Dtype] = {"bf16": "bfloat16", "fp8": "float8_e4m3fn"}
SPECS = {"bf16": ExtractSpec(), "fp8": ExtractSpec(dtype="fp8")}


def say(text: str) -> None:
    """For who waits."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")


def random_rows(count: int, vocab: int) -> list[AnswerRow]:
    """Rows of 64 to 448 tokens."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for number in range(count):
        length = int(torch.randint(64, 449, (1,), generator=generator))
        # The first ids are often special tokens.
        ids = torch.randint(min(200, vocab // 4), vocab, (length,), generator=generator).tolist()
        rows.append(
            AnswerRow(
                id=str(number),
                split="heldout" if number % 20 == 0 else "train",
                messages=[],
                prompt_ids=ids[: length // 4],
                output_ids=ids[length // 4 :],
                finish_reason="length",
            )
        )
    return rows


class Arms:
    """The servers, and what is asked of them."""

    def __init__(self, arguments: argparse.Namespace, rows: list[AnswerRow], layers: AuxLayers, hidden: int) -> None:
        self.arguments, self.rows, self.layers, self.hidden = arguments, rows, layers, hidden
        self.max_tokens = arguments.max_tokens
        self.texts = [(row.prompt_ids + row.output_ids)[: self.max_tokens] for row in rows]
        self.tokens = sum(map(len, self.texts))
        self.plain: EngineClient | None = None
        self.sources: dict[str, EngineStates] = {}
        # As many rows on their way as states may be.
        state = state_bytes(hidden, len(layers.boundary) + 1, "bfloat16")
        self.size = min(ROWS_A_POST, arguments.rows_per_shard)
        self.posts = max(1, AHEAD_BYTES * len(rows) // (self.tokens * state) // self.size)

    async def start(self, stack: AsyncExitStack, out: Path) -> None:
        """All servers, at once."""
        given = self.arguments
        base = ServeSpec(
            model=given.model, port=free_port(), device=given.device, dtype=given.dtype, python=given.python,
            max_running_requests=given.running, arguments=tuple(given.argument),
            variables=dict(one.split("=", 1) for one in given.set_variable),
        )  # fmt: skip

        async def server(name: str, spec: ServeSpec) -> EngineClient:
            log = out / f"{name}.log"
            return await stack.enter_async_context(
                running(adapter("sglang"), spec, spawn=logged(log), role=name, log=log, timeout_s=given.start_s)
            )

        loop = asyncio.get_running_loop()
        spools = {
            name: stack.enter_context(Spool(self.layers, self.hidden, DTYPES[name], given.ring_mib << 20))
            for name in given.kinds
        }
        settings = {name: replace(extraction_spec(base, spool), port=free_port()) for name, spool in spools.items()}
        # The same flags, and no plugin.
        plain = replace(settings[given.kinds[0]], variables=base.variables, port=free_port())
        say(f"{len(settings) + 1} servers are starting; their logs are in {out}")
        self.plain, *clients = await asyncio.gather(
            server("plain", plain), *(server(name, setting) for name, setting in settings.items())
        )
        for (name, spool), client in zip(spools.items(), clients, strict=True):
            await asyncio.to_thread(spool.connected)
            self.sources[name] = EngineStates(client, loop, spool, max_tokens=self.max_tokens)
            say(f"server {name}: {spool.hello}")

    async def prefill(self, client: EngineClient) -> None:
        """The rows are answered, and nothing is handed over."""
        slots = asyncio.Semaphore(self.posts)

        async def post(texts: list[list[int]]) -> None:
            async with slots:
                await client.generate_batch(texts, Sampling(max_new_tokens=0))

        await asyncio.gather(*(post(self.texts[k : k + self.size]) for k in range(0, len(self.texts), self.size)))

    async def states(self, kind: str) -> None:
        """All states have arrived."""
        size, source = self.arguments.rows_per_shard, self.sources[kind]

        def take() -> None:
            for _ in source.shards(self.rows[k : k + size] for k in range(0, len(self.rows), size)):
                pass

        await asyncio.to_thread(take)

    async def shards(self, kind: str, folder: Path) -> None:
        """All states are durable."""
        shutil.rmtree(folder, ignore_errors=True)
        spec = SPECS[kind].model_copy(
            update={"rows_per_shard": self.arguments.rows_per_shard, "max_tokens": self.max_tokens}
        )

        def write() -> None:
            for split in ("train", "heldout"):
                rows = [row for row in self.rows if row.split == split]
                extract_split(
                    self.sources[kind], rows, folder / split, spec,
                    fingerprint="benchmark", advance=lambda tokens: None, warn=say,
                )  # fmt: skip

        await asyncio.to_thread(write)


async def measure(arms: Arms, out: Path, rounds: int) -> dict[str, Any]:
    """Tokens a second of every arm, round by round."""
    assert arms.plain is not None
    plain, kinds = arms.plain, list(arms.sources)
    asked: dict[str, Callable[[], Awaitable[None]]] = {
        "prefill": lambda: arms.prefill(plain),
        "plugin_off": lambda: arms.prefill(arms.sources[kinds[0]].client),
    }
    for kind in kinds:
        asked[kind] = lambda kind=kind: arms.states(kind)  # type: ignore[misc]
        asked[f"{kind}_shards"] = lambda kind=kind: arms.shards(kind, out / kind)  # type: ignore[misc]
    names = list(asked)
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-1, rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            began = time.perf_counter()
            await asked[name]()
            speed = arms.tokens / (time.perf_counter() - began)
            # The first round compiles kernels and fills caches.
            if number >= 0:
                found[name].append(speed)
            say(f"round {number}: {name}: {speed:,.0f} tokens/s")
    ratios = {name: [a / b for a, b in zip(found[name], found["prefill"], strict=True)] for name in names}
    return {
        "tokens": arms.tokens,
        "rows": len(arms.rows),
        "tokens_per_s": {name: [round(value) for value in values] for name, values in found.items()},
        "median_tokens_per_s": {name: round(statistics.median(values)) for name, values in found.items()},
        "median_ratio_to_prefill": {name: round(statistics.median(values), 3) for name, values in ratios.items()},
        "ratio_range": {name: [round(min(values), 3), round(max(values), 3)] for name, values in ratios.items()},
    }


def bytes_per_token(folder: Path) -> float:
    """Of all that a kind of shards takes on disk."""
    size = sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
    lines = (line for path in folder.rglob("manifest.jsonl") for line in path.read_text().splitlines())
    return round(size / sum(int(json.loads(line)["tokens"]) for line in lines), 1)


def accept_lengths(given: argparse.Namespace, out: Path, kind: str) -> dict[str, Any]:
    """Train on shards and walk over the held-out rows."""
    config = TrainConfig(**given.training)
    result = train(
        out / kind / "train", out / kind / "heldout", TargetHead.load(given.model, device=torch.device(config.device)),
        out / f"train-{kind}", config,
    )  # fmt: skip
    lengths = {str(steps): round(walk.accept_length, 3) for steps, walk in result.renewals.items()}
    return {"steps": result.steps, "seconds": round(result.seconds, 1), "accept_length": lengths}


async def run(given: argparse.Namespace) -> dict[str, Any]:
    """Everything that was asked for."""
    raw = json.loads((given.model / "config.json").read_text())
    shape = TargetShape.from_config(raw, str(given.model / "config.json"))
    rows = list(iter_answers(given.answers)) if given.answers else random_rows(given.rows or 4096, shape.vocab_size)
    if given.rows:
        heldout = [row for row in rows if row.split == "heldout"]
        rows = heldout + [row for row in rows if row.split == "train"][: max(1, given.rows - len(heldout))]
    arms = Arms(given, rows, AuxLayers.default(shape.num_layers), shape.hidden_size)
    out: Path = given.out
    async with AsyncExitStack() as stack:
        await arms.start(stack, out)
        figures = await measure(arms, out, given.rounds)
    figures["bytes_per_token"] = {kind: bytes_per_token(out / kind) for kind in given.kinds}
    # Kept whatever becomes of the trainings.
    say(json.dumps(figures))
    if given.accept:
        figures["training"] = given.training
        figures["accept"] = {}
        for kind in given.kinds:
            say(f"training on {kind}")
            figures["accept"][kind] = await asyncio.to_thread(accept_lengths, given, out, kind)
    return figures


def main() -> None:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="a folder; on /dev/shm the disk plays no part")
    parser.add_argument("--answers", type=Path, help="of a pipeline's generate stage")
    parser.add_argument("--rows", type=int, help="no more of them; 4096 random ones without answers")
    parser.add_argument("--max-tokens", type=int, default=2048)
    parser.add_argument("--rows-per-shard", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kinds", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--ring-mib", type=int, default=2048)
    parser.add_argument("--running", type=int, default=32)
    parser.add_argument("--start-s", type=float, default=900)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--python", help="of the environment that has SGLang")
    parser.add_argument("--set-variable", action="append", default=[], metavar="NAME=VALUE", help="for the servers")
    parser.add_argument(
        "--argument", action="append", default=[], metavar="WORD", help="for the servers: --argument=-x"
    )
    parser.add_argument("--accept", action="store_true", help="train on each kind and predict accept lengths")
    parser.add_argument("--training", type=json.loads, default={}, metavar="JSON", help="fields of TrainConfig")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    sys.stdout.write(json.dumps(asyncio.run(run(given))) + "\n")


if __name__ == "__main__":
    main()
