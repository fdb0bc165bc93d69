"""What does the kernel write about one process? The text of procfs files, turned into figures.

Pure functions of bytes, so that anything can be fed to them: what does not fit gives None, never an exception.
"""

import os
import re
from dataclasses import dataclass
from typing import Any

TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
CMD_LENGTH = 400
"""Characters of a command line that are kept."""

_KERNEL_THREAD = 0x00200000
_SECRET_OPTION = re.compile(r"(?i)(token|secret|passw|api[-_]?key|credential)")
_SECRET_VALUE = re.compile(r"\b(hf_|sk-|ghp_|glpat-)[A-Za-z0-9_-]{8,}")


@dataclass(frozen=True, slots=True)
class Stat:
    """The part of /proc/PID/stat that is used."""

    name: str
    state: str
    ppid: int
    majflt: int
    user_ticks: int
    system_ticks: int
    threads: int
    start_ticks: int
    """Clock ticks after boot: with the process id it names the process."""
    rss_pages: int
    kernel_thread: bool


def parse_stat(data: bytes) -> Stat | None:
    """The name is in parentheses and may itself hold parentheses, blanks and line ends."""
    opening, closing = data.find(b"("), data.rfind(b") ")
    if opening < 0 or closing < opening:
        return None
    fields = data[closing + 2 :].split(b" ", 22)
    try:
        return Stat(
            data[opening + 1 : closing].decode("utf-8", "replace"),
            fields[0].decode("ascii"),
            int(fields[1]),
            int(fields[9]),
            int(fields[11]),
            int(fields[12]),
            int(fields[17]),
            int(fields[19]),
            int(fields[21]),
            bool(int(fields[6]) & _KERNEL_THREAD),
        )
    except (ValueError, IndexError):
        return None


def parse_switches(status: bytes) -> tuple[int | None, int | None]:
    """Voluntary (it went to sleep) and involuntary switches, from /proc/PID/status."""
    return _after(status, b"\nvoluntary_ctxt_switches:"), _after(status, b"\nnonvoluntary_ctxt_switches:")


def _after(data: bytes, key: bytes) -> int | None:
    at = data.rfind(key)
    if at < 0:
        return None
    try:
        return int(data[at + len(key) :].split(None, 1)[0])
    except (ValueError, IndexError):
        return None


IO_KEYS = ("rchar", "wchar", "read_bytes", "write_bytes")
_IO_NAMES = {f"{name}:".encode(): name for name in IO_KEYS}


def parse_io(data: bytes | None) -> dict[str, int | None]:
    """/proc/PID/io: characters through read() and write(), and bytes from and to block devices; all in bytes."""
    found: dict[str, int | None] = dict.fromkeys(IO_KEYS)
    words = (data or b"").split()
    for key, value in zip(words[::2], words[1::2], strict=False):
        name = _IO_NAMES.get(key)
        if name is not None and value.isdigit():
            found[name] = int(value)
    return found


def parse_word(data: bytes | None) -> str | None:
    """The first word of wchan or syscall; None where it could not be read or says nothing."""
    if not data:
        return None
    words = data.split(None, 1)
    return words[0].decode("ascii", "replace") if words else None


def parse_cmdline(data: bytes | None) -> str | None:
    """The command line with blanks between its arguments, without secrets, cut to `CMD_LENGTH`."""
    if not data:
        return None
    words = data[: 8 * CMD_LENGTH].rstrip(b"\0").decode("utf-8", "replace").split("\0")
    return " ".join(hide_secrets(words))[:CMD_LENGTH]


def hide_secrets(words: list[str]) -> list[str]:
    """Values of options that are named like a secret, and words that look like a well-known token, become `***`."""
    shown: list[str] = []
    hide_next = False
    for word in words:
        name, equals, _ = word.partition("=")
        if hide_next and not word.startswith("-"):
            shown.append("***")
        elif equals and _SECRET_OPTION.search(name):
            shown.append(f"{name}=***")
        else:
            shown.append(_SECRET_VALUE.sub(r"\1***", word))
        hide_next = not equals and word.startswith("-") and bool(_SECRET_OPTION.search(word))
    return shown


def parse_mark(environ: bytes | None, variable: str) -> str | None:
    """The value of one environment variable out of /proc/PID/environ."""
    prefix = variable.encode() + b"="
    for entry in (environ or b"").split(b"\0"):
        if entry.startswith(prefix):
            return entry[len(prefix) :].decode("utf-8", "replace")
    return None


def read_at(path: str, *, dir_fd: int | None = None, limit: int = 65536) -> bytes | None:
    """The file's bytes; None when it is gone or not ours to read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=dir_fd)
    except OSError:
        return None
    try:
        return os.read(fd, limit)
    except OSError:
        return None
    finally:
        os.close(fd)


def read_threads(pid: int, limit: int = 14) -> list[dict[str, Any]]:
    """The threads that have used most CPU: tid, name, state, cpu_s (seconds), wchan, syscall, vcs and nvcs (switches).

    Costs about 60 us a thread; threads that end meanwhile, and all of a process that has ended, are left out.
    """
    try:
        tids = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    found = []
    for tid in tids:
        folder = f"/proc/{pid}/task/{tid}"
        stat = parse_stat(read_at(f"{folder}/stat") or b"")
        if stat is not None:
            found.append((stat.user_ticks + stat.system_ticks, folder, int(tid), stat))
    found.sort(key=lambda entry: (-entry[0], entry[2]))
    return [_thread(*entry) for entry in found[:limit]]


def _thread(ticks: int, folder: str, tid: int, stat: Stat) -> dict[str, Any]:
    voluntary, involuntary = parse_switches(read_at(f"{folder}/status") or b"")
    return {
        "tid": tid,
        "name": stat.name,
        "state": stat.state,
        "cpu_s": ticks / TICKS_PER_S,
        "wchan": parse_word(read_at(f"{folder}/wchan")),
        "syscall": parse_word(read_at(f"{folder}/syscall")),
        "vcs": voluntary,
        "nvcs": involuntary,
    }
