"""Does the reference engine serve a recorded drafter as the engine did that it was recorded on?

Runs held-out prompts of the recordings through the reference engine, greedy with natural stop, and compares accept
length and histogram with what SGLang counted for the same drafter and prompts:

    python benchmarks/recorded_drafter.py --model DIR --recordings DIR [--settings 3/1/4 5/1/6 3/4/16] [--prompts 200]

Writes `benchmarks/results/recorded_drafter.json`, after every setting, keeping the other settings in it.
"""

import argparse
import gzip
import json
import os
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: see eagle3ops/engines/reference/__main__.py

import torch

from eagle3ops.eagle3.checkpoint import load_drafter
from eagle3ops.engines.reference.drafting import SpecSettings, Speculator
from eagle3ops.engines.reference.engine import Engine
from eagle3ops.engines.reference.model import Target, eos_ids, pick_device
from eagle3ops.engines.reference.requests import Request, SamplingParams

SERVED = {
    "3/1/4": {"accept_length": 2.684, "histogram": [4013, 2558, 1547, 6105]},
    "5/1/6": {"accept_length": 3.158, "histogram": [3767, 2300, 1348, 826, 627, 3255]},
    "3/4/16": {"accept_length": 3.305, "histogram": [1283, 1342, 1641, 7551]},
}
"""SGLang 0.5.14 on an H200, bf16, 200 prompts, 32 at once; accept length = completion tokens / verification steps."""


def held_out(recordings: Path) -> list[list[int]]:
    """Prompts that the drafter was not trained on."""
    with gzip.open(recordings / "gpu" / "answers.jsonl.gz", "rt") as lines:
        return [row["input_ids"] for row in map(json.loads, lines) if row["split"] == "eval"]


def measure(
    target: Target, model: Path, drafter: Path, prompts: list[list[int]], setting: str, rows: int
) -> dict[str, object]:
    """One setting over all prompts."""
    steps, topk, draft_tokens = map(int, setting.split("/"))
    loaded = load_drafter(drafter, target.config.num_layers, target.dtype, target.device)
    speculator = Speculator(loaded, target, SpecSettings(steps, topk, draft_tokens), rows)
    engine = Engine(target, speculator=speculator, stops=eos_ids(model), max_running=rows)
    sampling = SamplingParams(max_new_tokens=256)
    requests = [Request(str(k), prompt, sampling, lambda _event: None) for k, prompt in enumerate(prompts)]
    engine.submit(requests)
    began = time.perf_counter()
    while engine.step():
        pass
    wall = time.perf_counter() - began
    histogram = [0] * (steps + 1)
    for request in requests:
        if request.stats is not None:
            histogram = [a + b for a, b in zip(histogram, request.stats.histogram, strict=True)]
    counters, served = engine.counters, SERVED.get(setting)
    figures: dict[str, object] = {
        "prompts": len(prompts),
        "completion_tokens": counters.generated,
        "verify_steps": counters.verify_steps,
        "correct_drafts": counters.correct,
        "proposed_drafts": counters.proposed,
        "accept_length": round(counters.accept_length or 0.0, 4),
        "completion_tokens_per_verify_step": round(counters.generated / counters.verify_steps, 4),
        "histogram": histogram,
        "stopped": sum(r.finish is not None and r.finish["type"] == "stop" for r in requests),
        "wall_s": round(wall, 1),
        "tokens_per_s": round(counters.generated / wall, 1),
        "rows_at_once": rows,
    }
    if served is not None:
        figures["sglang"] = served
        figures["relative_difference"] = round(
            counters.generated / counters.verify_steps / float(str(served["accept_length"])) - 1, 4
        )
    return figures


def main() -> None:
    """Measure and write."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", type=Path, required=True)
    p.add_argument("--recordings", type=Path, default=os.environ.get("EAGLE3OPS_RECORDINGS"))
    p.add_argument("--settings", nargs="+", default=list(SERVED))
    p.add_argument("--prompts", type=int, default=200)
    p.add_argument("--rows", type=int, default=16)
    p.add_argument("--device", default="cpu")
    p.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "recorded_drafter.json")
    args = p.parse_args()
    recordings = Path(args.recordings)
    device = pick_device(args.device)
    target = Target.load(args.model, torch.bfloat16, device)
    prompts = held_out(recordings)[: args.prompts]
    for setting in args.settings:
        figures = measure(target, args.model, recordings / "gpu" / "drafter", prompts, setting, args.rows)
        figures["device"] = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
        sys.stderr.write(f"{setting}: {json.dumps(figures)}\n")
        known = json.loads(args.out.read_text())["figures"] if args.out.exists() else {}
        result = {
            "name": "recorded_drafter",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "device": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
            "command": "python benchmarks/recorded_drafter.py --model DIR --recordings DIR",
            "figures": known | {setting: figures},
        }
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
