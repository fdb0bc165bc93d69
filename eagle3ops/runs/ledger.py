"""Which runs are there, and what did they find?

The ledger is a SQLite index over the run directories. It holds nothing that they do not say: deleted, damaged or of an
older form, it is built again from them.
"""

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from eagle3ops.errors import Eagle3opsError
from eagle3ops.runs.directory import RunDirectory, find_run, list_runs, runs_folder
from eagle3ops.runs.events import Event, read_events
from eagle3ops.runs.notes import notes_of
from eagle3ops.words import outcome_of, outcome_word

FORMAT = 2
"""Raised when the table changes; an index of another format is thrown away."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run in one row."""

    run_id: str
    name: str
    job: str
    status: str
    """created, running, done, failed, cancelled, interrupted (it stopped without a word and can be resumed), or damaged
    (what was asked can no longer be read)."""
    exit_code: int | None
    created: float
    started: float | None
    ended: float | None
    cause: str | None
    stages: Mapping[str, str] = field(default_factory=dict)
    """Stage -> status."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run found out."""

    metrics: dict[str, float]
    """`stage/name` -> last value."""
    verdicts: dict[str, str]
    """`stage/name` -> `PASS: reason` or `FAIL: reason`."""
    artifacts: dict[str, str]
    """Path -> note."""
    patches: dict[str, str]
    """Recipe -> standing, of what was changed in the source of the engines that it used."""


def summarize(run: RunDirectory) -> RunSummary:
    """Read a run's row from its directory."""
    request = run.request()
    # The status first: what is read after it is no older.
    status, interruption = run.status(), run.interruption()
    state = run.state()
    return RunSummary(
        run_id=run.run_id,
        name=str(state.get("name") or run.run_id[16:].rpartition("-")[0]),
        job=str(request.get("job", "")),
        status=status,
        exit_code=state.get("exit_code"),
        created=float(request.get("created", 0.0)),
        started=state.get("started"),
        ended=state.get("ended"),
        cause=interruption or state.get("cause") or _cancelling(state.get("cancelling")),
        stages={name: str(stage.get("status")) for name, stage in state["stages"].items()},
    )


def _cancelling(said: object) -> str | None:
    """That a run was told to end and has not yet."""
    if not isinstance(said, dict):
        return None
    return f"being cancelled ({said.get('signal') or 'a signal'}); what it is doing has to let go"


def figures(run: RunDirectory) -> Figures:
    """Read a run's metrics, verdicts and artifacts from its events."""
    found = Figures({}, {}, {}, {})
    for event in read_events(run.events_file):
        data, name = event.data, f"{event.stage}/{event.data.get('name')}"
        if event.kind == "metric" and isinstance(data.get("value"), int | float):
            found.metrics[name] = data["value"]
        elif event.kind == "verdict":
            found.verdicts[name] = f"{outcome_word(outcome_of(data))}: {data.get('reason', '')}"
        elif event.kind == "artifact":
            found.artifacts[str(data.get("path"))] = str(data.get("note", ""))
        elif (patch := patch_in(event)) is not None:
            found.patches[patch[0]] = patch[1]
    return found


def patch_in(event: Event) -> tuple[str, str] | None:
    """Recipe and standing, where an event says that an engine's source was patched."""
    told = event.data.get("patch")
    if event.kind != "info" or not isinstance(told, Mapping):
        return None
    recipe, standing = told.get("recipe"), told.get("standing")
    if not isinstance(recipe, str) or not recipe or not isinstance(standing, str):
        return None
    return recipe[:100], standing[:100]


class Ledger:
    """The index below one root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.file = root / "ledger.sqlite"

    def runs(self) -> list[RunSummary]:
        """All runs, oldest first. What has changed on disk since the last look is read again."""
        ids = list_runs(self.root)
        try:
            with self._open(self.file) as database:
                return self._sync(database, ids)
        except sqlite3.DatabaseError:
            pass
        # Damaged, or not to be written: thrown away where that is possible, and held in memory where it is not.
        with contextlib.suppress(OSError):
            for suffix in ("", "-wal", "-shm", "-journal"):
                Path(f"{self.file}{suffix}").unlink(missing_ok=True)
        try:
            with self._open(self.file) as database:
                return self._sync(database, ids)
        except sqlite3.DatabaseError:
            with self._open(Path(":memory:")) as database:
                return self._sync(database, ids)

    @contextlib.contextmanager
    def _open(self, file: Path) -> Iterator[sqlite3.Connection]:
        database = sqlite3.connect(file, timeout=10)
        try:
            with database:
                if database.execute("PRAGMA user_version").fetchone()[0] != FORMAT:
                    database.execute("DROP TABLE IF EXISTS runs")
                    database.execute(f"PRAGMA user_version = {FORMAT}")
                database.execute(
                    "CREATE TABLE IF NOT EXISTS runs (run_id TEXT PRIMARY KEY, stamp TEXT NOT NULL, row TEXT NOT NULL)"
                )
                yield database
        finally:
            database.close()

    def _sync(self, database: sqlite3.Connection, ids: list[str]) -> list[RunSummary]:
        known = {run_id: (stamp, row) for run_id, stamp, row in database.execute("SELECT run_id, stamp, row FROM runs")}
        found = []
        for run_id in ids:
            run = RunDirectory(runs_folder(self.root) / run_id)
            stamp, row = known.get(run_id, ("", ""))
            now = _stamp(run)
            summary = _parse(row) if stamp == now else None
            # A run that may be going on is always read: it can end without touching its files.
            if summary is None or summary.status in ("created", "running"):
                try:
                    summary = summarize(run)
                except (Eagle3opsError, OSError, ValueError, TypeError) as error:
                    # One damaged folder must not hide the others; nor may it hide itself.
                    found.append(_damaged(run, str(error).splitlines()[0]))
                    continue
                database.execute(
                    "INSERT OR REPLACE INTO runs VALUES (?, ?, ?)", (run_id, now, json.dumps(asdict(summary)))
                )
            found.append(summary)
        for gone in known.keys() - set(ids):
            database.execute("DELETE FROM runs WHERE run_id = ?", (gone,))
        return found


def _damaged(run: RunDirectory, why: str) -> RunSummary:
    name = run.run_id[16:].rpartition("-")[0]
    return RunSummary(run.run_id, name, "", "damaged", None, _changed(run.path), None, None, why)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _stamp(run: RunDirectory) -> str:
    """Changes when the run's state does."""
    parts = []
    for name in ("state.json", "supervisor.json", "intent.json"):
        try:
            stat = (run.path / name).stat()
            parts.append(f"{stat.st_mtime_ns}:{stat.st_size}:{stat.st_ino}")
        except OSError:
            parts.append("-")
    return "/".join(parts)


def _parse(row: str) -> RunSummary | None:
    try:
        return RunSummary(**json.loads(row))
    except (ValueError, TypeError):
        return None


def show(root: Path, run_id: str) -> dict[str, Any]:
    """Everything about one run."""
    run = find_run(root, run_id)
    return {
        **asdict(summarize(run)),
        "path": str(run.path),
        "source": run.request().get("source"),
        "state": run.state(),
        **asdict(figures(run)),
        "notes": notes_of(run),
    }
