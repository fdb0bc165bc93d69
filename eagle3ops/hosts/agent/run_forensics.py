"""Why did a run fail, by all its logs? Reads those of the stage that failed, from where its processes began."""

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from eagle3ops.errors import RequestError
from eagle3ops.hosts.agent.logs import list_logs, open_log

if TYPE_CHECKING:
    from eagle3ops.forensics.diagnosis import Diagnosis
    from eagle3ops.forensics.records import Reader
    from eagle3ops.forensics.sources import Bounds
    from eagle3ops.runs.directory import RunDirectory

MOST_LOGS = 64
"""Logs of one run that are read; the newest, where there are more."""


def diagnose_run(
    run: "RunDirectory",
    begins: dict[str, int] | None = None,
    *,
    going_on: bool = False,
    bounds: "Bounds | None" = None,
) -> "Diagnosis":
    """What the logs of a run say; `begins` names those to read, and the byte from which on. All are read without it.

    Somebody waits for it: of each log only the newest part is read, and of all only as much as there is time for.
    """
    from eagle3ops.forensics.diagnosis import judge
    from eagle3ops.forensics.sources import Bounds

    notes: list[str] = []
    if begins is None:
        newest = sorted(list_logs(run), key=lambda log: -log["modified"])
        if len(newest) > MOST_LOGS:
            notes.append(f"of {len(newest)} logs the {MOST_LOGS} that were written to last were read")
        begins = dict.fromkeys(sorted(log["log"] for log in newest[:MOST_LOGS]), 0)
    logs = list(_read(run, begins, bounds or Bounds.short(), notes))
    return judge(logs, going_on=going_on, notes=notes)


def _read(
    run: "RunDirectory", begins: dict[str, int], bounds: "Bounds", notes: list[str]
) -> Iterator[tuple[str, "Reader"]]:
    from eagle3ops.forensics.records import Reader
    from eagle3ops.forensics.sources import read_log

    for log, begin in list(begins.items())[:MOST_LOGS]:
        with suppress(RequestError, OSError), open_log(run, log) as fd, os.fdopen(os.dup(fd), "rb", 0) as stream:
            reader = Reader()
            notes += [f"{log}: {words}" for words in read_log(stream, log, reader, begin=begin, bounds=bounds)]
            yield log, reader
