"""How do answers reach standard output: lines, tables, JSON?"""

import json
import sys
import time
from collections.abc import Sequence
from typing import Any


def write(text: str) -> None:
    """One line, at once: whoever reads may be a program."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def write_json(data: Any) -> None:
    """An answer for programs."""
    write(json.dumps(data, indent=2, ensure_ascii=False, default=str))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as their widest cell."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    for row in [header, *rows]:
        write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def when(seconds: float | None) -> str:
    """`2026-11-30 08:01:37`, by this machine's clock; `-` for what is not known."""
    known = isinstance(seconds, int | float) and 0 <= seconds < 4e9
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if known else "-"
