"""Runs on the host itself, fed to its Python: makes an environment with eagle3ops beside the old one, then switches.

Needs the standard library of Python 3.11 and nothing else; it is sent as text. Tells what happens on standard output,
one JSON object after `MARK` a line. The old environment stays as it is until the new one has proved that it works, and
the switch is one rename: whatever ends this program, there is a working environment if there was one before. It ends,
with what it started, when its standard input ends: then nobody is left to see the outcome.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

MARK = "eagle3ops-install:"
RECEIPT = "eagle3ops-receipt.json"
"""Written into an environment last of all: without it, it is a leftover."""
PROOF_LIMIT_S = 120.0
FLUSH_LIMIT_S = 120.0
STALE_S = 86400.0

_children: list[subprocess.Popen[str]] = []


class Stopped(Exception):
    """The installation cannot go on; `kind` is for the program at the other end."""

    def __init__(self, kind: str, detail: str) -> None:
        self.kind = kind
        self.detail = detail
        super().__init__(detail)


def say(**words: Any) -> None:
    """One message to whoever asked."""
    sys.stdout.write(f"{MARK}{json.dumps(words)}\n")
    sys.stdout.flush()


def run(argv: list[str], kind: str) -> None:
    """Run a program and pass on what it says.

    Raises:
        Stopped: it failed; carries its last lines.
    """
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    _children.append(process)
    tail: list[str] = []
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip():
            tail = [*tail[-39:], line.rstrip()[:500]]
            say(said=line.rstrip()[:500])
    code = process.wait()
    _children.remove(process)
    if code != 0:
        raise Stopped(kind, "\n".join(tail) or f"exit code {code}")


def end(*_: object) -> None:
    """End what was started, and this program."""
    for process in _children:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    os._exit(1)


def watch_input() -> None:
    """End when whoever asked has gone."""
    while os.read(0, 4096):
        pass
    end()


def locked(base: Path) -> int:
    """Hold the only installation of this account, until this program ends.

    Raises:
        Stopped: another one is going on.
    """
    handle = os.open(base / "install.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Stopped("busy", "another installation is going on") from None
    return handle


def check_wheel(wheel: Path, sha256: str) -> None:
    """The wheel must be what was sent.

    Raises:
        Stopped: it is not.
    """
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        wheel.unlink()
        raise Stopped("damaged", f"{wheel}: SHA-256 is {found}, sent was {sha256}")


def works(folder: Path, version: str) -> str | None:
    """Does the environment start an agent of this version? None, or what it said instead."""
    python = str(folder / "bin" / "python")
    try:
        # The working folder is no place to import from; without input the agent ends after its hello.
        ran = subprocess.run(
            [python, "-P", "-m", "eagle3ops", "agent"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROOF_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    for line in ran.stdout.splitlines():
        with contextlib.suppress(ValueError):
            hello = json.loads(line)
            if isinstance(hello, dict) and hello.get("agent") == "eagle3ops":
                return None if hello.get("version") == version else f"it is version {hello.get('version')}"
    return (ran.stderr.strip() or ran.stdout.strip() or f"exit code {ran.returncode}")[-2000:]


def receipt(folder: Path) -> dict[str, Any] | None:
    """What an environment was made of; None for a leftover."""
    try:
        found = json.loads((folder / RECEIPT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def place(base: Path, name: str, version: str) -> tuple[Path, bool]:
    """The folder for the environment, and whether a working one is there already."""
    for number in range(1, 100):
        folder = base / (name if number == 1 else f"{name}-{number}")
        if not folder.exists():
            return folder, False
        if receipt(folder) is None:
            say(step="removing what an interrupted installation left behind")
            shutil.rmtree(folder)
            return folder, False
        if works(folder, version) is None:
            return folder, True
        # A finished one that works no more may still have runs in it: it stays, the new one goes beside it.
    raise Stopped("folder", f"{base / name}: a hundred broken environments; delete them")


def make(folder: Path, order: dict[str, Any]) -> None:
    """Make the environment.

    Raises:
        Stopped: a step failed.
    """
    say(step="creating the environment")
    run([sys.executable, "-m", "venv", str(folder)], "venv")
    python = str(folder / "bin" / "python")
    if order["sites"]:
        purelib = subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        lines = "".join(f"{site}\n" for site in order["sites"])
        Path(purelib, "eagle3ops-host-packages.pth").write_text(lines, encoding="utf-8")
    pip = [python, "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    say(step="installing eagle3ops")
    if order["sites"]:
        # Even where the host's own packages have an eagle3ops: this environment's is the one that was sent.
        run([*pip, "--no-deps", "--ignore-installed", order["wheel"]], "pip")
    extras = f"[{','.join(order['extras'])}]" if order["extras"] else ""
    run([*pip, order["wheel"] + extras], "pip")


def flush(folder: Path) -> None:
    """Have everything on the file system of `folder` written, so that a power cut leaves no finished half."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(["sync", "-f", str(folder)], timeout=FLUSH_LIMIT_S, check=False, capture_output=True)


def tidy(wheels: Path) -> None:
    """Remove uploads that broke off long ago."""
    for partial in wheels.glob("*/*.part"):
        with contextlib.suppress(OSError):
            if time.time() - partial.stat().st_mtime > STALE_S:
                partial.unlink()


def switch(base: Path, folder: Path) -> None:
    """Make `base/env` point at the environment, in one step.

    Raises:
        Stopped: something that is no link stands there.
    """
    link = base / "env"
    if link.exists() and not link.is_symlink():
        raise Stopped("folder", f"{link} is a folder, not a link made by eagle3ops; move it away")
    fresh = base / f".env.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        fresh.unlink()
    fresh.symlink_to(folder.name)
    fresh.replace(link)


def install(order: dict[str, Any]) -> dict[str, Any]:
    """Carry out the order; returns what was done."""
    base = Path(order["base"])
    lock = locked(base)
    try:
        check_wheel(Path(order["wheel"]), order["sha256"])
        tidy(base / "wheels")
        folder, there = place(base, order["name"], order["version"])
        if not there:
            make(folder, order)
            say(step="trying it")
            wrong = works(folder, order["version"])
            if wrong is not None:
                raise Stopped("proof", wrong)
            text = json.dumps({key: order[key] for key in ("version", "sha256", "extras", "sites", "python")}, indent=2)
            partial = folder / f"{RECEIPT}.part"
            partial.write_text(text, encoding="utf-8")
            flush(folder)
            partial.replace(folder / RECEIPT)
            flush(folder)
        switch(base, folder)
        others = sorted(path.name for path in base.glob("env-*") if path != folder and path.is_dir())
        return {"folder": str(folder), "fresh": not there, "others": others}
    finally:
        os.close(lock)


def main(text: str) -> int:
    """Carry out an order in JSON and tell the outcome."""
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    threading.Thread(target=watch_input, daemon=True).start()
    try:
        # Before anything that may take long: the login shell has come to it.
        say(reached=True)
        say(done=install(json.loads(text)))
    except Stopped as error:
        say(error={"kind": error.kind, "detail": error.detail})
        return 1
    except BrokenPipeError:
        end()
    except Exception as error:  # noqa: BLE001  (the boundary: the other end puts it into words)
        say(error={"kind": "other", "detail": f"{type(error).__name__}: {error}"})
        return 1
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1])
    # Not through the interpreter's clean-up: the thread that watches the input is still in a read.
    sys.stdout.flush()
    os._exit(code)
