"""An engine that keeps its workers badly: `FOLDER` -> one in a session of its own, one that is nobody's child any more.

They write their numbers into `FOLDER/pids` and do not obey SIGTERM. The engine itself ends at SIGTERM, as `--exit N`
says after a moment, or never.
"""

import os
import signal
import sys
import time
from pathlib import Path


def work(folder: Path) -> None:
    """Be a worker that outlives its engine."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with (folder / "pids").open("a") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(300)
    os._exit(0)


def main(folder: Path, code: int | None) -> None:
    """Start the workers, and wait."""
    if os.fork() == 0:
        os.setsid()
        work(folder)
    if (middle := os.fork()) == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            os.environ.clear()
            work(folder)
        os._exit(0)
    os.waitpid(middle, 0)
    with (folder / "pids").open("a") as file:
        file.write(f"{os.getpid()}\n")
    while len((folder / "pids").read_text().splitlines()) < 3:
        time.sleep(0.01)
    (folder / "up").touch()
    if code is None:
        time.sleep(300)
    elif code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
