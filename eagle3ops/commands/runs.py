"""What do `plan`, `spec` and `runs` print?"""

import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from eagle3ops import locations
from eagle3ops.commands.desk import LOCAL, Desk
from eagle3ops.commands.jobs import follow, read_pipeline, take_up_again
from eagle3ops.commands.output import table, when, write, write_json
from eagle3ops.errors import ExitCode, RequestError
from eagle3ops.hosts.agent.protocol import error_from
from eagle3ops.runs.directory import find_run
from eagle3ops.runs.job import Forecast, load_registry
from eagle3ops.runs.planning import total
from eagle3ops.spec.load import dump_pipeline, require_known_names
from eagle3ops.spec.schema import json_schema
from eagle3ops.words import human_bytes, human_seconds, plain

CANCEL_WAIT_S = 20.0


def plan_or_spec(args: Namespace, root: str | None, host: str | None, overrides: Sequence[str], *, json: bool) -> int:
    """`eagle3ops plan` and `eagle3ops spec schema|check`."""
    registry = load_registry()
    if args.command == "spec" and args.spec_command == "schema":
        write_json(json_schema(registry.specs()))
        return ExitCode.DONE
    pipeline, source = read_pipeline(_file_of(args), registry, overrides)
    if args.command == "spec":
        if json:
            write_json(pipeline.model_dump(mode="json", by_alias=True))
        else:
            sys.stdout.write(dump_pipeline(pipeline))
            sys.stderr.write(f"{source}: right\n")
        return ExitCode.DONE
    require_known_names([args.plan_job], ["pipeline", *registry.names()], "job")
    desk = Desk(host or pipeline.host, root)
    if desk.host != LOCAL:
        from eagle3ops.commands import remote

        # As a job would: the places of files on the host are part of what is done already.
        pipeline = remote.with_files(desk.host, root, pipeline)
    planned = desk.ask("runs.plan", spec_text=dump_pipeline(pipeline), job=args.plan_job, source=source)
    if json:
        write_json(planned)
    else:
        _plan_table(planned)
    if planned["refused"]:
        # An older agent does not tell as which kind of failure a job would end.
        code = planned.get("exit_code") or int(ExitCode.REFUSED)
        raise error_from({"what": planned["refused"], "remedy": planned["remedy"], "exit_code": code})
    return ExitCode.DONE


def _file_of(args: Namespace) -> str | None:
    named: str | None = getattr(args, "plan_spec", None)
    if named is not None and args.file is not None:
        raise RequestError(
            f"two pipeline files are named, {args.file} and --spec {named}", remedy="leave one of them out"
        )
    return named or args.file


def _plan_table(planned: Mapping[str, Any]) -> None:
    stages = planned["stages"]
    forecasts = {stage["stage"]: Forecast(**stage["forecast"]) for stage in stages}
    due = [stage["stage"] for stage in stages if not stage["done"]]
    rows = [
        [
            stage["stage"],
            "done" if stage["done"] else "refused" if stage.get("refusal") else "will run",
            *_forecast(forecasts[stage["stage"]]),
            ", ".join(stage["outputs"]),
        ]
        for stage in stages
    ]
    rows.append(["all", f"{len(due)} to run", *_forecast(total([forecasts[name] for name in due])), ""])
    write(planned["source"])
    table(["stage", "state", "tokens", "disk", "memory", "time", "outputs"], rows)
    for stage in stages:
        if stage["reason"]:
            write(f"{stage['stage']}: done again: {plain(stage['reason'])}")
        for note in stage["forecast"]["notes"]:
            write(f"{stage['stage']}: {plain(note)}")
    for refusal in dict.fromkeys(stage.get("refusal") for stage in stages if not stage["done"]):
        if refusal:
            whose = ", ".join(stage["stage"] for stage in stages if stage.get("refusal") == refusal)
            write(f"{whose}: refused: {plain(refusal.partition(chr(10))[0])}")
    free = planned["free_bytes"]
    disk = human_bytes(free) if free is not None else "?"
    memory = human_bytes(planned["available_memory_bytes"])
    write(f"root {plain(planned['root'])}: {disk} free; memory: {memory} available")


