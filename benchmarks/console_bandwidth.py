"""How many bytes does the console send to the terminal, with 8 GPUs and 200 processes at 2 Hz?

    python benchmarks/console_bandwidth.py [--seconds 20] [--gpus 8] [--processes 200] [--busy 10]

The console runs under a pseudo-terminal of 160x48 with true colour. Sampler, agent and link are the real ones; the GPUs
are a library that answers from a file (tests/telemetry/fake_nvml.c) in which every figure changes twice a second. The
processes are real and carry the mark of a run; some of them work and sleep in turns. Below the root is a run that goes
on: it reports progress twice a second, metrics once, and says something every ten seconds; 200 more have ended.
Measured
are the overview, on which all of that stands, and the GPUs and processes.
"""

import argparse
import contextlib
import fcntl
import json
import os
import platform
import pty
import random
import select
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from eagle3ops.runs.events import EventLog
from eagle3ops.runs.processes import identify

HERE = Path(__file__).parent
TARGET_KB_S = 15.0
TARGET_CPU_PERCENT = 2.0
SIZE = (48, 160)


def answer(file: Path, gpus: int, pids: list[int], stop: threading.Event) -> None:
    """Change every figure of every GPU twice a second, until told to stop."""
    chance = random.Random(1)
    links = [0] * gpus
    while not stop.is_set():
        lines = [f"count {gpus}"]
        for gpu in range(gpus):
            links[gpu] += chance.randint(10**6, 10**7)
            lines += [
                f"{gpu}.name NVIDIA H200",
                f"{gpu}.util {chance.randint(60, 100)}",
                f"{gpu}.mem_used {chance.randint(100, 140) * 10**9}",
                f"{gpu}.power_mw {chance.randint(300, 690) * 1000}",
                f"{gpu}.error.nvmlDeviceGetTotalEnergyConsumption 3",
                f"{gpu}.temp_c {chance.randint(50, 70)}",
                f"{gpu}.sm_mhz {chance.randint(1700, 1980)}",
                f"{gpu}.pcie_tx_kbs {chance.randint(10**5, 10**7)}",
                f"{gpu}.field.138 {links[gpu]}",
                f"{gpu}.field.139 {links[gpu] // 2}",
                f"{gpu}.process {pids[gpu % len(pids)]} {chance.randint(1, 100) * 10**9}",
            ]
        fresh = file.with_suffix(".new")
        fresh.write_text("\n".join(lines) + "\n")
        fresh.replace(file)
        stop.wait(0.5)


def start_processes(count: int, busy: int) -> list[subprocess.Popen[bytes]]:
    """Real processes of one run; `busy` of them use the processor now and then."""
    environment = {**os.environ, "EAGLE3OPS_RUN_DIR": "/nowhere/runs/20261130-054512-bench-aaaa"}
    work = "import time\nwhile True:\n time.sleep(0.2)\n sum(range(40000))"
    commands = [[sys.executable, "-c", work] if at < busy else ["sleep", "1000"] for at in range(count)]
    return [subprocess.Popen(command, env=environment, start_new_session=True) for command in commands]


def make_run(root: Path, run_id: str, **state: object) -> Path:
    """A run's folder, as far as the console looks into it."""
    folder = root / "runs" / run_id
    folder.mkdir(parents=True)
    (folder / "request.json").write_text(json.dumps({"job": "pipeline", "stages": [], "cache": "", "source": "demo"}))
    (folder / "state.json").write_text(json.dumps({"status": "done", "exit_code": 0, "job": "pipeline"} | state))
    return folder


def report(root: Path, stop: threading.Event) -> None:
    """Be the supervisor of a run that goes on, until told to stop."""
    names = ("fetch", "generate", "extract", "train", "serve", "verify", "bench", "report")
    for at in range(200):
        ended = time.time() - 3600.0 * (200 - at)
        stages = {name: {"status": "done", "seconds": 60.0} for name in names}
        make_run(root, f"20261101-{at // 60:02d}{at % 60:02d}00-sweep-{at:04x}", ended=ended, stages=stages)
    known = {name: {"status": "done", "seconds": 60.0} for name in names[:3]} | {"train": {"status": "running"}}
    known |= {name: {"status": "waiting"} for name in names[4:]}
    run = make_run(root, "20261130-054512-bench-aaaa", status="running", exit_code=None, stages=known)
    me = identify(os.getpid())
    assert me is not None
    (run / "supervisor.json").write_text(json.dumps(asdict(me) | {"heartbeat": time.time()}))
    step = 0
    with EventLog(run / "events.jsonl") as log:
        log.append("stage", {"status": "running"}, "train")
        while not stop.wait(0.5):
            step += 1
            log.append("progress", {"done": 7 * step, "total": 90000, "unit": "steps"}, "train")
            if step % 2 == 0:
                log.append("metric", {"name": "loss", "value": 3.0 / (1 + step / 100), "step": 7 * step}, "train")
            if step % 20 == 0:
                log.append("info", {"text": f"checkpoint at step {7 * step}"}, "train")


