"""How does a child end with its parent? Ask the kernel for SIGKILL at the parent's death, then become the program.

Run as a file, without site packages: `python -I -S leash.py PARENT_PID -- program arguments`. Being a program of its
own, and not a hook between fork and exec, it is safe in a parent that has threads.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PARENT_VARIABLE = "EAGLE3OPS_SUPERVISOR"
"""Tells a stage the number of the process that looks after it."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """From now on this process gets a signal when `parent` ends; leaves at once if that has happened already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(137)


def adopt_orphans() -> None:
    """Let orphaned descendants become children of this process, so that it can end them."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def leashed(argv: Sequence[str]) -> list[str]:
    """Wrap `argv` so that the program is killed when this process ends, however that happens."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), "--", *argv]


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    try:
        os.execvp(sys.argv[3], sys.argv[3:])
    except OSError as error:
        sys.stderr.write(f"cannot start {sys.argv[3]}: {error.strerror}\n")
        sys.exit(127)
