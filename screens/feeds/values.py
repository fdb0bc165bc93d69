"""What can be relied on in an answer whose sender may be older, newer or broken?"""

from collections.abc import Mapping
from typing import Any


def number(value: object) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e300 else None


def mapping(value: object) -> Mapping[Any, Any]:
    """A mapping, or an empty one."""
    return value if isinstance(value, Mapping) else {}
