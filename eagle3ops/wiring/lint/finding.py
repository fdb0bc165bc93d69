"""What is wrong with a drafter's checkpoint, why it matters, and what mends it?"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["error", "warn", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warn", "info")
"""error: the engine fails, or computes something else than was trained, without a word. warn: it may. info: something
could not be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing."""

    code: str
    """For programs: `tensor-missing`, `ids-not-read` ..."""
    severity: Severity
    where: str
    """File, with the key or the tensor."""
    what: str
    cause: str
    """What this engine makes of it."""
    fix: str

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


def error(code: str, where: str, what: str, cause: str, fix: str) -> Finding:
    """A finding that must be mended."""
    return Finding(code=code, severity="error", where=where, what=what, cause=cause, fix=fix)


def warn(code: str, where: str, what: str, cause: str, fix: str) -> Finding:
    """A finding that a person should look at."""
    return Finding(code=code, severity="warn", where=where, what=what, cause=cause, fix=fix)


def info(code: str, where: str, what: str, cause: str, fix: str) -> Finding:
    """A finding that something was not looked at."""
    return Finding(code=code, severity="info", where=where, what=what, cause=cause, fix=fix)
