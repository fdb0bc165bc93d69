"""What is worth knowing when the console breaks? A report in a file, without secrets, and where it is."""

import contextlib
import os
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

from eagle3ops import __version__
from eagle3ops.locations import crash_folder
from eagle3ops.runs.redact import redact
from eagle3ops.words import plain

KEPT = 20
"""Reports kept; older ones are deleted."""
_TERMINAL = ("TERM", "COLORTERM", "TERM_PROGRAM", "TMUX", "SSH_CONNECTION", "LANG", "LC_ALL", "NO_COLOR")


class Facts(TypedDict):
    """How the console stood."""

    link: str
    screen: str
    size: str
    keys: list[str]


def report(error: BaseException, *, link: str, screen: str, size: str, keys: Iterable[str]) -> str:
    """The text of a report."""
    facts = [
        ("time", time.strftime("%Y-%m-%d %H:%M:%S %z")),
        ("eagle3ops", __version__),
        ("python", " ".join([platform.python_version(), "on", *os.uname()[::2]])),
        *((name, _version(name)) for name in ("textual", "rich", "asyncssh")),
        ("link", link),
        ("screen", screen),
        ("size", size),
        *((name, os.environ[name]) for name in _TERMINAL if name in os.environ and name != "SSH_CONNECTION"),
        ("over ssh", "yes" if "SSH_CONNECTION" in os.environ else "no"),
        ("last keys", " ".join(keys) or "none"),
    ]
    told = "\n".join(f"{name}: {plain(value)}" for name, value in facts)
    trace = "".join(traceback.format_exception(error))
    lines = "\n".join(map(plain, redact(trace).splitlines()))
    return f"{redact(told)}\n\n{lines}\n"


def leave(text: str) -> Path | None:
    """Write a report to a file that only its owner reads; None when there is no place for it."""
    folder = crash_folder()
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{time.monotonic_ns() % 1000:03d}.txt"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), text)
        for old in sorted(folder.glob("*.txt"))[:-KEPT]:
            old.unlink(missing_ok=True)
        return folder / name
    with contextlib.suppress(OSError):
        handle, temporary = tempfile.mkstemp(prefix="eagle3ops-crash-", suffix=".txt")
        _write(handle, text)
        return Path(temporary)
    return None


def _write(handle: int, text: str) -> None:
    with open(handle, "w", encoding="utf-8", errors="replace") as file:
        file.write(text)


def say(error: BaseException, path: Path | None, text: str) -> None:
    """Tell a person, on standard error of a terminal that is itself again."""
    what = redact(plain(f"{type(error).__name__}: {error}"))[:500]
    if path is None:
        sys.stderr.write(f"{text}\n")
    where = f"the report is in {path}" if path is not None else "the report could not be written; it stands above"
    sys.stderr.write(f"eagle3ops: the console broke: {what}\n  -> this is a defect of eagle3ops; {where}\n")
    sys.stderr.write("  -> runs go on; eagle3ops opens the console again\n")


def _version(name: str) -> str:
    # Needed only when something broke, and slow to import.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
