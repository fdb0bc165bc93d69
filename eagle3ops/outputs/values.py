"""What is a value worth that may be anything, as the file it stands in may be torn, edited or of another version?"""

import math
from collections.abc import Mapping
from typing import Any


def mapping(value: object) -> Mapping[Any, Any]:
    """The object, or an empty one in place of anything else."""
    return value if isinstance(value, Mapping) else {}


def number(value: object) -> float | None:
    """A finite number of sensible size."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e15 and math.isfinite(value) else None


def numbers(value: object, most: int) -> tuple[float, ...]:
    """A list of numbers that are not negative, cut at `most`; empty when any of it is something else."""
    if not isinstance(value, list):
        return ()
    found = [one for item in value[:most] if (one := number(item)) is not None and one >= 0]
    return tuple(found) if len(found) == min(len(value), most) else ()


def count(value: object) -> int | None:
    """A whole number that is not negative."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def flag(value: object) -> bool | None:
    """True, false, or not known."""
    return value if isinstance(value, bool) else None


def text(value: object, most: int = 200) -> str:
    """A text of at most so many characters; empty in place of anything else."""
    return value[:most] if isinstance(value, str) else ""


def words(value: object) -> list[str]:
    """The texts of a list; empty in place of anything else."""
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
