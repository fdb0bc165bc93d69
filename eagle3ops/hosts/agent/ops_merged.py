"""Ops about several logs of a run as one: windows into their lines in order of time, and which of them match."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from eagle3ops.errors import RequestError
from eagle3ops.hosts.agent.operation import Batch, End, Surroundings, operation, stream

if TYPE_CHECKING:
    from eagle3ops.hosts.agent.merged import Merge, Merges

_KEPT: "list[Merges]" = []
"""The merges of this process; made with the first one, as an agent at its start does without."""
_SEARCHES = asyncio.Semaphore(2)


def _merge(here: Surroundings, run: str, logs: list[Any]) -> "tuple[str, Merge]":
    from eagle3ops.hosts.agent.merged import Merges
    from eagle3ops.runs.directory import find_run

    if not _KEPT:
        _KEPT.append(Merges())
    found = find_run(here.root, run)
    return found.run_id, _KEPT[0].of(found, logs)


def lines(
    here: Surroundings,
    *,
    run: str,
    logs: list[str],
    line: int = -100,
    count: int = 100,
    log: str | None = None,
    at: int | None = None,
) -> dict[str, Any]:
    """Some merged lines, from line `line` on, or from the one on that holds byte `at` of the log `log`.

    The last lines of much that is not merged yet come at once and uncounted, as `log.lines` does it with a long log.
    """
    from eagle3ops.hosts.agent import logs as windows
    from eagle3ops.hosts.agent.merged import QUICK

    if not 1 <= count <= windows.MAX_LINES:
        raise RequestError(f"log.merged: count is between 1 and {windows.MAX_LINES}, not {count}")
    run_id, merge = _merge(here, run, logs)
    if log is not None:
        if log not in merge.names:
            raise RequestError(f"log.merged: {log!a} is not among the logs that are merged")
        merge.refresh()
        line = merge.row_at(log, at or 0)
    elif line < 0 and not merge.built and merge.waiting() > QUICK:
        return {"run": run_id, **merge.ends(min(count, -line))}
    return {"run": run_id, **merge.window(line, count)}


async def search(
    here: Surroundings,
    *,
    run: str,
    logs: list[str],
    pattern: str,
    invert: bool = False,
    ignore_case: bool = False,
    also: list[Any] | None = None,
    line: int = 0,
    offset: int = 0,
    limit: int = 500,
    every: int = 0,
) -> AsyncIterator[Batch]:
    """The merged lines that match, as `log.search` finds them; each found line says at its end which log it is of."""
    from eagle3ops.hosts.agent.ops_logs import checked_search, searched, start_searcher

    asked = checked_search(pattern, invert, ignore_case, also, line, offset, limit, every)
    run_id, merge = await here.in_thread(_merge, here, run, logs)
    await here.in_thread(merge.refresh)
    file, sources, generation = merge.file, merge.sources, merge.generation
    named = {"run": run_id, "log": f"{len(merge.names)} logs", "file": generation}
    async with _SEARCHES:
        searcher = await start_searcher(file.fd, asked)
        async for batch in searched(searcher, named, asked):
            if not isinstance(batch, End) and isinstance(batch, list):
                for item in batch:
                    for found in item["found"]:
                        found.append(sources[found[1]] if found[1] < len(sources) else None)
            yield batch


def cause(here: Surroundings, *, run: str) -> dict[str, Any]:
    """The line of a log that says best why a run failed; `log` is null when none does."""
    from eagle3ops.hosts.agent.log_cause import find_cause
    from eagle3ops.runs.directory import find_run

    found = find_run(here.root, run)
    place = find_cause(found)
    return {"run": found.run_id, "log": None} | (asdict(place) if place is not None else {})


OPERATIONS = (operation("log.cause", cause), operation("log.merged", lines), stream("log.merged_search", search))
