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
    """Which layers each side reads, what was measured, and what to do.

    Returns 0 for PASS alone, so that a script may go on from there; 3 for FAIL and UNDECIDED; 1 while there is no
    verdict.
    """
    answer = desk.ask("runs.wiring", run=run)
    verdict = answer.get("verdict")
    if json:
        write_json(answer)
    else:
        # It has no terminal of its own, and draws with nothing but lines.
        from eagle3ops.screens.widgets.glyphs import ASCII, BLOCKS
        from eagle3ops.screens.wiring.map import wiring_lines
        from eagle3ops.screens.wiring.view import view_of

        tty = sys.stdout.isatty()
        width, height = shutil.get_terminal_size() if tty else os.terminal_size((PIPE, 40))
        glyphs = BLOCKS if "utf" in (sys.stdout.encoding or "").lower() else ASCII
        write(f"{answer.get('run')}")
        for line in wiring_lines(view_of(answer), width, height, glyphs, time.time()):
            write("".join(text for text, _ in line).rstrip())
    if not isinstance(verdict, dict) or not isinstance(verdict.get("passed"), bool):
        sys.stderr.write("no verdict about the wiring yet: eagle3ops --job verify makes one\n")
        return ExitCode.FAILED
    return ExitCode.DONE if verdict["passed"] else ExitCode.VERDICT_FAIL
