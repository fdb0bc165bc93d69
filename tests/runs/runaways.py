"""Descendants that do what they can not to be found or ended: `python runaways.py FOLDER`.

Each leaves a file in FOLDER once it is what it wants to be. All have FOLDER in their arguments, so that a test can find
them without the means of the product.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

NAMES = ("setsid", "deaf", "bare", "stopped", "hydra", "worker")


def _say(folder: Path, name: str) -> None:
    (folder / f"{name}.there").touch()


def _sleep() -> None:
    time.sleep(3600)


def _setsid(folder: Path) -> None:
    os.setsid()
    _say(folder, "setsid")
    _sleep()


def _deaf(folder: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.setsid()
    _say(folder, "deaf")
    _sleep()


def _bare(folder: Path) -> None:
    """Another session, an orphan, without any environment."""
    os.setsid()
    if os.fork():
        os._exit(0)
    os.setpgid(0, 0)
    program = (
        "import pathlib, sys, time\n"
        "assert len(open('/proc/self/environ').read()) == 0\n"
        "pathlib.Path(sys.argv[1], 'bare.there').touch(); time.sleep(3600)"
    )
    os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", program, str(folder)], {})


def _stopped(folder: Path) -> None:
    os.setsid()
    _say(folder, "stopped")
    os.kill(os.getpid(), signal.SIGSTOP)
    _sleep()


def _hydra(folder: Path) -> None:
    """Every tenth of a second another process, which lives on when the last one has gone."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _say(folder, "hydra")
    while True:
        os.setsid()
        time.sleep(0.1)
        if os.fork():
            os._exit(0)


def _worker(folder: Path) -> None:
    """The well-behaved one."""
    _say(folder, "worker")
    _sleep()


def main() -> None:
    """Fork them all, and wait."""
    folder = Path(sys.argv[1])
    kinds: dict[str, Callable[[Path], None]] = {
        "setsid": _setsid,
        "deaf": _deaf,
        "bare": _bare,
        "stopped": _stopped,
        "hydra": _hydra,
        "worker": _worker,
    }
    for name in NAMES:
        if os.fork() == 0:
            try:
                kinds[name](folder)
            finally:
                os._exit(1)
    _sleep()


def alive(folder: Path) -> list[int]:
    """Numbers of all living processes that have the folder among their arguments."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if str(folder).encode() in arguments and state not in "ZX" and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


if __name__ == "__main__":
    main()
