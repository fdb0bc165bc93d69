"""Does one key lead to one run when many start it at once and are killed? 200 starters, 20 keys, real supervisors.

    python benchmarks/start_storm.py [--starters 200] [--keys 20] [--rounds 1] [--seed 1]

Starters are forked from one warm process, so that all of them are about the same thing at the same moment; supervisors
are fresh interpreters, as in life. Writes benchmarks/results/start_storm.json.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--starters", type=int, default=200)
    parser.add_argument("--keys", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    # The toy jobs of the tests: runs that end at once.
    tests = str((HERE.parent / "tests" / "runs").absolute())
    sys.path.insert(0, tests)
    os.environ["EAGLE3OPS_JOBS"] = "toy_jobs"
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PYTHONPATH"] = os.pathsep.join([tests, folder])
        sys.path.insert(0, folder)
        (Path(folder) / "toy_code.py").write_text("ANSWER = 42\n")
        from storm_world import spawn_supervisor, storm

        began, used = time.monotonic(), os.times()
        found = storm(Path(folder) / "root", args.seed, args.rounds, args.starters, args.keys, spawn=spawn_supervisor)
        seconds, now = time.monotonic() - began, os.times()
    result = {
        "name": "start_storm",
        "date": time.strftime("%Y-%m-%d"),
        "device": f"{platform.machine()}, {os.cpu_count()} CPUs",
        "command": f"python benchmarks/start_storm.py --starters {args.starters} --keys {args.keys} "
        f"--rounds {args.rounds} --seed {args.seed}",
        "starters": args.starters * args.rounds,
        "keys": args.keys * args.rounds,
        "runs": found["runs"],
        "starters_killed": found["killed"],
        "wrong": found["wrong"],
        "left_hidden": found["hidden"],
        "place_seconds_undisturbed": round(found["seconds"], 4),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(sum(now[:4]) - sum(used[:4]), 1),
    }
    (HERE / "results" / "start_storm.json").write_text(json.dumps(result, indent=2) + "\n")
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
