"""Where in its own program does each process stand, does it move, and which one stands elsewhere than its peers?

The text of `py-spy dump`, taken apart, put together by equal stacks over processes, and compared over time. Pure
functions; `spying` takes the dumps.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_LINES = 20_000
MOST_FRAMES = 256
_LONGEST = 400

_THREAD = re.compile(r'Thread (0x[0-9A-Fa-f]{1,16}|[0-9]{1,20})(?:/\S{1,40})? \(([a-z+ ]{1,40})\)(?:: "(.*)")?')
_FRAME = re.compile(r"(?P<function>.+?) \((?P<place>.+)\)")
_PLACE = re.compile(r"(?P<file>.+?)(?::(?P<line>[0-9]{1,9}))?")

_COLLECTIVES = (
    r"all_?reduce|all_?gather|reduce_?scatter|broadcast|barrier|all_?to_?all|reduce|gather|scatter|monitored_barrier"
    r"|rendezvous|batch_isend_irecv|destroy_process_group|init_process_group"
)
COLLECTIVES = re.compile(rf"(?:^|\.)_?(?:{_COLLECTIVES})(?:_\w+)?$", re.IGNORECASE)
"""Functions in which the ranks of a job meet."""
WAITS = re.compile(rf"(?:^|\.)_?(?:{_COLLECTIVES}|synchronize|recv|send|wait)(?:_\w+)?$", re.IGNORECASE)
"""Functions in which a process waits for its peers, or for the GPU that waits for them."""

_LOCK_WAIT = re.compile(r"\bfile_baton\.py|\bFileBaton\b|\b_?soft\.py|\bSoftFileLock\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a stack."""

    function: str
    file: str
    line: int | None = None

    def __str__(self) -> str:
        """`all_reduce (torch/distributed/distributed_c10d.py:2810)`."""
        return f"{self.function} ({self.file}{'' if self.line is None else f':{self.line}'})"


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """One thread, the innermost frame first."""

    thread: str
    state: str
    """`active`, `idle`, `active+gil` ..."""
    name: str
    frames: tuple[Frame, ...]

    @property
    def role(self) -> str:
        """Its name without what differs from process to process: `Thread-1 (monitor)` is `monitor`."""
        inner = re.fullmatch(r"Thread-[0-9]+ \((.*)\)", self.name)
        return re.sub(r"[-_]?[0-9]+(?:_[0-9]+)?$", "", inner[1] if inner else self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """What py-spy said about one process."""

    pid: int
    threads: tuple[ThreadStack, ...] = ()
    missing: str = ""
    """Why there is no stack, for people."""

    @property
    def main(self) -> ThreadStack | None:
        """The main thread; the first one that has frames where none is called so."""
        framed = [thread for thread in self.threads if thread.frames]
        return next((thread for thread in framed if thread.name == "MainThread"), framed[0] if framed else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Processes whose threads of one role stand at the same place."""

    frames: tuple[Frame, ...]
    """The innermost first; below that one without line numbers, as callers' lines differ for no reason that matters."""
    pids: tuple[int, ...]
    role: str = "MainThread"
    kind: str = ""
    """What its processes have in common: those of one kind are peers, and are compared."""
    odd: bool = False
    """It stands elsewhere than most of its peers, or than those that wait for it."""
    standing: tuple[int, ...] = ()
    """Those of `pids` that stood at the same place in both looks; empty when there was but one."""

    @property
    def place(self) -> str:
        """The frame that says most: the innermost one in which peers are waited for, else the innermost of all."""
        for telling in (COLLECTIVES, WAITS):
            for frame in self.frames[:8]:
                if telling.search(frame.function):
                    return str(frame)
        return str(self.frames[0]) if self.frames else "?"

    @property
    def waits(self) -> bool:
        """Does it wait for others?"""
        return any(WAITS.search(frame.function) for frame in self.frames[:8])

    def as_json(self) -> dict[str, Any]:
        """For a file."""
        return {
            "kind": self.kind,
            "role": self.role,
            "odd": self.odd,
            "pids": list(self.pids),
            "standing": list(self.standing),
            "frames": [str(frame) for frame in self.frames],
        }


def parse_dump(text: str, pid: int) -> Dump:
    """The text of `py-spy dump`. What is not understood is passed over."""
    threads: list[ThreadStack] = []
    frames: list[Frame] = []
    for line in text.split("\n", MOST_LINES)[:MOST_LINES]:
        line = line.rstrip("\r")[:_LONGEST]
        head = _THREAD.fullmatch(line)
        if head:
            frames = []
            threads.append(ThreadStack(head[1], head[2], head[3] or "", ()))
        elif line.startswith("    ") and threads:
            frame = _frame(line.strip())
            if frame and len(frames) < MOST_FRAMES:
                frames.append(frame)
                last = threads[-1]
                threads[-1] = ThreadStack(last.thread, last.state, last.name, tuple(frames))
        elif line and threads and not line.startswith(" "):
            # What others append after the stacks is none of them.
            break
    if any(thread.frames for thread in threads):
        return Dump(pid=pid, threads=tuple(threads))
    return Dump(pid=pid, threads=tuple(threads), missing=_error(text) or "py-spy showed no Python stack")


def _frame(text: str) -> Frame | None:
    whole = _FRAME.fullmatch(text)
    place = _PLACE.fullmatch(whole["place"]) if whole else None
    if whole is None or place is None:
        return None
    return Frame(whole["function"], place["file"], int(place["line"]) if place["line"] else None)


def _error(text: str) -> str:
    lines = [line.strip() for line in text[:20_000].split("\n")]
    at = next((number for number, line in enumerate(lines) if line.startswith("Error:")), None)
    if at is None:
        return ""
    causes = []
    for line in lines[at + 1 : at + 12]:
        if line.startswith("Stack backtrace"):
            break
        if re.match(r"[0-9]+: ", line):
            causes.append(re.sub(r"^[0-9]+: ", "", line))
    return "; ".join(dict.fromkeys([lines[at].removeprefix("Error:").strip(), *causes]))[:_LONGEST]


def waits_for_lock_file(dump: Dump) -> bool:
    """Is one of its threads where programs wait for a lock file to go away?"""
    return any(_LOCK_WAIT.search(str(frame)) for thread in dump.threads for frame in thread.frames[:12])


def hold_the_gil(dumps: Sequence[Dump], later: Sequence[Dump]) -> list[int]:
    """Processes in which one thread had Python's global lock at one place in both looks, as in a long call of C."""

    def holders(of: Sequence[Dump]) -> set[tuple[int, str, tuple[Frame, ...]]]:
        return {(d.pid, t.thread, t.frames) for d in of for t in d.threads if "gil" in t.state and t.frames}

    return sorted({pid for pid, _, _ in holders(dumps) & holders(later)})


def normalise(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """A stack by which processes are compared: line numbers only in the innermost frame."""
    return tuple(
        frame if not number else Frame(frame.function, frame.file) for number, frame in enumerate(frames[:MOST_FRAMES])
    )


def cluster(dumps: Sequence[Dump], kinds: Mapping[int, str], later: Sequence[Dump] = ()) -> list[Cluster]:
    """Equal stacks put together, the largest group of a kind first.

    Args:
        dumps: one of each process.
        kinds: what a process is, by its id; only those of one kind are compared with each other.
        later: the same processes some seconds later.
    """
    groups: dict[tuple[str, str, tuple[Frame, ...]], list[int]] = defaultdict(list)
    for dump in dumps:
        main = dump.main
        for thread in dump.threads:
            role = "MainThread" if thread is main else thread.role
            key = (kinds.get(dump.pid, ""), role, normalise(thread.frames))
            if thread.frames and dump.pid not in groups[key]:
                groups[key].append(dump.pid)
    stood = _standing(dumps, later)
    found = [
        Cluster(
            frames=frames,
            pids=tuple(pids),
            role=role,
            kind=kind,
            standing=tuple(pid for pid in pids if (pid, role, frames) in stood),
        )
        for (kind, role, frames), pids in groups.items()
        if pids
    ]
    found.sort(key=lambda one: (one.role != "MainThread", one.kind, -len(one.pids), one.role))
    odd = _odd(found)
    return [
        one
        if number not in odd
        else Cluster(frames=one.frames, pids=one.pids, role=one.role, kind=one.kind, odd=True, standing=one.standing)
        for number, one in enumerate(found)
    ]


def _standing(dumps: Sequence[Dump], later: Sequence[Dump]) -> set[tuple[int, str, tuple[Frame, ...]]]:
    """(process, role of thread, normalised stack) of those threads whose stack was the same twice, to the line."""
    after = {(dump.pid, thread.thread): thread.frames for dump in later for thread in dump.threads if thread.frames}
    stood = set()
    for dump in dumps:
        main = dump.main
        for thread in dump.threads:
            if thread.frames and after.get((dump.pid, thread.thread)) == thread.frames:
                role = "MainThread" if thread is main else thread.role
                stood.add((dump.pid, role, normalise(thread.frames)))
    return stood


def _odd(clusters: Sequence[Cluster]) -> set[int]:
    """Which main threads stand out among their peers.

    Where some wait for peers and a minority does not, those that do not are what is waited for, however few the others
    are. Else it is whoever does not stand where more than half do.
    """
    found: set[int] = set()
    for kind in {one.kind for one in clusters}:
        peers = [(n, one) for n, one in enumerate(clusters) if one.kind == kind and one.role == "MainThread"]
        count = sum(len(one.pids) for _, one in peers)
        waiting = sum(len(one.pids) for _, one in peers if one.waits)
        if count < 2 or len(peers) < 2:
            continue
        if waiting and waiting * 2 >= count and waiting < count:
            found |= {n for n, one in peers if not one.waits}
            continue
        if count > 2 and len(peers[0][1].pids) * 2 > count:
            found |= {n for n, _ in peers[1:]}
    return found


def describe(clusters: Sequence[Cluster], names: Mapping[int, str], *, twice: bool) -> list[str]:
    """What the clusters say, for people: `7 of 8 stand in all_reduce (...), rank 3 in rendezvous (...)`."""
    found = []
    # Those first in which one stands out.
    kinds = dict.fromkeys(one.kind for one in sorted(clusters, key=lambda one: not one.odd))
    for kind in kinds:
        peers = [one for one in clusters if one.kind == kind and one.role == "MainThread"]
        count = sum(len(one.pids) for one in peers)
        if not peers:
            continue
        if len(peers) == 1:
            one = peers[0]
            how = _how(one, twice)
            who = f"all {count} processes of {kind or 'the same kind'}" if count > 1 else _names(one.pids, names)
            found.append(f"{who} {how} {one.place}")
            continue
        parts = []
        for one in peers[:4]:
            who = f"{len(one.pids)} of {count}" if len(one.pids) > 2 else _names(one.pids, names)
            parts.append(f"{who} {_how(one, twice)} {one.place}")
        if len(peers) > 4:
            parts.append(f"{count - sum(len(one.pids) for one in peers[:4])} elsewhere, each in another place")
        odd = [pid for one in peers if one.odd for pid in one.pids]
        verdict = (
            f": {_names(odd, names)} {'is' if len(odd) == 1 else 'are'} the odd one{'s'[: len(odd) > 1]}" if odd else ""
        )
        found.append("; ".join(parts) + verdict)
    return found


def _how(one: Cluster, twice: bool) -> str:
    # Seen once, it is not known whether a process moves.
    if not twice:
        return "in"
    standing, several = len(one.standing) == len(one.pids), len(one.pids) > 1
    return ("stand in" if several else "stands in") if standing else ("move through" if several else "moves through")


def _names(pids: Sequence[int], names: Mapping[int, str]) -> str:
    shown = [names.get(pid, f"pid {pid}") for pid in pids[:6]]
    return ", ".join(shown) + (f" and {len(pids) - 6} more" if len(pids) > 6 else "")
