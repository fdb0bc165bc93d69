"""How fast are long logs read for their root cause, and how much memory does it take?

python benchmarks/forensics.py [--megabytes 200] [--large-gigabytes 0] [--write]
"""

import argparse
import json
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

FAILURE = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/srv/train.py", line 88, in step
[rank3]:     loss.backward()
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.42 GiB.
"""


def serving(chance: random.Random) -> str:
    """Two lines of a busy server."""
    return (
        f"[2026-03-11 09:15:12 TP{chance.randint(0, 7)}] Decode batch, #running-req: {chance.randint(1, 64)}, "
        f"#token: {chance.randint(1, 99999)}, token usage: 0.{chance.randint(10, 99)}, gen throughput (token/s): 1343\n"
        f'INFO:     127.0.0.1:{chance.randint(1024, 60000)} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    )


def training(chance: random.Random) -> str:
    """A line of a training."""
    step = chance.randint(0, 12000)
    bar = f"Training Epoch 0:  {step // 120:3d}%|##   | {step}/12000"
    return f"{bar} [02:13<1:21:46, 2.38it/s, loss={chance.random():.3f}]\n"


def troubled(chance: random.Random) -> str:
    """Every tenth line a warning that was overcome."""
    if chance.random() >= 0.1:
        return training(chance)
    number = chance.randint(0, 9999)
    return f"2026-03-11 09:15:12,001 - client - WARNING - request {number} failed: timed out, retrying in 2 s\n"


def noisy(chance: random.Random) -> str:
    """Nothing but errors, all alike."""
    number = chance.randint(0, 10**9)
    return f"ERROR 03-11 09:14:14 [client.py:7] request {number} failed: Connection reset by peer\n"


KINDS = {"serving": serving, "training": training, "one in ten troubled": troubled, "errors only": noisy}


def write(path: Path, kind: str, size: int) -> None:
    """A log of a kind: half of it, the failure, and the other half."""
    chance = random.Random(1)
    make = KINDS[kind]
    piece = "".join(make(chance) for _ in range(20_000)).encode()
    with path.open("wb") as file:
        while file.tell() < size // 2:
            file.write(piece)
        file.write(FAILURE.encode())
        while file.tell() < size:
            file.write(piece)
        file.write(FAILURE.encode())


def measured(path: Path) -> dict[str, object]:
    """Reads one log in this process."""
    from eagle3ops.forensics.diagnosis import diagnose_files

    start, used = time.perf_counter(), time.process_time()
    found = diagnose_files([path])
    wall, used = time.perf_counter() - start, time.process_time() - used
    size = path.stat().st_size
    return {
        "megabytes": round(size / 1e6),
        "mb_per_s_wall": round(size / 1e6 / wall, 1),
        "mb_per_s_cpu": round(size / 1e6 / used, 1),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "verdict": found.verdict,
        "category": found.root.category if found.root is not None else None,
        "offset": found.root.offset if found.root is not None else None,
    }


def rows(megabytes: int, large: int) -> Iterator[dict[str, object]]:
    """One row for each kind of log, each in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            path = Path(folder) / "log"
            write(path, kind, megabytes * 1_000_000)
            yield {"kind": kind} | _apart(path)
        if large:
            path = Path(folder) / "large"
            write(path, "training", large * 1_000_000_000)
            yield {"kind": f"training, {large} GB"} | _apart(path)


def _apart(path: Path) -> dict[str, object]:
    done = subprocess.run([sys.executable, __file__, "--one", str(path)], capture_output=True, text=True, check=True)
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def main() -> None:
    """Prints a line for each kind of log, and keeps them in results/ with --write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--large-gigabytes", type=int, default=0)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--one", type=Path)
    args = parser.parse_args()
    if args.one is not None:
        print(json.dumps(measured(args.one)))  # noqa: T201
        return
    answer = []
    for row in rows(args.megabytes, args.large_gigabytes):
        print(json.dumps(row), flush=True)  # noqa: T201
        answer.append(row)
    if args.write:
        result = {"python": platform.python_version(), "machine": platform.machine(), "rows": answer}
        place = Path(__file__).parent / "results" / "forensics.json"
        place.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
