"""One stage, in a process of its own: `python -m eagle3ops.runs.stage RUN_DIR STAGE KEY`.

Exit codes: 0 done, 130 cancelled, otherwise that of the error; an `error` event says why.
"""

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from types import FrameType

from eagle3ops.errors import Eagle3opsError, ExitCode, Interrupted
from eagle3ops.runs.context import Context
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.events import EventLog
from eagle3ops.runs.files import explain_os_error, log_line
from eagle3ops.runs.job import Job, Registry, load_registry
from eagle3ops.runs.keys import stage_keys
from eagle3ops.runs.leash import PARENT_VARIABLE, die_with_parent
from eagle3ops.runs.store import DONE, Store
from eagle3ops.spec.load import load_pipeline

CANCEL_GRACE_S = 10.0
"""How long a stage may take to end after SIGTERM; a thread deep in a computation is not waited for longer."""


def main() -> int:
    """Run the stage named on the command line."""
    parent = os.environ.get(PARENT_VARIABLE)
    if parent:
        die_with_parent(int(parent))
    run, stage = RunDirectory(Path(sys.argv[1])), sys.argv[2]
    for number in (signal.SIGTERM, signal.SIGINT):
        # Until the event loop listens, a signal simply ends the process; nothing has been started yet.
        signal.signal(number, _leave_at_once)
    code: int = ExitCode.FAILED
    try:
        code = _run(run, stage)
    except Eagle3opsError as error:
        code = _report(run, stage, error)
    except Exception as error:  # noqa: BLE001  (the boundary: whatever a job raises becomes a one-line cause)
        log_line(traceback.format_exc())
        code = _report(run, stage, _explained(error, run, stage))
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    # Threads of a cancelled computation must not keep the process.
    os._exit(code)


def _leave_at_once(number: int, frame: FrameType | None) -> None:
    os._exit(ExitCode.INTERRUPTED)


def _run(run: RunDirectory, stage: str) -> int:
    registry = load_registry()
    pipeline = load_pipeline(run.spec_file, registry.specs())
    store = Store(run.root)
    keys = stage_keys(pipeline, registry, [stage])
    job = registry.job(stage)()
    if keys[stage] != sys.argv[3]:
        raise Eagle3opsError(
            "the source code or an installed library changed while the run was going on",
            remedy=f"{run.command('resume')} does again what the change touches",
        )
    out = store.out(stage, keys[stage])
    with run.events() as events, store.working(out, lambda text: _tell(events, stage, text)):
        known = store.look_up(job, keys[stage])
        if known.done is not None:
            events.append("info", {"text": "done meanwhile by another run"}, stage)
            return ExitCode.DONE
        if known.reason:
            events.append("warn", {"text": f"not trusted, done again: {known.reason}"}, stage)
        (out / DONE).unlink(missing_ok=True)
        inputs = _inputs(job, registry, store, keys)
        ctx = Context(
            pipeline=pipeline,
            spec=pipeline.stages[stage],
            stage=stage,
            out=out,
            run_dir=run.path,
            inputs=inputs,
            cache=Path(run.request()["cache"]),
            events=events,
        )
        started = time.monotonic()
        asyncio.run(_until_cancelled(job, ctx))
        store.finish(out, stage, keys[stage], ctx.findings, time.monotonic() - started, inputs)
    return ExitCode.DONE


def _tell(events: EventLog, stage: str, text: str) -> None:
    events.append("info", {"text": text}, stage)


def _inputs(job: Job, registry: Registry, store: Store, keys: dict[str, str]) -> dict[str, Path]:
    inputs = {}
    for need in job.needs:
        known = store.look_up(registry.job(need)(), keys[need])
        if known.done is None:
            why = f": {known.reason}" if known.reason else ""
            raise Eagle3opsError(
                f"{job.name} needs the output of {need}, which is not done{why}", remedy=f"eagle3ops --job {need} first"
            )
        inputs[need] = known.out
    return inputs


async def _until_cancelled(job: Job, ctx: Context) -> None:
    """Run the job; SIGTERM or SIGINT cancels it, and a job that does not end is left by `os._exit`."""
    loop = asyncio.get_running_loop()
    work = asyncio.ensure_future(job.run(ctx))

    def cancel() -> None:
        work.cancel()
        timer = threading.Timer(CANCEL_GRACE_S, os._exit, (int(ExitCode.INTERRUPTED),))
        timer.daemon = True
        timer.start()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, cancel)
    try:
        await work
    except asyncio.CancelledError as error:
        # `asyncio.run` would wait for worker threads here; a computation in one of them cannot be interrupted.
        await asyncio.sleep(0)
        raise Interrupted("cancelled") from error


def _explained(error: Exception, run: RunDirectory, stage: str) -> Eagle3opsError:
    if isinstance(error, OSError):
        explained = explain_os_error(error, error.filename or run.root)
        if explained is not None:
            return explained
    if isinstance(error, MemoryError):
        return Eagle3opsError("out of memory", remedy="use a smaller batch, or a machine with more memory")
    text = " ".join(str(error).split())
    return Eagle3opsError(
        f"{type(error).__name__}: {text}" if text else type(error).__name__,
        remedy=f"the traceback is in {run.logs / f'{stage}.log'}",
    )


def _report(run: RunDirectory, stage: str, error: Eagle3opsError) -> int:
    """Leave the cause in the log and as an event; gives up the reserve when the disk is full."""
    log_line(f"{stage}: {error}")
    data = {"message": error.what, "remedy": error.remedy, "exit_code": int(error.exit_code)}
    for attempt in range(2):
        try:
            with run.events() as events:
                events.append("error", data, stage)
            break
        except OSError:
            if attempt == 0:
                with contextlib.suppress(OSError):
                    run.drop_ballast()
    return int(error.exit_code)


if __name__ == "__main__":
    sys.exit(main())
