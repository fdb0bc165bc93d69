"""What has a run's guard decided, and about which attempt? One small file, `watchdog.json`, that the supervisor obeys.

The guard decides and never ends anything; the supervisor ends and never decides. A decision that is torn, odd, or about
another attempt than the one that runs is as good as none.
"""

import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3ops.runs.files import read_json, write_json
from eagle3ops.runs.processes import ProcessId
from eagle3ops.runs.redact import redact_data

FILE = "watchdog.json"
RESTART, GIVE_UP = "restart", "give_up"
_VARIABLE = re.compile(r"(?:NCCL|CUDA|TORCH|SGLANG|VLLM|FLASHINFER|GLOO|OMP|MAX)_[A-Z0-9_]{1,80}")
"""Variables that a decision may set: those that a search for a cause turns off, and none that starts a program."""
_ARGUMENT = re.compile(r"--[a-z0-9][a-z0-9-]{0,80}")
_LONGEST = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is to be done with one attempt at a stage."""

    incident: str
    """Id of the incident."""
    stage: str
    attempt: ProcessId
    """The process that runs the stage."""
    action: str
    """`restart` or `give_up`."""
    title: str
    """What is wrong, in one line."""
    why: str
    """Why this action."""
    fingerprint: str
    rung: str = ""
    """Name of what is left out in the restart."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for the restart."""
    arguments: tuple[str, ...] = ()
    """To add to the engine's command line in the restart."""
    evidence: str = ""
    """The folder in which the evidence is."""

    def write(self, run_dir: Path) -> None:
        """Put it where the supervisor looks."""
        data = {name: getattr(self, name) for name in _TEXTS}
        data |= {"environment": dict(self.environment), "arguments": list(self.arguments)}
        write_json(run_dir / FILE, redact_data(data) | {"attempt": self.attempt.as_json()})


_TEXTS = ("incident", "stage", "action", "title", "why", "fingerprint", "rung", "evidence")


def from_json(data: object) -> Decision | None:
    """A decision, from what stands in the file; None for what is none."""
    if not isinstance(data, Mapping):
        return None
    texts = {name: data.get(name, "") for name in _TEXTS}
    attempt = ProcessId.from_json(data.get("attempt"))
    if attempt is None or not all(isinstance(text, str) for text in texts.values()):
        return None
    environment, arguments = data.get("environment"), data.get("arguments")
    if texts["action"] not in (RESTART, GIVE_UP) or not texts["stage"]:
        return None
    if not isinstance(environment, Mapping) or not isinstance(arguments, list) or len(arguments) > 16:
        return None
    sound = all(
        isinstance(name, str) and isinstance(value, str) and _VARIABLE.fullmatch(name) and len(value) <= 200
        for name, value in environment.items()
    )
    if not sound or not all(isinstance(one, str) and _ARGUMENT.fullmatch(one) for one in arguments):
        return None
    return Decision(
        attempt=attempt,
        environment=dict(environment),
        arguments=tuple(arguments),
        **{name: text[:_LONGEST] for name, text in texts.items()},
    )


class Decisions:
    """Looks whether something was decided about one attempt; costs a `stat` while nothing was."""

    def __init__(self, run_dir: Path, stage: str, attempt: ProcessId | None) -> None:
        self._path = run_dir / FILE
        self._stage = stage
        self._attempt = attempt
        self._seen: tuple[int, int] | None = None

    def look(self) -> Decision | None:
        """The decision about this attempt; None while there is none."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        mark = status.st_ino, status.st_mtime_ns
        # What is no file (a pipe, a device) could keep whoever reads it for ever.
        if mark == self._seen or self._attempt is None or not stat.S_ISREG(status.st_mode):
            return None
        self._seen = mark
        found = from_json(_bounded(self._path, status.st_size))
        if found is None or found.stage != self._stage or found.attempt != self._attempt:
            return None
        return found


def _bounded(path: Path, size: int) -> dict[str, Any] | None:
    return read_json(path) if size < 1 << 20 else None
