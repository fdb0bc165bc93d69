"""Which patterns can match a text at all? A few letters that every match must hold are looked for first.

Some hundred patterns in one alternation cost 0.2 ms for a line. Three letters in a row that a pattern cannot do without
are found in a set, for all patterns at once, in a hundredth of that.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib import import_module
from typing import Any

GRAM = 3
"""Letters in a row that are looked for."""


try:
    code: Any = import_module("re._constants")
    parser: Any = import_module("re._parser")
except ImportError:
    # They are no public part of Python: without them every pattern is tried on every line.
    code = parser = None


@lru_cache(maxsize=8)
def grams(text: str) -> frozenset[str]:
    """All letters in a row that a text has."""
    low = text.lower()
    return frozenset(low[at : at + GRAM] for at in range(len(low) - GRAM + 1))


def needles(pattern: str) -> frozenset[str]:
    """Texts in small letters, one of which is in every text that the pattern matches; none: nothing is sure."""
    try:
        return _best(list(_flat(parser.parse(pattern))))
    except (AttributeError, TypeError, ValueError, IndexError):
        return frozenset()


def _flat(items: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    for op, value in items:
        if op is code.SUBPATTERN:
            yield from _flat(value[3])
        else:
            yield op, value


def _best(items: list[tuple[Any, Any]]) -> frozenset[str]:
    """Of what a sequence of a pattern needs, that with the longest of its shortest texts."""
    found: list[frozenset[str]] = []
    run = ""
    for op, value in [*items, (code.ANY, None)]:
        if op is code.LITERAL:
            run += chr(value).lower()
            continue
        if op in (code.AT, code.ASSERT, code.ASSERT_NOT):
            continue
        if len(run) >= GRAM:
            found.append(frozenset((run,)))
        run = ""
        if op is code.BRANCH:
            ways = [_best(list(_flat(way))) for way in value[1]]
            if all(ways):
                found.append(frozenset().union(*ways))
        elif op in (code.MAX_REPEAT, code.MIN_REPEAT) and value[0] > 0:
            found.append(_best(list(_flat(value[2]))))
    return max((texts for texts in found if texts), key=lambda texts: min(map(len, texts)), default=frozenset())
