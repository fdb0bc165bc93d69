"""Where is what in a run's folder?

runs/<id>/request.json     what was asked: job, stages, root
runs/<id>/spec.yaml        the pipeline, resolved and complete
runs/<id>/events.jsonl     what happened
runs/<id>/state.json       how things stand, replaced atomically
runs/<id>/supervisor.json  which process looks after the run, with its heartbeat
runs/<id>/intent.json      the last start that was asked for
runs/<id>/started.jsonl    the starts that took effect
runs/<id>/processes.json   what the run's supervisor has seen below it
runs/<id>/logs/            raw output: supervisor.log, <stage>.log, <role>.log
runs/<id>/artifacts/       <stage> -> its folder in the store; manifest.json with a checksum of every file
"""

import errno
import os
import secrets
import shlex
import shutil
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3ops import locations
from eagle3ops.errors import RequestError
from eagle3ops.runs.events import EventLog, EventReader, read_events
from eagle3ops.runs.files import read_json, sync_file, sync_folder, write_atomic, write_json
from eagle3ops.runs.processes import boot_id, is_alive
from eagle3ops.runs.redact import redact
from eagle3ops.runs.roots import require_root, unreadable

if TYPE_CHECKING:
    # An agent that lists runs needs no model of a pipeline, which takes a tenth of a second to import.
    from eagle3ops.spec.models import Pipeline

