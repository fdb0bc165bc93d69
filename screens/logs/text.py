"""How is a line of a log put on a screen? As harmless text, with its level, and with the places that matched marked.

Nothing here runs a regular expression that a person typed: the agent says where its matches are.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len, chop_cells

from eagle3ops.words import plain

Level = Literal["error", "warning", "info", "debug", ""]

LEVEL_MARKS: dict[Level, str] = {"error": "E", "warning": "W", "info": " ", "debug": " ", "": " "}
"""The character beside a line: colour alone must not say it."""

TAB = "    "
MANY_RANKS = 1024
_LOOKED_AT = 2000
"""Characters of a line in which its level is looked for."""

# Every branch begins with a letter: that is what makes a search of a million lines take less than a second.
_ERROR = r"ERROR\b|CRITICAL\b|FATAL\b|Error(?::|$)|Exception(?::|$)|Traceback \(|E\d{4} \d\d:|F\d{4} \d\d:"
_WARNING = r"WARN(?:ING)?\b|Warning(?::|$)|W\d{4} \d\d:"
_INFO = r"INFO\b|I\d{4} \d\d:"
_DEBUG = r"DEBUG\b|TRACE\b|D\d{4} \d\d:"
_LEVELS: tuple[tuple[Level, re.Pattern[str]], ...] = (
    ("error", re.compile(_ERROR)),
    ("warning", re.compile(_WARNING)),
    ("info", re.compile(_INFO)),
    ("debug", re.compile(_DEBUG)),
)
LEVEL_PATTERNS = {"error": _ERROR, "warning": f"{_ERROR}|{_WARNING}"}
"""What the agent searches for when only this level and worse is wanted."""

_TIME = re.compile(
    r"[\[(]?(?:\d{4}-\d\d-\d\d[ T_])?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?Z|[+-]\d\d:?\d\d)?(?:[\])](?:[:,] ?| )?|[:,]? )"
)


@dataclass(frozen=True, slots=True)
class Condition:
    """What lines are looked for, as the agent's `log.search` takes it."""

    pattern: str
    invert: bool = False
    ignore_case: bool = False

    def __str__(self) -> str:
        return ("!" if self.invert else "") + self.pattern

    def arguments(self) -> dict[str, str | bool]:
        """For a request."""
        return {"pattern": self.pattern, "invert": self.invert, "ignore_case": self.ignore_case}


def parse_condition(typed: str) -> Condition | None:
    """What a person typed: `!` in front inverts, `\\!` is a `!`, and a capital letter makes the case matter."""
    invert = typed.startswith("!")
    pattern = typed[1:] if invert else typed
    if pattern.startswith("\\!"):
        pattern = pattern[1:]
    if not pattern:
        return None
    # Of `\S` and `\W` the capital is no letter that is searched for.
    return Condition(pattern, invert, re.sub(r"\\.", "", pattern) == re.sub(r"\\.", "", pattern).lower())


def parse_place(typed: str, total: int) -> int | None:
    """The row, from 0, that `1200`, `-20` (from the end) or `50%` means; None for what means none."""
    found = re.fullmatch(r"\s*(-?)([\d,_ ]{1,20})(%?)\s*", typed, re.ASCII)
    digits = re.sub(r"\D", "", found[2]) if found else ""
    if found is None or not digits:
        return None
    number = int(digits)
    if found[3]:
        row = total * (100 - number if found[1] else number) // 100
    else:
        row = total - number if found[1] else number - 1
    return max(0, min(row, total - 1))


