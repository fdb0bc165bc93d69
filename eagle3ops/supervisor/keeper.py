"""Is a stage being watched? Starts the guard of one attempt, starts it anew when it dies, ends it with the attempt.

The guard is a process of its own below the supervisor, with low priority: whatever happens to it, the run goes on.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from eagle3ops.errors import Eagle3opsError
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.leash import leashed
from eagle3ops.runs.processes import ProcessId, identify, read_stat, send_signal
from eagle3ops.spec.models import WatchdogSpec
from eagle3ops.supervisor.decision import Decision, Decisions

AFTER_S = 3.0
"""A stage that is over sooner cannot hang, and most that find their work done are."""
STARTS = 4
"""A guard that dies so often is not started again."""
PAUSE_S = 10.0
END_S = 2.0
MODULE_VARIABLE = "EAGLE3OPS_GUARD"
"""Names another module to run as the guard, for tests."""
LOG = "guard.log"


class Keeper:
    """The guard of one attempt at a stage.

    Args:
        run: the run.
        stage: name of the stage.
        attempt: the process that runs it.
        spec: what the pipeline file says of the watchdog.
        warn: told when the guard is given up.
    """

    def __init__(
        self,
        run: RunDirectory,
        stage: str,
        attempt: ProcessId | None,
        spec: WatchdogSpec,
        warn: Callable[[str], object],
    ) -> None:
        self._run = run
        self._stage = stage
        self._attempt = attempt
        self._warn = warn
        self._acts = spec.action == "restart"
        self._left = STARTS if spec.on and attempt is not None else 0
        self._given_up = False
        # Another guard is one of a test, and is waited for.
        self._due = time.monotonic() + (0.0 if os.environ.get(MODULE_VARIABLE) else AFTER_S)
        self._process: subprocess.Popen[bytes] | None = None
        self._identity: ProcessId | None = None
        self._stopped_at: float | None = None
        self._decisions = Decisions(run.path, stage, attempt)

    def look(self) -> None:
        """Start the guard when it is time, or anew when it has died. To be called often."""
        now = time.monotonic()
        if self._attempt is None or now < self._due:
            return
        if self._lives():
            self._end_stopped(now)
            return
        if self._process is not None:
            self._process.poll()
        if self._left == 0:
            if self._process is not None and not self._given_up:
                self._given_up = True
                self._warn(f"nobody watches this stage: its guard ended {STARTS} times; see {self._run.logs / LOG}")
            return
        self._left -= 1
        self._due = now + PAUSE_S
        with suppress(OSError):
            self._process = _start(self._run, self._stage, self._attempt, os.environ)
            self._identity = identify(self._process.pid)

    def decided(self) -> Decision | None:
        """What the guard has decided about this attempt, where the pipeline file lets it decide."""
        return self._decisions.look() if self._acts else None

    def end(self) -> None:
        """The attempt is over: its guard keeps what it has learnt, and goes."""
        self._left = 0
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process is None or self._identity is None:
                return
            with suppress(Eagle3opsError):
                send_signal(self._identity, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
                return

    def _end_stopped(self, now: float) -> None:
        """A guard that somebody stopped watches nothing, and says nothing of it: another one takes its place."""
        assert self._identity is not None
        stat = read_stat(self._identity.pid)
        if stat is None or stat.state != "T":
            self._stopped_at = None
        elif self._stopped_at is None:
            self._stopped_at = now
        elif now - self._stopped_at > PAUSE_S:
            with suppress(Eagle3opsError):
                send_signal(self._identity, signal.SIGKILL)

    def _lives(self) -> bool:
        # Who reaps orphans may have reaped it as well, so that only its identity tells.
        return self._identity is not None and identify(self._identity.pid) == self._identity


def _start(
    run: RunDirectory, stage: str, attempt: ProcessId, environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    module = environment.get(MODULE_VARIABLE) or "eagle3ops.supervisor.guard"
    argv = [sys.executable, "-m", module, str(run.path), stage, str(attempt.pid), str(attempt.start)]
    with Path(run.logs / LOG).open("ab") as log:
        return subprocess.Popen(
            leashed(argv),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**environment, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
