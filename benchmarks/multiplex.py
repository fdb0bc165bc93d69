"""What do turns of extract and train cost, and does the drafter come out as good as with everything on disk?

    python benchmarks/multiplex.py ROOT [--spec demo] [--parts 4] [--set stages.train.epochs=4 ...]

Runs fetch, generate, extract and train of a pipeline below ROOT: once without a quota and once with one that cuts every
epoch into about so many parts. Prints one JSON object and leaves it in benchmarks/results/multiplex.json.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

RESULT = Path(__file__).parent / "results" / "multiplex.json"
JOBS = ("fetch", "generate", "extract", "train")
ACCURACIES = ("acc", "full_acc")


def stage(root: Path, job: str) -> Path:
    """Output folder of the newest finished stage of a job."""
    return max(
        (path.parent for path in root.glob(f"stages/{job}-*/done.json")), key=lambda folder: folder.stat().st_mtime
    )


def states_on_disk(root: Path) -> int:
    """Bytes of all hidden states below a root."""
    total = 0
    for folder in (*root.glob("stages/extract-*"), *root.glob("stages/train-*/turn-*")):
        for path in folder.rglob("*"):
            try:
                total += path.stat().st_size if path.is_file() else 0
            except FileNotFoundError:
                continue
    return total


def pipeline(root: Path, arguments: list[str], since: int) -> dict[str, Any]:
    """Run the jobs; returns times, the most bytes of hidden states (beyond `since`) and the prediction."""
    ended, most = threading.Event(), [0]

    def sample() -> None:
        while not ended.wait(0.1):
            most[0] = max(most[0], states_on_disk(root) - since)

    # A thread, because the samples must not wait for the pipeline.
    sampler = threading.Thread(target=sample)
    sampler.start()
    seconds = {}
    try:
        for job in JOBS:
            began = time.monotonic()
            command = [sys.executable, "-m", "eagle3ops", "--job", job, "--root", str(root), *arguments]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            seconds[job] = round(time.monotonic() - began, 1)
    finally:
        ended.set()
        sampler.join()
    prediction = json.loads((stage(root, "train") / "prediction.json").read_text())
    training = prediction["training"]
    return {
        "seconds": seconds,
        "most_bytes_of_hidden_states": most[0],
        "turns": training.get("turns", 0),
        "steps": training["steps"],
        "accept_length": {k: round(v["accept_length"], 4) for k, v in prediction["accept_length"].items()},
        "heldout": [{name: round(step[name], 4) for name in ("loss", *ACCURACIES)} for step in training["heldout"]],
    }


def main() -> None:
    """Run both and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("--spec", default="demo")
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    arguments = ["--spec", options.spec]
    for assignment in options.set:
        arguments += ["--set", assignment]
    whole = pipeline(options.root, arguments, 0)
    extracted = stage(options.root, "extract")
    sizes = {split: sum(p.stat().st_size for p in (extracted / split).iterdir()) for split in ("heldout", "train")}
    quota = sizes["heldout"] + int(sizes["train"] / (options.parts - 0.5))
    since = states_on_disk(options.root)
    turns = pipeline(options.root, [*arguments, "--set", f"stages.extract.quota={quota}"], since)
    figures = {
        "name": "multiplex",
        "date": time.strftime("%Y-%m-%d"),
        "device": f"{os.cpu_count()} CPU cores, {platform.machine()}",
        "command": "python benchmarks/multiplex.py ROOT " + " ".join(sys.argv[2:]),
        "bytes": sizes,
        "quota": quota,
        "without_quota": whole,
        "with_quota": turns,
    }
    text = json.dumps(figures, indent=1) + "\n"
    RESULT.write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