def read_for(terminal: int, seconds: float) -> int:
    """Bytes that come within so long."""
    until, count = time.monotonic() + seconds, 0
    while (left := until - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            try:
                count += len(os.read(terminal, 1 << 16))
            except OSError:  # the console has ended
                break
    return count


def cpu_seconds(pid: int) -> float:
    """CPU time of the console itself, of all its threads, as the scheduler counts it."""
    return sum(int(file.read_text().split()[0]) for file in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def measure(root: Path, seconds: float) -> dict[str, float]:
    """Both screens, one after the other."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
        os.execv(sys.executable, [sys.executable, "-m", "eagle3ops", "--root", str(root)])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
    found = {}
    try:
        read_for(terminal, 8.0)
        for screen, key in (("overview", b""), ("gpus", b"4")):
            os.write(terminal, key)
            read_for(terminal, 5.0)
            cpu, began = cpu_seconds(pid), time.monotonic()
            count = read_for(terminal, seconds)
            took = time.monotonic() - began
            found[f"{screen}_kb_s"] = round(count / took / 1000, 2)
            found[f"{screen}_cpu_percent"] = round(100 * (cpu_seconds(pid) - cpu) / took, 2)
    finally:
        os.write(terminal, b"q")
        read_for(terminal, 1.0)
        os.close(terminal)
        os.waitpid(pid, 0)
    return found


@contextlib.contextmanager
def simulated_host(
    folder: Path, gpus: int, processes: int, busy: int, work: Callable[[threading.Event], None]
) -> Iterator[None]:
    """GPUs that answer from a file, processes of a run, and `work` beside them, until the block is left."""
    source = HERE.parent / "tests/telemetry/fake_nvml.c"
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    (folder / "runtime").mkdir(mode=0o700)
    os.environ |= {
        "EAGLE3OPS_RUNTIME": str(folder / "runtime"),
        "FAKE_NVML": str(folder / "gpus.txt"),
        "LD_LIBRARY_PATH": f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}",
    }
    started, stop = start_processes(processes, busy), threading.Event()
    pids = [process.pid for process in started]
    threads = [
        threading.Thread(target=answer, args=(folder / "gpus.txt", gpus, pids, stop)),
        threading.Thread(target=work, args=(stop,)),
    ]
    try:
        for thread in threads:
            thread.start()
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        for process in started:
            os.killpg(process.pid, 9)
            process.wait()
    time.sleep(5)  # the sampler ends before its folder goes


def main() -> int:
    """Measure, print and write the result. Returns 1 above the target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--processes", type=int, default=200)
    parser.add_argument("--busy", type=int, default=10)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with simulated_host(folder, args.gpus, args.processes, args.busy, partial(report, folder / "root")):
            figures = measure(folder / "root", args.seconds)
    result = {
        "name": "console_bandwidth",
        "date": time.strftime("%Y-%m-%d"),
        "device": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, GPUs simulated",
        "command": " ".join(["python", "benchmarks/console_bandwidth.py", *sys.argv[1:]]),
        "terminal": f"{SIZE[1]}x{SIZE[0]}, true colour",
        "gpus": args.gpus,
        "processes": args.processes,
        "target_kb_s": TARGET_KB_S,
        "target_cpu_percent": TARGET_CPU_PERCENT,
        "load_average": os.getloadavg()[0],
        **figures,
    }
    text = json.dumps(result, indent=2)
    sys.stdout.write(text + "\n")
    target = HERE / "results" / "console_bandwidth.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(text + "\n")
    busy = max(figures["overview_cpu_percent"], figures["gpus_cpu_percent"]) >= TARGET_CPU_PERCENT
    return 1 if busy or max(figures["overview_kb_s"], figures["gpus_kb_s"]) >= TARGET_KB_S else 0


if __name__ == "__main__":
    sys.exit(main())
