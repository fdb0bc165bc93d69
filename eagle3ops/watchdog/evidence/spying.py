"""How are the stacks of processes taken that may not answer, without doing them harm?

py-spy stops a process for milliseconds while it reads (`--nonblocking`: not at all). It is not asked to stop one that
is stopped already or waits uninterruptibly: the stop would be carried out when that wait ends, long after py-spy has
gone, and nobody would end it. Whatever py-spy leaves stopped is let go on.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from eagle3ops.errors import Eagle3opsError
from eagle3ops.runs.processes import ProcessId, read_stat, send_signal
from eagle3ops.watchdog.evidence.patience import ask_each
from eagle3ops.watchdog.evidence.stacks import Dump, parse_dump

EACH_S = 10.0
NATIVE_S = 25.0
"""It reads the symbols of every library, which takes seconds for those of torch."""
AT_ONCE = 4
_OUTPUT_BYTES = 4 << 20


def find_py_spy() -> str | None:
    """Where it is installed: beside this Python, else on PATH."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def is_python(pid: int) -> bool | None:
    """Does a Python interpreter run in there, by its program, or its library? None when that may not be read."""
    with contextlib.suppress(OSError):
        if "python" in os.path.basename(os.readlink(f"/proc/{pid}/exe")).lower():
            return True
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            return b"/libpython" in file.read(4 << 20)
    except OSError:
        return None


def take(processes: Sequence[ProcessId], *, until: float, native: bool = False) -> list[tuple[Dump, str]]:
    """The stack of each process, and the text as py-spy wrote it.

    Args:
        processes: Python processes.
        until: `time.monotonic()` at which it has to be over.
        native: also the frames of C and C++; not possible for stopped ones.
    """
    program = find_py_spy()
    if program is None:
        return [(Dump(pid=p.pid, missing="py-spy is not installed: pip install py-spy"), "") for p in processes]
    each = NATIVE_S if native else EACH_S
    answers = ask_each(
        processes,
        lambda process: _dump(program, process, native=native, limit_s=each),
        each_s=2.2 * each + 2,
        until=until,
        at_once=AT_ONCE,
    )
    return [
        (Dump(pid=process.pid, missing=answer.missing), "") if answer.value is None else answer.value
        for process, answer in zip(processes, answers, strict=True)
    ]


def _dump(program: str, process: ProcessId, *, native: bool, limit_s: float) -> tuple[Dump, str]:
    before = read_stat(process.pid)
    if before is None or before.start != process.start or before.state in "ZX":
        return Dump(pid=process.pid, missing="it has ended"), ""
    fragile = before.state in "TtD"
    if native and fragile:
        return Dump(pid=process.pid, missing="native frames need it to run: it is stopped or waits in the kernel"), ""
    first = "--nonblocking" if fragile else "--native" if native else ""
    text, why = _run(program, process, first, limit_s)
    dump = parse_dump(text, process.pid)
    if dump.missing and not fragile:
        # Reading along while it runs sometimes works where stopping it does not.
        again, why_again = _run(program, process, "--nonblocking", limit_s)
        other = parse_dump(again, process.pid)
        if not other.missing:
            return other, again
        why = why or why_again
    if dump.missing:
        dump = Dump(pid=process.pid, threads=dump.threads, missing=why or _permission(text) or dump.missing)
    return dump, text


def _run(program: str, process: ProcessId, option: str, limit_s: float) -> tuple[str, str]:
    """What it printed, and why it did not come to an end if it did not."""
    argv = [program, "dump", "--pid", str(process.pid), *([option] if option else [])]
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    try:
        spy = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        return "", f"py-spy cannot be started: {error.strerror or error}"
    try:
        output, _ = spy.communicate(timeout=limit_s)
        return output[:_OUTPUT_BYTES].decode("utf-8", "replace"), ""
    except subprocess.TimeoutExpired:
        spy.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            spy.communicate(timeout=1.0)
        if option != "--nonblocking":
            _let_go_on(process)
        return "", f"py-spy did not come to an end within {limit_s:g} s"


def _let_go_on(process: ProcessId) -> None:
    """It ran before, and the program that stopped it was killed: a stop that it is in now is ours."""
    for _ in range(5):
        time.sleep(0.02)
        now = read_stat(process.pid)
        if now is None or now.start != process.start:
            return
        if now.state in "Tt":
            with contextlib.suppress(Eagle3opsError):
                send_signal(process, signal.SIGCONT)


def _permission(text: str) -> str:
    if not any(words in text.lower() for words in ("permission denied", "operation not permitted", "eperm")):
        return ""
    return f"the kernel does not let this process look into it (ptrace): {what_would_permit()}"


def what_would_permit() -> str:
    """What a person can do so that stacks can be read."""
    ways = []
    with contextlib.suppress(OSError, ValueError):
        scope = int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
        if scope == 3:
            return "kernel.yama.ptrace_scope is 3: it stays so until the next boot"
        if scope > 0:
            ways.append("sysctl kernel.yama.ptrace_scope=0")
    ways.append("run as the same user as the processes, or as root")
    ways.append("a container needs --cap-add SYS_PTRACE")
    return "; ".join(ways)
