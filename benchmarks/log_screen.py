"""How long does a log of a million lines take to be opened, filtered and searched, and what crosses the line for it?

python benchmarks/log_screen.py [--lines 1000000] [--times 5]

The console runs headless, with a real agent, at 160x48; a key counts until what it asks for stands on the screen.
"""

import argparse
import asyncio
import json
import os
import platform
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from textual.widgets import Input

from eagle3ops.hosts.client import AgentClient
from eagle3ops.hosts.local import LocalTransport
from eagle3ops.runs.directory import RunDirectory, runs_folder
from eagle3ops.runs.files import write_json
from eagle3ops.screens.app import ConsoleApp
from eagle3ops.screens.logs.room import Logs
from eagle3ops.screens.logs.text import LEVEL_PATTERNS
from eagle3ops.screens.logs.view import LogView

RUN = "20260101-000000-made-aaaa"
SEARCHES: dict[str, dict[str, Any]] = {
    "rare_literal": {"pattern": "ERROR"},
    "rare_literal_any_case": {"pattern": "error", "ignore_case": True},
    "every_line": {"pattern": "train"},
    "inverse_of_most": {"pattern": "INFO", "invert": True},
    "regex_any_case": {"pattern": r"step \d+7 loss", "ignore_case": True},
    "warnings_and_errors": {"pattern": LEVEL_PATTERNS["warning"]},
    "nothing": {"pattern": "no such thing"},
}


def make_run(root: Path, lines: int) -> int:
    """A run with one long log; returns its bytes."""
    run = RunDirectory(runs_folder(root) / RUN)
    run.logs.mkdir(parents=True)
    write_json(run.path / "request.json", {"run_id": run.run_id, "job": "pipeline", "stages": [], "cache": "/"})
    with (run.logs / "train.log").open("w") as file:
        file.writelines(
            f"[2026-11-30 04:45:12] {'ERROR' if n % 5000 == 7 else 'INFO'} train.py:311 step {n} "
            f"loss {8 / (n + 1):.4f} lr 1e-4 grad norm 0.81 tok/s 48211\n"
            for n in range(lines)
        )
        return file.tell()


def children_cpu(pid: int) -> float:
    """User and system time of the children that a process has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


async def search_times(root: Path, times: int) -> dict[str, Any]:
    """Of each kind of search through an agent: seconds until the end, and bytes of what it sent."""
    figures = {}
    async with await AgentClient.connect(LocalTransport(root=str(root))) as client:
        for name, asked in SEARCHES.items():
            seconds, cpu = [], children_cpu(client.hello.pid)
            for _ in range(times):
                began, size, count = time.perf_counter(), 0, 0
                stream = client.stream("log.search", run="last", log="train.log", limit=2000, every=256, **asked)
                async for items in stream:
                    size += sum(len(json.dumps(item)) for item in items)
                    count = items[-1]["matches"]
                seconds.append(time.perf_counter() - began)
            figures[name] = {
                "median_s": round(statistics.median(seconds), 3),
                "max_s": round(max(seconds), 3),
                "cpu_s": round((children_cpu(client.hello.pid) - cpu) / times, 3),
                "matches": count,
                "bytes": size,
            }
    return figures


class Clock:
    """Milliseconds from a key to what it asks for."""

    def __init__(self) -> None:
        self.found: dict[str, list[float]] = {}
        self._began = 0.0

    def start(self) -> None:
        """The key is pressed."""
        self._began = time.perf_counter()

    async def stop(self, name: str, condition: Callable[[], bool]) -> None:
        """Wait for something to be on the screen."""
        for _ in range(60_000):
            if condition():
                self.found.setdefault(name, []).append((time.perf_counter() - self._began) * 1e3)
                return
            await asyncio.sleep(0.001)
        raise TimeoutError(name)


async def one_round(app: ConsoleApp, lines: int, clock: Clock) -> None:
    """Open, page up, jump, filter, leave."""
    before = app.screen.query_one(LogView).rows if isinstance(app.screen, Logs) else None
    clock.start()
    app.open_log(RUN, "train.log")
    await clock.stop("open_at_the_end", lambda: isinstance(app.screen, Logs) and _has_last(app.screen, before))
    screen = app.screen
    assert isinstance(screen, Logs)
    view = screen.query_one(LogView)
    await clock.stop("open_with_line_numbers", lambda: view.rows.count == lines)
    for _ in range(10):
        clock.start()
        view.action_page(-1)
        await clock.stop("page_up", lambda: _whole(view))
    clock.start()
    view.go(lines // 2, middle=True)
    await clock.stop("jump_to_the_middle", lambda: _whole(view))
    screen.action_ask("filter")
    clock.start()
    screen.query_one(Input).value = "error"
    await clock.stop("filter_typed", lambda: view.rows is screen._filter and _whole(view))
    clock.start()
    screen.query_one(Input).value = ""
    await clock.stop("filter_taken_away", lambda: view.rows is screen._document and _whole(view))
    screen.action_back()


async def screen_times(root: Path, lines: int, times: int) -> dict[str, Any]:
    """Of some rounds."""
    clock, app = Clock(), ConsoleApp(str(root))
    async with app.run_test(size=(160, 48)):
        clock.start()
        await clock.stop("console", lambda: app.runs.detail is not None)
        for _ in range(times):
            await one_round(app, lines, clock)
    return {
        f"{name}_ms": {"median": round(statistics.median(found), 1), "max": round(max(found), 1)}
        for name, found in clock.found.items()
    }


def _has_last(screen: Logs, before: object) -> bool:
    view = screen.query_one(LogView) if screen.is_mounted else None
    if view is None or view.rows is before:
        return False
    return view.rows.count > 0 and view.rows.get(view.rows.count - 1) is not None


def _whole(view: LogView) -> bool:
    """Whether all that is in the window is here."""
    rows = range(view.top, min(view.rows.count, view.top + view.height))
    return all(view.rows.get(row) is not None for row in rows)


async def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All figures."""
    size = make_run(folder, args.lines)
    return {
        "lines": args.lines,
        "bytes": size,
        "search": await search_times(folder, args.times),
        "screen": await screen_times(folder, args.lines, args.times),
    }


def main() -> None:
    """Measure and write down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(measure(args, Path(folder)))
    result = {
        "name": "log_screen",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "command": f"python {shlex.join(sys.argv)}",
        "load_average": [round(load, 1) for load in os.getloadavg()],
        "figures": figures,
    }
    target = Path(__file__).parent / "results" / "log_screen.json"
    target.write_text(json.dumps(result, indent=1) + "\n")
    sys.stdout.write(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
