"""What can go wrong, and which exit code of the headless mode says so.

Eagle3opsError                1   a job failed
├── RequestError              2   the request is wrong: usage, spec, unknown host
│   └── SpecError             2   a pipeline file is wrong, with file, line and column
├── VerdictFailed             3   a verdict is FAIL or UNDECIDED
├── WatchdogStopped           4   stopped by the watchdog
├── HostUnreachable           5   a host cannot be reached
├── Refused                   6   a forecast or a lease says no, before anything starts
└── Interrupted             130   SIGINT or SIGTERM

Every message names what is wrong, where it is, and what to do about it: `str(error)` is shown to a person as it
stands, without a traceback.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the headless mode (design 3.8)."""

    DONE = 0
    FAILED = 1
    BAD_REQUEST = 2
    VERDICT_FAIL = 3
    WATCHDOG = 4
    UNREACHABLE = 5
    REFUSED = 6
    INTERRUPTED = 130


class Eagle3opsError(Exception):
    """A failure that is explained: `what` happened and, where there is one, the `remedy`."""

    exit_code: ExitCode = ExitCode.FAILED

    def __init__(self, what: str, *, remedy: str | None = None) -> None:
        self.what = what
        self.remedy = remedy
        super().__init__(what if remedy is None else f"{what}\n  -> {remedy}")


class RequestError(Eagle3opsError):
    """The request cannot be carried out as it was put."""

    exit_code = ExitCode.BAD_REQUEST


class SpecError(RequestError):
    """A pipeline file is wrong; the message carries file, line, column and key path."""

    path: tuple[str | int, ...] = ()
    """The keys that lead to what is wrong; empty where it is the file as a whole, or nobody knows."""

    def under(self, path: tuple[str | int, ...]) -> "SpecError":
        """The same, with the keys that lead to it."""
        self.path = path
        return self


class VerdictFailed(Eagle3opsError):
    """A check came to FAIL; the run did what it was asked."""

    exit_code = ExitCode.VERDICT_FAIL


class WatchdogStopped(Eagle3opsError):
    """The watchdog ended the run."""

    exit_code = ExitCode.WATCHDOG


class HostUnreachable(Eagle3opsError):
    """No connection to the host."""

    exit_code = ExitCode.UNREACHABLE


class Refused(Eagle3opsError):
    """A forecast does not fit or a lease is held; nothing was started."""

    exit_code = ExitCode.REFUSED


class Interrupted(Eagle3opsError):
    """Ended by SIGINT or SIGTERM."""

    exit_code = ExitCode.INTERRUPTED


@contextmanager
def first_failure(told: Callable[[Eagle3opsError], Eagle3opsError] = lambda error: error) -> Iterator[None]:
    """Raise the first failure of several tasks, which says what a person can act on; their group's own words do not.

    Not `except*`: what is raised in there comes wrapped in a group again on some Python 3.11, that of Debian 12 too.
    Where other errors are among them, the group goes on as it is.

    Args:
        told: makes of it what is raised.
    """
    try:
        yield
    except Eagle3opsError as error:
        if (found := told(error)) is error:
            raise
        raise found from error
    except BaseExceptionGroup as group:
        failures, others = group.split(Eagle3opsError)
        if failures is None or others is not None:
            raise
        raise told(_first_of(failures)) from group


def _first_of(failures: BaseExceptionGroup[Eagle3opsError]) -> Eagle3opsError:
    inner = failures.exceptions[0]
    return _first_of(inner) if isinstance(inner, BaseExceptionGroup) else inner
