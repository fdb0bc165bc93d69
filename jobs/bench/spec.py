"""What does `stages.bench` say? Which settings and loads are measured, on how much."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from eagle3ops.jobs.serve.job import SpeculationSpec
from eagle3ops.locations import expanded
from eagle3ops.spec.base import StageSpec

BUNDLED = "bundled"
"""The question set that comes with the package."""


class BenchSpec(StageSpec):
    """What is measured, and on how much."""

    settings: tuple[SpeculationSpec, ...] = (
        SpeculationSpec(steps=1, topk=1, draft_tokens=2),
        SpeculationSpec(steps=2, topk=1, draft_tokens=3),
        SpeculationSpec(steps=3, topk=1, draft_tokens=4),
    )
    """Settings timed against the baseline, beside the one that is served."""
    concurrency: tuple[Annotated[int, Field(ge=1, le=1024)], ...] = Field(default=(1,), min_length=1)
    """Requests in flight at which throughput is measured; the first decides what is recommended."""
    timing_prompts: int = Field(default=10, ge=2)
    """Held-out prompts in each timed round; at least two for each request in flight are taken."""
    timing_tokens: int = Field(default=64, ge=8)
    timing_rounds: int = Field(default=1, ge=1)
    natural_stop: bool = True
    """Stop where the target stops; a forced length understates the accept length, as text after the end is unusual."""
    forced_tokens: int = Field(default=0, ge=0)
    """Measure throughput a second time with answers of exactly so many tokens, as other tools do; 0: do not. The two
    are recorded apart."""
    latency_prompts: int = Field(default=4, ge=0)
    """Held-out prompts that are streamed at each concurrency, for the time to the first token and between tokens; 0:
    none. They are no part of the throughput, as streaming costs some."""
    questions: tuple[str, ...] = ()
    """Question sets whose results are told apart by category: `bundled`, or files as `generate` takes them."""
    question_prompts: int = Field(default=16, ge=1)
    """Questions of each category at most."""
    question_tokens: int = Field(default=128, ge=8)
    question_concurrency: int = Field(default=8, ge=1)
    prompt_lengths: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Upper ends of buckets of prompt lengths that are measured apart: `[256, 1024, 4096]`; none when left out."""
    length_prompts: int = Field(default=8, ge=1)
    """Prompts in each bucket."""
    accept_prompts: int = Field(default=96, ge=1)
    """Held-out prompts over which the served accept length is measured, to their natural end."""
    max_new_tokens: int = Field(default=128, ge=8)
    batch: int = Field(default=16, ge=1)
    """Requests at once where nothing is timed."""
    equality_prompts: int = Field(default=64, ge=0)
    """Held-out prompts whose output has to be the same with and without speculation; only the reference engine serves
    a dtype in which that can be asked for."""
    equality_tokens: int = Field(default=64, ge=1)
    equality_dtype: Literal["float32"] = "float32"
    divergence_prompts: int = Field(default=16, ge=0)
    """Held-out prompts, in the served dtype, whose first divergence has to be a near-tie of the target."""
    max_gap: float = Field(default=0.05, gt=0)
    """Relative gap between predicted and served accept length that is no alarm; a larger one beyond noise is."""

    bench_serving: bool = False
    """Run `sglang.bench_serving` against every server too, where SGLang is the engine: the number that others quote."""

    @field_validator("questions")
    @classmethod
    def _absolute(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        # The run may be started, or resumed, from another folder.
        return tuple(name if name == BUNDLED else str(expanded(name).absolute()) for name in value)

    @property
    def longest(self) -> int:
        """New tokens of the longest answer."""
        return max(
            self.timing_tokens, self.forced_tokens, self.max_new_tokens, self.equality_tokens, self.question_tokens
        )

    @property
    def most_rows(self) -> int:
        """Requests in flight at most."""
        return max(*self.concurrency, self.batch, self.question_concurrency if self.questions else 1)