BALLAST_BYTES = 256 * 1024
"""Held in reserve in a run's folder and given up when the disk is full, so that the reason can still be written."""


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """One run, by the folder that is the truth about it."""

    path: Path

    @property
    def run_id(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def root(self) -> Path:
        """The root that the run belongs to."""
        return self.path.parent.parent

    def command(self, verb: str) -> str:
        """The command line that does `verb` to this run, complete with its root where that is not the usual one."""
        where = "" if locations.root() == self.root else f" --root {shlex.quote(str(self.root))}"
        return f"eagle3ops runs {verb} {self.run_id}{where}"

    @property
    def spec_file(self) -> Path:
        """The pipeline, resolved."""
        return self.path / "spec.yaml"

    @property
    def events_file(self) -> Path:
        """The event log."""
        return self.path / "events.jsonl"

    @property
    def logs(self) -> Path:
        """Folder of raw output."""
        return self.path / "logs"

    @property
    def artifacts(self) -> Path:
        """Folder of links to the stages' outputs."""
        return self.path / "artifacts"

    @property
    def ballast(self) -> Path:
        """Bytes in reserve for a full disk."""
        return self.path / ".ballast"

    def request(self) -> dict[str, Any]:
        """What was asked.

        Raises:
            RequestError: `request.json` is missing or damaged.
        """
        request = read_json(self.path / "request.json")
        stages, created = (request or {}).get("stages"), (request or {}).get("created", 0.0)
        sound = isinstance(stages, list) and isinstance(created, int | float) and not isinstance(created, bool)
        if request is None or not sound:
            raise RequestError(
                f"{self.path}: not a run's folder: request.json is missing or damaged",
                remedy="move the folder away, or bring its request.json back",
            )
        return request

    def force(self) -> None:
        """Go on from now on although a forecast says that a stage does not fit."""
        write_json(self.path / "request.json", self.request() | {"forced": True})

    def state(self) -> dict[str, Any]:
        """How things stand, from `state.json`; a damaged or missing one counts as a run that never started.

        `stages` is always there: what of it is no stage is left out.
        """
        state = read_json(self.path / "state.json") or {"status": "created", "stages": {}, "exit_code": None}
        stages = state.get("stages")
        known = stages.items() if isinstance(stages, dict) else ()
        return state | {"stages": {name: stage for name, stage in known if isinstance(stage, dict)}}

    def supervisor(self) -> dict[str, Any] | None:
        """The process that looks after the run, if it has ever been started."""
        return read_json(self.path / "supervisor.json")

    def intent(self) -> dict[str, Any] | None:
        """The last start that was asked for: token, who asked, the process that was spawned."""
        return read_json(self.path / "intent.json")

    def living(self) -> dict[str, Any] | None:
        """The process that looks after the run now, or is about to."""
        candidates = (self.supervisor(), (self.intent() or {}).get("process"))
        return next((found for found in candidates if isinstance(found, dict) and is_alive(found)), None)

    def alive(self) -> bool:
        """Does a supervisor look after the run now, or is one starting?"""
        return self.living() is not None

    def status(self) -> str:
        """The status, corrected for a supervisor that died without a word: `running` becomes `interrupted`."""
        status = str(self.state().get("status", "created"))
        if status not in ("created", "running") or self.alive():
            return status
        # It may have ended between the two readings; its last word was written before it left.
        status = str(self.state().get("status", "created"))
        return "interrupted" if status in ("created", "running") else status

    def interruption(self) -> str | None:
        """Why the run is interrupted, in words; None when it is not."""
        if self.status() != "interrupted":
            return None
        last = self.supervisor() or (self.intent() or {}).get("process")
        if not isinstance(last, dict):
            return "interrupted: it was created and never started"
        if last.get("boot") != boot_id():
            return "interrupted: the host was rebooted since"
        return f"interrupted: its supervisor (pid {last.get('pid')}) was killed"

    def events(self) -> EventLog:
        """The log, for writing."""
        return EventLog(self.events_file)

    def reader(self, after: int = 0) -> EventReader:
        """The log, for following."""
        return EventReader(self.events_file, after)

    def last_seq(self) -> int:
        """Number of the last event; 0 when there is none."""
        return max((event.seq for event in read_events(self.events_file)), default=0)

    def fill_ballast(self) -> None:
        """Put bytes in reserve; written, because a sparse file reserves nothing."""
        if not self.ballast.exists():
            self.ballast.write_bytes(secrets.token_bytes(BALLAST_BYTES))

    def drop_ballast(self) -> None:
        """Give the reserve up."""
        self.ballast.unlink(missing_ok=True)


def new_run_id(name: str) -> str:
    """An id that sorts by time and is not given twice: `20261130-044512-demo-a1b2`."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{name[:40]}-{secrets.token_hex(2)}"


def runs_folder(root: Path) -> Path:
    """Folder of all runs."""
    return root / "runs"


def create_run(
    root: Path,
    pipeline: "Pipeline",
    *,
    job: str,
    stages: Sequence[str],
    spec_text: str,
    cache: Path,
    source: str,
    forced: bool = False,
    run_id: str | None = None,
    key: str | None = None,
) -> RunDirectory:
    """Make the folder of a new run, which appears whole or not at all; nothing is started.

    Args:
        root: folder of runs and stage outputs.
        pipeline: what to run.
        job: what was asked for, "pipeline" or a stage.
        stages: the stages to run, in order.
        spec_text: the resolved pipeline file.
        cache: the user's cache folder.
        source: where the pipeline came from, for people.
        forced: go on although a forecast says that a stage does not fit.
        run_id: its id; by default a new one.
        key: digest of the key of the order.

    Raises:
        FileExistsError: there is a run with that id.
    """
    folder = runs_folder(root)
    folder.mkdir(parents=True, exist_ok=True)
    run = RunDirectory(folder / (run_id or new_run_id(pipeline.name)))
    if run.path.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(run.path))
    # Named by the key as well: what a killed attempt left is found again by the next one, and by nobody else.
    making = RunDirectory(folder / f".{run.run_id}-{(key or secrets.token_hex(8))[:16]}.new")
    shutil.rmtree(making.path, ignore_errors=True)
    request = {
        "run_id": run.run_id,
        "job": job,
        "stages": list(stages),
        "cache": str(cache),
        "source": redact(source),
        "forced": forced,
        "created": round(time.time(), 3),
    }
    try:
        making.path.mkdir()
        making.logs.mkdir()
        making.artifacts.mkdir()
        making.fill_ballast()
        write_atomic(making.spec_file, spec_text, sync=False)
        write_json(making.path / "request.json", request | ({"key": key} if key else {}), sync=False)
        for path in (making.spec_file, making.path / "request.json", making.path):
            sync_file(path)
        making.path.rename(run.path)
    except OSError as error:
        shutil.rmtree(making.path, ignore_errors=True)
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(run.path)) from error
        raise
    sync_folder(folder)
    return run


def find_run(root: Path, run_id: str) -> RunDirectory:
    """The run called `run_id`, or whose id ends in or starts with it alone; "last" is the newest.

    Raises:
        RequestError: there is none, or more than one.
    """
    ids = list_runs(root)
    if run_id == "last" and ids:
        return RunDirectory(runs_folder(root) / ids[-1])
    if run_id in ids:
        return RunDirectory(runs_folder(root) / run_id)
    like = [known for known in ids if run_id and (known.startswith(run_id) or known.endswith(run_id))]
    if len(like) == 1:
        return RunDirectory(runs_folder(root) / like[0])
    if like:
        raise RequestError(f"run {run_id!r} is not clear: {', '.join(like[:5])}", remedy="give more of the id")
    where = "" if locations.root() == root else f" --root {shlex.quote(str(root))}"
    raise RequestError(
        f"there is no run {run_id!r} in {runs_folder(root)}", remedy=f"eagle3ops runs list{where} shows them"
    )


def list_runs(root: Path) -> list[str]:
    """Ids of all runs, oldest first.

    Raises:
        RequestError: the root is none: a file, a link that leads nowhere, a folder that may not be read.
    """
    require_root(root)
    try:
        entries = [entry for entry in runs_folder(root).iterdir() if not entry.name.startswith(".")]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unreadable(root, error) from error
    return sorted(entry.name for entry in entries if _is_run(entry))


def _is_run(folder: Path) -> bool:
    """Whether a folder is that of a run; one that may not be looked into is not passed over."""
    try:
        return stat.S_ISREG(os.stat(folder / "request.json").st_mode)
    except PermissionError:
        return True
    except OSError:
        return False
