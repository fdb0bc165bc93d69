"""Ops about what went wrong: in one run, or in the newest ones."""

import dataclasses
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from eagle3ops.errors import Eagle3opsError, RequestError
from eagle3ops.hosts.agent.operation import Surroundings, operation

if TYPE_CHECKING:
    from eagle3ops.watchdog.incidents.incident import Incident
    from eagle3ops.watchdog.incidents.record import Record, Records

NEWEST = 20
MOST_RUNS = 500
MOST = 500
"""Incidents in one answer; those that stand come first."""


@lru_cache(1)
def _records() -> "Records":
    """What was read already; nothing that cannot be read again."""
    from eagle3ops.watchdog.incidents.record import Records

    return Records(2 * MOST_RUNS)


def incidents(here: Surroundings, *, run: str | None = None, runs: int = NEWEST) -> dict[str, Any]:
    """The incidents of one run, or of the newest `runs`, the newest first."""
    from eagle3ops.runs.directory import RunDirectory, find_run, list_runs, runs_folder
    from eagle3ops.watchdog.incidents.of_run import incidents_of

    if not 1 <= runs <= MOST_RUNS:
        raise RequestError(f"incidents.list: runs is between 1 and {MOST_RUNS}, not {runs}")
    if run is not None:
        chosen = [find_run(here.root, run)]
    else:
        chosen = [RunDirectory(runs_folder(here.root) / name) for name in reversed(list_runs(here.root)[-runs:])]
    now = time.time()
    found: list[Incident] = []
    unreadable: list[str] = []
    succeeded: set[tuple[str, str]] = set()
    for one in chosen:
        name = one.run_id[16:].rpartition("-")[0]
        try:
            told, mended = _records().ask(one, lambda record: (incidents_of(record, now), _mended(record)))
        except (Eagle3opsError, OSError, ValueError, TypeError):
            unreadable.append(one.run_id)
            continue
        # A failure stands no longer when a later run of the same pipeline got past that stage.
        found += [dataclasses.replace(each, over=True) if (name, each.stage) in succeeded else each for each in told]
        succeeded |= {(name, stage) for stage in mended}
    found.sort(key=lambda one: (one.over, -one.last))
    kept = sorted(found[:MOST], key=lambda one: -one.last)
    return {
        "root": str(here.root),
        "read": now,
        "incidents": [one.as_json() for one in kept],
        "left_out": len(found) - len(kept),
        "runs": [one.run_id for one in chosen],
        "unreadable": unreadable,
    }


def _mended(record: "Record") -> list[str]:
    """Stages that the run got past without a FAIL; the empty name stands for the run as a whole."""
    failed = {stage for (stage, _), (_, passed, _) in record.verdicts.items() if not passed}
    whole = [""] if record.status == "done" else []
    return [stage for stage in record.mended if stage not in failed] + whole


OPERATIONS = (operation("incidents.list", incidents),)
