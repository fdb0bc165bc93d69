"""Which process wrote a line, when, how loudly, and what does the line say without all that?

Prefixes are peeled off one after another, because launchers put theirs before those of what they launch.
"""

import re
from calendar import timegm
from dataclasses import dataclass

from eagle3ops.words import plain

LINE_BYTES = 16384
"""Of a longer line the beginning is looked at; of one that was written over again and again, the end."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")

_LEVEL = r"(?P<level>DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL|SUCCESS|TRACE)"
_DATE = r"(?P<date>\d{4}[-/]\d\d[-/]\d\d)[T _](?P<time>\d\d:\d\d:\d\d(?:[.,]\d+)?)(?:Z|[+-]\d\d:?\d\d)?"
_PREFIXES = [
    re.compile(pattern)
    for pattern in (
        r"\[(?:rank|default)(?P<rank>\d+)\]:? ?",
        r"\((?P<name>[A-Za-z_][\w.:-]*)(?: rank=(?P<rank>\d+))?(?: pid=(?P<pid>\d+))(?:, ip=(?P<host>[\w.:]+))?\) ?",
        r"\((?P<name>pid)=(?P<pid>\d+)(?:, ip=(?P<host>[\w.:]+))?\) ?",
        r"\((?P<name>raylet|autoscaler|gcs_server)(?:, ip=(?P<host>[\w.:]+))?\) ?",
        rf"\[{_DATE}(?P<ranks>(?: [A-Z]{{2,5}}\d+)*)\] ?(?:{_LEVEL} (?=\S))?",
        rf"\[{_DATE} (?P<short>[DIWEF]) \d+ \d+\] ?",
        rf"{_LEVEL} (?P<md>\d\d-\d\d) (?P<time>\d\d:\d\d:\d\d) (?P<source>\[[^\]\s]+:\d+\]) ?",
        r"\[?(?P<short>[IWEFV])(?P<glog>\d{4}) (?P<time>\d\d:\d\d:\d\d(?:\.\d+)?) +(?:\d+ )?"
        r"(?P<source>[^\]\s]+:\d+)\] ?",
        r"\[(?P<short>[IWEF]) (?P<source>[\w./]+:\d+)\] ?",
        rf"{_DATE}\s*\|\s*{_LEVEL}\s*\|\s*(?P<source>\S+?)\s+-\s",
        rf"\[?{_DATE}\]?(?:,\d+)?\s+(?:\[?{_LEVEL}\]?:?\s+(?:(?P<source>[\w.]+:\d+) -- )?)?(?:-\s)?",
        rf"(?:(?P<source>[\w.]+) - )?\[?{_LEVEL}\]?(?: - |:(?P<logger>[\w.]+):| +(?=\[)|: )",
        r"\[(?P<host>(?:node|host|agent|worker|server|gpu|machine)[ \w.:-]{0,40})\] ?",
        r"(?P<host>(?:node|host|gpu|worker|server)[\w.-]{0,40}):? ?\| ?",
        r"(?P<group>[ ]*(?:\+-\+-+ ?|\| ))(?=.)",
        r"(?P<task>\d{1,4}): (?=\S)",
    )
]
_LAUNCHERS = [
    re.compile(pattern)
    for pattern in (
        # pods of one label, as kubectl shows them; what a node keeps of a container; the journal and syslog
        r"\[(?P<host>pod/[\w./-]{1,200})\] ?",
        rf"{_DATE} (?:stdout|stderr) [FP] ?",
        r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?P<host>[\w.-]{1,64}) (?P<name>[\w./@-]{1,64})\[(?P<pid>\d+)\]: ?",
        # mpirun; compose, honcho and foreman; pdsh and clush
        r"\[\d+,(?P<rank>\d+)\]<std(?:out|err)>: ?",
        r"(?:\d\d:\d\d:\d\d )?(?P<host>[A-Za-z][\w-]{0,60}(?:[-_.]\d{1,4})+) *\| ?",
        r"(?P<host>\d{1,3}(?:\.\d{1,3}){3}|[A-Za-z][\w-]{0,40}-\d{1,4}(?:\.[\w.-]{1,60})?): ?(?=.)",
    )
]
"""What launchers and collectors of logs put before every line: only at its beginning."""
_RANK_OF_NAME = re.compile(r"(?:TP|Rank|rank|Worker-?|_)(\d+)$|TP(\d+)")
_RANK_IN_TEXT = re.compile(r"\b[Rr]ank[ =:]{1,3}(\d{1,5})\b")
_SHORT = {"I": "INFO", "D": "DEBUG", "V": "DEBUG", "W": "WARNING", "E": "ERROR", "F": "FATAL"}
_ORDER = {"WARN": "WARNING", "CRITICAL": "FATAL", "NOTICE": "INFO", "SUCCESS": "INFO", "TRACE": "DEBUG"}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of one log, taken apart."""

    file: int
    """Which part of the log, by number; a log that was rotated has several."""
    offset: int
    """Byte at which the line begins."""
    number: int
    """Of the line, from 1."""
    text: str
    """The line as a person sees it: no escapes, no control characters, after the last carriage return."""
    body: str
    """What is said, behind all prefixes; leading blanks are kept."""
    process: str
    """Who says it, as far as the prefixes tell; empty where they do not."""
    rank: int | None
    level: str
    """DEBUG, INFO, WARNING, ERROR, FATAL; empty where the line does not say."""
    time: float | None
    """Seconds, comparable within logs of one year; None where the line does not say."""
    stamped: bool
    """A new record begins here: there is a time or a level."""
    named: bool
    """Some prefix tells the process or the rank."""

    @property
    def place(self) -> tuple[int, int]:
        """What is greater stands later in the same log, over all files that it was rotated into."""
        return self.file, self.offset


