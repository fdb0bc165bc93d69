"""What does `eagle3ops diagnose` print?"""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from eagle3ops.commands.desk import LOCAL, Desk
from eagle3ops.commands.output import write, write_json
from eagle3ops.errors import ExitCode, RequestError
from eagle3ops.words import plain

_VERDICTS = {
    "failure": "it failed",
    "hang": "it hangs, or hung until it was ended",
    "no_failure": "no failure found",
    "unknown": "nothing here tells how it went",
}


def diagnose(args: Namespace, root: str | None, host: str | None, *, json: bool) -> int:
    """`eagle3ops diagnose FILE...` and `eagle3ops diagnose --run RUN`."""
    if bool(args.files) == bool(args.diagnose_run):
        raise RequestError(
            "diagnose takes log files or --run, and one of them",
            remedy="eagle3ops diagnose FILE..., or eagle3ops diagnose --run last",
        )
    if args.diagnose_run:
        found = Desk(host or LOCAL, root).ask("runs.diagnose", run=args.diagnose_run)
    else:
        if host is not None and host != LOCAL:
            raise RequestError("log files are read on this machine; --host goes with --run")
        from eagle3ops.forensics.diagnosis import diagnose_files

        found = diagnose_files(args.files).plain()
    if json:
        write_json({key: found[key] for key in ("verdict", "root", "suspect_ranks", "discounted", "notes")})
    else:
        _tell(found)
    return ExitCode.DONE


def _tell(found: Mapping[str, Any]) -> None:
    write(_VERDICTS.get(found["verdict"], plain(found["verdict"])))
    root = found["root"]
    if found["verdict"] == "no_failure":
        write("  -> what hangs without a word shows in its processes only: eagle3ops watch, eagle3ops incidents RUN")
    if root is not None:
        write(f"  {plain(root['file'])}:{root['line_no']} (byte {root['offset']})")
        write(f"  {plain(root['text'])}")
        write(f"  {plain(root['category'])}, {root['confidence']:.0%} sure: {plain(root['explanation'])}")
        write(f"  -> {plain(root['fix'])}")
        write(f"  known from: {plain(root['source'])}; fingerprint {plain(root['fingerprint'])}")
    if found["suspect_ranks"]:
        write("  suspect ranks: " + ", ".join(plain(rank) for rank in found["suspect_ranks"]))
    for note in found["notes"]:
        write(f"  note: {plain(note)}")
    if found["discounted"]:
        write("discounted:")
    for one in found["discounted"]:
        times = f" ({one['count']} times)" if one["count"] > 1 else ""
        write(f"  {plain(one['file'])}:{one['line_no']}  {plain(one['reason'])}{times}")
        write(f"    {plain(one['text'])[:160]}")
