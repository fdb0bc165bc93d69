"""What does a line mean? The tables of `assets/failures.toml`, compiled once."""

import re
import tomllib
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import resources

from eagle3ops.forensics.needles import GRAM, grams, needles

CAUSES = ("root", "hang", "timeout", "signal")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of line."""

    role: str
    category: str
    weight: int
    explanation: str
    fix: str
    source: str = "standard"
    """Where the facts come from: an issue, a file of the engine, or `standard`."""


class _Table:
    """The patterns of one role, tried heaviest first, and of them those only whose letters a line has."""

    def __init__(self, entries: list[tuple[str, Kind]]) -> None:
        self.each = tuple((re.compile(pattern), kind) for pattern, kind in entries)
        self._sure: dict[str, tuple[int, ...]] = {}
        self._always: tuple[int, ...] = ()
        for number, (pattern, _) in enumerate(entries):
            texts = needles(pattern)
            if not texts:
                self._always += (number,)
            for text in texts:
                # Any letters of it would do; those in its middle are the rarest on the whole.
                gram = text[(at := (len(text) - GRAM) // 2) : at + GRAM]
                self._sure[gram] = (*self._sure.get(gram, ()), number)
        self._grams = frozenset(self._sure)

    def find(self, text: str) -> Kind | None:
        hits = self._grams & grams(text)
        if not hits and not self._always:
            return None
        numbers = set(self._always).union(*(self._sure[gram] for gram in hits))
        for number in sorted(numbers):
            pattern, kind = self.each[number]
            if pattern.search(text) is not None:
                return kind
        return None


PYTHON = Kind(
    "exception",
    "python_exception",
    70,
    "An exception that no table knows ended a process.",
    "Read the traceback above the line: the lowest frame in your own code or configuration is where to look.",
)
ERROR = Kind(
    "error",
    "logged_error",
    40,
    "A process logged an error and no exception tells more.",
    "Read the lines around it.",
)
SILENT = Kind(
    "hang",
    "hang_silent",
    50,
    "The log ends in a phase of the start that has no end: nothing failed, and nothing went on.",
    "Take the stacks of all ranks (py-spy dump) before anything is killed; bisect with NCCL_P2P_DISABLE=1 or "
    "--disable-custom-all-reduce; look for stale locks in the caches of compiled kernels.",
    "sgl-project/sglang#4257, sgl-project/sglang#29073, NVIDIA/nccl#1999",
)


@cache
def tables() -> dict[str, _Table]:
    """The tables by role: causes (root, hang, timeout, signal together), consequence, noise, ..."""
    text = resources.files("eagle3ops.assets").joinpath("failures.toml").read_text(encoding="utf-8")
    found: dict[str, list[tuple[str, Kind]]] = {}
    for entry in tomllib.loads(text)["kind"]:
        kind = Kind(
            entry["role"],
            entry["category"],
            entry["weight"],
            entry.get("explanation", ""),
            entry.get("fix", ""),
            entry["source"],
        )
        table = "causes" if kind.role in CAUSES else kind.role
        if kind.role == "noise" and kind.weight:
            table = "never"
        found.setdefault(table, []).extend((pattern, kind) for pattern in entry["patterns"])
    for entries in found.values():
        entries.sort(key=lambda entry: -entry[1].weight)
    return {name: _Table(entries) for name, entries in found.items()}


@lru_cache(maxsize=20_000)
def meaning(text: str) -> Kind | None:
    """What a line without its prefixes says about trouble; None when it is not about any."""
    known = tables()
    if known["never"].find(text) is not None:
        return known["never"].each[0][1]
    cause = known["causes"].find(text)
    if cause is not None and (cause.role == "hang" or cause.weight >= 92):
        return cause
    noise = known["noise"].find(text)
    if noise is not None:
        return noise
    if cause is not None and (cause.role == "signal" or cause.weight >= 88):
        return cause
    if (request := known["request"].find(text)) is not None:
        return request
    # What is weakly known is no cause where the line itself says that something else was first.
    return known["consequence"].find(text) or cause


def course(text: str) -> str:
    """How far the work has come, by a line: finished, ready, progress, phase, or empty."""
    known = tables()
    for role in ("finished", "ready", "progress", "phase"):
        if known[role].find(text) is not None:
            return role
    return ""


def once_ready(kind: Kind, text: str) -> Kind:
    """What a line means that is said after the server was ready: a start that waits is then a server that does."""
    if kind.category != "hang_startup":
        return kind
    found = tables()["serving"].find(text)
    return kind if found is None else replace(found, role="hang")


def refused(text: str) -> bool:
    """Does the line say that a server refused one request?"""
    return tables()["refused"].find(text) is not None


def fatal(text: str) -> bool:
    """Does the line say that an engine or a job has ended?"""
    return tables()["fatal"].find(text) is not None


def stopped(text: str) -> bool:
    """Does the line say that somebody ends the process on purpose?"""
    return tables()["stopped"].find(text) is not None


def retried(text: str) -> bool:
    """Does the line say that what went wrong was done again, or done without?"""
    return tables()["retried"].find(text) is not None
