"""What does `eagle3ops runs wiring` print? The Wiring room, as lines of text."""

import os
import shutil
import sys
import time
from typing import TYPE_CHECKING

from eagle3ops.commands.output import write, write_json
from eagle3ops.errors import ExitCode

if TYPE_CHECKING:
    from eagle3ops.commands.desk import Desk

PIPE = 100
"""Columns where the output is no terminal."""


def wiring(desk: "Desk", run: str, *, json: bool) -> int:
    """Which layers each side reads, what was measured, and what to do; 3 where the verdict is FAIL."""
    answer = desk.ask("runs.wiring", run=run)
    verdict = answer.get("verdict")
    if json:
        write_json(answer)
    else:
        # It has no terminal of its own, and draws with nothing but lines.
        from eagle3ops.screens.glyphs import ASCII, BLOCKS
        from eagle3ops.screens.wiring_map import view_of, wiring_lines

        tty = sys.stdout.isatty()
        width, height = shutil.get_terminal_size() if tty else os.terminal_size((PIPE, 40))
        glyphs = BLOCKS if "utf" in (sys.stdout.encoding or "").lower() else ASCII
        write(f"{answer.get('run')}")
        for line in wiring_lines(view_of(answer), width, height, glyphs, time.time()):
            write("".join(text for text, _ in line).rstrip())
    failed = isinstance(verdict, dict) and verdict.get("passed") is False
    return ExitCode.VERDICT_FAIL if failed else ExitCode.DONE
