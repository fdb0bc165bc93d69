"""Ops about all runs together: their rows, notes, what changed between two of them, and deletion."""

from typing import Any

from eagle3ops.errors import RequestError
from eagle3ops.hosts.agent.operation import Surroundings, operation

MOST_ROWS = 5000


def rows(here: Surroundings, *, generation: str | None = None, since: int = 0, limit: int = 1000) -> dict[str, Any]:
    """One row for every run with its key figures, verdicts and notes: those that changed since the last answer."""
    from eagle3ops.runs.ledger_rows import changes

    if not 1 <= limit <= MOST_ROWS:
        raise RequestError(f"ledger.rows: limit is between 1 and {MOST_ROWS}, not {limit}")
    return changes(here.root, generation=generation, since=since, limit=limit)


def compare(here: Surroundings, *, run: str, other: str) -> dict[str, Any]:
    """What differs between two runs, and what does not, by section."""
    from eagle3ops.runs import compare as comparing

    return comparing.compare(here.root, run, other)


def note(
    here: Surroundings,
    *,
    run: str,
    hypothesis: str | None = None,
    change: str | None = None,
    outcome: str | None = None,
) -> dict[str, Any]:
    """Add a note to a run. Asked twice with the same words, it is added once."""
    from eagle3ops.runs.directory import find_run
    from eagle3ops.runs.notes import add_note, notes_of
    from eagle3ops.runs.redact import redact

    found = find_run(here.root, run)
    said = {"hypothesis": hypothesis or "", "change": change or "", "outcome": outcome or ""}
    last = (notes_of(found) or [{}])[-1]
    fresh = {name: redact(text.strip()) for name, text in said.items()} != {name: last.get(name, "") for name in said}
    if fresh:
        add_note(found, **said)
    return {"run": found.run_id, "fresh": fresh, "notes": notes_of(found)}


def notes(here: Surroundings, *, run: str) -> dict[str, Any]:
    """The notes of a run, also of one that was deleted."""
    from dataclasses import asdict

    from eagle3ops.runs.directory import find_run
    from eagle3ops.runs.notes import LISTED, kept_files, notes_of, read_notes

    for path in kept_files(here.root):
        if path.stem == run and not (here.root / "runs" / run).exists():
            return {"run": run, "deleted": True, "notes": [asdict(one) for one in read_notes(path)[-LISTED:]]}
    known = find_run(here.root, run)
    return {"run": known.run_id, "deleted": False, "notes": notes_of(known)}


def delete(here: Surroundings, *, run: str, delete: bool = False) -> dict[str, Any]:
    """Delete a run; without `delete`, what would go. A run that is going on is refused."""
    from eagle3ops.errors import Refused
    from eagle3ops.runs.deletion import delete_run
    from eagle3ops.runs.directory import find_run
    from eagle3ops.runs.notes import notes_of
    from eagle3ops.runs.store import folder_bytes

    found = find_run(here.root, run)
    if found.alive():
        raise Refused(f"{found.run_id} is running", remedy=f"{found.command('cancel')} first")
    if not delete:
        facts = {"bytes": folder_bytes(found.path), "notes_kept": bool(notes_of(found))}
        return {"run": found.run_id, "path": str(found.path), "deleted": False, **facts}
    gone = delete_run(found)
    return {
        "run": gone.run_id,
        "path": str(found.path),
        "deleted": True,
        "bytes": gone.bytes,
        "notes_kept": gone.notes_kept,
    }


OPERATIONS = (
    operation("ledger.rows", rows),
    operation("runs.compare", compare),
    operation("runs.note", note),
    operation("runs.notes", notes),
    operation("runs.delete", delete),
)
