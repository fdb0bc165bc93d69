"""How do extract and train share the GPUs and a disk quota? In turns, each phase a process of its own.

    extract   the target alone writes the hidden states of one part     train-<key>/turn-00007/
    train     the drafter alone trains the part's steps                 train-<key>/checkpoint/
    (delete)  once the checkpoint at the end of the part is durable
    conclude  after the last turn: export, check, predict

Where it stands is what the newest sound checkpoint says, and nothing else: after a kill, the turn of that step is taken
up again. A process per phase gives the GPUs' memory back between phases, whatever a library holds on to.

The parts may lie in shared memory instead of train's folder. They are then deleted however the turns end, as far as
this process gets to see it.
"""

import asyncio
import fcntl
import hashlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3ops.eagle3.space import used_bytes
from eagle3ops.errors import Eagle3opsError, ExitCode
from eagle3ops.jobs.extract.quota import SHARED_MEMORY
from eagle3ops.runs.context import Context
from eagle3ops.runs.files import read_json
from eagle3ops.words import human_bytes

if TYPE_CHECKING:
    from eagle3ops.eagle3.turns import Turn

COMPLETE = "complete"
"""In a turn's folder once every shard is durable."""
RESULT = "phase-result.json"
"""In train's folder: why a phase failed."""


def parts_folder(out: Path, *, in_memory: bool) -> Path:
    """Where the turns of the train stage in `out` have their hidden states."""
    if not in_memory:
        return out
    name = hashlib.sha256(os.fsencode(out.resolve())).hexdigest()[:16]
    return SHARED_MEMORY / f"eagle3ops-{os.getuid()}-{name}"


def turn_folder(parts: Path, turn: "Turn") -> Path:
    """Where a turn's hidden states are."""
    return parts / f"turn-{turn.number:05d}"


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Hold what phases hold: one that is just being killed has ended before the next begins."""
    with open(f"{out}.phase.lock", "a+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def clear(out: Path, parts: Path, keep: "Turn | None", turns: "list[Turn]") -> None:
    """Delete the hidden states of all turns but one; where an earlier turn had the same rows, it gets those."""
    kept = None if keep is None else turn_folder(parts, keep)
    with alone(out):
        if keep is not None and kept is not None and not kept.exists():
            for turn in turns[: keep.number]:
                if turn.rows == keep.rows and (turn_folder(parts, turn) / COMPLETE).exists():
                    turn_folder(parts, turn).rename(kept)
                    break
        for folder in parts.glob("turn-*"):
            if folder != kept:
                shutil.rmtree(folder)


async def take_turns(
    ctx: Context, key: str, turns: "list[Turn]", *, epochs: int, quota: int, in_memory: bool = False
) -> None:
    """Extract and train turn by turn, from where the newest checkpoint stands, then conclude.

    Args:
        ctx: of the train stage.
        key: of the train stage.
        turns: all of them.
        quota: bytes; for the reports, the turns were made to fit.
        in_memory: whether the parts lie in shared memory.

    Raises:
        Eagle3opsError: a phase failed, with its cause.
    """
    parts = parts_folder(ctx.out, in_memory=in_memory)
    if not in_memory:
        return await _take_turns(ctx, key, turns, parts, epochs, quota)
    parts.mkdir(mode=0o700, exist_ok=True)
    try:
        await _take_turns(ctx, key, turns, parts, epochs, quota)
    finally:
        # It is taken up again with the part that it was at, but nobody may come for it.
        shutil.rmtree(parts, ignore_errors=True)


async def _take_turns(ctx: Context, key: str, turns: "list[Turn]", parts: Path, epochs: int, quota: int) -> None:
    from eagle3ops.eagle3.training_state import newest_step

    total = turns[-1].last
    repaired: set[int] = set()
    while True:
        step = await asyncio.to_thread(newest_step, ctx.out / "checkpoint")
        turn = next((turn for turn in turns if turn.first <= step < turn.last), None)
        # The checkpoint at the end of every other turn before this one is durable, or it would not be this one.
        await asyncio.to_thread(clear, ctx.out, parts, turn, turns)
        if turn is None:
            break
        folder = turn_folder(parts, turn)
        ctx.progress(step, total, "steps")

        def used() -> str:
            taken = used_bytes(ctx.inputs["extract"] / "heldout", *parts.glob("turn-*"))
            return f"{human_bytes(taken)} of {human_bytes(quota)} {'on disk' if parts == ctx.out else 'in memory'}"

        if not (folder / COMPLETE).exists():
            rows = f"{len(turn.rows)} rows, {turn.tokens} tokens"
            ctx.info(f"{turn.said(epochs)}: extracting {rows} ({used()})")
            await phase(ctx, key, "extract", turn.number)
        ctx.info(f"{turn.said(epochs)}: training up to step {turn.last} of {total} ({used()})")
        try:
            await phase(ctx, key, "train", turn.number)
        except DamagedPart as error:
            if turn.number in repaired:
                raise
            repaired.add(turn.number)
            ctx.warn(f"{error.what}; the part is extracted again")
            (folder / COMPLETE).unlink(missing_ok=True)
            continue
        if (reached := await asyncio.to_thread(newest_step, ctx.out / "checkpoint")) < turn.last:
            raise Eagle3opsError(
                f"{ctx.out / 'checkpoint'}: step {turn.last} was trained, but the newest sound checkpoint is {reached}",
                remedy="check the disk, then resume the run",
            )
    ctx.progress(total, total, "steps")
    await phase(ctx, key, "conclude", 0)


class DamagedPart(Eagle3opsError):
    """A shard of the part does not verify."""


async def phase(ctx: Context, key: str, kind: str, number: int) -> None:
    """Run one phase to its end.

    Raises:
        DamagedPart, Eagle3opsError: it failed; the cause is its own.
    """
    result = ctx.out / RESULT
    result.unlink(missing_ok=True)
    role = f"turn-{kind}"
    argv = [sys.executable, "-m", "eagle3ops.jobs.train.phase", str(ctx.run_dir), key, kind, str(number)]
    async with ctx.spawn(argv, role=role) as process:
        code = await process.wait()
    if code == 0:
        return
    said: dict[str, Any] = read_json(result) or {}
    result.unlink(missing_ok=True)
    if said:
        error = (DamagedPart if said.get("damaged") else Eagle3opsError)(str(said["what"]), remedy=said.get("remedy"))
        if said["exit_code"] in set(ExitCode):
            error.exit_code = ExitCode(said["exit_code"])
        raise error
    ended = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    raise Eagle3opsError(
        f"the {kind} phase of turn {number + 1} {ended}",
        remedy=f"its log is {ctx.run_dir / 'logs' / f'{role}.log'}; SIGKILL often means that memory ran out",
    )


def last_values(path: Path) -> dict[str, float]:
    """The last value of every metric in a `metrics.jsonl`."""
    found: dict[str, float] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        found[str(entry["name"])] = float(entry["value"])
    return found
