"""Which points does a sweep have, which combinations are left out, and why?"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from eagle3ops.errors import RequestError
from eagle3ops.sweep.constraints import Constraint

SHOWN = 3
"""Labels of combinations that are named with a reason; of more, how many."""


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """What one server is started with."""

    steps: int
    topk: int
    draft_tokens: int
    choices: tuple[tuple[str, str], ...] = ()
    """(engine axis, name of its value), by axis."""

    @property
    def speculation(self) -> str:
        """`3/1/4`: steps, topk, draft tokens."""
        return f"{self.steps}/{self.topk}/{self.draft_tokens}"

    @property
    def label(self) -> str:
        """`3/4/16 attention=triton`."""
        return " ".join((self.speculation, *(f"{axis}={value}" for axis, value in self.choices)))


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """A setting under a load."""

    setting: Setting
    concurrency: int

    @property
    def label(self) -> str:
        """`3/4/16 attention=triton @8`: setting, and requests at once."""
        return f"{self.setting.label} @{self.concurrency}"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Combinations of the axes that are no points, all for one reason."""

    why: str
    labels: tuple[str, ...]

    @property
    def words(self) -> str:
        """`3 combinations: a chain ... (2/1/4, 3/1/8)`."""
        shown = ", ".join(self.labels[:SHOWN]) + (" ..." if len(self.labels) > SHOWN else "")
        one = len(self.labels) == 1
        return f"{len(self.labels)} combination{'' if one else 's'} left out: {self.why} ({shown})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """What is combined, every value with every other."""

    steps: Sequence[int]
    topk: Sequence[int]
    draft_tokens: Sequence[int] = ()
    """Empty: a chain's steps + 1."""
    concurrency: Sequence[int] = (1,)
    engine: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Names of the values of each engine axis."""


def capacity(steps: int, topk: int) -> int:
    """Tokens that a draft tree holds at most, its root included.

    The first step adds topk nodes; each further one tries topk children of each of the topk best (EAGLE-2, and so
    SGLang's and our own engine's trees).
    """
    return 1 + topk + (steps - 1) * topk**2


def invalid(steps: int, topk: int, draft_tokens: int | None) -> str | None:
    """Why no engine can serve this combination; None where one can."""
    if topk == 1:
        if draft_tokens not in (None, steps + 1):
            return "a chain (topk 1) verifies steps + 1 draft tokens"
        return None
    if draft_tokens is None:
        return "a tree (topk above 1) needs a number of draft tokens"
    if draft_tokens > capacity(steps, topk):
        return "more draft tokens than the tree holds"
    if draft_tokens < 2:
        return "nothing is drafted with fewer than 2 draft tokens"
    return None


def expand(
    axes: Axes, explicit: Sequence[Point] = (), constraints: Sequence[Constraint] = ()
) -> tuple[list[Point], list[LeftOut]]:
    """The points of a sweep, each once and in order, and what is left out.

    Explicit points come first and are held against the constraints too.

    Raises:
        RequestError: a constraint names what no axis has.
    """
    names = {"steps", "topk", "draft_tokens", "concurrency", *axes.engine}
    for constraint in constraints:
        if unknown := constraint.names - names:
            raise RequestError(
                f"the constraint {constraint.text!r} names {', '.join(sorted(unknown))}, which is no axis",
                remedy=f"the axes are {', '.join(sorted(names))}",
            )
    reasons: dict[str, list[str]] = {}
    points: dict[Point, None] = {}
    for point, why in itertools.chain(((one, None) for one in explicit), _combinations(axes)):
        reason = why or next((f"not {one.text}" for one in constraints if not one.holds(_values(point))), None)
        if reason is None:
            points[point] = None
        else:
            labels = reasons.setdefault(reason, [])
            if point.label not in labels:
                labels.append(point.label)
    return list(points), [LeftOut(why, tuple(labels)) for why, labels in reasons.items()]


def _combinations(axes: Axes) -> Iterator[tuple[Point, str | None]]:
    engine = sorted(axes.engine)
    for steps, topk, tokens, values, concurrency in itertools.product(
        axes.steps,
        axes.topk,
        axes.draft_tokens or (None,),
        itertools.product(*(axes.engine[axis] for axis in engine)),
        axes.concurrency,
    ):
        why = invalid(steps, topk, tokens)
        setting = Setting(steps, topk, steps + 1 if tokens is None else tokens, tuple(zip(engine, values, strict=True)))
        yield Point(setting, concurrency), why


def _values(point: Point) -> dict[str, int | str]:
    setting = point.setting
    return {
        "steps": setting.steps,
        "topk": setting.topk,
        "draft_tokens": setting.draft_tokens,
        "concurrency": point.concurrency,
        **dict(setting.choices),
    }
