"""How many bytes is "200 GiB"?

A size in a pipeline file is a whole number of bytes or text with a unit: powers of 1024 with an i (KiB, MiB, GiB, TiB),
powers of 1000 without (kB, MB, GB, TB).
"""

import re
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

_UNITS = {
    "": 1, "b": 1,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40, "pib": 1 << 50,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "pb": 10**15,
}  # fmt: skip

_TEXT = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-z]{0,3})\s*\Z")

LARGEST = 1 << 60


def parse_size(value: object) -> int:
    """A size as bytes, rounded down.

    Raises:
        PydanticCustomError: it is neither a positive whole number of bytes nor a number with a known unit.
    """
    count: int | None = None
    if isinstance(value, int) and not isinstance(value, bool):
        count = value
    elif isinstance(value, str) and (found := _TEXT.match(value)) and found[2].lower() in _UNITS:
        whole, _, fraction = found[1].partition(".")
        # By whole numbers, so that no size is rounded by a float.
        count = int(whole + fraction) * _UNITS[found[2].lower()] // 10 ** len(fraction)
    if count is None:
        raise PydanticCustomError(
            "size_unreadable", 'should be a size such as "200 GiB" or "1.5 TB", or a whole number of bytes'
        )
    if not 0 < count <= LARGEST:
        raise PydanticCustomError("size_out_of_range", "a size must be above 0 and at most 1024 PiB")
    return count


Size = Annotated[
    int,
    BeforeValidator(parse_size),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {
                    "type": "string",
                    "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*([kKmMgGtTpP][iI]?)?[bB]?\s*$",
                    "examples": ["200 GiB"],
                },
            ]
        }
    ),
]
"""Bytes, from `200 GiB`, `1.5 TB` or a plain number."""
