"""How long does it take from a key to its effect on the terminal, while logs grow and 8 GPUs tick?

    python benchmarks/console_keys.py [--keys 60] [--lines-per-second 5000] [--logs 8] [--before 100000]

The console runs under a pseudo-terminal of 160x48 with true colour and shows the logs of a run: one of them, then all
as one. Together they grow by so many lines a second. A key counts until the terminal gets what it asks for: the number
of another line, or the word that says whether the end is followed. GPUs are simulated as in console_bandwidth.py.
"""

import argparse
import contextlib
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
import threading
import time
from functools import partial
from pathlib import Path

from console_bandwidth import cpu_seconds, simulated_host

HERE = Path(__file__).parent
SIZE = (48, 160)
TARGET_MS = 50.0
RUN = "20261130-054512-bench-aaaa"
_ESCAPES = re.compile(rb"\x1b(?:\[[0-9;?<>=]*[a-zA-Z$]+|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>])")
_LINE = re.compile(rb"line ([\d,]+) of")


def log_line(source: int, number: int) -> str:
    """As a trainer writes it."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now)) + f",{int(now * 1000) % 1000:03d}"
    return f"[{stamp}] INFO train.py:311 rank {source} step {number} loss 0.1234 lr 1e-4 grad norm 0.81 tok/s 48211\n"


def make_run(root: Path, logs: int, before: int) -> list[Path]:
    """A run whose logs have so many lines already."""
    folder = root / "runs" / RUN
    (folder / "logs").mkdir(parents=True)
    (folder / "request.json").write_text(json.dumps({"job": "pipeline", "stages": [], "cache": "/", "source": "x"}))
    (folder / "state.json").write_text(json.dumps({"status": "done", "job": "pipeline", "exit_code": 0}))
    files = [folder / "logs" / f"train-rank{source}.log" for source in range(logs)]
    for source, file in enumerate(files):
        with file.open("w") as out:
            out.writelines(log_line(source, number) for number in range(before // logs))
    return files


def grow(files: list[Path], per_second: int, stop: threading.Event) -> None:
    """Add lines to all logs, until told to stop."""
    number, began, written = 0, time.monotonic(), 0
    outs = [file.open("a") for file in files]
    while not stop.wait(0.04):
        due = int((time.monotonic() - began) * per_second) - written
        written += due
        for source, out in enumerate(outs):
            count = due // len(outs)
            out.write("".join(log_line(source, number + at) for at in range(count)))
            out.flush()
        number += due // len(outs)
    for out in outs:
        out.close()


class Terminal:
    """The console's terminal, read by nobody but this."""

    def __init__(self, root: Path) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
            os.execv(sys.executable, [sys.executable, "-m", "eagle3ops", "--root", str(root)])
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
        self.count = 0
        self.text = b""

    def read(self, seconds: float) -> bytes:
        """What comes within so long, without escape sequences; as soon as something comes."""
        if not select.select([self.fd], [], [], max(0.0, seconds))[0]:
            return b""
        data = os.read(self.fd, 1 << 18)
        self.count += len(data)
        return _ESCAPES.sub(b"", data)

    def drain(self, seconds: float) -> bytes:
        """All that comes within so long."""
        until, text = time.monotonic() + seconds, b""
        while (left := until - time.monotonic()) > 0:
            text += self.read(left)
        return text

    def press(
        self, key: bytes, done: "re.Pattern[bytes]", unlike: bytes = b"", seconds: float = 10.0
    ) -> tuple[float, bytes]:
        """Milliseconds until what a key asks for comes, and what that was."""
        began, text = time.monotonic(), b""
        os.write(self.fd, key)
        while time.monotonic() - began < seconds:
            text += self.read(0.5)
            for found in done.finditer(text):
                if found[found.lastindex or 0] != unlike:
                    return (time.monotonic() - began) * 1e3, found[found.lastindex or 0]
        raise TimeoutError(f"{key!r}: {done.pattern!r} did not come; the last was {text[-300:]!r}")

    def close(self) -> None:
        """Leave."""
        with contextlib.suppress(OSError):
            os.write(self.fd, b"q")
            self.drain(1.0)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.close(self.fd)
        os.waitpid(self.pid, 0)


