"""What does `eagle3ops convert` print? Where a drafter was written to, what it reads, and what lint finds there."""

from argparse import Namespace
from pathlib import Path

from eagle3ops.commands.output import write, write_json
from eagle3ops.errors import Eagle3opsError, ExitCode
from eagle3ops.runs.files import explain_os_error
from eagle3ops.wiring.convert.convert import convert as carry_over
from eagle3ops.words import plain


def convert(args: Namespace, *, json: bool) -> int:
    """Convert; returns 3 when lint finds an error in what was written."""
    out = Path(args.out)
    try:
        made = carry_over(
            Path(args.drafter),
            Path(args.target),
            args.to,
            out,
            form=args.form,
            sglang=args.sglang_version,
            vllm=args.vllm_version,
        )
    except OSError as error:
        told = explain_os_error(error, out)
        raise Eagle3opsError(
            told.what if told else f"{out}: {error}", remedy="name another folder with --out, where there is room"
        ) from error
    errors = sum(one.severity == "error" for _, one in made.findings)
    if json:
        write_json({
            "out": str(out), "from": made.form, "to": args.to, "boundary": list(made.layers.boundary),
            "assumed": made.assumed, "errors": errors,
            "findings": [{"engine": engine, **one.as_json()} for engine, one in made.findings],
        })  # fmt: skip
    else:
        write(f"{plain(out)}: from the form of {made.form}; it reads {made.layers}; every tensor is the same bytes")
        if made.assumed:
            write("warn   it names no layers: these are the default of all trainers; ask its trainer whether they hold")
        for engine, one in made.findings:
            write(f"{one.severity:5}  {engine}: {plain(one.code)}  {plain(one.where)}: {plain(one.what)}")
            write(f"       {plain(one.cause)}")
            write(f"       -> {plain(one.fix)}")
    return ExitCode.VERDICT_FAIL if errors else ExitCode.DONE
