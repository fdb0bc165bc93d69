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
    from eagle3ops.runs.directory import RunDirectory

MOST_LOGS = 64
"""Logs of one run that are read; the newest, where there are more."""


def diagnose_run(run: "RunDirectory", begins: dict[str, int] | None = None, *, going_on: bool = False) -> "Diagnosis":
    """What the logs of a run say; `begins` names those to read, and the byte from which on. All are read without it."""
    from eagle3ops.forensics.diagnosis import judge

    if begins is None:
        newest = sorted(list_logs(run), key=lambda log: -log["modified"])[:MOST_LOGS]
        begins = dict.fromkeys(sorted(log["log"] for log in newest), 0)
    return judge(list(_read(run, begins)), going_on=going_on)


def _read(run: "RunDirectory", begins: dict[str, int]) -> Iterator[tuple[str, "Reader"]]:
    from eagle3ops.forensics.records import Reader
    from eagle3ops.forensics.scan import read_lines

    for number, (log, begin) in enumerate(list(begins.items())[:MOST_LOGS]):
        with suppress(RequestError, OSError), open_log(run, log) as fd, os.fdopen(os.dup(fd), "rb") as stream:
            stream.seek(0)
            yield log, Reader().read(line for line in read_lines(stream, number) if line.offset >= begin)
