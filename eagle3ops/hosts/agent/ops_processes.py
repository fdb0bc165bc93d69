"""Ops about what a run has started and made: its processes, their environments, its artifacts."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3ops.errors import RequestError
from eagle3ops.hosts.agent.operation import Surroundings, operation
from eagle3ops.runs.events import Event, parse_line

if TYPE_CHECKING:
    from eagle3ops.runs.directory import RunDirectory

MOST_PROCESSES = 1000
"""The newest so many are sent."""
MOST_ARGV = 64 << 10
"""Characters of the arguments of one process that are sent; of all together 16 times as many."""
MOST_ARTIFACTS = 500
MOST_FILES = 20_000
"""Files that are looked at to say how large a folder is."""
MOST_NAMED = 200
"""Files of one artifact that are named."""
LOOK_S = 2.0
"""How long all folders together are looked at."""


def processes(here: Surroundings, *, run: str) -> dict[str, Any]:
    """Every process that the run has started, newest last, and how it ended.

    `state` is `running`, `ended`, or `lost`: it lives no more, and nobody was left to say how it ended.
    """
    from eagle3ops.runs.directory import find_run
    from eagle3ops.runs.processes import is_alive

    found = find_run(here.root, run)
    rows: dict[int, dict[str, Any]] = {}
    open_rows: dict[tuple[str, ...], int] = {}
    for event in _events(found, b'"process"', "process"):
        data = event.data
        key = (str(event.stage), str(data.get("role")), str(data.get("pid")))
        if data.get("state") == "started":
            rows[event.seq] = {
                "event": event.seq,
                "stage": event.stage,
                "role": str(data.get("role", "")),
                "rank": _text(data.get("rank")),
                "pid": _whole(data.get("pid")),
                "start": _whole(data.get("start")),
                "boot": _text(data.get("boot")),
                "argv": data.get("argv") if isinstance(data.get("argv"), list) else [],
                "log": _text(data.get("log")),
                "offset": _whole(data.get("offset")),
                "environment": _text(data.get("environment")),
                "started": event.ts,
                "state": "running",
                "ended": None,
                "code": None,
            }
            open_rows[key] = event.seq
        elif data.get("state") == "ended":
            seq = open_rows.pop(key, None)
            if seq is not None:
                rows[seq] |= {"state": "ended", "ended": event.ts, "code": _whole(data.get("code"))}
    kept = list(rows.values())[-MOST_PROCESSES:]
    for row in kept:
        if row["state"] == "running" and not is_alive(row):
            # The supervisor is the last to go and cannot say so of itself; the run's own end says it.
            row["state"] = "ended" if row["role"] == "supervisor" and row["stage"] is None else "lost"
    if (supervisor := _supervisor(kept)) is not None and supervisor["state"] == "ended":
        state = found.state()
        killed = found.status() == "interrupted"
        supervisor |= (
            {"state": "lost"} if killed else {"ended": state.get("ended"), "code": _whole(state.get("exit_code"))}
        )
    _shorten(kept)
    return {"run": found.run_id, "total": len(rows), "left_out": len(rows) - len(kept), "processes": kept}


def _whole(value: object) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    return int(value) if whole else None  # type: ignore[call-overload]


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _supervisor(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The row of the last supervisor."""
    return next((row for row in reversed(rows) if row["role"] == "supervisor" and row["stage"] is None), None)


def _shorten(rows: list[dict[str, Any]]) -> None:
    """Leave out arguments that are too much to be sent, and say how many."""
    budget = 16 * MOST_ARGV
    for row in reversed(rows):
        used, kept = 0, []
        for argument in map(str, row["argv"]):
            used += len(argument)
            if used > MOST_ARGV or used > budget:
                break
            kept.append(argument)
        budget -= min(used, budget)
        row["argv_left_out"] = len(row["argv"]) - len(kept)
        row["argv"] = kept


