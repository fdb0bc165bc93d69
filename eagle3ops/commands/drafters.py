"""What do `eagle3ops drafters list|show|promote|rollback` print?"""

import sys
import time
from argparse import Namespace
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from eagle3ops.commands.desk import LOCAL, Desk
from eagle3ops.commands.output import table, write, write_json
from eagle3ops.errors import ExitCode, RequestError
from eagle3ops.words import plain

VERDICTS = ("wiring", "equal_output", "accept_length", "divergence")
NOTHING = "no drafter: the target alone"


def drafters(args: Namespace, root: str | None, host: str | None, *, json: bool) -> int:
    """Carry out `eagle3ops drafters ...`."""
    desk = Desk(host or LOCAL, root)
    command = args.drafters_command
    if command == "list":
        return _list(desk, json=json)
    if command == "show":
        return _show(desk, args.target, json=json)
    if command == "promote":
        if args.force and not (args.reason or "").strip():
            raise RequestError("--force needs --reason TEXT", remedy="say why the gate is overruled; it is recorded")
        # The token makes a request whose answer was lost, and that is sent again, the same request.
        found = desk.ask(
            "drafters.promote",
            run=_run_id(desk, args.run),
            setting=args.setting,
            forced=args.force,
            reason=args.reason,
            token=uuid4().hex,
        )
        return _decided(found, "promoted", json=json)
    found = desk.ask("drafters.rollback", target=args.target, reason=args.reason, token=uuid4().hex)
    return _decided(found, "rolled back", json=json)


def _run_id(desk: Desk, run: str) -> str:
    # `last` may be another run by the time that a lost answer is asked for again.
    return str(desk.ask("runs.state", run=run)["run"])


def _list(desk: Desk, *, json: bool) -> int:
    found = desk.ask("drafters.list")
    if json:
        write_json(found)
        return ExitCode.DONE
    for path in found["damaged"]:
        sys.stderr.write(f"{plain(path)}: damaged: what is promoted there is not known\n")
    for run in found["unreadable"]:
        sys.stderr.write(f"{plain(run)}: its bench.json cannot be read\n")
    if not found["drafters"]:
        sys.stderr.write("no run has a finished benchmark\n")
        return ExitCode.DONE
    header = [
        "run",
        "target",
        "setting",
        "speed-up",
        "95 % interval",
        "accept",
        "served",
        "predicted",
        "gap",
        "verdicts",
        "state",
    ]
    table(header, [_row(row) for row in found["drafters"]])
    if found["left_out"]:
        sys.stderr.write(f"{found['left_out']} older ones are not shown\n")
    return ExitCode.DONE


def _row(row: Mapping[str, Any]) -> list[str]:
    speedup, served = row["speedup"], row["served"] or {}
    state = f"promoted at {row['promoted']}" if row["promoted"] else "faster" if row["worth_it"] else "not faster"
    return [
        plain(row["run"]),
        plain(row["target"]["name"]) if row["target"] else "-",
        plain(row["setting"] or "-"),
        f"{speedup['value']:.2f}x" if speedup else "-",
        f"{speedup['low']:.2f} to {speedup['high']:.2f}" if speedup else "-",
        _figure(row["accept_length"], ".3f"),
        f"{served['accept_length']:.3f} at {plain(served['setting'])}" if served.get("accept_length") else "-",
        _figure(served.get("predicted"), ".3f"),
        _figure(served.get("gap"), "+.1%"),
        _verdicts(row["verdicts"]),
        plain(state),
    ]


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _verdicts(found: Mapping[str, bool | None]) -> str:
    failed = [name for name in VERDICTS if found.get(name) is False]
    absent = [name for name in VERDICTS if found.get(name) is None]
    told = [f"FAIL: {', '.join(failed)}"] if failed else ["PASS"] if len(absent) < len(VERDICTS) else []
    return "; ".join([*told, *([f"not made: {', '.join(absent)}"] if absent else [])])


def _show(desk: Desk, target: str | None, *, json: bool) -> int:
    found = desk.ask("drafters.show", target=target)
    if json:
        write_json(found)
        return ExitCode.DONE
    for path in found["damaged"]:
        sys.stderr.write(f"{plain(path)}: damaged: what is promoted there is not known\n")
    if not found["promoted"]:
        sys.stderr.write("nothing is promoted; `eagle3ops drafters list` shows what could be\n")
    for one in found["promoted"]:
        _tell(one)
        for entry in one["history"]:
            write(f"  {_decision(entry)}")
    return ExitCode.DONE


def _tell(promoted: Mapping[str, Any]) -> None:
    """What holds now: the run, the setting, what it is worth, and the command that serves it."""
    target, now = promoted["target"], promoted["current"]
    write(f"target {plain(target['name'])} ({target['fingerprint'][:16]})")
    if now is None:
        write(f"promoted {NOTHING}")
    else:
        speedup = now.get("speedup")
        worth = (
            f", {speedup['value']:.2f}x of the baseline ({speedup['low']:.2f} to {speedup['high']:.2f})"
            if speedup
            else ""
        )
        write(f"promoted {plain(now['run'])} at {plain(now['setting'])}{worth}")
        write(f"drafter {plain(now['drafter'])}")
        write(f"launch {plain(now['launch_line'])}")
        before = promoted["previous"]
        told = NOTHING if before is None else f"{plain(before['run'])} at {plain(before['setting'])}"
        write(f"before that {told}")


def _decision(entry: Mapping[str, Any]) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry["ts"]))
    what = (
        f"promoted {entry['run']} at {entry['setting']}"
        if entry["action"] == "promote"
        else f"rolled back from {entry.get('from')} to {entry.get('to') or 'no drafter'}"
    )
    forced = " by force" if entry.get("forced") else ""
    reason = f": {entry['reason']}" if entry.get("reason") else ""
    return plain(f"{entry['number']}  {when}  {entry.get('by', '?')}  {what}{forced}{reason}")


def _decided(found: Mapping[str, Any], done: str, *, json: bool) -> int:
    if json:
        write_json(found)
        return ExitCode.DONE
    if not found["changed"]:
        sys.stderr.write("it was so already\n")
    else:
        sys.stderr.write(f"{done}\n")
    _tell(found)
    return ExitCode.DONE
