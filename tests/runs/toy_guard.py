"""A guard that knows one fault: a stopped process of the stage. `python -m toy_guard RUN_DIR STAGE PID START`."""

import asyncio
import sys
import time
from pathlib import Path

from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.family import tree
from eagle3ops.runs.job import load_registry
from eagle3ops.runs.processes import ProcessId, boot_id, read_stat
from eagle3ops.spec.load import load_pipeline
from eagle3ops.supervisor.warden import Warden
from eagle3ops.watchdog.incidents.incident import Evidence, Incident, incident_id
from eagle3ops.watchdog.state import Reading, Standing


async def watch(run: RunDirectory, stage: str, attempt: ProcessId) -> None:
    pipeline = load_pipeline(run.spec_file, load_registry().specs())
    with run.events() as events:
        warden = Warden(run, stage, attempt, pipeline, events)
        stopped: list[int] = []
        while not stopped:
            time.sleep(0.05)  # noqa: ASYNC251  (nothing else goes on here)
            stopped = [pid for pid in tree(attempt.pid) if (stat := read_stat(pid)) is not None and stat.state == "T"]
        now, title = time.monotonic(), f"a process is stopped: {stopped}"
        reading = Reading(state="stopped", standing=Standing.CONVICTED, phase="serving", since=now, at=now, title=title)
        warden.on_reading(reading)
        incident = Incident(
            id=incident_id(run.run_id, now),
            kind="stopped",
            severity="error",
            title=title,
            first=time.time(),
            last=time.time(),
            run=run.run_id,
            stage=stage,
            explanation="Somebody sent it SIGSTOP.",
            evidence=(Evidence("state T"),),
        )
        warden.on_incident(incident, run.artifacts / "incident-1")
        await warden.on_conviction(reading, None)
        (run.path / f"guarded-{attempt.pid}").touch()
        await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(
        watch(RunDirectory(Path(sys.argv[1])), sys.argv[2], ProcessId(int(sys.argv[3]), int(sys.argv[4]), boot_id()))
    )
