"""What does the Run room cost while a run goes on: bytes to the terminal, CPU, for each of its parts?

    python benchmarks/run_room.py [--seconds 15] [--before 20000]

The console runs under a pseudo-terminal of 160x48 with true colour. The run is a folder to which this program
writes events: 30 figures a step, two steps a second, after `--before` steps of history that the room has to take in
first.
"""

import argparse
import fcntl
import json
import os
import pty
import random
import struct
import sys
import tempfile
import termios
import threading
import time
from dataclasses import asdict
from pathlib import Path

from console_bandwidth import SIZE, cpu_seconds, read_for

from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.events import EventLog
from eagle3ops.runs.processes import identify

FIGURES = [f"train/{name}_{depth}" for name in ("loss", "acc", "full_acc", "cond_acc") for depth in range(7)]
FIGURES += ["train/lr", "train/grad_norm"]


def make(root: Path, before: int) -> RunDirectory:
    """A run that goes on, looked after by this process."""
    run = RunDirectory(root / "runs" / "20261130-054512-bench-aaaa")
    run.logs.mkdir(parents=True)
    (run.path / "request.json").write_text(json.dumps({"job": "pipeline", "stages": [], "cache": "", "source": "x"}))
    names = ("fetch", "generate", "extract", "train", "serve", "verify", "bench", "report")
    stages = {name: {"status": "done" if at < 3 else "waiting", "seconds": 9.0} for at, name in enumerate(names)}
    stages["train"] = {"status": "running", "started": time.time()}
    state = {"status": "running", "exit_code": None, "job": "pipeline", "started": time.time(), "stages": stages}
    (run.path / "state.json").write_text(json.dumps(state))
    me = identify(os.getpid())
    assert me is not None
    (run.path / "supervisor.json").write_text(json.dumps(asdict(me) | {"heartbeat": time.time()}))
    with run.events_file.open("w") as file:
        for step in range(before):
            for at, name in enumerate(FIGURES):
                data = {"name": name, "value": random.random() + at, "step": step}
                seq, ts = step * len(FIGURES) + at + 1, time.time() - (before - step) / 2
                event = {"seq": seq, "ts": ts, "stage": "train", "kind": "metric", "data": data}
                file.write(json.dumps(event, separators=(",", ":")) + "\n")
    return run


def go_on(run: RunDirectory, step: int, stop: threading.Event) -> None:
    """Two steps a second."""
    with EventLog(run.events_file) as log:
        while not stop.wait(0.5):
            step += 1
            for at, name in enumerate(FIGURES):
                log.append("metric", {"name": name, "value": random.random() + at, "step": step}, "train")
            log.append("progress", {"done": step, "total": 10**6, "unit": "steps"}, "train")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--before", type=int, default=20_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        root = Path(name)
        run = make(root, args.before)
        stop = threading.Event()
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
            os.execv(sys.executable, [sys.executable, "-m", "eagle3ops", "--root", name])
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
        thread = threading.Thread(target=go_on, args=(run, args.before, stop))
        thread.start()
        figures = {"events_mb": round(run.events_file.stat().st_size / 1e6, 1)}
        try:
            read_for(terminal, 8.0)
            os.write(terminal, b"2")
            began, cpu = time.monotonic(), -1.0
            while cpu_seconds(pid) - cpu > 0.3 and time.monotonic() - began < 120:
                cpu = cpu_seconds(pid)
                read_for(terminal, 1.0)
            figures["caught_up_after_s"] = round(time.monotonic() - began + 8, 1)
            for key in b"spmav":
                os.write(terminal, bytes([key]))
                read_for(terminal, 3.0)
                cpu, began = cpu_seconds(pid), time.monotonic()
                count = read_for(terminal, args.seconds)
                took = time.monotonic() - began
                figures[f"{chr(key)}_kb_s"] = round(count / took / 1000, 2)
                figures[f"{chr(key)}_cpu_percent"] = round(100 * (cpu_seconds(pid) - cpu) / took, 2)
        finally:
            stop.set()
            thread.join()
            os.write(terminal, b"q")
            read_for(terminal, 1.0)
            os.close(terminal)
            os.waitpid(pid, 0)
        sys.stdout.write(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
