"""What does watching cost: 8 GPUs and 200 processes at 2 Hz, as a share of one core?

    python benchmarks/telemetry.py [--seconds 30] [--processes 200] [--gpus 8 | --real]

The sampler is the real one, started by a watcher; the processes are real, a few of them fork all the time. Without
`--real` the GPUs are a library that answers from a file (tests/telemetry/fake_nvml.c), so that the cost of the
driver's own calls is not in the figure; with it the GPUs of this machine are watched.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

from eagle3ops.telemetry.processes import RUN_MARK
from eagle3ops.telemetry.procfs import TICKS_PER_S
from eagle3ops.telemetry.runtime import last_words, runtime_folder
from eagle3ops.telemetry.shared import watch

HERE = Path(__file__).parent
TARGET_PERCENT = 3.0


def build_library(folder: Path, gpus: int, pids: list[int]) -> None:
    """Compile the library and write what it answers."""
    source = HERE.parent / "tests/telemetry/fake_nvml.c"
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    lines = [f"count {gpus}", "pcie_ms 20"]
    for gpu in range(gpus):
        lines += [f"{gpu}.util 90", f"{gpu}.mem_used 100000000000", f"{gpu}.field.138 1", f"{gpu}.field.139 1"]
        lines.append(f"{gpu}.process {pids[gpu % len(pids)]} 100000000000")
    (folder / "gpus.txt").write_text("\n".join(lines) + "\n")
    os.environ["FAKE_NVML"] = str(folder / "gpus.txt")
    os.environ["LD_LIBRARY_PATH"] = f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}"


def start_processes(count: int) -> list[subprocess.Popen[bytes]]:
    """Real processes with the mark of a run; one in twenty forks twice a second."""
    environment = {**os.environ, RUN_MARK: "/nowhere/runs/benchmark"}
    loop = ["sh", "-c", "while :; do sleep 0.5; done"]
    commands = [loop if number % 20 == 0 else ["sleep", "1000"] for number in range(count)]
    return [subprocess.Popen(command, env=environment, start_new_session=True) for command in commands]


def cpu_seconds(pid: int) -> tuple[float, float]:
    """CPU time of the process itself, and of its children that have ended (they ask for disk space)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S, (int(fields[13]) + int(fields[14])) / TICKS_PER_S


async def measure(seconds: float, hz: float) -> dict[str, Any]:
    """Watch, and look at the sampler's own CPU time from outside."""
    folder = runtime_folder()
    samples: list[dict[str, Any]] = []
    before: tuple[float, float] | None = None
    pid, began = 0, 0.0
    async with aclosing(watch(hz)) as feed:
        async for sample in feed:
            samples.append(sample)
            if before is None and len(samples) == 6:  # the first looks at all processes are over
                pid = int(last_words(folder / "sampler.lock"))
                before, began, samples = cpu_seconds(pid), time.monotonic(), []
            if before is not None and time.monotonic() - began >= seconds:
                break
    assert before is not None
    after, took = cpu_seconds(pid), time.monotonic() - began
    own, children = after[0] - before[0], after[1] - before[1]
    processes = [len(sample["procs"]) for sample in samples]
    return {
        "percent_of_one_core": round(100 * (own + children) / took, 2),
        "of_it_children_percent": round(100 * children / took, 2),
        "seconds": round(took, 1),
        "samples": len(samples),
        "late": sum(sample["late"] for sample in samples),
        "gpus": len(samples[-1]["gpu"]),
        "gpu_name": samples[-1]["gpu"][0]["name"] if samples[-1]["gpu"] else None,
        "processes_median": statistics.median(processes),
        "sample_cpu_ms_median": statistics.median(sample["cpu_ms"] for sample in samples),
        "sample_wall_ms_median": statistics.median(sample["cost_ms"] for sample in samples),
        "feed_bytes_per_sample": statistics.median(
            len(json.dumps(sample, separators=(",", ":"))) for sample in samples
        ),
    }


def main() -> int:
    """Measure, print and write the result. Returns 1 above the target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--processes", type=int, default=200)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--hz", type=float, default=2.0)
    parser.add_argument("--real", action="store_true", help="the GPUs of this machine")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        os.environ["EAGLE3OPS_RUNTIME"] = name
        started = start_processes(args.processes)
        try:
            if not args.real:
                build_library(Path(name), args.gpus, [process.pid for process in started])
            figures = asyncio.run(measure(args.seconds, args.hz))
        finally:
            for process in started:
                os.killpg(process.pid, 9)
                process.wait()
        time.sleep(5)  # the sampler ends before its folder goes
    result = {
        "name": "telemetry",
        "date": time.strftime("%Y-%m-%d"),
        "device": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
        + (", real GPUs" if args.real else ", GPUs simulated"),
        "command": " ".join(["python", "benchmarks/telemetry.py", *sys.argv[1:]]),
        "hz": args.hz,
        "target_percent": TARGET_PERCENT,
        "load_average": os.getloadavg()[0],
        **figures,
    }
    text = json.dumps(result, indent=2)
    sys.stdout.write(text + "\n")
    target = HERE / "results" / ("telemetry_gpu.json" if args.real else "telemetry.json")
    target.parent.mkdir(exist_ok=True)
    target.write_text(text + "\n")
    return 0 if figures["percent_of_one_core"] < TARGET_PERCENT else 1


if __name__ == "__main__":
    sys.exit(main())
