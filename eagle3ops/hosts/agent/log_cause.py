"""Where in its logs does a run that failed say why? One place: a log, and the byte at which the line begins.

First the logs of all processes of the stage that failed are read together (`eagle3ops.forensics`). Where they name no
cause, what is plain to see counts: where the stage's own error points, the exception that ended a process, the first of
the last errors.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3ops.errors import RequestError
from eagle3ops.hosts.agent.logs import read_window
from eagle3ops.runs.log_files import list_logs, open_log
from eagle3ops.words import plain

if TYPE_CHECKING:
    from eagle3ops.forensics.diagnosis import Diagnosis
    from eagle3ops.runs.directory import RunDirectory

LOOKED_AT = 4 << 20
"""Bytes at the end of a log that are looked through."""

SURE = 0.5
"""How sure the root of all logs has to be, to be believed before what the stage says itself."""

TOGETHER = 50
"""Lines between two errors that still count as one trouble."""

_TRACEBACK = re.compile(rb"^(.{0,80}?)Traceback \(most recent call last\):", re.MULTILINE)
_CHAINED = (b"During handling of the above exception", b"The above exception was the direct cause")
_ERROR = re.compile(
    rb"\b(?:ERROR|CRITICAL|FATAL)\b|(?:Error|Exception)(?::|$)|\b[EF]\d{4} \d\d:|[Oo]ut of memory|Killed$|"
    rb"Segmentation fault|Aborted|core dumped"
)
_ENDED = {"failed", "interrupted", "cancelled"}


@dataclass(frozen=True, slots=True)
class Place:
    """One line of one log."""

    log: str
    offset: int
    how: str
    """Why this line, in words."""
    text: str


def find_cause(run: "RunDirectory") -> Place | None:
    """The line that says best why a run failed, or what troubles one that goes on; None when none does."""
    from eagle3ops.forensics.signatures import PYTHON

    stages = run.state()["stages"]
    failed = [name for name, facts in stages.items() if facts.get("status") == "failed"]
    begun = [name for name, facts in stages.items() if facts.get("status") in ("running", *_ENDED)]
    root = diagnosed(run).root if failed else None
    if root is not None and root.confidence >= SURE:
        named = root.category != PYTHON.category
        how = f"the first cause: {root.category}" if named else "the exception that was raised first"
        return Place(root.file, root.offset, how, _shown(root.text))
    for name, begin, pointed in _candidates(run, (failed or begun)[-1:], stages):
        with suppress(RequestError, OSError, ValueError):
            found = _look(run, name, begin, pointed)
            if found is not None:
                return found
    if failed:
        return None
    errors = []
    for log in sorted(list_logs(run), key=lambda log: -log["modified"]):
        with suppress(RequestError, OSError, ValueError):
            errors.append(_look(run, log["log"], 0, None))
    return next((found for found in errors if found is not None), None)


def diagnosed(run: "RunDirectory") -> "Diagnosis":
    """What the logs of the stage that failed say together; of a run in which none did, all of its logs."""
    from eagle3ops.forensics.of_run import diagnose_run
    from eagle3ops.forensics.sources import Bounds

    bounds = Bounds.short()
    stages = run.state()["stages"]
    failed = [name for name, facts in stages.items() if facts.get("status") == "failed"]
    if failed:
        begins: dict[str, int] = {}
        for log, begin, pointed in _candidates(run, failed[-1:], stages):
            begins[log] = begin if pointed is None else begins.get(log, 0)
        found = diagnose_run(run, begins, bounds=bounds)
        if found.root is not None:
            return found
    going_on = any(facts.get("status") == "running" for facts in stages.values())
    return diagnose_run(run, going_on=going_on, bounds=bounds)


def _candidates(run: "RunDirectory", stages: list[str], state: dict[str, Any]) -> Iterator[tuple[str, int, int | None]]:
    """Logs in which to look, the likeliest first: name, byte from which on, byte at which something points."""
    from eagle3ops.runs.events import read_events

    for stage in stages:
        pointed: list[tuple[str, int, int | None]] = []
        started: dict[str, tuple[str, int]] = {}
        ended: list[tuple[str, int, int | None]] = []
        for event in read_events(run.events_file):
            data, log = event.data, _name(run, event.data.get("log"))
            offset = data.get("offset") if isinstance(data.get("offset"), int) else 0
            if event.stage != stage:
                continue
            if event.kind == "stage" and data.get("status") == "running":
                pointed, started, ended = [], {}, []
            elif event.kind == "error" and log is not None:
                pointed.append((log, 0, offset))
            elif event.kind == "process" and data.get("state") == "started" and log is not None:
                started[str(data.get("pid"))] = log, max(0, int(offset or 0))
            elif event.kind == "process" and data.get("state") == "ended" and data.get("code") != 0:
                known = started.get(str(data.get("pid")))
                ended += [(*known, None)] if known is not None else []
        yield from reversed(pointed)
        yield from ended
        yield _name(run, state[stage].get("log")) or f"{stage}.log", 0, None
        yield from ((log, begin, None) for log, begin in started.values())
    yield "supervisor.log", 0, None


def _name(run: "RunDirectory", said: object) -> str | None:
    """The name of a log below the folder of logs, from how events and the state name it."""
    if not isinstance(said, str) or not said:
        return None
    with suppress(ValueError):
        return (run.path / said).relative_to(run.logs).as_posix()
    return Path(said).name


def _look(run: "RunDirectory", log: str, begin: int, pointed: int | None) -> Place | None:
    with open_log(run, log) as fd:
        if pointed is not None:
            found = read_window(fd, max(0, pointed), 4096)
            line = found["text"].partition("\n")[0]
            if line.strip():
                return Place(log, found["offset"], "where the stage's own error points", _shown(line))
        size = os.fstat(fd).st_size
        start = max(0, min(begin, size), size - LOOKED_AT)
        data = os.pread(fd, size - start, start)
    found_at = cause_in(data)
    if found_at is None:
        return None
    at, how = found_at
    stop = data.find(b"\n", at)
    return Place(log, start + at, how, _shown(data[at : len(data) if stop < 0 else stop].decode("utf-8", "replace")))


def _shown(line: str) -> str:
    return plain(line)[:300]


def cause_in(data: bytes) -> tuple[int, str] | None:
    """Where in the text of a log the line begins that says why, and how that was found."""
    tracebacks = list(_TRACEBACK.finditer(data))
    if tracebacks:
        at = len(tracebacks) - 1
        while at > 0 and any(words in data[tracebacks[at - 1].end() : tracebacks[at].start()] for words in _CHAINED):
            at -= 1
        raising = _raising(data, tracebacks[at])
        if raising is not None:
            return raising, "the exception that was raised first"
    lines = [found for found in _lines(data) if _ERROR.search(found[1][:2000])]
    if not lines:
        return None
    place = len(lines) - 1
    while place > 0 and lines[place][2] - lines[place - 1][2] <= TOGETHER:
        place -= 1
    return lines[place][0], "the first of the last errors"


def _raising(data: bytes, traceback: "re.Match[bytes]") -> int | None:
    """The line behind the frames of a traceback: the exception itself."""
    prefix = traceback[1]
    at = data.find(b"\n", traceback.end()) + 1
    while 0 < at < len(data):
        stop = data.find(b"\n", at)
        line = data[at : len(data) if stop < 0 else stop]
        said = line[len(prefix) :] if prefix and line.startswith(prefix) else line
        if said.strip() and not said[:1].isspace():
            return at
        if stop < 0:
            return None
        at = stop + 1
    return None


def _lines(data: bytes) -> Iterator[tuple[int, bytes, int]]:
    """Byte, line and number of each."""
    at = 0
    for number, line in enumerate(data.split(b"\n")):
        yield at, line, number
        at += len(line) + 1
