"""What does `eagle3ops kernels` print? Which file Python imports, for which GPUs it holds code, and what shadows it."""

from argparse import Namespace
from pathlib import Path

from eagle3ops.building.architectures import parse_arch
from eagle3ops.building.built import read_built
from eagle3ops.building.gpu import here
from eagle3ops.building.imported import ask
from eagle3ops.building.proof import lines, prove
from eagle3ops.commands.output import write, write_json
from eagle3ops.errors import ExitCode
from eagle3ops.words import plain


def kernels(args: Namespace, *, json: bool) -> int:
    """Print it; returns 3 when the GPU's code is not there, or what is imported is not what was built."""
    arch = parse_arch(args.arch) if args.arch else here()
    built = read_built(Path(args.built)) if args.built else None
    imported = ask(str(Path(args.python).expanduser()), args.package, load=args.load)
    proof = prove(imported, arch, built)
    if json:
        write_json(proof.as_json())
    else:
        for line in lines(proof):
            write(plain(line))
        if arch is None:
            write("no GPU was asked about and none is here: --arch sm_90 asks whether its code is there")
    return ExitCode.DONE if proof.passed else ExitCode.VERDICT_FAIL
