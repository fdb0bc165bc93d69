"""What do `plan`, `spec` and `runs` print?"""

import json as jsonlib
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eagle3ops import locations
from eagle3ops.errors import ExitCode, Refused, RequestError
from eagle3ops.headless import follow, read_pipeline, take_up_again
from eagle3ops.narration import plain
from eagle3ops.runs.directory import find_run
from eagle3ops.runs.files import explain_os_error
from eagle3ops.runs.gc import collect, find_garbage
from eagle3ops.runs.job import load_registry
from eagle3ops.runs.ledger import Ledger, diff, show
from eagle3ops.runs.orders import cancel
from eagle3ops.runs.planning import (
    StagePlan,
    admit,
    available_memory,
    choose,
    free_bytes,
    human_bytes,
    human_seconds,
    plan_stages,
    total,
)
from eagle3ops.spec.load import dump_pipeline, json_schema, require_known_names

CANCEL_WAIT_S = 20.0


def _write(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _write_json(data: Any) -> None:
    _write(jsonlib.dumps(data, indent=2, ensure_ascii=False, default=str))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    for row in [header, *rows]:
        _write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def plan_or_spec(args: Namespace, root: str | None, host: str | None, overrides: Sequence[str], *, json: bool) -> int:
    """`eagle3ops plan` and `eagle3ops spec schema|check`."""
    registry = load_registry()
    if args.command == "spec" and args.spec_command == "schema":
        _write_json(json_schema(registry.specs()))
        return ExitCode.DONE
    pipeline, source = read_pipeline(args.file, registry, overrides)
    if args.command == "spec":
        if json:
            _write_json(pipeline.model_dump(mode="json", by_alias=True))
        else:
            sys.stdout.write(dump_pipeline(pipeline))
            sys.stderr.write(f"{source}: right\n")
        return ExitCode.DONE
    require_known_names([args.plan_job], ["pipeline", *registry.names()], "job")
    where = locations.root(root)
    planned = plan_stages(pipeline, registry, where, locations.cache())
    stages = choose(planned, registry, args.plan_job)
    refusal: Refused | None = None
    try:
        admit(stages, where)
    except Refused as error:
        refusal = error
    if json:
        _write_json(
            {
                "source": source,
                "root": str(where),
                "free_bytes": free_bytes(where),
                "available_memory_bytes": available_memory(),
                "stages": [stage.as_json() for stage in stages],
                "refused": refusal.what if refusal else None,
            }
        )
    else:
        _plan_table(stages, source, where)
    if refusal is not None:
        raise refusal
    return ExitCode.DONE


def _plan_table(stages: Sequence[StagePlan], source: str, root: Path) -> None:
    due = [stage for stage in stages if not stage.done]
    rows = [
        [
            stage.name,
            "done" if stage.done else "will run",
            *_forecast(stage.plan.forecast),
            ", ".join(stage.plan.outputs),
        ]
        for stage in stages
    ]
    rows.append(["all", f"{len(due)} to run", *_forecast(total([stage.plan.forecast for stage in due])), ""])
    _write(source)
    _table(["stage", "state", "tokens", "disk", "memory", "time", "outputs"], rows)
    for stage in stages:
        if stage.reason:
            _write(f"{stage.name}: done again: {plain(stage.reason)}")
        for note in stage.plan.forecast.notes:
            _write(f"{stage.name}: {note}")
    free = free_bytes(root)
    disk = human_bytes(free) if free is not None else "?"
    _write(f"root {root}: {disk} free; memory: {human_bytes(available_memory())} available")


def _forecast(forecast: Any) -> list[str]:
    return [
        "-" if forecast.tokens is None else f"{forecast.tokens:,}",
        "-" if forecast.disk_bytes is None else human_bytes(forecast.disk_bytes),
        "-" if forecast.memory_bytes is None else human_bytes(forecast.memory_bytes),
        "-" if forecast.seconds is None else human_seconds(forecast.seconds),
    ]


def runs(args: Namespace, root: str | None, host: str | None, *, json: bool) -> int:
    """`eagle3ops runs ...`."""
    where = locations.root(root)
    command = args.runs_command
    if command == "list":
        return _list(where, json=json)
    if command == "show":
        return _show(where, args.run, json=json)
    if command == "diff":
        return _diff(where, args.run, args.other, json=json)
    if command == "gc":
        return _gc(where, args, json=json)
    run = find_run(where, args.run)
    if command == "follow":
        return follow(run, json=json)
    if command == "resume":
        return take_up_again(run, json=json, detach=args.resume_detach, yes=args.resume_yes)
    if not cancel(run):
        raise RequestError(f"{run.run_id} is not running; it is {run.status()}")
    deadline = time.monotonic() + CANCEL_WAIT_S
    while run.alive() and time.monotonic() < deadline:
        time.sleep(0.1)
    if run.alive():
        sys.stderr.write(f"{run.run_id}: asked to end, still running after {CANCEL_WAIT_S:.0f} s\n")
        return ExitCode.FAILED
    sys.stderr.write(f"{run.run_id}: cancelled\n  take it up again: {run.command('resume')}\n")
    return ExitCode.DONE


def _when(seconds: float | None) -> str:
    return "-" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _list(root: Path, *, json: bool) -> int:
    summaries = Ledger(root).runs()
    if json:
        _write_json([asdict(summary) for summary in summaries])
        return ExitCode.DONE
    if not summaries:
        sys.stderr.write(f"no runs in {root}\n")
        return ExitCode.DONE
    rows = []
    for run in summaries:
        took = "-" if run.started is None or run.ended is None else human_seconds(run.ended - run.started)
        done = sum(status in ("done", "reused") for status in run.stages.values())
        code = "-" if run.exit_code is None else str(run.exit_code)
        rows.append(
            [
                run.run_id,
                run.job,
                run.status,
                code,
                f"{done}/{len(run.stages)}",
                _when(run.created),
                took,
                plain(run.cause or ""),
            ]
        )
    _table(["run", "job", "status", "exit", "stages", "created", "took", "cause"], rows)
    return ExitCode.DONE


def _show(root: Path, run_id: str, *, json: bool) -> int:
    found = show(root, run_id)
    if json:
        _write_json(found)
        return ExitCode.DONE
    _write(f"{found['run_id']}  {found['status']}  exit {found['exit_code']}")
    _write(f"job {found['job']} from {plain(found['source'])}")
    _write(f"created {_when(found['created'])}, started {_when(found['started'])}, ended {_when(found['ended'])}")
    _write(f"folder {found['path']}")
    if found["cause"]:
        _write(f"cause {plain(found['cause'])}")
    for name, stage in found["state"].get("stages", {}).items():
        took = stage.get("seconds")
        words = [name.ljust(9), stage["status"], human_seconds(took) if isinstance(took, int | float) else ""]
        _write(
            "  "
            + "  ".join(word for word in [*words, str(stage.get("out", "")), plain(stage.get("error", ""))] if word)
        )
    for name, text in found["verdicts"].items():
        _write(f"verdict {plain(name)}: {plain(text)}")
    for name, value in found["metrics"].items():
        _write(f"metric {plain(name)} = {value:.6g}")
    for path, note in found["artifacts"].items():
        _write(f"artifact {plain(path)}  {plain(note)}")
    return ExitCode.DONE


def _diff(root: Path, first: str, second: str, *, json: bool) -> int:
    found = diff(root, first, second)
    if json:
        _write_json(found)
        return ExitCode.DONE
    for section, entries in found.items():
        for name, (one, two) in entries.items():
            _write(f"{section}  {plain(name)}: {plain(one)} -> {plain(two)}")
    if not any(found.values()):
        _write("no differences")
    return ExitCode.DONE


def _gc(root: Path, args: Namespace, *, json: bool) -> int:
    garbage = find_garbage(root, keep=args.keep, older_than_days=args.older_than)
    try:
        gone = collect(garbage) if args.gc_yes else garbage
    except OSError as error:
        raise explain_os_error(error) or error from error
    size = sum(item.bytes for item in gone)
    if json:
        rows = [{"kind": item.kind, "path": str(item.path), "bytes": item.bytes} for item in gone]
        _write_json({"deleted": bool(args.gc_yes), "bytes": size, "items": rows})
        return ExitCode.DONE
    for item in gone:
        _write(f"{item.kind}  {human_bytes(item.bytes).rjust(10)}  {item.path}")
    if args.gc_yes:
        _write(f"deleted {len(gone)} folders, {human_bytes(size)}")
    else:
        _write(f"{len(gone)} folders, {human_bytes(size)} would be deleted; do it with --yes")
    return ExitCode.DONE
