"""Who looks after a run? One detached process: `python -m eagle3ops.supervisor RUN_DIR TOKEN`."""

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eagle3ops.errors import Eagle3opsError, ExitCode
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.files import explain_os_error, log_line
from eagle3ops.runs.processes import SUPERVISOR_VARIABLE
from eagle3ops.runs.starts import take_effect
from eagle3ops.supervisor.supervisor import Supervisor


class AlreadyRunning(Eagle3opsError):
    """Another supervisor looks after the run."""


def main() -> int:
    """Look after the run named on the command line, if the start named there has not been made before."""
    # Of this process alone: what it starts works in the run and does not look after it.
    os.environ.pop(SUPERVISOR_VARIABLE, None)
    run, token = RunDirectory(Path(sys.argv[1]).absolute()), sys.argv[2]
    supervisor = Supervisor(run)
    supervisor.listen()
    try:
        with _alone(run):
            if not take_effect(run, token):
                log_line("this start was made before; nothing to do")
                return ExitCode.DONE
            return supervisor.run()
    except AlreadyRunning as error:
        log_line(str(error))
        return ExitCode.DONE
    except OSError as error:
        explained = explain_os_error(error, run.path)
        log_line(str(explained or error))
        return ExitCode.FAILED


@contextmanager
def _alone(run: RunDirectory) -> Iterator[None]:
    """Be the only supervisor of the run; the kernel gives the lock back when this process ends, however that is."""
    with (run.path / "supervisor.lock").open("a+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AlreadyRunning(f"{run.run_id}: a supervisor looks after this run already") from error
        yield


if __name__ == "__main__":
    sys.exit(main())