def measure_keys(terminal: Terminal, keys: int) -> dict[str, float]:
    """Pausing, moving, paging, following again, in turns."""
    times: dict[str, list[float]] = {"pause": [], "move": [], "page": [], "follow": []}
    for _ in range(max(1, keys // 4)):
        took, _ = terminal.press(b"\x1b[A", re.compile(rb"paused"))
        times["pause"].append(took)
        terminal.drain(0.37)
        line = b""
        for name, key in (("move", b"\x1b[A"), ("page", b"\x1b[5~"), ("move", b"\x1b[B")):
            took, line = terminal.press(key, _LINE, line)
            times[name].append(took)
            line = (_LINE.findall(terminal.drain(0.41)) or [line])[-1]
        took, _ = terminal.press(b"\x1b[F", re.compile(rb"following"))
        times["follow"].append(took)
        terminal.drain(0.43)
    every = [took for found in times.values() for took in found]
    cut = statistics.quantiles(every, n=20)
    return {
        "keys": len(every),
        "median_ms": round(statistics.median(every), 1),
        "p95_ms": round(cut[-1], 1),
        **{f"{name}_median_ms": round(statistics.median(found), 1) for name, found in times.items()},
    }


def measure(root: Path, keys: int) -> dict[str, object]:
    """One log, then all as one; then at rest with the end followed."""
    terminal = Terminal(root)
    try:
        terminal.drain(6.0)
        terminal.press(b"3", re.compile(rb"following"))
        terminal.drain(3.0)
        figures: dict[str, object] = {"one_log": measure_keys(terminal, keys)}
        terminal.press(b"m", re.compile(rb"logs merged"))
        terminal.drain(4.0)
        figures["all_as_one"] = measure_keys(terminal, keys)
        cpu, count, began = cpu_seconds(terminal.pid), terminal.count, time.monotonic()
        terminal.drain(5.0)
        took = time.monotonic() - began
        figures["following_cpu_percent"] = round(100 * (cpu_seconds(terminal.pid) - cpu) / took, 1)
        figures["following_kb_s"] = round((terminal.count - count) / took / 1000, 1)
    finally:
        terminal.close()
    return figures


def main() -> int:
    """Measure, print and write the result. Returns 1 above the target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=60)
    parser.add_argument("--lines-per-second", type=int, default=5000)
    parser.add_argument("--logs", type=int, default=8)
    parser.add_argument("--before", type=int, default=100_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        files = make_run(folder / "root", args.logs, args.before)
        with simulated_host(folder, 8, 8, 0, partial(grow, files, args.lines_per_second)):
            figures = measure(folder / "root", args.keys)
    result = {
        "name": "console_keys",
        "date": time.strftime("%Y-%m-%d"),
        "device": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, GPUs simulated",
        "command": " ".join(["python", "benchmarks/console_keys.py", *sys.argv[1:]]),
        "terminal": f"{SIZE[1]}x{SIZE[0]}, true colour",
        "lines_per_second": args.lines_per_second,
        "logs": args.logs,
        "lines_before": args.before,
        "target_median_ms": TARGET_MS,
        "load_average": os.getloadavg()[0],
        **figures,
    }
    text = json.dumps(result, indent=2)
    sys.stdout.write(text + "\n")
    (HERE / "results" / "console_keys.json").write_text(text + "\n")
    medians = [figures[name]["median_ms"] for name in ("one_log", "all_as_one")]  # type: ignore[index]
    return 0 if max(medians) < TARGET_MS else 1


if __name__ == "__main__":
    sys.exit(main())
