"""What has been measured already? One durable line for each finished measurement and each failure, in `rows.jsonl`."""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3ops.runs.files import sync_folder

ROWS = "rows.jsonl"

Key = tuple[str, str]
"""Label of a point, or of a final's contenders; and the rung, or `final`."""


@dataclass(slots=True)
class Book:
    """The rows of one sweep. Killed at any moment, it holds every row whose `add` came back."""

    path: Path
    measured: dict[Key, dict[str, Any]] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)

    @staticmethod
    def open(folder: Path) -> "Book":
        """Read what there is, and cut off a line that a kill left half written."""
        book = Book(folder / ROWS)
        whole = 0
        if book.path.exists():
            content = book.path.read_bytes()
            for line in content.splitlines(keepends=True):
                row = _row(line)
                if row is None:
                    break
                whole += len(line)
                book._take(row)
            if whole < len(content):
                with book.path.open("r+b") as file:
                    file.truncate(whole)
                    os.fsync(file.fileno())
        return book

    def add(self, row: Mapping[str, Any]) -> None:
        """Write one row down; it is on the disk when this returns."""
        stamped = {**row, "ts": round(time.time(), 3)}
        fresh = not self.path.exists()
        with self.path.open("ab") as file:
            file.write(json.dumps(stamped, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if fresh:
            sync_folder(self.path.parent)
        self._take(stamped)

    def failures_of(self, *subjects: str) -> list[dict[str, Any]]:
        """The failures of a point, or of its setting."""
        return [one for one in self.failures if one["subject"] in subjects]

    def _take(self, row: dict[str, Any]) -> None:
        if row["kind"] == "measured":
            self.measured[(row["point"], str(row["rung"]))] = row
        else:
            self.failures.append(row)


def _row(line: bytes) -> dict[str, Any] | None:
    """The row in a line; None when it is torn, or none of ours."""
    if not line.endswith(b"\n"):
        return None
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    if row.get("kind") == "measured":
        known = isinstance(row.get("point"), str) and isinstance(row.get("rung"), int | str)
        return row if known and isinstance(row.get("blocks"), dict) else None
    return row if row.get("kind") == "failure" and isinstance(row.get("subject"), str) else None
