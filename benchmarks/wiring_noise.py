"""How far do the states of a right wiring move, between batch sizes, dtypes, with padding, in prefill and in decoding?

The thresholds of the wiring verdict rest on these figures (`eagle3ops/assets/wiring_noise.toml`). Every state is held
against the reference in float32, which computes each text alone:

    python benchmarks/wiring_noise.py --model DIR --drafter DIR [--engine reference] [--dtypes float32 bfloat16]
    python benchmarks/wiring_noise.py --model DIR --drafter DIR --engine sglang --python PY --device cuda
    python benchmarks/wiring_noise.py ... --name sglang_no_graph --engine-arg=--disable-cuda-graph
    python benchmarks/wiring_noise.py ... --engine-env PYTHONPATH=DIR --engine-arg=--attention-backend=triton
    python benchmarks/wiring_noise.py --model DIR --drafter DIR --url http://127.0.0.1:30000 --name my_server

With `--url` a server is asked that runs already: with EAGLE-3 on and `--enable-return-hidden-states`, its prefix cache
off; its own flags decide what is measured. Writes `benchmarks/results/wiring_noise_NAME.json`.
"""

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: see eagle3ops/engines/reference/__main__.py

import torch

from eagle3ops.eagle3.checkpoint import read_drafter_config
from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.engines.base import ServeSpec
from eagle3ops.engines.client import Answer, EngineClient, Sampling
from eagle3ops.engines.reference.model import Target, pick_device, pick_dtype
from eagle3ops.engines.registry import adapter
from eagle3ops.engines.serving import free_port, logged, running
from eagle3ops.engines.tokenizer import ChatTokenizer
from eagle3ops.prompts import bundled_prompts
from eagle3ops.wiring.capture import answer_states
from eagle3ops.wiring.fingerprint import match_segments

States = torch.Tensor