def visible(raw: bytes) -> str:
    """What a terminal would show of a line in the end."""
    if len(raw) > LINE_BYTES:
        raw = raw.rstrip(b"\r")
        raw = raw[-LINE_BYTES:] if b"\r" in raw else raw[:LINE_BYTES]
    # A zero shows nothing; without them UTF-16 reads as what it mostly is.
    text = (raw.replace(b"\0", b"") if b"\0" in raw else raw).decode("utf-8", "replace")
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    if "\r" in text:
        text = next((part for part in reversed(text.split("\r")) if part.strip()), "")
    return plain(text).rstrip()


def take_apart(raw: bytes, file: int, offset: int, number: int) -> Line:
    """The line with its prefixes read."""
    text = visible(raw)
    at = 0
    process = level = ""
    rank: int | None = None
    time: float | None = None
    for _ in range(7):
        found = _launcher(text) if at == 0 else None
        if found is None and (
            (at < len(text) and text[at] in "[(+| DINWECFTS0123456789nhgwsm") or _maybe_logger(text, at)
        ):
            for prefix in _PREFIXES:
                found = prefix.match(text, at)
                if found is not None and found.end() > at:
                    break
                found = None
        if found is None:
            break
        parts = found.groupdict()
        at = found.end()
        level = parts.get("level") or _SHORT.get(parts.get("short") or "", "") or level
        if parts.get("rank"):
            rank = int(parts["rank"][:6])
        elif parts.get("ranks"):
            rank = _rank(parts["ranks"].split()) if rank is None else rank
            process += parts["ranks"]
        if parts.get("name"):
            rank = _rank([parts["name"]]) if rank is None else rank
        process += "".join(f" {parts[key]}" for key in ("name", "host", "pid", "task") if parts.get(key))
        time = _time(parts) if parts.get("time") else time
    if rank is not None:
        process += f" rank{rank}"
    level = _ORDER.get(level, level)
    stamped = bool(level or time is not None)
    return Line(file, offset, number, text, text[at:], process.strip(), rank, level, time, stamped, bool(process))


_BEGINS = frozenset("[(+| DINWECFTS0123456789nhgwsm")
"""How a prefix begins."""


def _launcher(text: str) -> "re.Match[str] | None":
    """Does a launcher name itself, or a host, at the beginning?"""
    head = text[:80]
    if ": " in head or "|" in head or head.startswith(("[pod/", "[1,", "[0,")) or " std" in head or ">:" in head:
        for prefix in _LAUNCHERS:
            if (found := prefix.match(text)) is not None:
                return found
    return None


def _maybe_logger(text: str, at: int) -> bool:
    return " - " in text[at : at + 60]


def _rank(names: list[str]) -> int | None:
    """TP3 of DP0 is rank 3: of several, the tensor-parallel one tells processes of a group apart."""
    for name in reversed(names):
        found = _RANK_OF_NAME.search(name)
        if found is not None and not name.startswith(("EngineCore", "APIServer", "ApiServer")):
            return int((found[1] or found[2])[:6])
    return None


def _time(parts: dict[str, str | None]) -> float | None:
    clock = (parts.get("time") or "").replace(",", ".")
    date = parts.get("date") or ""
    month_day = (parts.get("md") or "").replace("-", "") or parts.get("glog") or ""
    try:
        month, day = (int(date[5:7]), int(date[8:10])) if date else (int(month_day[:2]), int(month_day[2:]))
        # Some prefixes name no year: the year is left out of all of them.
        whole = timegm((2000, month, day, int(clock[:2]), int(clock[3:5]), int(clock[6:8]), 0, 0, 0))
        return whole + float("0" + clock[8:20] if clock[8:] else 0)
    except (ValueError, OverflowError):
        return None


def spoken_rank(line: Line) -> int | None:
    """The rank that a line is from: by its prefix, or by its words (`step 5 rank 2 loss 2.5`)."""
    if line.rank is not None:
        return line.rank
    found = _RANK_IN_TEXT.search(line.body)
    return int(found[1]) if found is not None else None
