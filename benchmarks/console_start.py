"""How long after `eagle3ops` was started does the first run stand on the screen, with 500 runs in the ledger?

    python benchmarks/console_start.py [--runs 500] [--times 7] [--cold] [--size 160x48]

The console runs under a pseudo-terminal. Timed is from just before `exec` to the first bytes that hold the name of the
newest run, as a terminal would take them; the best, the median and the worst of some starts, and the processor time
that the console itself had used by then. With `--cold` the index of the ledger is deleted before every start, so that
it is built from 500 folders; the target holds for an index that is there.
"""

import argparse
import fcntl
import json
import os
import platform
import pty
import re
import select
import signal
import statistics
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path

HERE = Path(__file__).parent
TARGET_S = 0.5
LONGEST_S = 20.0
NEWEST = "newestrun"
_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")


def make_runs(root: Path, count: int) -> None:
    """So many finished runs with seven stages each, and among them some that failed."""
    stages = ("fetch", "generate", "extract", "train", "verify", "serve", "bench")
    for at in range(count):
        name = NEWEST if at == count - 1 else f"sweep-{at % 17}"
        run_id = f"202611{1 + at // 60 % 28:02d}-{at // 3600:02d}{at // 60 % 60:02d}{at % 60:02d}-{name}-{at:04x}"
        if name == NEWEST:
            run_id = f"20261130-235959-{name}-{at:04x}"
        folder = root / "runs" / run_id
        folder.mkdir(parents=True)
        began = 1.79e9 + 60.0 * at
        failed = at % 9 == 4
        status = "failed" if failed else "done"
        request = {"run_id": run_id, "job": "pipeline", "stages": list(stages), "cache": "", "source": "demo"}
        (folder / "request.json").write_text(json.dumps(request | {"created": began}))
        known = {
            stage: {
                "status": status if place == 6 else "done",
                "seconds": 12.5,
                "started": began,
                "ended": began + 12.5,
            }
            for place, stage in enumerate(stages)
        }
        state = {"run_id": run_id, "name": name, "job": "pipeline", "status": status, "exit_code": int(failed)}
        state |= {"started": began, "ended": began + 90, "stages": known, "cause": "bench: broke" if failed else None}
        (folder / "state.json").write_text(json.dumps(state))
        event = {"seq": 1, "ts": began, "stage": None, "kind": "run", "data": {"status": status}}
        (folder / "events.jsonl").write_text(json.dumps(event) + "\n")


def start(root: Path, size: tuple[int, int]) -> dict[str, float]:
    """Start the console once. Returns seconds to the first bytes, to the first run, and of processor time by then."""
    began = time.monotonic()
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        os.execv(sys.executable, [sys.executable, "-m", "eagle3ops", "--root", str(root)])
    found: dict[str, float] = {}
    taken = b""
    try:
        while time.monotonic() - began < LONGEST_S:
            if not select.select([terminal], [], [], 0.5)[0]:
                continue
            taken += os.read(terminal, 1 << 16)
            text = _ESCAPES.sub(b"", taken)
            if "frame" not in found and b"eagle3ops" in text:
                found["frame"] = time.monotonic() - began
            if NEWEST.encode() in text:
                found["run"] = time.monotonic() - began
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                found["cpu"] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                return found
        raise SystemExit(f"no run appeared within {LONGEST_S} s:\n{_ESCAPES.sub(b'', taken).decode(errors='replace')}")
    finally:
        os.kill(pid, signal.SIGTERM)
        ends = time.monotonic() + 5.0
        while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < ends:
            if select.select([terminal], [], [], 0.05)[0]:
                try:
                    os.read(terminal, 1 << 16)
                except OSError:
                    time.sleep(0.02)
        os.close(terminal)


def main() -> int:
    """Measure, print and write the result. Returns 1 above the target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--size", default="160x48")
    args = parser.parse_args()
    width, height = (int(part) for part in args.size.split("x"))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "runtime").mkdir(mode=0o700)
        os.environ |= {f"EAGLE3OPS_{room.upper()}": str(folder / room) for room in ("runtime", "config", "state")}
        # As installed: compiled modules are kept, by the first start that is not counted.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        make_runs(folder / "root", args.runs)
        taken = []
        for at in range(args.times + 1):
            if args.cold:
                for file in (folder / "root").glob("ledger.sqlite*"):
                    file.unlink()
            one = start(folder / "root", (width, height))
            if at:  # the first one builds the index and warms the disk
                taken.append(one)
        time.sleep(3)  # the sampler ends before its folder goes
    figures: dict[str, float] = {}
    for key in ("frame", "run", "cpu"):
        values = sorted(one[key] for one in taken)
        figures |= {
            f"{key}_best_s": round(values[0], 3),
            f"{key}_median_s": round(statistics.median(values), 3),
            f"{key}_worst_s": round(values[-1], 3),
        }
    result = {
        "name": "console_start" + ("_cold" if args.cold else ""),
        "date": time.strftime("%Y-%m-%d"),
        "device": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "command": " ".join(["python", "benchmarks/console_start.py", *sys.argv[1:]]),
        "terminal": args.size,
        "runs": args.runs,
        "target_s": TARGET_S,
        "load_average": round(os.getloadavg()[0], 2),
        **figures,
    }
    text = json.dumps(result, indent=2)
    sys.stdout.write(text + "\n")
    target = HERE / "results" / f"{result['name']}.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(text + "\n")
    return 0 if args.cold or figures["run_median_s"] < TARGET_S else 1


if __name__ == "__main__":
    sys.exit(main())
