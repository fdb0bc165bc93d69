"""What is told of every run in one row, and which rows have changed since somebody last asked?

Status, time, key figures, verdicts and notes of all runs, held in the ledger's file beside its own table. Figures come
from the events of a run, which may be long: they are read on from where the last look ended, the newest runs first, and
for some tenths of a second at a time; who asks again gets the rest. Thrown away with the ledger, all of it is read
again.
"""

import contextlib
import json
import math
import os
import secrets
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from eagle3ops.runs.directory import RunDirectory, runs_folder
from eagle3ops.runs.events import Event, EventReader
from eagle3ops.runs.ledger import Ledger, RunSummary, patch_in
from eagle3ops.runs.notes import FIELDS, Note, kept_files, notes_file, read_kept, read_notes
from eagle3ops.words import UNDECIDED, outcome_of

FORMAT = 2
"""Raised when rows change their form."""
BUDGET_S = 0.3
"""So long one look may read events."""
CHUNK = 1 << 20
FIGURES = 40
"""Figures of one run at most; the stages that judge come first."""
_FIRST = ("bench", "verify", "train", "serve")
WORDS = 400
"""Characters of a note in a row."""
LIMIT = 1000
"""Rows in one answer."""


class _Entry(NamedTuple):
    """One run in the table."""

    run_id: str
    stamp: str
    """Of all that the row was made of; empty when not all of it was read."""
    folded: str
    row: str


@dataclass(slots=True)
class Folded:
    """What the events of a run come to, as far as they are read."""

    place: str = ""
    """Device and inode of the file."""
    offset: int = 0
    seq: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    verdicts: dict[str, bool | None] = field(default_factory=dict)
    """None is UNDECIDED."""
    patches: dict[str, str] = field(default_factory=dict)
    """Recipe -> standing, of the engines that the run used."""

    def take(self, event: Event) -> None:
        """Learn from one event; a series (`train/loss_0` of a stage) is no key figure."""
        if (patch := patch_in(event)) is not None and len(self.patches) < FIGURES:
            self.patches[patch[0]] = patch[1]
        name, value = event.data.get("name"), event.data.get("value")
        if not isinstance(name, str) or "/" in name or len(name) > 100:
            return
        if event.kind == "metric" and (figure := _figure(value)) is not None:
            self.metrics[f"{event.stage or 'run'}/{name}"] = figure
        elif event.kind == "verdict":
            self.verdicts[f"{event.stage or 'run'}/{name}"] = outcome_of(event.data)

    def read_on(self, path: Path, until: float) -> bool:
        """Read what was added; returns False when `until` (monotonic, s) came first."""
        try:
            stat = path.stat()
        except OSError:
            return True
        place = f"{stat.st_dev}:{stat.st_ino}"
        if place != self.place or stat.st_size < self.offset:
            self.place, self.offset, self.seq = place, 0, 0
            self.metrics, self.verdicts, self.patches = {}, {}, {}
        reader = EventReader(path, self.seq, self.offset)
        while stat.st_size > reader.offset:
            if time.monotonic() > until:
                return False
            found = reader.read_raw(CHUNK)
            if found is None:
                break
            for _, _, event in found:
                self.take(event)
            self.offset, self.seq = reader.offset, reader.last_seq
        return True


def changes(
    root: Path, *, generation: str | None = None, since: int = 0, limit: int = LIMIT, budget_s: float = BUDGET_S
) -> dict[str, Any]:
    """The rows that are new or have changed.

    Args:
        root: folder of runs.
        generation: as the last answer said; another one means that all rows come.
        since: the `version` of the last answer.
        limit: rows at most.
        budget_s: how long to read events.

    Returns:
        `rows`, `generation`, `version`; `total` runs; `pending`, whose figures are not read yet; `more`, whether rows
        were left out for the limit: ask again with the new version.
    """
    summaries = Ledger(root).runs()
    try:
        with _open(root / "ledger.sqlite") as database:
            return _answer(database, root, summaries, generation, since, limit, budget_s)
    except sqlite3.DatabaseError:
        # Not to be written: everything is read, as nothing can be kept for the next look.
        with _open(Path(":memory:")) as database:
            return _answer(database, root, summaries, None, 0, max(limit, len(summaries)), math.inf)


@contextlib.contextmanager
def _open(file: Path) -> Iterator[sqlite3.Connection]:
    database = sqlite3.connect(file, timeout=10, isolation_level=None)
    try:
        database.execute("CREATE TABLE IF NOT EXISTS about_rows (format INTEGER, generation TEXT)")
        about = database.execute("SELECT format FROM about_rows").fetchone()
        if about is None or about[0] != FORMAT:
            database.execute("BEGIN IMMEDIATE")
            database.execute("DROP TABLE IF EXISTS rows")
            database.execute("DELETE FROM about_rows")
            database.execute("INSERT INTO about_rows VALUES (?, ?)", (FORMAT, secrets.token_hex(8)))
            database.execute(
                "CREATE TABLE rows (run_id TEXT PRIMARY KEY, changed INTEGER, stamp TEXT, folded TEXT, row TEXT)"
            )
            database.execute("COMMIT")
        yield database
    finally:
        database.close()


