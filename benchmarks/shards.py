"""How fast do rows in memory become durable shards?

    python benchmarks/shards.py OUT [--rows 256] [--shards 6] [--workers 1 2 4] [--dtype bfloat16]

Shards are written to a folder of its own in OUT, which is removed at the end; what else is in OUT stays. In memory
(`/dev/shm`) it shows what the processor can do, elsewhere what the disk can. Prints one JSON object: tokens and
megabytes a second by number of threads, the best of three rounds.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch

from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.features.format import FeatureHeader
from eagle3ops.features.writer import FeatureRow, FeatureWriter

HIDDEN, LAYERS, ROUNDS = 576, 30, 3
"""Those of SmolLM2-135M."""


def rows_of(count: int) -> list[FeatureRow]:
    """Rows of 150 to 349 tokens, as answers of a small target are."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(350, 4 * HIDDEN, generator=generator).bfloat16()
    rows = []
    for number in range(count):
        length = 150 + number % 200
        mask = torch.arange(length) >= 40
        aux, final = states[:length, : 3 * HIDDEN].clone(), states[:length, 3 * HIDDEN :].clone()
        rows.append(FeatureRow(str(number), torch.arange(length, dtype=torch.int32), mask, aux, final))
    return rows


def main() -> None:
    """Write the same rows again and again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--shards", type=int, default=6)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--dtype", choices=("bfloat16", "float8_e4m3fn"), default="bfloat16")
    given = parser.parse_args()
    torch.set_num_threads(2)
    rows = rows_of(given.rows)
    header = FeatureHeader(
        target_fingerprint="benchmark", aux_layers=AuxLayers.default(LAYERS), hidden_size=HIDDEN, dtype=given.dtype,
        final_state="pre_norm", final_tokens="all",
    )  # fmt: skip
    given.out.mkdir(parents=True, exist_ok=True)
    # Never OUT itself: who gives /dev/shm wants to keep what others have there.
    with tempfile.TemporaryDirectory(prefix="shards-", dir=given.out) as folder:
        figures = measure(given, rows, header, Path(folder) / "round")
    sys.stdout.write(json.dumps({"rows": given.rows, "shards": given.shards, "workers": figures}) + "\n")


def measure(
    given: argparse.Namespace, rows: list[FeatureRow], header: FeatureHeader, scratch: Path
) -> dict[str, dict[str, int]]:
    """Tokens and megabytes a second by number of threads; `scratch` is emptied before each round."""
    tokens = given.shards * sum(row.token_ids.numel() for row in rows)
    figures: dict[str, dict[str, int]] = {}
    for workers in given.workers:
        best = float("inf")
        for _ in range(ROUNDS):
            shutil.rmtree(scratch, ignore_errors=True)
            writer = FeatureWriter(scratch, header)
            began = time.perf_counter()
            with ThreadPoolExecutor(workers) as pool:
                records = list(pool.map(partial(writer.write_shard, rows=rows), map(str, range(given.shards))))
            best = min(best, time.perf_counter() - began)
        size = sum(record.bytes for record in records)
        figures[str(workers)] = {"tokens_per_s": round(tokens / best), "mb_per_s": round(size / best / 1e6)}
    return figures


if __name__ == "__main__":
    main()
