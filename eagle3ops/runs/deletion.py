"""How does a run go for good, while others may be about to start it?

Under the lock that every start takes, and first out of sight: a deletion that is killed half way leaves a folder that
is no run any more, which `runs gc` takes away.
"""

import shutil
from dataclasses import dataclass

from eagle3ops.errors import Eagle3opsError, Refused
from eagle3ops.runs.directory import RunDirectory, runs_folder
from eagle3ops.runs.files import explain_os_error
from eagle3ops.runs.notes import keep_notes
from eagle3ops.runs.starts import locked, note_deleted
from eagle3ops.runs.store import folder_bytes

GONE = ".gone"
"""How the folder of a run ends that is being deleted."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """What went."""

    run_id: str
    bytes: int
    notes_kept: bool


def delete_run(run: RunDirectory) -> Deleted:
    """Delete a run's folder; its notes are kept, the outputs of its stages stay until no run needs them.

    Raises:
        Refused: it is going on.
        Eagle3opsError: it cannot be deleted.
    """
    try:
        with locked(run.path / "start.lock", f"the start of {run.run_id}"):
            if run.alive():
                raise Refused(f"{run.run_id} is running", remedy=f"{run.command('cancel')} first")
            size = folder_bytes(run.path)
            kept = keep_notes(run, _standing(run))
            # The key of a deleted run is remembered: an order that is repeated late must not start it anew.
            note_deleted(run)
            gone = runs_folder(run.root) / f".{run.run_id}{GONE}"
            shutil.rmtree(gone, ignore_errors=True)
            run.path.rename(gone)
        shutil.rmtree(gone)
    except OSError as error:
        raise explain_os_error(error, run.path) or Eagle3opsError(f"{run.path}: cannot be deleted: {error}") from error
    return Deleted(run.run_id, size, kept)


def _standing(run: RunDirectory) -> dict[str, object]:
    """How a run stands, in the words of the ledger."""
    from eagle3ops.runs.ledger import figures, summarize

    try:
        row, found = summarize(run), figures(run)
    except (Eagle3opsError, OSError, ValueError, TypeError):
        return {"status": "damaged"}
    return {
        "status": row.status,
        "created": row.created,
        "started": row.started,
        "ended": row.ended,
        "name": row.name,
        "job": row.job,
        "figures": {name: value for name, value in found.metrics.items() if name.count("/") == 1},
        "verdicts": found.verdicts,
        "patches": found.patches,
    }
