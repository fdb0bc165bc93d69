"""Which runs and stage outputs does nobody need any more?"""

import contextlib
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from eagle3ops.errors import Refused, RequestError
from eagle3ops.runs.deletion import GONE, delete_run
from eagle3ops.runs.directory import RunDirectory, list_runs, runs_folder
from eagle3ops.runs.files import read_json
from eagle3ops.runs.starts import forget_old
from eagle3ops.runs.store import Store, folder_bytes, remove

UNFINISHED_S = 86400.0
"""A run's folder that has not been finished for a day is not going to be."""


@dataclass(frozen=True, slots=True)
class Garbage:
    """One folder that can go."""

    kind: str
    """run or stage"""
    path: Path
    bytes: int


def find_garbage(root: Path, *, keep: int, older_than_days: float | None = None) -> list[Garbage]:
    """Runs beyond the newest `keep` (and older than so many days), and stage outputs that no kept run refers to.

    A run that is going on, and every output that it needs, is kept; so is a drafter that is promoted, and the one that
    a rollback would lead to.

    Raises:
        RequestError: what is promoted cannot be read, so nothing says that its drafter can go.
    """
    runs = [RunDirectory(runs_folder(root) / run_id) for run_id in list_runs(root)]
    newest = runs[len(runs) - keep :] if keep else []
    limit = None if older_than_days is None else time.time() - older_than_days * 86400
    until = time.time() if limit is None else limit
    old = [run for run in runs if run not in newest and not run.alive() and _created(run) < until]
    # A run whose request is lost is not listed, but nothing says that its outputs can go.
    folders = runs_folder(root)
    listed = {run.path for run in runs}
    others = [path for path in folders.glob("*/") if path not in listed] if folders.is_dir() else []
    damaged = [RunDirectory(path) for path in others if not path.name.startswith(".")]
    needed = {path for run in [*runs, *damaged] if run not in old for path in _needs(run)} | _promoted(root)
    garbage = [Garbage("run", run.path, folder_bytes(run.path)) for run in old]
    # What a killed starter left and nobody went on with, and what a killed deletion did.
    garbage += [
        Garbage("run", path, folder_bytes(path))
        for path in others
        if path.name.endswith((".new", GONE)) and path.stat().st_mtime < time.time() - UNFINISHED_S
    ]
    folder = Store(root).folder
    if folder.is_dir():
        for out in sorted(path for path in folder.iterdir() if path.is_dir()):
            young = limit is not None and out.stat().st_mtime >= limit
            if out.resolve() not in needed and not young:
                garbage.append(Garbage("stage", out, folder_bytes(out)))
    return garbage


def collect(garbage: list[Garbage]) -> list[Garbage]:
    """Delete; returns what was deleted. A stage that a process works in, or a run that has started, is left.

    The key of a deleted run is remembered for a while: an order that is repeated late must not start it anew. Its
    notes are kept.
    """
    gone = []
    for item in garbage:
        if item.kind == "stage":
            if remove(item.path):
                gone.append(item)
        elif item.path.name.startswith("."):
            shutil.rmtree(item.path)
            gone.append(item)
        else:
            with contextlib.suppress(Refused):
                delete_run(RunDirectory(item.path))
                gone.append(item)
    for root in {RunDirectory(item.path).root for item in gone if item.kind == "run"}:
        forget_old(root)
    return gone


def _created(run: RunDirectory) -> float:
    """When it was made; a run that is damaged counts as made now, and stays."""
    try:
        return float(run.request().get("created", 0.0))
    except RequestError:
        return time.time()


def _needs(run: RunDirectory) -> set[Path]:
    """Stage folders that a run made or used, or is going to."""
    try:
        needed = {link.resolve() for link in run.artifacts.iterdir()}
    except (FileNotFoundError, NotADirectoryError):
        needed = set()
    except OSError as error:
        raise RequestError(
            f"{error.filename or run.path}: cannot be read ({error.strerror}), so what it needs is not known",
            remedy="change its permissions, or move the run away if nothing of it is to stay",
        ) from error
    store = Store(run.root)
    for name, stage in run.state().get("stages", {}).items():
        if stage.get("key"):
            needed.add(store.out(name, str(stage["key"])).resolve())
    return needed


def _promoted(root: Path) -> set[Path]:
    """Stage folders with the drafters that are promoted (see `eagle3ops.outputs.promotion`) or were before that."""
    needed = set()
    for path in (root / "promoted").glob("*.json"):
        record = read_json(path)
        try:
            history = {entry["number"]: entry for entry in record["history"] if entry["action"] == "promote"}  # type: ignore[index]
            held = [history[record["current"]]] if record["current"] != 0 else []  # type: ignore[index]
            held += [history[entry["replaced"]] for entry in held if entry["replaced"] != 0]
            needed |= {(root / entry["drafter"]).parent.resolve() for entry in held}
        except (KeyError, TypeError, ValueError) as error:
            remedy = "bring it back, or move it away if nothing is to stay promoted"
            raise RequestError(f"{path}: damaged, so which drafters are needed is not known", remedy=remedy) from error
    return needed