_RANK = re.compile(
    r"(?<![a-z])(?:rank|worker|tp|dp|pp|ep)[-_.]?(\d{1,5})(?!\d)|(?:^|/)(\d{1,5})(?:/|\.log$|$)", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Part:
    """Which ranks and which roles are wanted; empty is all of them."""

    ranks: tuple[int, ...] = ()
    roles: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join([*(["rank " + ",".join(map(str, self.ranks))] if self.ranks else []), *self.roles])

    def logs(self, names: Sequence[str]) -> tuple[str, ...]:
        """Those of the logs that belong to it, as far as their names say so; all when none does."""
        chosen = [name for name in names if not self.roles or any(role in name.lower() for role in self.roles)]
        ranked = [name for name in chosen if rank_of(name) in self.ranks]
        return tuple(ranked or chosen or names)

    def condition(self, names: Sequence[str]) -> Condition | None:
        """What a line must hold where the names of the logs do not say the rank."""
        if not self.ranks or any(rank_of(name) is not None for name in names):
            return None
        numbers = "|".join(map(str, self.ranks))
        return Condition(rf"(?<![A-Za-z])(?:TP|PP|DP|EP|rank|Rank|RANK)[ _=:#]?0*(?:{numbers})(?![0-9])")


def parse_part(typed: str) -> Part | None:
    """`0,3-5` are ranks, other words are parts of names of logs; None for what is neither."""
    ranks: set[int] = set()
    roles = []
    for word in re.split(r"[\s,]+", typed.strip().lower()):
        found = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", word, re.ASCII)
        if found is not None:
            first, last = int(found[1]), int(found[2] or found[1])
            if last < first or last - first >= MANY_RANKS:
                return None
            ranks.update(range(first, last + 1))
        elif word not in ("", "rank", "ranks"):
            roles.append(word)
    return Part(tuple(sorted(ranks)), tuple(roles)) if len(ranks) <= MANY_RANKS else None


def rank_of(name: str) -> int | None:
    """The rank that the name of a log gives: `train-rank3.log`, `train/tp3.log`, `train/3/stderr.log`."""
    found = re.search(
        r"(?<![a-z])(?:rank|worker|tp|dp|pp|ep)[-_.]?(\d{1,5})(?!\d)|(?:^|/)(\d{1,5})(?:/|\.log$|$)", name.lower()
    )
    return int(found[1] or found[2]) if found else None


def labels(names: Sequence[str], width: int) -> tuple[str, ...]:
    """Short names of logs, each one told from the others as far as the width allows."""
    short = [plain(name).removesuffix(".log").removesuffix("/stderr") for name in names]
    if len(short) > 1 and max(map(len, short)) > width:
        # What all have in common at the beginning tells nothing.
        first, last = min(short), max(short)
        common = next((at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))
        cut = max((at + 1 for at in range(common) if short[0][at] in "-_./"), default=0)
        short = [name[cut:] or name for name in short]
    return tuple(
        name if len(name) <= width else name[: width // 2 - 1] + ".." + name[len(name) - (width - width // 2 - 1) :]
        for name in short
    )


def level_of(text: str) -> Level:
    """The worst level that the beginning of a line names."""
    head = text[:_LOOKED_AT]
    return next((level for level, pattern in _LEVELS if pattern.search(head)), "")


def time_length(text: str) -> int:
    """How many characters at the beginning are the time that the log gives; 0 when it gives none."""
    found = _TIME.match(text)
    return found.end() if found else 0


def harmless(text: str) -> str:
    """Text that does not steer a terminal, and that takes as much room as it seems to."""
    if text.isascii() and text.isprintable():
        return text
    return plain(text.replace("\t", TAB))


@dataclass(frozen=True, slots=True)
class Shown:
    """A line as it is drawn."""

    text: str
    level: Level = ""
    time: int = 0
    """Characters at its beginning that are a time."""
    spans: tuple[tuple[int, int], ...] = ()
    """What matched."""

    def without_time(self) -> "Shown":
        """The same line, its time left out."""
        cut = self.time
        spans = tuple((max(0, begin - cut), end - cut) for begin, end in self.spans if end > cut)
        return Shown(self.text[cut:], self.level, 0, spans)

    def width(self) -> int:
        """Cells of the screen."""
        return cell_len(self.text)

    def rows(self, width: int) -> list[tuple[int, int]]:
        """Where the pieces begin and end that fit a width."""
        if not self.text or self.width() <= width:
            return [(0, len(self.text))]
        places, at = [], 0
        for piece in chop_cells(self.text, max(2, width)):
            places.append((at, at + len(piece)))
            at += len(piece)
        return places


def show_line(text: str, spans: tuple[tuple[int, int], ...] = ()) -> Shown:
    """A line as the log has it, made ready; the spans move with what is left out."""
    if not spans:
        shown = harmless(text)
        return Shown(shown, level_of(shown), time_length(shown))
    pieces: list[str] = []
    moved: list[tuple[int, int]] = []
    at = length = 0
    for begin, end in sorted(spans):
        if not at <= begin < end <= len(text):
            continue
        before, inside = harmless(text[at:begin]), harmless(text[begin:end])
        pieces += [before, inside]
        moved.append((length + len(before), length + len(before) + len(inside)))
        length, at = length + len(before) + len(inside), end
    shown = "".join([*pieces, harmless(text[at:])])
    return Shown(shown, level_of(shown), time_length(shown), tuple(moved))
