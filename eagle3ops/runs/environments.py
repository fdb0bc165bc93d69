"""With which variables was a process started? Kept beside the run, once for each distinct environment, without secrets.

runs/<id>/environments/<digest>.json   name -> value
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from eagle3ops.runs.files import read_json, write_atomic
from eagle3ops.runs.redact import redact_environment

FOLDER = "environments"

VALUE_CHARACTERS = 8192
"""Of a longer value the beginning is kept; a digest of the rest tells two of them apart."""

_DIGEST = re.compile(r"[0-9a-f]{16}")


def keep(run_dir: Path, environment: Mapping[str, str]) -> str | None:
    """Write an environment down; returns what it is called from now on, or None where it cannot be written.

    A disk that is full must not keep a process from being started.
    """
    text = json.dumps(dict(sorted(_bounded(redact_environment(environment)).items())), indent=1, ensure_ascii=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = run_dir / FOLDER / f"{digest}.json"
    try:
        if not path.exists():
            # What a person has in their environment is nobody else's business.
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_atomic(path, text + "\n", sync=False)
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        return None
    return digest


def _bounded(environment: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, value in environment.items():
        if len(value) > VALUE_CHARACTERS:
            rest = hashlib.sha256(value.encode("utf-8", errors="surrogateescape")).hexdigest()[:16]
            value = f"{value[:VALUE_CHARACTERS]}... ({len(value)} characters, sha256 {rest})"
        found[name] = value
    return found


def recall(run_dir: Path, digest: str) -> dict[str, str] | None:
    """The environment of that name; None when it was never written, or is damaged."""
    if not _DIGEST.fullmatch(digest):
        return None
    found = read_json(run_dir / FOLDER / f"{digest}.json")
    return None if found is None else {name: value for name, value in found.items() if isinstance(value, str)}


@dataclass(frozen=True, slots=True)
class Differences:
    """How an environment differs from the one that it was made from."""

    changed: dict[str, tuple[str, str | None]]
    """Name -> its value, and the one before; None for a variable that was not there."""
    removed: dict[str, str]
    """Name -> the value that it had."""


def differences(environment: Mapping[str, str], base: Mapping[str, str]) -> Differences:
    """What has to be set and unset to come from `base` to `environment`."""
    changed = {name: (value, base.get(name)) for name, value in environment.items() if base.get(name) != value}
    return Differences(changed, {name: value for name, value in base.items() if name not in environment})
