"""What does `eagle3ops incidents` print?"""

import sys
from argparse import Namespace

from eagle3ops.commands.desk import LOCAL, Desk
from eagle3ops.commands.output import when, write, write_json
from eagle3ops.errors import ExitCode
from eagle3ops.words import elsewhere, plain


def incidents(args: Namespace, root: str | None, host: str | None, *, json: bool) -> int:
    """`eagle3ops incidents [RUN]`: what went wrong, with evidence and remedies, the newest last."""
    desk = Desk(host or LOCAL, root)
    found = desk.ask("incidents.list", **({"run": args.run} if args.run else {"runs": args.runs}))

    def mean(words: str) -> str:
        return plain(words if desk.host == LOCAL else elsewhere(words, desk.host))

    told = [one for one in found["incidents"] if args.all or not one["over"]]
    if json:
        write_json(told)
        return ExitCode.DONE
    for one in reversed(told):
        over = "over" if one["over"] else "open"
        count = f" ({one['count']} times)" if one["count"] > 1 else ""
        write(f"{when(one['last'])}  {one['severity']}  {over}  {plain(one['run'])}  {plain(one['title'])}{count}")
        if one["explanation"]:
            write(f"    {plain(one['explanation'])}")
        for evidence in one["evidence"]:
            at = f" [{plain(evidence['log'])}" if evidence["log"] else ""
            at += f", byte {evidence['offset']}]" if at and evidence["offset"] is not None else "]" if at else ""
            write(f"    {plain(evidence['what'])}{at}")
        for remedy in one["remedies"]:
            # Opening a room is for the console; where the evidence is says the remedy itself.
            if remedy["command"] or remedy["action"] in ("", "evidence"):
                command = f": {mean(remedy['command'])}" if remedy["command"] not in ("", remedy["words"]) else ""
                write(f"    -> {mean(remedy['words'])}{command}")
    hidden = len(found["incidents"]) - len(told)
    if not told:
        sys.stderr.write("no incident stands\n")
    if hidden:
        sys.stderr.write(f"{hidden} more are over; --all shows them\n")
    return ExitCode.DONE