def _answer(
    database: sqlite3.Connection,
    root: Path,
    summaries: list[RunSummary],
    generation: str | None,
    since: int,
    limit: int,
    budget_s: float,
) -> dict[str, Any]:
    known: dict[str, str] = dict(database.execute("SELECT run_id, stamp FROM rows"))
    until, pending = time.monotonic() + budget_s, 0
    changed: list[_Entry] = []
    for summary in reversed(summaries):
        run = RunDirectory(runs_folder(root) / summary.run_id)
        stamp = f"{summary!r} {_stamp(run.events_file)} {_stamp(notes_file(run))}"
        if known.get(summary.run_id) == stamp:
            continue
        folded = _folded(database, summary.run_id)
        if not folded.read_on(run.events_file, until):
            pending, stamp = pending + 1, ""
        row = _row(asdict(summary), folded, read_notes(notes_file(run)))
        changed.append(_Entry(summary.run_id, stamp, json.dumps(asdict(folded)), row))
    there = {summary.run_id for summary in summaries}
    for path in kept_files(root):
        stamp = f"kept {_stamp(path)}"
        if path.stem not in there and known.get(path.stem) != stamp:
            changed.append(_Entry(path.stem, stamp, "", _deleted(path.stem, *read_kept(path))))
        there.add(path.stem)
    if changed or known.keys() - there:
        _write(database, changed, known.keys() - there)
    now = str(database.execute("SELECT generation FROM about_rows").fetchone()[0])
    first = since if generation == now else 0
    found = database.execute(
        "SELECT changed, row FROM rows WHERE changed > ? ORDER BY changed LIMIT ?", (first, limit + 1)
    ).fetchall()
    sent = found[:limit]
    return {
        "root": str(root),
        "generation": now,
        "version": sent[-1][0] if sent else first,
        "rows": [json.loads(row) for _, row in sent],
        "total": len(there),
        "pending": pending,
        "more": len(found) > len(sent),
    }


def _write(database: sqlite3.Connection, changed: Sequence[_Entry], gone: "set[str]") -> None:
    database.execute("BEGIN IMMEDIATE")
    at = database.execute("SELECT coalesce(max(changed), 0) FROM rows").fetchone()[0]
    for entry in changed:
        known = database.execute("SELECT row FROM rows WHERE run_id = ?", (entry.run_id,)).fetchone()
        if known is not None and known[0] == entry.row:
            # Read on, and nothing to tell.
            database.execute(
                "UPDATE rows SET stamp = ?, folded = ? WHERE run_id = ?", (entry.stamp, entry.folded, entry.run_id)
            )
            continue
        at += 1
        database.execute(
            "INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?, ?)",
            (entry.run_id, at, entry.stamp, entry.folded, entry.row),
        )
    if gone:
        database.executemany("DELETE FROM rows WHERE run_id = ?", [(run_id,) for run_id in gone])
        # Whoever knows the row must forget it: all rows come again.
        database.execute("UPDATE about_rows SET generation = ?", (secrets.token_hex(8),))
    database.execute("COMMIT")


def _stamp(path: Path) -> str:
    """Changes when the file does."""
    try:
        stat = os.stat(path)
    except OSError:
        return "-"
    return f"{stat.st_mtime_ns}:{stat.st_size}:{stat.st_ino}"


def _folded(database: sqlite3.Connection, run_id: str) -> Folded:
    found = database.execute("SELECT folded FROM rows WHERE run_id = ?", (run_id,)).fetchone()
    try:
        return Folded(**json.loads(found[0] if found else ""))
    except (ValueError, TypeError):
        return Folded()


def _row(summary: Mapping[str, Any], folded: Folded, notes: list[Note]) -> str:
    metrics = folded.metrics
    row = {
        **{name: summary.get(name) for name in ("run_id", "name", "job", "status", "exit_code", "cause", "stages")},
        **{name: _figure(summary.get(name)) for name in ("created", "started", "ended")},
        "figures": {name: metrics[name] for name in sorted(metrics, key=_rank)[:FIGURES]},
        "verdicts": dict(list(folded.verdicts.items())[:FIGURES]),
        "patches": folded.patches,
        "notes": len(notes),
        "note": _newest(notes),
    }
    return json.dumps(row, default=str)


def _rank(name: str) -> tuple[int, str]:
    stage = name.partition("/")[0]
    return (_FIRST.index(stage) if stage in _FIRST else len(_FIRST), name)


def _newest(notes: list[Note]) -> dict[str, str]:
    """The last that was said of each thing."""
    said: dict[str, str] = {}
    for note in notes:
        said |= {name: text[:WORDS] for name in FIELDS if (text := getattr(note, name))}
    return said


def _deleted(run_id: str, about: Mapping[str, Any], notes: list[Note]) -> str:
    figures, verdicts = about.get("figures"), about.get("verdicts")
    metrics = {str(name): figure for name, value in _items(figures) if (figure := _figure(value)) is not None}
    passed = {
        str(name): None if str(value).startswith(UNDECIDED) else str(value).startswith("PASS")
        for name, value in _items(verdicts)
    }
    was = str(about.get("status", "deleted"))
    if was == "done" and not all(passed.values()):
        was = "verdict FAIL" if False in passed.values() else f"verdict {UNDECIDED}"
    summary = {"name": run_id[16:].rpartition("-")[0], **about, "run_id": run_id, "status": "deleted", "stages": {}}
    folded = Folded(metrics=metrics, verdicts=passed, patches=_patches(about.get("patches")))
    return _row(summary | {"cause": f"deleted; it was {was}", "exit_code": None}, folded, notes)


def _patches(value: object) -> dict[str, str]:
    return {str(name)[:100]: str(standing)[:100] for name, standing in _items(value)[:FIGURES]}


def _items(value: object) -> list[tuple[Any, Any]]:
    return list(value.items()) if isinstance(value, dict) else []


def _figure(value: object) -> float | None:
    sound = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if sound else None  # type: ignore[arg-type]
