"""What do the facts of procfs mean: who is who, who is stopped, who waits for a pipe that nobody reads or in a lock?"""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from eagle3ops.runs.processes import ProcessId, process_table
from eagle3ops.watchdog.evidence.procfs import FUTEX_WAITS, PIPE_WAITS, links_of, write_target
from eagle3ops.watchdog.incidents.incident import Evidence
from eagle3ops.words import plain

MOST_NAMED = 8


def findings(processes: Sequence[Mapping[str, Any]], names: Mapping[int, str]) -> tuple[list[Evidence], list[int]]:
    """What stands out, and the processes that it stands out in.

    Args:
        processes: `procfs.details` of each.
        names: what to call them.
    """
    found: list[Evidence] = []
    suspects: list[int] = []

    def tell(pids: Sequence[int], words: str) -> None:
        if pids:
            rest = f" and {len(pids) - MOST_NAMED} more" if len(pids) > MOST_NAMED else ""
            who = ", ".join(names.get(pid, f"pid {pid}") for pid in pids[:MOST_NAMED])
            found.append(Evidence(f"{who}{rest}: {words}"))

    stopped = [p["pid"] for p in processes if p["state"] in "Tt"]
    tell(stopped, "stopped by a signal (state T): it does nothing until SIGCONT")
    suspects += stopped
    traced = [p["pid"] for p in processes if (p["status"].get("TracerPid") or "0") not in ("0", "")]
    tell(traced, "a debugger is attached to it")
    zombies = [p["pid"] for p in processes if p["state"] == "Z"]
    tell(zombies, "ended, and its parent has taken no note of it")
    suspects += zombies
    for process in processes:
        pid, threads = process["pid"], process["threads"]
        waiting = [t for t in threads if t["state"] == "D"]
        if waiting:
            where = ", ".join(sorted({t["wchan"] or "?" for t in waiting}))
            tell([pid], f"{len(waiting)} of {len(threads)} threads in an uninterruptible wait ({where})")
            suspects.append(pid)
        if any((t["wchan"] or "").startswith(PIPE_WAITS) for t in threads):
            tell([pid], _about_pipe(process))
            suspects.append(pid)
    asleep = [
        p["pid"]
        for p in processes
        if p["state"] == "S" and p["threads"] and all((t["wchan"] or "").startswith(FUTEX_WAITS) for t in p["threads"])
    ]
    # Of two that sleep so one may simply have nothing to do: no reason to suspect it.
    tell(asleep, "every thread sleeps in a lock (futex)")
    return found, list(dict.fromkeys(suspects))


def _about_pipe(process: Mapping[str, Any]) -> str:
    thread = next(t for t in process["threads"] if (t["wchan"] or "").startswith(PIPE_WAITS))
    number = write_target(thread["syscall"])
    pipe = ((process["files"] or {}).get("pipes") or {}).get(number)
    what = f"waits to write into a full pipe (fd {number})" if number is not None else "waits to write into a full pipe"
    if pipe is None:
        return f"{what}: whoever should read it does not"
    readers = _ends(f"pipe:[{pipe}]", without=process["pid"])
    if not readers:
        return f"{what}: no other process that can be seen here has the pipe open"
    return f"{what}; its other end is open in {', '.join(readers[:MOST_NAMED])}, which does not read it"


def _ends(target: str, *, without: int) -> list[str]:
    """Who else has this pipe open for reading."""
    found = []
    for pid in process_table():
        if pid == without:
            continue
        for number, link in (links_of(pid) or {}).items():
            if link == target and _reads(pid, number):
                found.append(f"pid {pid} (fd {number})")
                break
    return found


def _reads(pid: int, number: int) -> bool:
    try:
        with open(f"/proc/{pid}/fdinfo/{number}", "rb") as file:
            text = file.read(4096)
    except OSError:
        return False
    for line in text.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"flags":
            try:
                return (int(value, 8) & os.O_ACCMODE) != os.O_WRONLY
            except ValueError:
                return False
    return False


def dead_children(members: Sequence[ProcessId]) -> list[ProcessId]:
    """Children of these that have ended and of which they have taken no note."""
    known = {one.pid: one.boot for one in members}
    return [
        ProcessId(stat.pid, stat.start, known[stat.parent])
        for stat in process_table().values()
        if stat.state == "Z" and stat.parent in known and stat.pid not in known
    ][:64]


def name_of(facts: Mapping[str, Any], roles: Mapping[int, str]) -> str:
    """`rank 3 (pid 12)`, `sglang::scheduler_TP3 (pid 12)`."""
    pid = facts["pid"]
    role = roles.get(pid) or (f"rank {facts['rank']}" if (facts["rank"] or "").isdecimal() else "")
    if not role:
        first = facts["cmdline"][0] if facts["cmdline"] else ""
        # Engines give their ranks titles; else the first argument is a path.
        role = first if "::" in first and len(first) < 60 else facts["name"]
    return f"{plain(role)} (pid {pid})"


def kind_of(facts: Mapping[str, Any]) -> str:
    """The same for the ranks of one job: the program without numbers."""
    words = [os.path.basename(word) for word in facts["cmdline"][:4]]
    return re.sub(r"[0-9]+", "#", " ".join(words))[:80].strip()
