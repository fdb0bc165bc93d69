"""Does a sweep live through servers that die and hang? Kills one and stops another while it runs.

    python benchmarks/sweep_faults.py ROOT [--run last] [--kill 1] [--stop 1] [--kill-baseline 0] [--kill-run]

Waits for the newest run's sweep below ROOT, and for its first measurement; then sends SIGKILL and SIGSTOP to servers
that were not measured yet, found by the process ids that the run wrote down. `--kill-run` sends SIGKILL to all
processes of the run after that, as `kill -9` or the loss of a session would; `eagle3ops runs resume` takes it up again.
Prints what it did, one JSON object a line.
"""

import argparse
import json
import signal
import sys
import time
from pathlib import Path

from eagle3ops.errors import Eagle3opsError
from eagle3ops.runs.directory import RunDirectory, find_run, list_runs
from eagle3ops.runs.family import family
from eagle3ops.runs.processes import ProcessId, identify, send_signal
from eagle3ops.sweep.book import ROWS
from eagle3ops.sweep.race import log_role

PREFIX = "engine-sweep-"
BASELINE = "-baseline"


def main() -> int:
    """Wait, break, and say what was broken."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("root", type=Path)
    parser.add_argument("--run", default="last", help="id of the run; the newest with a sweep when left out")
    parser.add_argument("--kill", type=int, default=1, help="servers of points that get SIGKILL")
    parser.add_argument("--stop", type=int, default=1, help="servers of points that get SIGSTOP")
    parser.add_argument("--kill-baseline", type=int, default=0, help="baselines that get SIGKILL")
    parser.add_argument("--kill-run", action="store_true", help="SIGKILL for the whole run in the end")
    parser.add_argument("--rows", type=int, default=1, help="measurements to wait for first")
    parser.add_argument("--wait", type=float, default=900.0, help="seconds")
    args = parser.parse_args()
    deadline = time.monotonic() + args.wait
    run = _sweep(args.root, args.run, deadline)
    wanted = [(signal.SIGKILL, False)] * args.kill + [(signal.SIGSTOP, False)] * args.stop
    wanted += [(signal.SIGKILL, True)] * args.kill_baseline
    broken: set[str] = set()
    while wanted and time.monotonic() < deadline:
        measured = _measured(run)
        for role, process in _servers(run).items():
            number, of_baseline = wanted[0]
            fits = role.endswith(BASELINE) if of_baseline else not role.endswith(BASELINE) and role not in measured
            if len(measured) >= args.rows and fits and role not in broken and send_signal(process, number):
                broken.add(role)
                wanted.pop(0)
                _tell(role=role, pid=process.pid, signal=number.name, ts=round(time.time(), 3))
                if not wanted:
                    break
        time.sleep(0.1)
    if args.kill_run:
        doomed = [found for pid in family(run.path) if (found := identify(pid)) is not None]
        for process in doomed:
            send_signal(process, signal.SIGKILL)
        _tell(run=run.run_id, killed=len(doomed), rows=len(_lines(run)))
    if wanted:
        sys.stderr.write(f"{len(wanted)} signals were not sent: no server was there for them in time\n")
    return 1 if wanted else 0


def _sweep(root: Path, run_id: str, deadline: float) -> RunDirectory:
    """The run, once its sweep has an output folder."""
    while time.monotonic() < deadline:
        try:
            ids = list_runs(root) if run_id == "last" else [find_run(root, run_id).run_id]
        except Eagle3opsError:
            ids = []
        for one in reversed(ids):
            run = find_run(root, one)
            if run.state()["stages"].get("sweep", {}).get("status") == "running" and run.alive():
                return run
        time.sleep(0.2)
    raise SystemExit(f"no sweep runs below {root}")


def _lines(run: RunDirectory) -> list[str]:
    key = str(run.state()["stages"]["sweep"]["key"])
    path = run.root / "stages" / f"sweep-{key[:16]}" / ROWS
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")] if path.exists() else []


def _measured(run: RunDirectory) -> set[str]:
    """Roles of the servers that have been measured."""
    rows = [json.loads(line) for line in _lines(run)]
    settings = [(row["lane"], row["point"].rsplit(" @", 1)[0]) for row in rows if row["kind"] == "measured"]
    return {log_role(lane, setting) for lane, setting in settings}


def _servers(run: RunDirectory) -> dict[str, ProcessId]:
    """Servers of the sweep that live, by role."""
    found: dict[str, ProcessId] = {}
    for event in run.reader().read():
        role = str(event.data.get("role", ""))
        if event.kind == "process" and role.startswith(PREFIX):
            process = ProcessId.from_json(event.data)
            if event.data.get("state") == "started" and process is not None:
                found[role] = process
            else:
                found.pop(role, None)
    return {role: process for role, process in found.items() if identify(process.pid) == process}


def _tell(**said: object) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
