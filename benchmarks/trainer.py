"""How fast does the trainer train, and where does the accept length stand at every evaluation?

    python benchmarks/trainer.py TARGET_DIR EXTRACT_DIR OUT [--set lr=1e-3 ...]

EXTRACT_DIR holds `train/` and `heldout/`, as the extract job leaves them. Prints one JSON object: trained positions,
wall and CPU seconds, positions per CPU second, loss and accuracy per draft step, predicted accept length.
"""

import argparse
import json
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

from eagle3ops.eagle3.target_head import TargetHead
from eagle3ops.eagle3.train_config import TrainConfig
from eagle3ops.features.training import train


def main() -> None:
    """Train once into an empty folder and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("target", "extract", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a field of TrainConfig")
    arguments = parser.parse_args()
    known = {field.name for field in fields(TrainConfig)}
    settings: dict[str, Any] = {}
    for assignment in arguments.set:
        name, _, text = assignment.partition("=")
        if name not in known:
            parser.error(f"{name} is no field of TrainConfig: {', '.join(sorted(known))}")
        try:
            settings[name] = json.loads(text)
        except ValueError:
            settings[name] = text
    cpu = time.process_time()
    result = train(
        arguments.extract / "train",
        arguments.extract / "heldout",
        TargetHead.load(arguments.target),
        arguments.out,
        TrainConfig(**settings),
    )
    cpu = time.process_time() - cpu
    figures = {
        "settings": settings,
        "steps": result.steps,
        "positions": result.positions,
        "wall_s": round(result.seconds, 1),
        "cpu_s": round(cpu, 1),
        "positions_per_cpu_s": round(result.positions / cpu),
        "train": result.train,
        "heldout": result.heldout,
        "accept_length": {steps: walk.accept_length for steps, walk in result.renewals.items()},
        "heldout_coverage": result.heldout_coverage,
    }
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
