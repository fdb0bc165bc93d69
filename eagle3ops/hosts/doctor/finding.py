"""What is one thing that was found out about a host?"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

Status = Literal["ok", "warn", "bad", "absent"]
"""`absent` is no fault: it is not there, and the reference engine does not need it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a host has, lacks, or has in a way that will hurt."""

    name: str
    """Stable and dotted, the group first: `gpu.driver`, `disk.root`."""
    status: Status
    value: str
    """What was found, with units."""
    remedy: str | None
    """What to do about it; None only where nothing needs doing."""

    def as_json(self) -> dict[str, Any]:
        """For the agent's answer and `--json`."""
        return asdict(self)


def ok(name: str, value: str) -> Finding:
    """As it should be."""
    return Finding(name, "ok", value, None)


def warn(name: str, value: str, remedy: str) -> Finding:
    """Works, and will hurt some day."""
    return Finding(name, "warn", value, remedy)


def bad(name: str, value: str, remedy: str) -> Finding:
    """Something that is needed, or that is there, does not work."""
    return Finding(name, "bad", value, remedy)


def absent(name: str, value: str, remedy: str) -> Finding:
    """Not there, which is normal."""
    return Finding(name, "absent", value, remedy)


def from_json(data: Mapping[str, Any]) -> Finding:
    """A finding from another machine's answer.

    Raises:
        ValueError: it is not one.
    """
    name, value, remedy = (data.get(key) for key in ("name", "value", "remedy"))
    status: Status | None = next((known for known in get_args(Status) if known == data.get("status")), None)
    if not isinstance(name, str) or not isinstance(value, str) or status is None:
        raise ValueError(f"not a finding: {dict(data)!r:.200}")
    if remedy is not None and not isinstance(remedy, str):
        raise ValueError(f"not a remedy: {remedy!r:.200}")
    return Finding(name, status, value, remedy)


def by_name(findings: Iterable[Finding]) -> dict[str, Finding]:
    """To look findings up."""
    return {finding.name: finding for finding in findings}
