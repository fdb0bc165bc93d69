"""How far are the clocks of two hosts apart, by what their logs say? Without that, which was first cannot be told.

Ranks of one job do some things together: they end a step, finish an initialisation, see a collective operation time
out. Where logs name such moments, each with its own time, the differences agree, and that is how far the clocks differ.
Clocks of one host agree already: nothing is moved then. Another time zone is a difference like any other.
"""

import re
from collections.abc import Mapping, Sequence
from statistics import median

MOMENTS = 2000
"""Moments of one log that are kept: the first and the last."""
SHARED = 3
"""So many moments have to be in both logs."""
AGREE = 2.0
"""Seconds that the differences may be apart (median), to be one difference of clocks."""
LEAST = 5.0
"""Seconds below which nothing is moved: ranks are that far apart without any fault of a clock."""

_STEP = re.compile(r"(?i)\b(step|iter(?:ation)?|epoch)\b\W{0,3}(\d+)\b|\bSeqNum=(\d+)|\bbar(?:rier)? (\d+)")
_TOGETHER = re.compile(
    r"(?i)init torch distributed ends|rendezvous (?:complete|done|ended)|process group initiali[sz]ed"
)


class Moments:
    """The moments that one log names, each with its time, the first time that it is named."""

    def __init__(self) -> None:
        self._first: dict[str, float] = {}
        self._last: dict[str, float] = {}

    def take(self, body: str, at: float) -> None:
        """A line that tells how far the work has come."""
        found = _STEP.search(body)
        if found is not None:
            key = f"{(found[1] or 'seq').lower()} {found[2] or found[3] or found[4]}"
        elif _TOGETHER.search(body) is not None:
            key = "together"
        else:
            return
        if key in self._first or key in self._last:
            return
        if len(self._first) < MOMENTS // 2:
            self._first[key] = at
            return
        self._last[key] = at
        if len(self._last) > MOMENTS // 2:
            del self._last[next(iter(self._last))]

    @property
    def known(self) -> Mapping[str, float]:
        """All of them."""
        return self._first | self._last


def ahead(logs: Sequence[Mapping[str, float]]) -> list[float]:
    """Seconds by which the clock of each log is ahead of that of the log with most moments; 0.0 where none can tell."""
    seconds = [0.0] * len(logs)
    if not logs:
        return seconds
    first = max(range(len(logs)), key=lambda number: len(logs[number]))
    settled, open_ = [first], [number for number in range(len(logs)) if number != first]
    for other in settled:
        for number in list(open_):
            apart = _apart(logs[number], logs[other])
            if apart is not None:
                seconds[number] = seconds[other] + (apart if abs(apart) >= LEAST else 0.0)
                settled.append(number)
                open_.remove(number)
    return seconds


def _apart(one: Mapping[str, float], other: Mapping[str, float]) -> float | None:
    shared = one.keys() & other.keys()
    if len(shared) < SHARED:
        return None
    differences = [one[key] - other[key] for key in shared]
    middle = median(differences)
    return middle if median(abs(difference - middle) for difference in differences) <= AGREE else None
