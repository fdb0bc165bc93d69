"""Ops about runs: which are there, how do they stand, place one, take it up again, end it."""

import asyncio
import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eagle3ops import locations
from eagle3ops.errors import RequestError
from eagle3ops.hosts.agent.logs import LineIndexes
from eagle3ops.hosts.agent.operation import Surroundings, operation


def here(root: str | None) -> Surroundings:
    """The surroundings of an op about runs that is asked in this process."""
    return Surroundings(locations.root(root), asyncio.to_thread, LineIndexes(), [])


def list_runs(here: Surroundings, *, limit: int | None = None, known: str | None = None) -> dict[str, Any]:
    """One row for each run, oldest first; with `limit` the newest so many.

    `known` is the `tag` of an answer that the asker still has: when nothing has changed since, the rows are left out.
    """
    from eagle3ops.runs.ledger import Ledger

    if limit is not None and limit < 0:
        raise RequestError(f"runs.list: limit is a count, not {limit}")
    rows = Ledger(here.root).runs()
    chosen = rows if limit is None else rows[len(rows) - min(limit, len(rows)) :]
    found = [asdict(row) for row in chosen]
    tag = hashlib.blake2b(repr((str(here.root), len(rows), found)).encode(), digest_size=16).hexdigest()
    answer: dict[str, Any] = {"root": str(here.root), "total": len(rows), "tag": tag}
    return answer if tag == known else answer | {"runs": found}


def show(here: Surroundings, *, run: str) -> dict[str, Any]:
    """Everything about one run."""
    from eagle3ops.runs import ledger

    return ledger.show(here.root, run)


def diff(here: Surroundings, *, run: str, other: str) -> dict[str, Any]:
    """What differs between two runs."""
    from eagle3ops.runs import compare

    return compare.diff(here.root, run, other)


def state(here: Surroundings, *, run: str) -> dict[str, Any]:
    """How a run stands: `state.json`, its request, and whether a supervisor looks after it now."""
    from eagle3ops.runs.directory import find_run

    found = find_run(here.root, run)
    alive = found.alive()
    return {
        "run": found.run_id,
        "path": str(found.path),
        "status": found.status(),
        "alive": alive,
        "interruption": found.interruption(),
        "request": found.request(),
        "state": found.state(),
        "supervisor": found.supervisor(),
    }


def plan(here: Surroundings, *, spec_text: str, job: str = "pipeline", source: str = "pipeline") -> dict[str, Any]:
    """What would run, what is done, and whether it fits; a refusal is part of the answer."""
    from eagle3ops.errors import Eagle3opsError
    from eagle3ops.runs.job import load_registry
    from eagle3ops.runs.planning import admit, available_memory, choose, free_bytes, plan_stages
    from eagle3ops.runs.roots import require_root
    from eagle3ops.spec.load import parse_pipeline, require_known_names

    require_root(here.root)
    registry = load_registry()
    require_known_names([job], ["pipeline", *registry.names()], "job")
    pipeline = parse_pipeline(spec_text, source, registry.specs())
    stages = choose(plan_stages(pipeline, registry, here.root, locations.cache(), [job]), registry, job)
    refused: Eagle3opsError | None = None
    try:
        admit(stages, here.root)
    except Eagle3opsError as error:
        refused = error
    return {
        "source": source,
        "root": str(here.root),
        "free_bytes": free_bytes(here.root),
        "available_memory_bytes": available_memory(),
        "stages": [stage.as_json() for stage in stages],
        "refused": refused.what if refused else None,
        "remedy": refused.remedy if refused else None,
        "exit_code": int(refused.exit_code) if refused else None,
    }


def place(
    here: Surroundings,
    *,
    spec_text: str,
    key: str,
    job: str = "pipeline",
    source: str = "pipeline",
    forced: bool = False,
    cache: str | None = None,
) -> dict[str, Any]:
    """Start a run, once per key; a repeat answers the same run."""
    from eagle3ops.runs import orders

    order = orders.Order(
        job=job,
        spec_text=spec_text,
        source=source,
        root=here.root,
        cache=Path(cache).expanduser() if cache else locations.cache(),
        forced=forced,
        key=key,
    )
    return _started(here, orders.place(order))


def resume(here: Surroundings, *, run: str, token: str, forced: bool = False) -> dict[str, Any]:
    """Take a run up again, once per token."""
    from eagle3ops.runs import orders
    from eagle3ops.runs.directory import find_run

    return _started(here, orders.resume(find_run(here.root, run), token=token, forced=forced))


def _started(here: Surroundings, started: Any) -> dict[str, Any]:
    if started.process is not None:
        here.children.append(started.process)
    return {
        "run": started.run.run_id,
        "path": str(started.run.path),
        "root": str(started.run.root),
        "after": started.after,
        "fresh": started.fresh,
    }


def cancel(here: Surroundings, *, run: str) -> dict[str, Any]:
    """Ask a run to end. `asked` is false when nothing looks after it; its status then says how it stands, and what it
    had left running has been `ended`."""
    from eagle3ops.runs import orders
    from eagle3ops.runs.directory import find_run

    found = find_run(here.root, run)
    asked = orders.cancel(found)
    ended = [] if asked else orders.sweep(found)
    return {"run": found.run_id, "asked": asked, "ended": ended, "status": found.status()}


def collect_garbage(
    here: Surroundings, *, keep: int = 20, older_than_days: float | None = None, delete: bool = False
) -> dict[str, Any]:
    """Runs and outputs that nobody needs: what would go, or with `delete` what went."""
    from eagle3ops.runs.files import explain_os_error
    from eagle3ops.runs.gc import collect, find_garbage

    if keep < 0:
        raise RequestError(f"runs.gc: keep is a count, not {keep}")
    garbage = find_garbage(here.root, keep=keep, older_than_days=older_than_days)
    try:
        gone = collect(garbage) if delete else garbage
    except OSError as error:
        raise explain_os_error(error) or error from error
    items = [{"kind": item.kind, "path": str(item.path), "bytes": item.bytes} for item in gone]
    return {"deleted": delete, "bytes": sum(item.bytes for item in gone), "items": items}


OPERATIONS = (
    operation("runs.list", list_runs),
    operation("runs.show", show),
    operation("runs.diff", diff),
    operation("runs.state", state),
    operation("runs.plan", plan),
    operation("runs.place", place),
    operation("runs.resume", resume),
    operation("runs.cancel", cancel),
    operation("runs.gc", collect_garbage),
)
