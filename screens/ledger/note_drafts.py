"""Where is a note kept while it is typed, so that neither a killed console nor another host loses it?"""

import contextlib
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from eagle3ops import locations
from eagle3ops.runs.files import read_json, write_json

MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class NoteDrafts:
    """Notes that nobody has saved yet, a file for each run of one host and root. Everything here waits for a disk."""

    host: str
    root: str
    folder: Path = field(default_factory=lambda: locations.state_folder() / "notes")

    def _path(self, run_id: str) -> Path:
        name = hashlib.sha256("\0".join((self.host, self.root, run_id)).encode(errors="replace")).hexdigest()
        return self.folder / f"{name[:20]}.json"

    def read(self, run_id: str) -> dict[str, str]:
        """What was typed of a note on this run; nothing where nothing was, or where it cannot be read."""
        path = self._path(run_id)
        with contextlib.suppress(OSError):
            data = read_json(path) if path.stat().st_size <= MOST_BYTES else None
            typed = data.get("typed") if isinstance(data, Mapping) else None
            if isinstance(typed, Mapping):
                return {str(name): text for name, text in typed.items() if isinstance(text, str)}
        return {}

    def keep(self, run_id: str, typed: Mapping[str, str]) -> None:
        """Keep what is typed in place of what was; a note that says nothing is forgotten.

        Raises:
            OSError: it cannot be written.
        """
        path = self._path(run_id)
        if not any(text.strip() for text in typed.values()):
            path.unlink(missing_ok=True)
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(path, {"schema": 1, "host": self.host, "root": self.root, "run": run_id, "typed": dict(typed)})
