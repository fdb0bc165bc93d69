"""What does `eagle3ops lint` print? What is wrong with a drafter's checkpoint, why, and what mends it."""

from argparse import Namespace
from pathlib import Path

from eagle3ops.commands.output import write, write_json
from eagle3ops.errors import ExitCode
from eagle3ops.wiring.lint.lint import lint as find
from eagle3ops.words import plain


def lint(args: Namespace, *, json: bool) -> int:
    """Print the findings; returns 3 when one of them is an error."""
    findings = find(Path(args.drafter), Path(args.target), args.engine, args.engine_version)
    errors = sum(finding.severity == "error" for finding in findings)
    if json:
        write_json({
            "drafter": args.drafter, "target": args.target, "engine": args.engine,
            "engine_version": args.engine_version, "errors": errors,
            "findings": [finding.as_json() for finding in findings],
        })  # fmt: skip
    else:
        for finding in findings:
            write(f"{finding.severity:5}  {plain(finding.code)}  {plain(finding.where)}: {plain(finding.what)}")
            write(f"       {plain(finding.cause)}")
            write(f"       -> {plain(finding.fix)}")
        if not findings:
            write("nothing is known to be wrong; whether the tensors are the right ones is measured: eagle3ops verify")
    return ExitCode.VERDICT_FAIL if errors else ExitCode.DONE
