"""Why did a run fail, by all its logs? Reads those of the stage that failed, from where its processes began.

As a program, `python -m eagle3ops.forensics.of_run RUN_DIR STAGE`, it reads from standard input what the stage said and
prints the root as JSON: whoever looks after a run asks in a process of its own, so that no log, however strange or
large, can hurt it.
"""

import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eagle3ops.errors import RequestError
from eagle3ops.forensics.diagnosis import Diagnosis, Root, judge
from eagle3ops.forensics.records import Reader
from eagle3ops.forensics.signatures import PYTHON
from eagle3ops.forensics.sources import SECONDS, Bounds, read_log
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.events import read_events
from eagle3ops.runs.leash import leashed
from eagle3ops.runs.log_files import list_logs, open_log
from eagle3ops.words import plain

MOST_LOGS = 64
"""Logs of one run that are read; the newest, where there are more."""
LIMIT_S = SECONDS + 5.0
"""So long a run waits for the cause of its failure: as long as is read, and what it takes to judge that."""
SURE = 0.5
"""How sure the root has to be, to be told unasked."""
_MEMORY = 4 << 30
_ANSWER = 1 << 20
_WORDS = re.compile(r"[a-z0-9_]{2,}")


def diagnose_run(
    run: RunDirectory,
    begins: Mapping[str, int] | None = None,
    *,
    going_on: bool = False,
    bounds: Bounds | None = None,
) -> Diagnosis:
    """What the logs of a run say.

    Somebody waits for it: of each log only the newest part is read, and of all only as much as there is time for.

    Args:
        run: the run.
        begins: the logs to read, and the byte from which on; all are read without it.
        going_on: the logs may still grow.
        bounds: how much is read.
    """
    notes: list[str] = []
    if begins is None:
        newest = sorted(list_logs(run), key=lambda log: -log["modified"])
        if len(newest) > MOST_LOGS:
            notes.append(f"of {len(newest)} logs the {MOST_LOGS} that were written to last were read")
        begins = dict.fromkeys(sorted(log["log"] for log in newest[:MOST_LOGS]), 0)
    logs = list(_read(run, begins, bounds or Bounds.short(), notes))
    return judge(logs, going_on=going_on, notes=notes)


def _read(
    run: RunDirectory, begins: Mapping[str, int], bounds: Bounds, notes: list[str]
) -> Iterator[tuple[str, Reader]]:
    for log, begin in list(begins.items())[:MOST_LOGS]:
        with suppress(RequestError, OSError), open_log(run, log) as fd, os.fdopen(os.dup(fd), "rb", 0) as stream:
            reader = Reader()
            notes += [f"{log}: {words}" for words in read_log(stream, log, reader, begin=begin, bounds=bounds)]
            yield log, reader


def begins_of(run: RunDirectory, stage: str) -> dict[str, int]:
    """The logs of the last attempt at a stage, and where in them it began; the likeliest first."""
    started: dict[str, tuple[str, int]] = {}
    ended: list[tuple[str, int]] = []
    for event in read_events(run.events_file):
        data, log = event.data, log_name(run, event.data.get("log"))
        offset = data.get("offset")
        begin = max(0, offset) if isinstance(offset, int) and not isinstance(offset, bool) else 0
        if event.stage != stage:
            continue
        if event.kind == "stage" and data.get("status") == "running":
            started, ended = {}, []
        elif event.kind == "process" and data.get("state") == "started" and log is not None:
            started[str(data.get("pid"))] = log, begin
        elif event.kind == "process" and data.get("state") == "ended" and data.get("code") != 0:
            known = started.get(str(data.get("pid")))
            ended += [known] if known is not None else []
    begins: dict[str, int] = {}
    for log, begin in (*ended, *started.values()):
        begins[log] = min(begin, begins.get(log, begin))
    return begins


def log_name(run: RunDirectory, said: object) -> str | None:
    """The name of a log below the folder of logs, from how events and the state name it."""
    if not isinstance(said, str) or not said:
        return None
    with suppress(ValueError):
        return (run.path / said).relative_to(run.logs).as_posix()
    return Path(said).name


def root_of(run: RunDirectory, stage: str, said: str = "") -> dict[str, Any] | None:
    """The cause of a stage's failure that its logs name and the stage itself does not; None where there is none.

    Args:
        run: the run.
        stage: name of the stage that failed.
        said: what the stage says went wrong.
    """
    found = diagnose_run(run, begins_of(run, stage))
    root = found.root
    if root is None or root.confidence < SURE or not _better(root, stage, said):
        return None
    return asdict(root) | {"suspect_ranks": found.suspect_ranks}


def _better(root: Root, stage: str, said: str) -> bool:
    """Does the root say more than the stage itself?"""
    text, known = set(_WORDS.findall(plain(root.text).lower())), set(_WORDS.findall(plain(said).lower()))
    if len(text & known) * 2 < len(text):
        return True
    # The same words: they say more only where a table knows what another process meant by them.
    return root.category != PYTHON.category and root.file != f"{stage}.log"


def ask(
    run: RunDirectory,
    stage: str,
    said: str = "",
    *,
    limit_s: float = LIMIT_S,
    beat: Callable[[], None] = lambda: None,
    stopped: Callable[[], bool] = lambda: False,
) -> dict[str, Any] | None:
    """`root_of` in a process of its own, which ends with this one; None also where it does not answer in time.

    Args:
        run: the run.
        stage: name of the stage that failed.
        said: what the stage says went wrong.
        limit_s: seconds to wait for the answer.
        beat: called several times a second.
        stopped: is the answer no longer wanted?
    """
    argv = [sys.executable, "-m", "eagle3ops.forensics.of_run", str(run.path), stage]
    # What was said is a line of a log: it may hold a secret, or what no argument may.
    asked: bytes | None = said[:2000].encode(errors="replace")
    try:
        process = subprocess.Popen(
            leashed(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:
        return None
    deadline = time.monotonic() + limit_s
    try:
        while True:
            try:
                out, _ = process.communicate(asked, timeout=0.2)
                return checked(out[:_ANSWER])
            except subprocess.TimeoutExpired:
                asked = None
                beat()
                if stopped() or time.monotonic() > deadline:
                    return None
    finally:
        process.kill()
        process.communicate()


_FIELDS: dict[str, type | tuple[type, ...]] = {
    "file": str,
    "offset": int,
    "line_no": int,
    "text": str,
    "category": str,
    "confidence": (int, float),
    "explanation": str,
    "fix": str,
    "source": str,
    "fingerprint": str,
    "suspect_ranks": list,
}


def checked(answer: bytes | str) -> dict[str, Any] | None:
    """A root as `root_of` gives it, from what another process printed; None for what is none."""
    try:
        root = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    if not isinstance(root, dict) or set(root) != set(_FIELDS):
        return None
    sound = all(isinstance(root[name], kind) and not isinstance(root[name], bool) for name, kind in _FIELDS.items())
    return root if sound else None


def main() -> int:
    """Print the root of the run and stage named on the command line as JSON, `null` where there is none."""
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    with suppress(OSError):
        os.nice(5)
    run, stage, said = RunDirectory(Path(sys.argv[1])), sys.argv[2], sys.stdin.buffer.read().decode(errors="replace")
    sys.stdout.write(json.dumps(root_of(run, stage, said)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
