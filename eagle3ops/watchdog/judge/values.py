"""Is this piece of somebody else's data of the kind that it should be?"""

import math
from collections.abc import Mapping
from typing import Any

_EMPTY: Mapping[str, Any] = {}


def number(value: object) -> float | None:
    """A finite number of a size that means something."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) and abs(value) < 1e18 else None
    except OverflowError:
        return None


def text(value: object) -> str | None:
    """A text."""
    return value if isinstance(value, str) else None


def mapping(value: object) -> Mapping[str, Any]:
    """A dictionary, or an empty one in its place."""
    return value if isinstance(value, Mapping) else _EMPTY


def entries(value: object) -> list[Mapping[str, Any]]:
    """The dictionaries in a list."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list | tuple) else []