def _forecast(forecast: Any) -> list[str]:
    return [
        "-" if forecast.tokens is None else f"{forecast.tokens:,}",
        "-" if forecast.disk_bytes is None else human_bytes(forecast.disk_bytes),
        "-" if forecast.memory_bytes is None else human_bytes(forecast.memory_bytes),
        "-" if forecast.seconds is None else human_seconds(forecast.seconds),
    ]


def runs(args: Namespace, root: str | None, host: str | None, *, json: bool) -> int:
    """`eagle3ops runs ...`."""
    desk = Desk(host or LOCAL, root)
    command = args.runs_command
    if command == "list":
        return _list(desk, json=json)
    if command == "show":
        return _show(desk, args.run, json=json)
    if command == "diff":
        return _diff(desk, args.run, args.other, json=json)
    if command == "wiring":
        from eagle3ops.commands.wiring import wiring

        return wiring(desk, args.run, json=json)
    if command == "gc":
        return _gc(desk, args, json=json)
    if command in ("note", "delete"):
        from eagle3ops.commands import notes

        return notes.note(desk, args, json=json) if command == "note" else notes.delete(desk, args, json=json)
    if command == "cancel":
        return _cancel(desk, args.run, json=json)
    if desk.host != LOCAL:
        from eagle3ops.commands import remote

        if command == "follow":
            return remote.follow(desk.host, root, args.run, json=json)
        return remote.resume(desk.host, root, args.run, json=json, detach=args.resume_detach, yes=args.resume_yes)
    run = find_run(locations.root(root), args.run)
    if command == "follow":
        return follow(run, json=json)
    return take_up_again(run, json=json, detach=args.resume_detach, yes=args.resume_yes)


def _cancel(desk: Desk, run: str, *, json: bool) -> int:
    # Which run `last` is, is asked once: by the time that a lost answer is asked for again, it may be another one.
    found = desk.ask("runs.state", run=run)
    run_id = found["run"]
    asked = desk.ask("runs.cancel", run=run_id)
    if not found["alive"] and not asked["asked"]:
        return _swept(desk, asked, json=json)
    deadline = time.monotonic() + CANCEL_WAIT_S
    while alive := desk.ask("runs.state", run=run_id)["alive"]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.1 if desk.host == LOCAL else 1.0)
    if alive:
        sys.stderr.write(
            f"{run_id}: asked to end, still running after {CANCEL_WAIT_S:.0f} s; it is ended for good when what it is "
            f"doing lets go\n  see what holds it: {desk.command('show', run_id)}\n"
        )
        return ExitCode.FAILED
    status = desk.ask("runs.state", run=run_id)["status"]
    if json:
        write_json({"run": run_id, "host": desk.host, "status": status})
    sys.stderr.write(f"{run_id}: {plain(status)}\n")
    if status != "done":
        sys.stderr.write(f"  take it up again: {desk.command('resume', run_id)}\n")
    return ExitCode.DONE


def _swept(desk: Desk, asked: Mapping[str, Any], *, json: bool) -> int:
    """Nobody looked after the run; what it had left running is ended now."""
    run_id, ended = asked["run"], asked.get("ended") or []
    if not ended:
        raise RequestError(f"{run_id} is not running; it is {asked['status']}")
    if json:
        write_json({"run": run_id, "host": desk.host, "status": asked["status"], "ended": ended})
    processes = f"process{'es' if len(ended) > 1 else ''} {', '.join(map(str, ended))}"
    sys.stderr.write(f"{run_id}: it was {plain(asked['status'])}; ended what it had left running: {processes}\n")
    sys.stderr.write(f"  take it up again: {desk.command('resume', run_id)}\n")
    return ExitCode.DONE


