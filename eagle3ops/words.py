"""How is a size, a time, a verdict or a text from outside put before a person?"""

import re
import shlex
from collections.abc import Mapping
from typing import Any


def plain(text: object) -> str:
    """Text from a log or an engine without control characters: it must not steer the terminal."""
    text = str(text)
    if text.isascii() and text.isprintable():
        return text
    return "".join(" " if character in "\t\n" else character for character in text if _harmless(character))


def headline(text: object) -> str:
    """The first line of what may be many, as `plain` has it: the others are the tail of a log."""
    first, newline, _ = str(text).strip().partition("\n")
    return plain(first.rstrip().removesuffix(":") if newline else first)


def _harmless(character: str) -> bool:
    return character in "\t\n" or (character.isprintable() and not 0x80 <= ord(character) <= 0x9F)


UNDECIDED = "UNDECIDED"


def outcome_of(record: Mapping[str, Any]) -> bool | None:
    """What the record of a verdict comes to: True is PASS, False FAIL, None UNDECIDED.

    A record without `verdict` is older than UNDECIDED. In all of them `passed` is true for PASS alone, so that whoever
    reads nothing else never takes an undecided verdict for a pass.
    """
    return None if record.get("verdict") == UNDECIDED else record.get("passed") is True


def outcome_word(passed: bool | None) -> str:
    """`PASS`, `FAIL` or `UNDECIDED`."""
    return UNDECIDED if passed is None else "PASS" if passed else "FAIL"


_COMMAND = re.compile(
    r"\beagle3ops (?:runs (?:list|show|follow|cancel|resume|diff|gc|note|delete)"
    r"|drafters (?:list|show|promote|rollback)|plan|doctor|incidents|diagnose)\b(?! --host)"
)


def elsewhere(text: str, host: str) -> str:
    """A remedy from a host: the command lines that it names, made to mean that host and not this machine."""
    return _COMMAND.sub(lambda found: f"{found[0]} --host {shlex.quote(host)}", text)


def human_bytes(count: float) -> str:
    """`1.4 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(count) < 1024 or unit == "PiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def human_seconds(seconds: float) -> str:
    """`4 d 06 h`, `1 h 05 min`, `3 min 20 s`, `12 s`, `0.4 s`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    hours = whole // 3600
    if hours < 100:
        return f"{hours} h {whole % 3600 // 60:02d} min"
    return f"{hours // 24} d {hours % 24:02d} h"
