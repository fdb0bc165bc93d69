"""What does `stages.sweep` say? Axes, constraints, points of one's own, and how much is measured."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, field_validator, model_validator

from eagle3ops.errors import RequestError
from eagle3ops.jobs.serve.job import SpeculationSpec
from eagle3ops.spec.base import Section, StageSpec
from eagle3ops.sweep import constraints
from eagle3ops.sweep.halving import Halving
from eagle3ops.sweep.points import Axes, LeftOut, Point, Setting, expand


class VariantSpec(Section):
    """One value of an engine axis: what it adds to the engine's command line and environment."""

    arguments: tuple[str, ...] = ()
    """Words of the engine's command line: `[--attention-backend, fa3]`."""
    environment: Mapping[str, str] = Field(default_factory=dict)
    """Variables: `{NCCL_ALGO: Ring}`."""


class AxesSpec(Section):
    """Every value of an axis is combined with every value of the others; what cannot be served is left out."""

    steps: tuple[int, ...] = (1, 2, 3, 4, 5)
    """Draft steps; none at all leaves only `points`."""
    topk: tuple[int, ...] = (1,)
    """Branches; 1 makes chains."""
    draft_tokens: tuple[int, ...] = ()
    """Tokens verified at once; left out, a chain's steps + 1. A tree needs them."""
    concurrency: tuple[int, ...] = (1,)
    """Requests at once; the first one decides which point wins."""
    engine: Mapping[str, Mapping[str, VariantSpec]] = Field(default_factory=dict)
    """Axes of one's own: `{attention: {triton: {arguments: [...]}, fa3: {...}}, nccl: {...}}`."""

    @field_validator("steps", "topk", "concurrency", "draft_tokens")
    @classmethod
    def _counts(cls, values: tuple[int, ...]) -> tuple[int, ...]:
        for value in values:
            if not 1 <= value <= 4096:
                raise ValueError(f"{value} is not between 1 and 4096")
        return values

    @model_validator(mode="after")
    def _named(self) -> "AxesSpec":
        if not self.concurrency:
            raise ValueError("at least one concurrency is needed")
        for axis, values in self.engine.items():
            if not axis.isidentifier() or axis in ("steps", "topk", "draft_tokens", "concurrency"):
                raise ValueError(f"{axis!r} cannot name an engine axis: letters, digits and _, and no name in use")
            if not values:
                raise ValueError(f"the engine axis {axis} has no values")
        return self


class PointSpec(SpeculationSpec):
    """A setting that is measured beside those of the axes."""

    engine: Mapping[str, str] = Field(default_factory=dict)
    """Engine axis -> name of its value; the first value of every axis that is not named."""
    concurrency: tuple[int, ...] = ()
    """Those of the axes when left out."""


class SweepSpec(StageSpec):
    """What is tried, and on how much."""

    axes: AxesSpec = AxesSpec()
    constraints: tuple[str, ...] = ()
    """Conditions on every point: `draft_tokens <= 2 * steps + 8`, `topk == 1 or concurrency <= 8`."""
    points: tuple[PointSpec, ...] = ()
    all_servers: VariantSpec = VariantSpec()
    """What every server of the sweep gets, the baseline too, as they share GPUs: `{arguments: [--sleep-on-idle]}`. It
    is no part of launch lines."""
    first_pairs: int = Field(default=8, ge=2)
    """Pairs, point beside baseline, that every point gets at the first rung; a pair at batch 1 is one prompt."""
    eta: int = Field(default=2, ge=2, le=16)
    """One in so many points goes on, with so many times the pairs."""
    rungs: int = Field(default=3, ge=1, le=8)
    drop: Literal["rank", "bounds"] = "rank"
    """`bounds` drops only what lies below, beyond noise, all that go on; it takes longer."""
    final_pairs: int = Field(default=32, ge=2)
    """Pairs of the final: the winner beside the default and the baseline."""
    max_new_tokens: int = Field(default=128, ge=1)
    natural_stop: bool = True
    """Stop where the target stops; a forced length understates the accept length."""
    warmup: int = Field(default=2, ge=0)
    """Blocks that a fresh server answers before it is measured."""
    per_gpu: int = Field(default=4, ge=1, le=64)
    """Servers that may be up at once on one GPU, or on a host without any, beside the baseline."""
    gpus_per_server: int | None = Field(default=None, ge=1)
    """GPUs that one server takes; all of engine.gpus when left out. With fewer, points are measured side by side."""
    request_deadline_s: float = Field(default=120.0, gt=0)
    """A server that takes longer for one answer is hung."""
    start_deadline_s: float | None = Field(default=None, gt=0)
    """For a server to become ready; the engine's own patience when left out."""
    retries: int = Field(default=1, ge=0, le=5)
    """How often a point whose server died or hung is tried again."""

    @field_validator("constraints")
    @classmethod
    def _readable(cls, texts: tuple[str, ...]) -> tuple[str, ...]:
        for text in texts:
            try:
                constraints.parse(text)
            except RequestError as error:
                raise ValueError(str(error)) from error
        return texts


def expand_spec(spec: SweepSpec) -> tuple[list[Point], list[LeftOut]]:
    """The points that a spec declares.

    Raises:
        RequestError: a constraint or a point names an axis or a value that there is not.
    """
    axes = spec.axes
    explicit = []
    for one in spec.points:
        for axis, value in one.engine.items():
            if value not in axes.engine.get(axis, {}):
                raise RequestError(
                    f"stages.sweep.points: {one.label} has {axis}: {value}, which stages.sweep.axes.engine does not",
                    remedy=f"known are {', '.join(axes.engine.get(axis, axes.engine)) or 'no engine axes'}",
                )
        choices = tuple((axis, one.engine.get(axis, next(iter(axes.engine[axis])))) for axis in sorted(axes.engine))
        setting = Setting(one.steps, one.topk, one.draft_tokens, choices)
        explicit += [Point(setting, c) for c in one.concurrency or axes.concurrency]
    return expand(
        Axes(
            steps=axes.steps,
            topk=axes.topk,
            draft_tokens=axes.draft_tokens,
            concurrency=axes.concurrency,
            engine={axis: tuple(values) for axis, values in axes.engine.items()},
        ),
        explicit,
        [constraints.parse(text) for text in spec.constraints],
    )


def halving_of(spec: SweepSpec) -> Halving:
    """The schedule that a spec asks for."""
    return Halving(first=spec.first_pairs, eta=spec.eta, rungs=spec.rungs, by_rank=spec.drop == "rank")
