"""What was collected: the files, what they show, and what is missing and why."""

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3ops.runs.files import read_json
from eagle3ops.watchdog.evidence.locks import LockFile
from eagle3ops.watchdog.evidence.stacks import Cluster
from eagle3ops.watchdog.incidents.incident import Evidence

MANIFEST = "dossier.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One part of the collection."""

    name: str
    what: str
    """For people."""
    took_s: float
    files: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """What there is not, and why."""

    def as_json(self) -> dict[str, Any]:
        """For the manifest."""
        return {
            "name": self.name,
            "what": self.what,
            "took_s": round(self.took_s, 3),
            "files": list(self.files),
            "missing": list(self.missing),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Dossier:
    """All the evidence about one incident at one moment."""

    folder: Path
    files: tuple[str, ...]
    """Names below the folder, the manifest among them."""
    findings: tuple[Evidence, ...] = ()
    """What it shows, the most telling first, without secrets."""
    suspects: tuple[int, ...] = ()
    """Process ids, the most suspicious first."""
    locks: tuple[LockFile, ...] = ()
    clusters: tuple[Cluster, ...] = ()
    """Empty unless stacks were taken."""
    stopped: tuple[int, ...] = ()
    """Process ids of those in state T."""
    steps: tuple[Step, ...] = ()
    took_s: float = 0.0

    @property
    def missing(self) -> tuple[str, ...]:
        """What there is not, and why, over all steps."""
        return tuple(f"{step.name}: {words}" for step in self.steps for words in step.missing)

    @property
    def fingerprint(self) -> tuple[str, ...]:
        """The places at which main threads stand, without line numbers: the same for the same hang.

        Not those of stopped processes, nor those that move: the next time they would be elsewhere.
        """
        main = [one for one in self.clusters if one.role == "MainThread" and set(one.standing) - set(self.stopped)]
        places = {re.sub(r":[0-9]+\)$", ")", one.place) for one in main}
        return tuple(sorted(places))[:16]


def set_aside(folder: Path) -> None:
    """An earlier collection in the same folder goes into `before`, `before-2` ... of it: it shows an earlier moment."""
    earlier = read_json(folder / MANIFEST)
    if earlier is None:
        return
    number, place = 1, folder / "before"
    while place.exists():
        number += 1
        place = folder / f"before-{number}"
    names = {MANIFEST, *_names(earlier)}
    with contextlib.suppress(OSError):
        place.mkdir(mode=0o700)
        for top in sorted({name.split("/", 1)[0] for name in names}):
            with contextlib.suppress(FileNotFoundError):
                os.rename(folder / top, place / top)


def _names(manifest: Mapping[str, Any]) -> set[str]:
    found = set()
    steps = manifest.get("steps")
    for step in steps if isinstance(steps, list) else ():
        files = step.get("files") if isinstance(step, Mapping) else None
        for name in files if isinstance(files, list) else ():
            # A manifest that somebody else wrote moves nothing out of the folder.
            if isinstance(name, str) and re.fullmatch(r"[\w@%+=:,-][\w.@%+=:,/-]*", name) and ".." not in name:
                found.add(name)
    return found


def safe_name(text: str, taken: Sequence[str] = ()) -> str:
    """A file name made of a text from outside, not one of `taken`."""
    base = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-")[:80] or "unnamed"
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base}-{number}"
    return name
