"""How does a server that is part of no run leave nothing behind? A process stands between, adopts orphans, ends all.

A run has its supervisor for this. `leash` alone is not enough: the kernel kills the child at the parent's death, and
what that child had started lives on below init, as the inner processes of engines do.

Run as a file, without site packages: `python -I -S custody.py PARENT_PID -- program arguments`, so that an environment
made for an engine does not reach it. It ends with the parent, with the program, or by SIGTERM; as the program ended.
"""

import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from eagle3ops.runs.family import SWEEP_S, kill, reap_adopted, tree
from eagle3ops.runs.leash import adopt_orphans, die_with_parent, leashed
from eagle3ops.runs.processes import signal_all

GRACE_S = 10.0
"""Between SIGTERM and SIGKILL: SGLang takes 5 to 6 s to end."""
LOOK_S = 1.0
"""As often it looks by itself, where the kernel tells nothing of a parent's death."""


def in_custody(argv: Sequence[str]) -> list[str]:
    """Wrap `argv` so that the program and all below it end when this process ends, however that happens."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), "--", *argv]


def main(parent: int, argv: Sequence[str]) -> int:
    """Run a program until it or `parent` ends, and see that nothing of it is left; returns its code, as Popen does."""
    adopt_orphans()
    ends = Ends()
    # Of a parent's thread it tells as well, so that this is a reason to look and none to end.
    die_with_parent(parent, signal.SIGUSR1)
    program = subprocess.Popen(leashed(argv))
    while program.poll() is None and not ends.told and os.getppid() == parent:
        reap_adopted(keep=program.pid)
        ends.wait(LOOK_S)
    if program.returncode is None:
        _ask(program)
    _sweep(program)
    return -signal.SIGKILL if program.returncode is None else program.returncode


class Ends:
    """Whether somebody told this process to end."""

    def __init__(self) -> None:
        self.told = False
        self._read, write = os.pipe()
        for end in (self._read, write):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        # Handlers and not SIG_IGN, which the program would inherit.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_end)
        for number in (signal.SIGCHLD, signal.SIGUSR1, signal.SIGHUP):
            signal.signal(number, lambda number, frame: None)

    def _on_end(self, number: int, frame: object) -> None:
        self.told = True

    def wait(self, seconds: float) -> None:
        """Until a signal comes, also one that came since the last call, or so many seconds are over."""
        if select.select([self._read], [], [], seconds)[0]:
            os.read(self._read, 4096)


def _ask(program: "subprocess.Popen[bytes]") -> None:
    """SIGTERM for all, and time to obey it."""
    everyone = tree()
    signal_all(everyone, signal.SIGTERM)
    # A stopped process would keep the signal for later.
    signal_all(everyone, signal.SIGCONT)
    deadline = time.monotonic() + GRACE_S
    while program.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)


def _sweep(program: "subprocess.Popen[bytes]") -> None:
    """What is left gets no more time: SIGKILL until this process has no child."""
    began = time.monotonic()
    while not _alone(program) and time.monotonic() < began + SWEEP_S:
        # Again and again: what forks as fast as it is killed is caught when its parents are gone.
        kill(tree(), began)
        time.sleep(0.005)


def _alone(program: "subprocess.Popen[bytes]") -> bool:
    lives = program.poll() is None
    return reap_adopted(keep=program.pid if lives else None)


def _end_like(code: int) -> None:
    """Who waits for this process is to see how the program ended."""
    if code < 0:
        # One dump of memory is enough.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    _end_like(main(int(sys.argv[1]), sys.argv[3:]))
