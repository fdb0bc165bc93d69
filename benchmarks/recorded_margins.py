"""Does the margin check pass what a real engine answered in bf16, and does it catch wrong tokens?

Takes recorded outputs of a baseline and of speculative settings for the same held-out prompts, judges each first
divergence by the target's float32 margin, and does the same for outputs in which a token was replaced on purpose:

    python benchmarks/recorded_margins.py --model DIR --recordings DIR [--prompts 24]

Writes `benchmarks/results/recorded_margins.json`.
"""

import argparse
import gzip
import json
import os
import platform
import random
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import torch

from eagle3ops.bench.divergence import Divergence, divergences, rounding_noise
from eagle3ops.engines.reference.model import Target, pick_device

SETTINGS = {"3/1/4": "s3k1d4", "3/4/16": "s3k4d16"}


def outputs(recordings: Path, name: str) -> list[list[int]]:
    """Of all held-out prompts, as one server answered them."""
    with gzip.open(recordings / "gpu" / "bench" / f"{name}.json.gz", "rt") as file:
        found: list[list[int]] = json.load(file)["outputs"]
    return found


def spoilt(ids: list[int], generator: random.Random, vocab_size: int) -> list[int]:
    """The same output with one token replaced."""
    at = generator.randrange(5, len(ids) - 1)
    return [*ids[:at], generator.randrange(3, vocab_size), *ids[at + 1 :]]


def told(found: list[Divergence], bound: float) -> dict[str, float]:
    """Figures of some divergences."""
    gaps = [one.gap for one in found]
    return {
        "divergences": len(gaps),
        "median_gap": round(median(gaps), 4),
        "smallest_gap": round(min(gaps), 4),
        "widest_gap": round(max(gaps), 4),
        "beyond": sum(gap > bound for gap in gaps),
    }


def main() -> None:
    """Judge and write."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", type=Path, required=True)
    p.add_argument("--recordings", type=Path, default=os.environ.get("EAGLE3OPS_RECORDINGS"))
    p.add_argument("--prompts", type=int, default=24)
    p.add_argument("--device", default="cpu")
    p.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "recorded_margins.json")
    args = p.parse_args()
    recordings, device = Path(args.recordings), pick_device(args.device)
    with gzip.open(recordings / "gpu" / "answers.jsonl.gz", "rt") as lines:
        prompts = [row["input_ids"] for row in map(json.loads, lines) if row["split"] == "eval"][: args.prompts]
    base = outputs(recordings, "base2")[: args.prompts]
    exact = Target.load(args.model, torch.float32, device)
    rounded = Target.load(args.model, torch.bfloat16, device)
    noise = rounding_noise(exact, rounded, [[*a, *b] for a, b in zip(prompts[:4], base[:4], strict=True)])
    bound = 2.0 * noise
    figures: dict[str, object] = {"prompts": len(prompts), "noise": round(noise, 4), "bound": round(bound, 4)}
    for label, name in SETTINGS.items():
        drafted = outputs(recordings, name)[: args.prompts]
        figures[label] = told(divergences(exact, prompts, base, drafted), bound)
    generator = random.Random(0)
    wrong = [spoilt(ids, generator, exact.config.vocab_size) for ids in base]
    figures["one_random_token"] = told(divergences(exact, prompts, base, wrong), bound)
    result = {
        "name": "recorded_margins",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}; outputs recorded on an "
        "NVIDIA H200, SGLang 0.5.14, bf16",
        "command": "python benchmarks/recorded_margins.py --model DIR --recordings DIR",
        "figures": figures,
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