def environment(here: Surroundings, *, run: str, environment: str) -> dict[str, Any]:
    """The variables that a process was started with, and how they differ from those of the run's last supervisor."""
    from eagle3ops.runs import environments
    from eagle3ops.runs.directory import find_run

    found = find_run(here.root, run)
    variables = environments.recall(found.path, environment)
    if variables is None:
        raise RequestError(
            f"{found.run_id}: no environment {environment[:40]!a} is written down",
            remedy="runs that an older eagle3ops started have none",
        )
    base = _base(found)
    differences = environments.differences(variables, base or {})
    return {
        "run": found.run_id,
        "environment": environment,
        "variables": variables,
        "compared": base is not None,
        "changed": {name: list(pair) for name, pair in differences.changed.items()} if base is not None else {},
        "removed": differences.removed,
    }


def _base(run: "RunDirectory") -> dict[str, str] | None:
    from eagle3ops.runs import environments

    last = None
    for event in _events(run, b'"supervisor"', "process"):
        if event.stage is None and isinstance(event.data.get("environment"), str):
            last = event.data["environment"]
    return None if last is None else environments.recall(run.path, last)


def _events(run: "RunDirectory", mark: bytes, kind: str) -> Iterator[Event]:
    """The events of one kind; only lines that hold `mark` are read as JSON, as most are metrics."""
    try:
        file = run.events_file.open("rb")
    except FileNotFoundError:
        return
    with file:
        for line in file:
            if mark in line and line.endswith(b"\n") and (event := parse_line(line)) and event.kind == kind:
                yield event


def artifacts(here: Surroundings, *, run: str) -> dict[str, Any]:
    """What the run's stages made and named: where it is, whether it is still there, how large.

    A folder's `files` and `bytes` are null when looking at them would take too long.
    """
    from eagle3ops.runs.directory import find_run

    found = find_run(here.root, run)
    named: dict[str, Event] = {}
    for event in _events(found, b'"artifact"', "artifact"):
        path = event.data.get("path")
        if isinstance(path, str) and path and "\0" not in path:
            named.pop(path, None)
            named[path] = event
    kept = list(named.items())[-MOST_ARTIFACTS:]
    until = time.monotonic() + LOOK_S
    rows = [
        {
            "path": path,
            "stage": event.stage,
            "note": str(event.data.get("note", "")),
            "reused": event.data.get("reused") is True,
            "named": event.ts,
            **_look(Path(path), until),
        }
        for path, event in kept
    ]
    return {"run": found.run_id, "root": str(found.root), "left_out": len(named) - len(rows), "artifacts": rows}


def _look(path: Path, until: float) -> dict[str, Any]:
    try:
        stat = path.stat()
        if not path.is_dir():
            return {"exists": True, "kind": "file", "bytes": stat.st_size, "files": 1, "modified": stat.st_mtime}
        return {"exists": True, "kind": "folder", "modified": stat.st_mtime, **_inside(path, until)}
    except (OSError, ValueError) as error:
        why = None if isinstance(error, FileNotFoundError) else str(getattr(error, "strerror", None) or error)
        return {"exists": False, "kind": None, "bytes": None, "files": None, "modified": None, "why": why}


def _inside(folder: Path, until: float) -> dict[str, Any]:
    """How many files are below a folder, how large they are, and the first of them by name.

    Nothing is said of the sizes where a folder inside may not be read. A file that goes while it is looked at was none.
    """
    count = size = 0
    names: list[tuple[str, int]] = []
    closed: list[OSError] = []
    for place, folders, files in os.walk(folder, onerror=closed.append):
        folders.sort()
        for name in sorted(files):
            count += 1
            if count > MOST_FILES or time.monotonic() > until:
                return {"bytes": None, "files": None, "inside": names}
            file = Path(place, name)
            try:
                length = file.lstat().st_size
            except FileNotFoundError:
                count -= 1
                continue
            size += length
            if len(names) < MOST_NAMED:
                names.append((str(file.relative_to(folder)), length))
    if refused := [error for error in closed if not isinstance(error, FileNotFoundError)]:
        return {"bytes": None, "files": None, "inside": names, "why": f"{refused[0].filename}: {refused[0].strerror}"}
    return {"bytes": size, "files": count, "inside": names}


OPERATIONS = (
    operation("runs.processes", processes),
    operation("runs.environment", environment),
    operation("runs.artifacts", artifacts),
)
