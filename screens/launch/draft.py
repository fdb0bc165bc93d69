"""Where is what was typed into the form kept, so that neither a crash nor a second console loses it?

One file for each console and place, written a moment after the last key. A console that opens the form takes up the
newest draft whose console has ended; what a person puts away is kept beside it for a while.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from eagle3ops import locations
from eagle3ops.runs.files import read_json, write_json
from eagle3ops.runs.processes import identify, is_alive
from eagle3ops.screens.launch.form import Origin

KEPT = 10
"""Drafts that were put away, for each place."""
MOST_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Draft:
    """A form as it was left."""

    text: str
    job: str
    origin: Origin
    saved: float = 0.0
    """Seconds since 1970."""
    key: str = ""
    """Idempotency key of a start whose outcome is not known."""
    path: Path | None = None

    @property
    def untouched(self) -> bool:
        """Nothing was typed."""
        return self.text == self.origin.text and self.job == self.origin.job and not self.key


@dataclass(slots=True)
class Drafts:
    """The drafts of one place: a host and a root there."""

    host: str
    root: str
    folder: Path = field(default_factory=lambda: locations.state_folder() / "launch")
    _mine: Path | None = None

    @property
    def _start(self) -> str:
        return hashlib.sha256(f"{self.host}\0{self.root}".encode()).hexdigest()[:12]

    def save(self, draft: Draft, *, leave: bool = False) -> None:
        """Keep a draft in place of the one before; one in which nothing was typed need not be kept.

        Args:
            draft: the form as it stands.
            leave: for whoever opens the form next; this console is done with it.

        Raises:
            OSError: it cannot be written.
        """
        if draft.untouched:
            self.forget()
            return
        if self._mine is None:
            self._mine = self.folder / f"{self._start}-{uuid4().hex[:8]}.json"
        self._write(self._mine, draft, owned=not leave)

    def forget(self) -> None:
        """The draft is of no use any more."""
        if self._mine is not None:
            self._mine.unlink(missing_ok=True)
            self._mine = None

    def put_away(self, draft: Draft) -> None:
        """Keep a draft that a person leaves for another one.

        Raises:
            OSError: it cannot be written.
        """
        if draft.untouched:
            return
        self._write(self.folder / f"{self._start}-away-{uuid4().hex[:8]}.json", draft)
        for old in self.earlier()[KEPT:]:
            if old.path is not None:
                old.path.unlink(missing_ok=True)

    def earlier(self) -> list[Draft]:
        """What was put away, newest first."""
        return self._read(f"{self._start}-away-*.json", owned=False)

    def take_up(self) -> Draft | None:
        """The newest draft that a console left behind, which is this one's from now on; None when there is none."""
        found = [draft for draft in self._read(f"{self._start}-*.json", owned=True) if draft.path is not None]
        if not found:
            return None
        taken: Draft | None = None
        for draft in found:
            assert draft.path is not None
            # Of two consoles that see it, one can rename it.
            with contextlib.suppress(OSError):
                if taken is None:
                    mine = self.folder / f"{self._start}-{uuid4().hex[:8]}.json"
                    draft.path.rename(mine)
                    self._mine, taken = mine, draft
                    self._write(mine, draft)
                else:
                    draft.path.rename(self.folder / f"{self._start}-away-{uuid4().hex[:8]}.json")
        return taken

    def _read(self, pattern: str, *, owned: bool) -> list[Draft]:
        """The drafts of files whose consoles have ended, newest first."""
        found = []
        with contextlib.suppress(OSError):
            for path in self.folder.glob(pattern):
                if owned and "-away-" in path.name:
                    continue
                with contextlib.suppress(OSError):
                    if path.stat().st_size > MOST_BYTES:
                        continue
                    data = read_json(path)
                    if data is None or (owned and is_alive(_owner(data))):
                        continue
                    draft = from_json(data, path)
                    if draft is not None:
                        found.append(draft)
        return sorted(found, key=lambda draft: draft.saved, reverse=True)

    def _write(self, path: Path, draft: Draft, *, owned: bool = True) -> None:
        me = identify(os.getpid()) if owned else None
        self.folder.mkdir(parents=True, exist_ok=True)
        data = {
            "schema": 1,
            "host": self.host,
            "root": self.root,
            "text": draft.text,
            "job": draft.job,
            "origin": draft.origin.as_json(),
            "saved": draft.saved or time.time(),
            "key": draft.key,
            "owner": None if me is None else me.as_json(),
        }
        write_json(path, data)


def _owner(data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    owner = data.get("owner")
    return owner if isinstance(owner, Mapping) else None


def from_json(data: Mapping[str, Any], path: Path | None = None) -> Draft | None:
    """Read a draft back; None for what is none."""
    text, saved = data.get("text"), data.get("saved")
    if not isinstance(text, str):
        return None
    when = float(saved) if isinstance(saved, int | float) and not isinstance(saved, bool) and abs(saved) < 1e15 else 0.0
    return Draft(
        text=text,
        job=str(data.get("job") or "pipeline"),
        origin=Origin.from_json(data.get("origin")),
        saved=when,
        key=str(data.get("key") or ""),
        path=path,
    )
