"""What does `eagle3ops verify` print? What an engine captures for a drafter, and whether training used the same."""

import asyncio
import shutil
import tempfile
from argparse import Namespace
from pathlib import Path

from eagle3ops import locations
from eagle3ops.commands.layers import parse_ids
from eagle3ops.commands.output import write, write_json
from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.errors import ExitCode, RequestError
from eagle3ops.wiring.lint.lint import read_target
from eagle3ops.words import plain

BOUNDARIES = "boundaries: 0 = embedding, k = output of layer k - 1"
KEPT = 10
"""Logs of engines that are kept; the oldest go."""


def verify(args: Namespace, *, json: bool) -> int:
    """Start the engine and judge; returns 0 for PASS alone, 3 for FAIL and UNDECIDED, as a pipeline ends.

    Raises:
        RequestError: a folder is none, or the ids make no sense.
        Eagle3opsError: the engine does not start, or answers something else.
    """
    from eagle3ops.wiring.live import Asked
    from eagle3ops.wiring.live import verify as judge

    target, drafter = Path(args.target), Path(args.drafter) if args.drafter else None
    for folder, what in ((target, "target"), (drafter, "drafter")):
        if folder is not None and not (folder / "config.json").is_file():
            raise RequestError(f"{folder}: holds no config.json, so no {what}", remedy="name the model's folder")
    log = _new_log(locations.state_folder() / "verify")
    asked = Asked(
        engine=args.engine,
        python=args.python,
        device=args.device,
        dtype=args.dtype,
        target=target.absolute(),
        drafter=None if drafter is None else drafter.absolute(),
        trained=_trained(args.trained_on, target),
        log=log,
        trust_remote_code=args.trust_remote_code,
        max_error=_max_error(args.max_error),
    )
    found = asyncio.run(judge(asked))
    if json:
        write_json(found.as_json() | {"engine": args.engine, "log": str(log)})
    else:
        write(f"{found.verdict}  {plain(found.reason)}")
        for note in found.notes:
            write(f"  note: {plain(note)}")
        write(f"  the engine's log: {plain(log)}")
        if found.verdict == "UNDECIDED" and asked.trained is None:
            write(f"  say which layers training used: --trained-on 2,15,27 ({BOUNDARIES})")
    return ExitCode.DONE if found.verdict == "PASS" else ExitCode.VERDICT_FAIL


def _new_log(folder: Path) -> Path:
    """A log in a folder of its own, beside the newest of earlier times.

    Raises:
        Eagle3opsError: it cannot be written there.
    """
    locations.require_writable(folder)
    earlier = sorted(folder.glob("engine-*"), key=_written)
    for old in earlier[: max(0, len(earlier) - KEPT + 1)]:
        shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix="engine-", dir=folder)) / "engine.log"


def _written(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        # Another verify has just deleted it.
        return 0.0


def _max_error(asked: float | None) -> float | None:
    if asked is not None and not 0 < asked < 1:
        raise RequestError(f"--max-error {asked:g}: it is a share of the states' own size", remedy="above 0, below 1")
    return asked


def _trained(ids: str | None, target: Path) -> AuxLayers | None:
    if ids is None:
        return None
    layers = read_target(target).size("num_hidden_layers")
    if layers is None:
        raise RequestError(f"{target}: its config says no num_hidden_layers", remedy="name the target's folder")
    try:
        return AuxLayers(tuple(parse_ids(ids)), layers)
    except ValueError as error:
        raise RequestError(
            f"--trained-on: {error}", remedy="boundaries: 0 = embedding, k = output of layer k - 1"
        ) from error
