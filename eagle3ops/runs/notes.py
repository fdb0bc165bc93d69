"""What did a person think of a run: what was expected, what was changed, what came of it?

runs/<id>/notes.jsonl     one JSON object a line, only ever added to
ROOT/notes/<id>.jsonl     the same after the run was deleted, behind a line that says how the run stood
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eagle3ops.errors import RequestError
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.files import explain_os_error, sync_folder
from eagle3ops.runs.redact import redact

FIELDS = ("hypothesis", "change", "outcome")
LONGEST = 4000
"""Characters of one field."""
LISTED = 200
"""Notes of one run that are told; the newest."""


@dataclass(frozen=True, slots=True)
class Note:
    """One note. Empty is what it does not say."""

    ts: float
    """Seconds since 1970."""
    hypothesis: str = ""
    """What was expected, and why."""
    change: str = ""
    """What was done differently from the run before."""
    outcome: str = ""
    """What came of it."""


def notes_file(run: RunDirectory) -> Path:
    """Where a run's notes are."""
    return run.path / "notes.jsonl"


def kept_file(root: Path, run_id: str) -> Path:
    """Where they are once the run is deleted."""
    return root / "notes" / f"{run_id}.jsonl"


def add_note(run: RunDirectory, *, hypothesis: str = "", change: str = "", outcome: str = "") -> Note:
    """Add a note to a run, durably.

    Raises:
        RequestError: it says nothing, or too much.
        Eagle3opsError: it cannot be written.
    """
    said = {"hypothesis": hypothesis.strip(), "change": change.strip(), "outcome": outcome.strip()}
    if not any(said.values()):
        raise RequestError("a note says at least one thing", remedy="give --hypothesis, --change or --outcome")
    for name, text in said.items():
        if len(text) > LONGEST:
            raise RequestError(f"the {name} has {len(text):,} characters; a note takes {LONGEST:,} of each")
    note = Note(round(time.time(), 3), **{name: redact(text) for name, text in said.items()})
    try:
        _append(notes_file(run), [asdict(note)])
    except OSError as error:
        raise explain_os_error(error, notes_file(run)) or error from error
    return note


def _append(path: Path, lines: list[Mapping[str, Any]]) -> None:
    """Add whole lines; a torn one of before is not joined to them."""
    data = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode("utf-8", errors="replace")
    with path.open("a+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        size = os.fstat(file.fileno()).st_size
        torn = size and os.pread(file.fileno(), 1, size - 1) != b"\n"
        file.write(b"\n" + data if torn else data)
        os.fsync(file.fileno())
    sync_folder(path.parent)


def read_notes(path: Path) -> list[Note]:
    """All notes in a file, oldest first; damaged lines are passed over, a missing file has none."""
    return [
        Note(_seconds(line.get("ts")), *(_text(line.get(name)) for name in FIELDS))
        for line in _lines(path)
        if any(_text(line.get(name)) for name in FIELDS)
    ]


def notes_of(run: RunDirectory) -> list[dict[str, Any]]:
    """The newest notes of a run, oldest first."""
    return [asdict(note) for note in read_notes(notes_file(run))[-LISTED:]]


def keep_notes(run: RunDirectory, standing: Mapping[str, Any]) -> bool:
    """Before a run is deleted: put its notes where they outlive it. Returns False when it has none.

    Args:
        run: the run.
        standing: how it stood: status, figures; the first line of what is kept.
    """
    notes = read_notes(notes_file(run))
    if not notes:
        return False
    path = kept_file(run.root, run.run_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    known = {note.ts for note in read_notes(path)}
    # A deletion that was killed half way is begun again: nothing is kept twice.
    fresh: list[Mapping[str, Any]] = [asdict(note) for note in notes if note.ts not in known]
    about = [] if known else [{"run": run.run_id, "deleted": round(time.time(), 3), **standing}]
    if fresh:
        _append(path, [*about, *fresh])
    return True


def kept_files(root: Path) -> list[Path]:
    """Of deleted runs of which notes are kept; named by the run."""
    folder = root / "notes"
    return sorted(folder.glob("*.jsonl")) if folder.is_dir() else []


def read_kept(path: Path) -> tuple[dict[str, Any], list[Note]]:
    """How a deleted run stood, and its notes."""
    about = next((line for line in _lines(path) if line.get("run") == path.stem), {})
    return about, read_notes(path)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        content = path.read_bytes()
    except OSError:
        return
    for text in content.split(b"\n"):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict):
            yield line


def _text(value: object) -> str:
    return value[:LONGEST] if isinstance(value, str) else ""


def _seconds(value: object) -> float:
    sound = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e12
    return float(value) if sound else 0.0  # type: ignore[arg-type]
