"""Who watches a stage of a run? `python -m eagle3ops.supervisor.guard RUN_DIR STAGE PID START`, below the supervisor.

PID and START name the process that runs the stage. It leaves when that has ended. This is the one place at which the
supervisor's room knows how watching is done.
"""

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

from eagle3ops import locations
from eagle3ops.errors import Eagle3opsError
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.files import log_line
from eagle3ops.runs.job import load_registry
from eagle3ops.runs.processes import ProcessId, boot_id, identify
from eagle3ops.spec.load import load_pipeline
from eagle3ops.supervisor.warden import Warden
from eagle3ops.watchdog.guard.guard import Guard
from eagle3ops.watchdog.guard.logs import Tails
from eagle3ops.watchdog.guard.probes import Prober
from eagle3ops.watchdog.guard.samples import own_samples
from eagle3ops.watchdog.guard.subject import RunFinder, Told
from eagle3ops.watchdog.judge.deadlines import Deadlines
from eagle3ops.watchdog.judge.watch import Watch
from eagle3ops.watchdog.state import Reading, Subject

OBEYED_S = 60.0
"""A decision that the supervisor has not obeyed for so long is forgotten, and the attempt watched anew."""


def main() -> int:
    """Watch the attempt named on the command line until it has ended."""
    run, stage = RunDirectory(Path(sys.argv[1])), sys.argv[2]
    attempt = ProcessId(int(sys.argv[3]), int(sys.argv[4]), boot_id())
    with contextlib.suppress(OSError):
        os.nice(10)
    try:
        asyncio.run(_watch(run, stage, attempt))
    except Eagle3opsError as error:
        log_line(f"{stage}: {error}")
        return error.exit_code
    return 0


async def _watch(run: RunDirectory, stage: str, attempt: ProcessId) -> None:
    pipeline = load_pipeline(run.spec_file, load_registry().specs())
    find = RunFinder(run.path, stage)
    finder = AttemptFinder(find, attempt)
    given = {str(phase): seconds for phase, seconds in pipeline.watchdog.deadlines.items()}
    deadlines = Deadlines.load(locations.state_folder() / "deadlines.json", given=given, job=stage)
    with run.events() as events:
        warden = Warden(run, stage, attempt, pipeline, events)

        async def convict(reading: Reading, dossier: Any) -> None:
            await warden.on_conviction(reading, dossier)
            if warden.decided:
                # What the attempt says and does from here on comes from being ended, and is no incident of its own.
                work.cancel()

        guard = Guard(
            finder,
            Watch(f"stage {stage}", deadlines=deadlines, expect="any"),
            (lambda url: Prober(url, may_ask=find.quiet)) if pipeline.watchdog.probe else None,
            Tails(()),
            on_reading=warden.on_reading,
            on_incident=warden.on_incident,
            on_conviction=convict,
            evidence=run.artifacts,
            # Its own: the host's sampler, started from here, would be ended with the run for all who watch.
            samples=own_samples((attempt,), paths=(run.path,), marked=True),
            say=lambda words: log_line(f"{stage}: {words}"),
        )
        work = asyncio.ensure_future(guard.run())
        leave = asyncio.Event()

        def end() -> None:
            work.cancel()
            leave.set()

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)
        with contextlib.suppress(asyncio.CancelledError):
            await work
        if warden.decided and not finder.over():
            # To end would have another guard started for an attempt that is being ended.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(leave.wait(), OBEYED_S)
    deadlines.save()


class AttemptFinder:
    """The processes of one attempt at a stage; it is over when the process that runs the stage has ended."""

    def __init__(self, find: RunFinder, attempt: ProcessId) -> None:
        self._find = find
        self._attempt = attempt

    def __call__(self) -> Subject:
        """The attempt as it is now."""
        return self._find()

    def over(self) -> bool:
        """Has it ended?"""
        return identify(self._attempt.pid) != self._attempt

    def progress(self) -> list[Told]:
        """What the stage has reported since the last call."""
        return self._find.progress()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # To take the interpreter down costs a seventh of a second of CPU, for which the end of every stage would wait.
    os._exit(code)
