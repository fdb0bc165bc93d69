"""Is what was served text, or one phrase over and over? Loops are easy to draft, and flatter every accept length."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from math import sqrt
from operator import eq
from statistics import fmean
from typing import Any

from eagle3ops.bench.accept import AcceptStats, combine

GRAMS = (1, 2, 3, 4)
MOST_PERIOD = 64
"""Tokens of the longest phrase whose repetition is looked for."""
LOOP_TOKENS, LOOP_TIMES = 32, 3
"""A loop is at least so many tokens long, and says its phrase at least so often; lists repeat less exactly."""
MOST_LIFT = 0.10
"""Share by which loops may raise the accept length; on a recorded engine, with loops in 24 % of the answers, 6 %."""
MOST_LOOPING = 0.5
"""Share of answers with a loop from which on there is little else to measure."""
MOST_FALL = 0.2
"""Share of the data's distinct 4-grams that may be missing in what was served."""
Z = 1.96


@dataclass(frozen=True, slots=True)
class Texts:
    """How varied some answers are."""

    answers: int
    tokens: int
    distinct: tuple[float, ...]
    """For n = 1 to 4: distinct n-grams over all n-grams of an answer, mean over the answers (Li et al., 2016)."""
    looping: float
    """Share of the answers with a loop."""
    looped_tokens: float
    """Share of the tokens that stand in loops."""


@dataclass(frozen=True, slots=True)
class Diversity:
    """What was served, beside what the data holds for the same prompts."""

    served: Texts
    data: Texts | None
    """The data's own answers, cut to the same length; None where there are none."""
    at_limit: float
    """Share of the answers that were cut off at the length limit."""
    accept_length: float
    without_loops: float | None
    """Accept length of the answers without a loop; None where each has one."""
    alarms: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether the accept length is one of text."""
        return not self.alarms

    @property
    def words(self) -> str:
        """The alarms, or what speaks for the text."""
        share = f"{self.served.looping:.0%} of {self.served.answers} answers loop"
        rest = f"{share}, {self.at_limit:.0%} end at the length limit, {self.served.distinct[-1]:.0%} distinct 4-grams"
        return f"{'; '.join(self.alarms)} ({rest})" if self.alarms else rest

    def as_json(self) -> dict[str, Any]:
        """For `bench.json`."""
        return asdict(self) | {"passed": self.passed, "words": self.words}


def judge(
    outputs: Sequence[Sequence[int]],
    finish_reasons: Sequence[str],
    stats: Sequence[AcceptStats],
    data: Sequence[Sequence[int]] = (),
) -> Diversity:
    """Hold served answers against loops, and against the data.

    Args:
        outputs: token ids of each answer.
        finish_reasons: `length` where the limit ended it.
        stats: counters of each answer.
        data: the answers that the data has to the same prompts, cut to the same limit.

    Raises:
        ValueError: there is no answer, or the three differ in length.
    """
    if not outputs or not len(outputs) == len(finish_reasons) == len(stats):
        raise ValueError(f"{len(outputs)} answers, {len(finish_reasons)} reasons, {len(stats)} counters")
    loops = [longest_loop(ids) for ids in outputs]
    served = _texts(outputs, loops)
    known = _texts(data, [longest_loop(ids) for ids in data]) if data else None
    whole = combine(stats).accept_length
    free = combine([one for one, loop in zip(stats, loops, strict=True) if not loop])
    without = free.accept_length if free.verify_steps else None
    return Diversity(
        served=served,
        data=known,
        at_limit=sum(reason == "length" for reason in finish_reasons) / len(outputs),
        accept_length=whole,
        without_loops=without,
        alarms=tuple(_alarms(served, known, whole, without)),
    )


def _alarms(served: Texts, data: Texts | None, whole: float, without: float | None) -> list[str]:
    found = []
    if without is not None and whole / without - 1.0 > MOST_LIFT:
        found.append(
            f"looping text raises the accept length by {whole / without - 1.0:.0%}: it is {whole:.2f}, and "
            f"{without:.2f} over the answers without loops"
        )
    if served.looping >= MOST_LOOPING:
        found.append(f"{served.looping:.0%} of the answers loop: an accept length of {whole:.2f} says little of text")
    if data is not None:
        noise = Z * sqrt(sum(one.looping * (1 - one.looping) / one.answers for one in (served, data)))
        if served.looping - data.looping > max(MOST_LIFT, noise):
            found.append(f"{served.looping:.0%} of the answers loop, where {data.looping:.0%} of the data's do")
        if served.distinct[-1] < (1.0 - MOST_FALL) * data.distinct[-1]:
            found.append(
                f"{served.distinct[-1]:.0%} of an answer's 4-grams are distinct, where {data.distinct[-1]:.0%} of the "
                "data's are"
            )
    return found


def _texts(outputs: Sequence[Sequence[int]], loops: Sequence[int]) -> Texts:
    tokens = sum(len(ids) for ids in outputs)
    return Texts(
        answers=len(outputs),
        tokens=tokens,
        distinct=tuple(fmean(_distinct(ids, n) for ids in outputs) for n in GRAMS),
        looping=sum(loop > 0 for loop in loops) / len(outputs),
        looped_tokens=sum(loops) / tokens if tokens else 0.0,
    )


def _distinct(ids: Sequence[int], n: int) -> float:
    """Distinct n-grams over all of them; 1 where the answer is too short for one."""
    count = len(ids) - n + 1
    return len(set(zip(*(ids[at : at + count] for at in range(n)), strict=True))) / count if count > 0 else 1.0


def longest_loop(ids: Sequence[int]) -> int:
    """Tokens of the longest stretch that says one phrase over and over; 0 where there is no loop."""
    best = 0
    for period in range(1, min(MOST_PERIOD, len(ids) // LOOP_TIMES) + 1):
        same = groupby(map(eq, ids, ids[period:]))
        run = max((sum(1 for _ in group) for equal, group in same if equal), default=0)
        if run + period >= max(LOOP_TOKENS, LOOP_TIMES * period, best):
            best = run + period
    return best
