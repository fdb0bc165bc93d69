"""What is the work doing, by the words of its own logs? The tables of `assets/phases.toml`, read line by line."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

LINE_CHARS = 2000
"""Of a line are looked at; arguments that an engine prints are longer, and say nothing here."""
_RANK = re.compile(r"^\[\d{4}-\d\d-\d\d [\d:.,]+(?P<a>(?: (?:DP|PP|ATTN_CP|MOE_DP|TP|EP)\d+)+)\]|^\[?(?P<b>rank\d+)\b")
_VLLM = re.compile(r"^\((?P<who>[\w-]{1,40}) pid=\d+\) (?:\w+ [\d-]+ [\d:]+ \[[^\]]{1,80}\] )?")
_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
_SPEAKERS = 4096


@dataclass(frozen=True, slots=True)
class PhaseKind:
    """One phase, as the table has it."""

    name: str
    order: int
    state: str
    seconds: float
    """Default limit; 0: none."""
    measured: str
    """`start`, `progress` or `movement`: since what the limit counts."""
    ceiling: float


@dataclass(frozen=True, slots=True)
class _Row:
    pattern: re.Pattern[str]
    phase: str = ""
    ready: bool = False
    fresh: bool = False
    done: bool = False
    state: str = ""
    convicts: bool = False
    words: str = ""


@dataclass(frozen=True, slots=True)
class Phase:
    """What the work said that it was doing."""

    name: str
    since: float
    """When it said so; monotonic seconds of the samples."""
    log: str = ""
    line: str = ""


@dataclass(frozen=True, slots=True)
class Alarm:
    """A line that needs no interpretation."""

    state: str
    convicts: bool
    words: str
    at: float
    log: str
    line: str


def _tables() -> Mapping[str, Any]:
    text = resources.files("eagle3ops.assets").joinpath("phases.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _kinds(tables: Iterable[Mapping[str, Any]]) -> dict[str, PhaseKind]:
    return {
        one["name"]: PhaseKind(
            one["name"], order, one["state"], float(one["seconds"]), one["from"], float(one.get("ceiling", 0))
        )
        for order, one in enumerate(tables)
    }


PHASES: Mapping[str, PhaseKind] = _kinds(_tables()["phase"])
"""All phases by name, in the order in which a start goes through them."""
STARTING = frozenset(name for name, kind in PHASES.items() if kind.order < PHASES["serving"].order)
"""Phases before the work can be asked for anything."""


@cache
def _rows(name: str) -> tuple[_Row, ...]:
    return tuple(
        _Row(
            re.compile("|".join(f"(?:{_local(pattern)})" for pattern in one["patterns"])),
            phase=one.get("phase", ""),
            ready=one.get("ready", False),
            fresh=one.get("fresh", False),
            done=one.get("done", False),
            state=one.get("state", ""),
            convicts=one.get("convicts", False),
            words=one.get("words", ""),
        )
        for one in _tables()[name]
    )


def _local(pattern: str) -> str:
    # Flags for the whole pattern may not stand inside of another one.
    return f"(?i:{pattern[4:]})" if pattern.startswith("(?i)") else pattern


class PhaseReader:
    """Follows the phases of one subject over all of its logs.

    Ranks are followed one by one, as far as lines name them: the phase is that of the rank that is least far.
    """

    def __init__(self) -> None:
        self.phase: Phase | None = None
        self.spoke_at: float | None = None
        """When any line last came."""
        self.ready_at: float | None = None
        """When it last said that it can be asked now."""
        self.progress_at: float | None = None
        """When a line last said that work goes on: a batch, a step, a shard."""
        self.progress_line = ""
        self.done_at: float | None = None
        """When work last came out at the other end: an answer, a step, a shard."""
        self.batch_at: float | None = None
        """When one process last told of a batch, which is no proof for the others."""
        self.alarms: dict[str, Alarm] = {}
        """State -> the first line of that kind since progress."""
        self._ranks: dict[tuple[str, str], Phase] = {}

    def take(self, log: str, text: str, at: float) -> None:
        """Read a line, or the states of a progress bar that overwrote each other in it."""
        for part in text[: 64 * LINE_CHARS].split("\r")[-40:]:
            line = _CONTROLS.sub("", part[:LINE_CHARS])
            if line.strip():
                self._take(log, line, at)

    def enter(self, name: str, at: float, *, log: str = "", line: str = "") -> None:
        """Somebody who knows says that this phase has begun; a name that is not known is passed over."""
        if name not in PHASES or (self.phase is not None and self.phase.name == name):
            return
        self._ranks.clear()
        self.phase = Phase(name, at, log, line)

    def leave(self) -> None:
        """The phase is over, and nobody has said what is next."""
        self._ranks.clear()
        self.phase = None

    def went_on(self, at: float, words: str = "", *, done: bool = True) -> None:
        """Work was done, and came out at the other end; alarms before it are overcome."""
        self.progress_at = at if self.progress_at is None else max(self.progress_at, at)
        self.progress_line = words
        if done:
            self.done_at = at if self.done_at is None else max(self.done_at, at)
        else:
            self.batch_at = at
        self.alarms = {name: one for name, one in self.alarms.items() if one.at > at or (one.convicts and not done)}

    def _take(self, log: str, line: str, at: float) -> None:
        self.spoke_at = at if self.spoke_at is None else max(self.spoke_at, at)
        rank = _RANK.match(line)
        who = "" if rank is None else (rank["a"] or rank["b"]).strip()
        prefix = _VLLM.match(line)
        if prefix is not None and not who:
            line = line[prefix.end() :]
            who = prefix["who"] if re.search(r"\d", prefix["who"]) else ""
        for row in _rows("alarm"):
            if row.pattern.search(line):
                self.alarms.setdefault(row.state, Alarm(row.state, row.convicts, row.words, at, log, line[:300]))
        for row in _rows("progress"):
            if row.pattern.search(line):
                self.went_on(at, line[:300], done=row.done)
                if row.phase and (self.phase is None or self.phase.name in ("starting", "importing", "connecting")):
                    self.enter(row.phase, at, log=log, line=line[:300])
                elif row.phase and self.phase is not None and self.phase.name == "checkpointing":
                    self.enter("training", at, log=log, line=line[:300])
                return
        for row in _rows("line"):
            if row.pattern.search(line):
                self._begin(row, Phase(row.phase, at, log, line[:300]), who)
                return

    def _begin(self, row: _Row, new: Phase, who: str) -> None:
        now = self.phase
        if row.fresh:
            self._ranks.clear()
            self.ready_at, self.alarms = None, {}
            self.phase = new if now is None or now.name != new.name else now
            return
        if row.ready:
            self.ready_at = new.since
            self.went_on(new.since, new.line)
        elif now is not None and now.name in ("serving", "stopping") and new.name in STARTING:
            # Weights that are changed while serving, a kernel compiled late: it can still be asked.
            return
        if who and new.name in STARTING:
            known = self._ranks.get((new.log, who))
            if known is None or known.name != new.name:
                if len(self._ranks) >= _SPEAKERS:
                    return
                self._ranks[new.log, who] = new
            least = min(self._ranks.values(), key=lambda one: (PHASES[one.name].order, one.since))
            if now is None or now.name != least.name:
                self.phase = replace(least)
            return
        self._ranks.clear()
        if now is None or now.name != new.name:
            self.phase = new
