"""How long does the evidence that costs the processes nothing take, for many processes with many threads?

python benchmarks/evidence.py [--processes 200] [--threads 30] [--stacks 0]
"""

import argparse
import os
import platform
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from eagle3ops.runs.processes import identify
from eagle3ops.watchdog.evidence import collect
from eagle3ops.watchdog.state import Subject


def child(threads: int) -> None:
    """Sleep in many threads until killed."""
    for _ in range(threads - 1):
        threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
    time.sleep(1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=200)
    parser.add_argument("--threads", type=int, default=30)
    parser.add_argument("--stacks", type=int, default=0, help="also the stacks of so many of them")
    arguments = parser.parse_args()
    pids: list[int] = []
    try:
        for _ in range(arguments.processes):
            pid = os.fork()
            if not pid:
                child(arguments.threads)
                os._exit(0)
            pids.append(pid)
        time.sleep(1.0)
        known = [identify(pid) for pid in pids]
        processes = tuple(one for one in known if one is not None)
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "serve.log"
            log.write_text("".join(f"[2026-11-30 04:45:12] step {number}\n" for number in range(100_000)))
            cpu = time.process_time()
            dossier = collect(Subject(name="many", processes=processes, logs=(log,)), Path(folder) / "evidence")
            cpu = time.process_time() - cpu
            size = sum((dossier.folder / name).stat().st_size for name in dossier.files)
            sys.stdout.write(f"{platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} cores\n")
            sys.stdout.write(
                f"{len(processes)} processes of {arguments.threads} threads: {dossier.took_s:.2f} s, "
                f"{cpu:.2f} s of CPU, {size / 1e6:.1f} MB\n"
            )
            for step in dossier.steps:
                sys.stdout.write(f"  {step.name:10} {step.took_s:6.3f} s  {'; '.join(step.missing)[:80]}\n")
            if arguments.stacks:
                few = Subject(name="few", processes=processes[: arguments.stacks], logs=(log,))
                stacks = collect(few, Path(folder) / "stacks", intrusive=True, apart_s=0.0)
                sys.stdout.write(f"stacks of {arguments.stacks}, twice: {stacks.steps[-1].took_s:.2f} s\n")
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
