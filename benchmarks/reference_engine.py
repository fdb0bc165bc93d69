"""How fast does the reference engine decode, plain and speculative, at one row and in batches?

    python benchmarks/reference_engine.py --model DIR --recordings DIR [--tokens 64] [--rounds 3]

Every round measures every case once, so that all cases see the same machine; the median is reported. Writes
`benchmarks/results/reference_engine.json`.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: see eagle3ops/engines/reference/__main__.py

import torch
from recorded_drafter import held_out

from eagle3ops.eagle3.checkpoint import load_drafter
from eagle3ops.engines.reference.drafting import SpecSettings, Speculator
from eagle3ops.engines.reference.engine import Engine
from eagle3ops.engines.reference.model import Target
from eagle3ops.engines.reference.requests import Request, SamplingParams

CASES: list[tuple[int, str | None]] = [
    (1, None), (1, "1/1/2"), (1, "2/1/3"), (1, "3/1/4"), (8, None), (8, "3/1/4"), (32, None),
]  # fmt: skip


def main() -> None:
    """Measure and write."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", type=Path, required=True)
    p.add_argument("--recordings", type=Path, required=True)
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--rounds", type=int, default=3)
    args = p.parse_args()
    target = Target.load(args.model, torch.bfloat16)
    drafter = load_drafter(args.recordings / "gpu" / "drafter", target.config.num_layers, target.dtype)
    prompts = held_out(args.recordings)
    rates: dict[str, list[float]] = {}
    accept: dict[str, float | None] = {}
    for turn in range(args.rounds):
        for rows, setting in CASES:
            name = f"batch {rows}, " + ("plain" if setting is None else setting)
            speculator = None
            if setting is not None:
                speculator = Speculator(drafter, target, SpecSettings(*map(int, setting.split("/"))), rows)
            engine = Engine(target, speculator=speculator, max_running=rows)
            sampling = SamplingParams(max_new_tokens=args.tokens, ignore_eos=True)
            chosen = prompts[turn * 32 : turn * 32 + rows]
            engine.submit([Request(str(k), ids, sampling, lambda _event: None) for k, ids in enumerate(chosen)])
            engine.step()
            first, began = engine.counters.generated, time.perf_counter()
            while engine.step():
                pass
            rates.setdefault(name, []).append((engine.counters.generated - first) / (time.perf_counter() - began))
            accept[name] = engine.counters.accept_length
    figures = {
        name: {"tokens_per_s": round(statistics.median(values), 1), "all": [round(v, 1) for v in values],
               "accept_length": accept[name]}
        for name, values in rates.items()
    }  # fmt: skip
    result = {
        "name": "reference_engine",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
        f"torch {torch.__version__}, {torch.get_num_threads()} threads",
        "command": f"python benchmarks/reference_engine.py --tokens {args.tokens} --rounds {args.rounds}",
        "figures": figures,
    }
    out = Path(__file__).parent / "results" / "reference_engine.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    sys.stderr.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