def _list(desk: Desk, *, json: bool) -> int:
    found = desk.ask("runs.list")
    if json:
        write_json(found["runs"])
        return ExitCode.DONE
    if not found["runs"]:
        sys.stderr.write(f"no runs in {found['root']}{'' if desk.host == LOCAL else f' on {desk.host}'}\n")
        return ExitCode.DONE
    rows = []
    for run in found["runs"]:
        took = "-" if run["started"] is None or run["ended"] is None else human_seconds(run["ended"] - run["started"])
        done = sum(status in ("done", "reused") for status in run["stages"].values())
        rows.append(
            [
                plain(run["run_id"]),
                plain(run["job"]),
                plain(run["status"]),
                "-" if run["exit_code"] is None else str(run["exit_code"]),
                f"{done}/{len(run['stages'])}",
                when(run["created"]),
                took,
                plain(run["cause"] or ""),
            ]
        )
    table(["run", "job", "status", "exit", "stages", "created", "took", "cause"], rows)
    return ExitCode.DONE


def _show(desk: Desk, run_id: str, *, json: bool) -> int:
    found = desk.ask("runs.show", run=run_id)
    if json:
        write_json(found)
        return ExitCode.DONE
    write(f"{found['run_id']}  {found['status']}  exit {found['exit_code']}")
    write(f"job {found['job']} from {plain(found['source'])}")
    write(f"created {when(found['created'])}, started {when(found['started'])}, ended {when(found['ended'])}")
    write(f"folder {found['path']}")
    if found["cause"]:
        write(f"cause {plain(found['cause'])}")
    for name, stage in found["state"].get("stages", {}).items():
        took = stage.get("seconds")
        words = [name.ljust(9), stage["status"], human_seconds(took) if isinstance(took, int | float) else ""]
        write(
            "  "
            + "  ".join(word for word in [*words, str(stage.get("out", "")), plain(stage.get("error", ""))] if word)
        )
    if found.get("notes"):
        from eagle3ops.commands.notes import write_notes

        write_notes(found["notes"])
    for recipe, standing in found.get("patches", {}).items():
        write(f"patch {plain(recipe)}: {plain(standing)}")
    for name, text in found["verdicts"].items():
        write(f"verdict {plain(name)}: {plain(text)}")
    for name, value in found["metrics"].items():
        write(f"metric {plain(name)} = {value:.6g}")
    for path, note in found["artifacts"].items():
        write(f"artifact {plain(path)}  {plain(note)}")
    return ExitCode.DONE


def _diff(desk: Desk, first: str, second: str, *, json: bool) -> int:
    found = desk.ask("runs.diff", run=first, other=second)
    if json:
        write_json(found)
        return ExitCode.DONE
    for section, entries in found.items():
        for name, (one, two) in entries.items():
            write(f"{section}  {plain(name)}: {_value(one)} -> {_value(two)}")
    if not any(found.values()):
        write("no differences")
    return ExitCode.DONE


def _value(found: object) -> str:
    """As long as a person reads it; `--json` has all digits."""
    return "-" if found is None else f"{found:.6g}" if isinstance(found, float) else plain(found)


def _gc(desk: Desk, args: Namespace, *, json: bool) -> int:
    found = desk.ask("runs.gc", keep=args.keep, older_than_days=args.older_than, delete=args.gc_yes)
    if json:
        write_json(found)
        return ExitCode.DONE
    for item in found["items"]:
        write(f"{item['kind']}  {human_bytes(item['bytes']).rjust(10)}  {plain(item['path'])}")
    if found["deleted"]:
        write(f"deleted {len(found['items'])} folders, {human_bytes(found['bytes'])}")
    else:
        write(f"{len(found['items'])} folders, {human_bytes(found['bytes'])} would be deleted; do it with --yes")
    return ExitCode.DONE
