"""How does the root cause of a stage's failure, as its `stage` event holds it, become part of an incident?"""

from collections.abc import Mapping

from eagle3ops.watchdog.incidents.incident import Evidence, Remedy, remedy_from
from eagle3ops.words import plain

LONGEST = 160
"""Characters of a cause in a title."""


def root_evidence(root: object) -> Evidence | None:
    """The line that says why, as the logs of the stage were read when it failed."""
    if not isinstance(root, Mapping) or not _text(root.get("text")):
        return None
    log, offset, number = _text(root.get("file")), _number(root.get("offset")), _number(root.get("line_no"))
    where = f"{log}:{int(number)}" if number is not None else log
    ranks = root.get("suspect_ranks")
    suspects = ", ".join(plain(rank) for rank in ranks[:8]) if isinstance(ranks, list) else ""
    words = f"the cause, by {where}: {_text(root.get('text'))}" + (
        f" (ranks to look at: {suspects})" if suspects else ""
    )
    return Evidence(words, log or None, None if offset is None else int(offset))


def cause(root: object) -> str:
    """The same in as few words as a title has room for; empty where there is none."""
    evidence = root_evidence(root)
    if evidence is None or not isinstance(root, Mapping):
        return ""
    text = " ".join(_text(root.get("text")).split())
    return f"{text[:LONGEST]}{'...' if len(text) > LONGEST else ''} ({evidence.log or 'its logs'})"


def explained(root: object, otherwise: str) -> str:
    """What the cause means, or else what is said without one."""
    explanation = _text(root.get("explanation")) if isinstance(root, Mapping) else ""
    return explanation or otherwise


def fix_of(root: object) -> tuple[Remedy, ...]:
    """What can be done about the cause."""
    fix = _text(root.get("fix")) if isinstance(root, Mapping) else ""
    return (remedy_from(fix),) if fix else ()


def _text(value: object) -> str:
    return value[:2000] if isinstance(value, str) else ""


def _number(value: object) -> float | None:
    sound = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18
    return float(value) if sound else None  # type: ignore[arg-type]
