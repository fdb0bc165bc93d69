"""Whom does the kernel end first when memory runs out? Others than the supervisor, where it may ask for that."""

import contextlib
from pathlib import Path

OOM_SCORE = -500
"""Of the supervisor, which is small and without which nobody says how the run ended."""


def spare_this_process() -> str:
    """Ask the kernel to end others first when memory runs out; returns the score that children are to have.

    Empty where that is not allowed: then everything stays as it is.
    """
    path = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):
        before = path.read_text().strip()
        if int(before) > OOM_SCORE:
            path.write_text(str(OOM_SCORE))
            return before
    return ""
