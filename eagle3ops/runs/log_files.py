"""Which logs does a run have, and which file is meant by the name of one? None outside of the run's own folder.

The files of an incident's evidence are read like logs; the names of those begin with their folder, `incident-N/`.
"""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3ops.errors import RequestError

if TYPE_CHECKING:
    # At run time the import would load the pipeline's models, which an agent at its start does without.
    from eagle3ops.runs.directory import RunDirectory

EVIDENCE = re.compile(r"incident-[1-9][0-9]{0,5}")
"""A folder of evidence among the run's artifacts."""
MOST = 2000
"""Files of a folder that are listed."""


def evidence_folder(name: str) -> str:
    """The folder of evidence that a name leads into; empty for that of a log."""
    first, slash, _ = name.partition("/")
    return first if slash and EVIDENCE.fullmatch(first) else ""


def _encodable(name: str) -> bool:
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True


def find_log(run: "RunDirectory", name: str) -> Path:
    """The file of a run's log, by its name below the run's folder of logs, or of a piece of evidence.

    Raises:
        RequestError: the name leads out of that folder, by itself or by a link.
    """
    parts = name.split("/")
    odd = not name or name.startswith("/") or any(part in ("", ".", "..") for part in parts)
    # An event may name anything: what no file can be called is no log, either.
    if odd or "\0" in name or not _encodable(name):
        raise RequestError(f"{name!a} is not the name of a log", remedy="log.list shows the names")
    folder = evidence_folder(name)
    path = (run.artifacts if folder else run.logs).joinpath(*parts)
    # Unlike Path.resolve this has an answer for a link to itself, too; opening that one then fails.
    inside, place = Path(os.path.realpath(run.artifacts if folder else run.logs)) / folder, Path(os.path.realpath(path))
    if inside not in place.parents:
        raise RequestError(
            f"the log {name!a} of {run.run_id} is a link that leads out of the run, to {place}",
            remedy="read that file by its own path, if it is to be trusted",
        )
    return path


def list_logs(run: "RunDirectory", evidence: str = "") -> list[dict[str, Any]]:
    """Name, bytes and time of the last change of every log of a run, or of every file in a folder of evidence.

    Raises:
        RequestError: no folder of evidence is called like that.
    """
    if evidence and not EVIDENCE.fullmatch(evidence):
        raise RequestError(f"{evidence!a} is not the name of a folder of evidence", remedy="it is called incident-N")
    base = run.artifacts if evidence else run.logs
    found: list[dict[str, Any]] = []
    for folder, _, names in os.walk(base / evidence):
        for name in names[: MOST - len(found)] if evidence else names:
            path = Path(folder, name)
            relative = path.relative_to(base).as_posix()
            try:
                status = find_log(run, relative).stat()
            except (OSError, RequestError):
                continue
            if stat.S_ISREG(status.st_mode) and _printable(relative):
                found.append({"log": relative, "size": status.st_size, "modified": status.st_mtime})
    return sorted(found, key=lambda log: str(log["log"]))


def _printable(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def open_log(run: "RunDirectory", name: str) -> Iterator[int]:
    """A log's file descriptor.

    Raises:
        RequestError: there is no such log, or it is no plain file.
    """
    path = find_log(run, name)
    try:
        # Not blocking: a FIFO under a log's name must not hold up the agent.
        fd = os.open(os.path.realpath(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError as error:
        known = ", ".join(str(log["log"]) for log in list_logs(run)) or "none yet"
        raise RequestError(f"run {run.run_id} has no log {name!a}", remedy=f"its logs: {known}") from error
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise RequestError(f"{path}: not a file")
        yield fd
    finally:
        os.close(fd)