def main() -> None:
    """Measure and write."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", type=Path, required=True)
    p.add_argument("--drafter", type=Path, required=True, help="its layers are taken for right")
    p.add_argument("--engine", default="reference")
    p.add_argument("--python", help="of the environment in which the engine is installed")
    p.add_argument("--device", default="cpu")
    p.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    p.add_argument("--batches", nargs="+", type=int, default=[1, 2, 8, 32])
    p.add_argument("--texts", type=int, default=32)
    p.add_argument("--tokens", type=int, default=48, help="most tokens of a prompt")
    p.add_argument("--new", type=int, default=16, help="tokens to decode after each prompt")
    p.add_argument("--url", help="ask this server instead of starting one")
    p.add_argument("--engine-arg", action="append", default=[], help="added to the engine's command line")
    p.add_argument("--engine-env", action="append", default=[], help="NAME=TEXT, a variable of the engine's processes")
    p.add_argument("--name", help="of the result; left out, that of the engine")
    p.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = p.parse_args()
    reference = Target.load(args.model, torch.float32, pick_device(args.device))
    layers = read_drafter_config(args.drafter, reference.config.num_layers).aux_layers
    texts = probe_texts(args.model, args.texts, args.tokens)
    figures: dict[str, Any] = {"layers": list(layers.boundary), "num_layers": layers.num_layers, "texts": len(texts)}
    for dtype in args.dtypes:
        sys.stderr.write(f"{dtype}\n")
        if args.url is None and args.engine == "reference":
            figures[f"extract, {dtype}"] = extracted(args, reference, layers, texts, dtype)
        figures[f"{args.engine}, {dtype}"] = asyncio.run(served(args, reference, layers, texts, dtype))
    name = f"wiring_noise_{args.name or args.engine}"
    record = {
        "name": name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device_words(args.device),
        "command": "python benchmarks/wiring_noise.py " + " ".join(
            "DIR" if Path(word).is_dir() else "PYTHON" if word == args.python else word for word in sys.argv[1:]),
        "figures": figures,
    }  # fmt: skip
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    sys.stdout.write(json.dumps(figures, indent=1) + "\n")


def device_words(device: str) -> str:
    """What it was measured on."""
    gpu = torch.cuda.get_device_name() if pick_device(device).type == "cuda" else ""
    return f"{gpu or platform.machine() + f', {os.cpu_count()} cores'}, torch {torch.__version__}"


def probe_texts(model: Path, count: int, longest: int) -> list[list[int]]:
    """Bundled prompts through the chat template; of different lengths, so that batches are padded."""
    tokenizer = ChatTokenizer(model)
    prompts = bundled_prompts(0)[:count]
    messages = [[{"role": turn["role"], "content": turn["content"]} for turn in one.messages] for one in prompts]
    return [tokenizer.encode_chat(one)[-longest:] for one in messages]


class Tally:
    """What right states of one kind come to, over many texts."""

    def __init__(self, layers: AuxLayers) -> None:
        self.layers = layers
        self.errors: list[list[float]] = [[] for _ in layers.boundary]
        self.margins: list[list[float]] = [[] for _ in layers.boundary]
        self.wrong = 0

    def take(self, states: States, known: States) -> None:
        """One text: captured `[T, A * H]`, reference `[n + 1, T, H]`."""
        for at, match in enumerate(match_segments(states, known)):
            self.wrong += match.boundary != self.layers.boundary[at]
            self.errors[at].append(match.error)
            self.margins[at].append(match.margin)

    def as_dict(self) -> dict[str, Any]:
        """Per segment: the mean of the texts and the worst of them, and the least margin."""
        return {
            "texts": len(self.errors[0]),
            "not_nearest": self.wrong,
            "error_mean": [round(sum(each) / max(1, len(each)), 8) for each in self.errors],
            "error_worst": [round(max(each, default=0.0), 8) for each in self.errors],
            "margin_least": [round(min([*each, 1e9]), 1) for each in self.margins],
        }


_KNOWN: dict[tuple[int, ...], States] = {}


def known_states(reference: Target, ids: Sequence[int]) -> States:
    """Every boundary of the reference for one text alone, `[n + 1, T, H]`; kept, as the texts come again."""
    if (kept := _KNOWN.get(tuple(ids))) is not None:
        return kept
    row = torch.tensor([list(ids)], device=reference.device)
    lengths = torch.tensor([len(ids)], device=reference.device)
    found = reference.boundaries(row, lengths, range(reference.config.num_layers + 1))[:, 0].float().cpu()
    if len(_KNOWN) < 512:
        _KNOWN[tuple(ids)] = found
    return found


def extracted(
    args: argparse.Namespace, reference: Target, layers: AuxLayers, texts: list[list[int]], dtype: str
) -> dict[str, Any]:
    """What extraction computes: alone, in batches of equal length, in padded batches; and rounded to bfloat16."""
    target = Target.load(args.model, pick_dtype(dtype), pick_device(args.device))
    found = {}
    least = min(map(len, texts))
    for batch in args.batches:
        for padded in (False, True):
            if batch == 1 and padded:
                continue
            rows = texts if padded or batch == 1 else [ids[:least] for ids in texts]
            tally, rounded = Tally(layers), Tally(layers)
            for first in range(0, len(rows) - batch + 1, batch):
                chunk = rows[first : first + batch]
                lengths = torch.tensor([len(ids) for ids in chunk], device=target.device)
                ids = torch.zeros(batch, int(lengths.max()), dtype=torch.int64)
                for at, row in enumerate(chunk):
                    ids[at, : len(row)] = torch.tensor(row)
                states = target.boundaries(ids.to(target.device), lengths, layers.boundary).float().cpu()
                for at, row in enumerate(chunk):
                    wide = states[:, at, : len(row)].movedim(0, 1).flatten(1)
                    known = known_states(reference, row)
                    tally.take(wide, known)
                    rounded.take(wide.bfloat16().float(), known)
            name = f"batch {batch}" + (", padded" if padded else "")
            found[name] = tally.as_dict()
            if dtype != "bfloat16":
                found[f"{name}, stored in bfloat16"] = rounded.as_dict()
    return found


async def served(
    args: argparse.Namespace, reference: Target, layers: AuxLayers, texts: list[list[int]], dtype: str
) -> dict[str, Any]:
    """What the engine hands over for batches of several sizes: rows of the prompt, and rows of decoding."""
    found: dict[str, Any] = {}
    alone: list[States] = []
    sampling = Sampling(max_new_tokens=args.new, ignore_eos=True)
    async with asking(args, dtype) as server:
        for batch in args.batches:
            chunks = [texts[first : first + batch] for first in range(0, len(texts) - batch + 1, batch)]
            # All answers first: a connection that lies idle while the reference computes is closed by some servers.
            async with EngineClient(server.url, log=server.log) as client:
                answers = [
                    answer
                    for chunk in chunks
                    for answer in await client.generate_batch(chunk, sampling, return_hidden_states=True)
                ]
            rows = [ids for chunk in chunks for ids in chunk]
            found[f"batch {batch}"] = judged(reference, layers, rows, answers, alone)
            sys.stderr.write(f"batch {batch}: {json.dumps(found[f'batch {batch}'])}\n")
    return found


def judged(
    reference: Target, layers: AuxLayers, rows: list[list[int]], answers: list[Answer], alone: list[States]
) -> dict[str, Any]:
    """What the states of some answers come to; `alone` are those of batch 1, and are filled by the first call."""
    prefill, decode = Tally(layers), Tally(layers)
    moved, agreed, compared, first = 0.0, 0, 0, not alone
    for at, (ids, answer) in enumerate(zip(rows, answers, strict=True)):
        prompt, further = answer_states(answer.hidden_states)
        if prompt.shape[0] != len(ids):
            raise SystemExit(f"{prompt.shape[0]} rows for {len(ids)} tokens: switch the prefix cache off")
        known = known_states(reference, (ids + answer.output_ids)[: len(ids) + further.shape[0]])
        prefill.take(prompt, known[:, : len(ids)])
        if further.shape[0] > 1:
            # `take` leaves the first row out, as the first position of a text is none to be judged by.
            decode.take(torch.cat((prompt[-1:], further)), known[:, len(ids) - 1 :])
        greedy = reference.logits(reference.normed(known[-1].to(reference.device))).argmax(-1).cpu()[len(ids) - 1 :]
        told = torch.tensor(answer.output_ids[: len(greedy)])
        agreed += int((told == greedy[: len(told)]).sum())
        compared += len(told)
        if first:
            alone.append(prompt)
        before = alone[at]
        apart = (prompt - before)[1:].norm(dim=-1) / before[1:].norm(dim=-1).clamp_min(1e-12)
        moved = max(moved, float(apart.mean()))
    return {
        "prefill": prefill.as_dict(), "decode": decode.as_dict(), "moved_from_first_batch_worst": round(moved, 8),
        "greedy_agreement": round(agreed / max(1, compared), 5), "greedy_compared": compared,
    }  # fmt: skip


@asynccontextmanager
async def asking(args: argparse.Namespace, dtype: str) -> AsyncIterator[EngineClient]:
    """The server that was named, or one that is started and ended."""
    if args.url is not None:
        async with EngineClient(args.url) as client:
            yield client
        return
    spec = ServeSpec(
        model=args.model, port=free_port(), dtype=dtype, device=args.device, drafter=args.drafter,
        max_running_requests=max(args.batches), return_hidden_states=True, python=args.python,
        arguments=tuple(args.engine_arg), variables=dict(word.split("=", 1) for word in args.engine_env),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "engine.log"

        async with running(adapter(args.engine), spec, spawn=logged(log), log=log) as client:
            yield client


if __name__ == "__main__":
    main()
