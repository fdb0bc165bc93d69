"""profile: where does the time of a decode step go? Traced, attributed, and told against the baseline."""

import asyncio
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from eagle3ops.answers import read_answers
from eagle3ops.engines.footprint import engine_forecast, engine_refusal
from eagle3ops.errors import Eagle3opsError
from eagle3ops.jobs.serve.job import ServeStageSpec, SpeculationSpec, serve_spec, started
from eagle3ops.runs.context import Context
from eagle3ops.runs.files import write_atomic, write_json
from eagle3ops.runs.job import Job, Plan, PlanContext
from eagle3ops.spec.base import StageSpec

if TYPE_CHECKING:
    from eagle3ops.engines.client import EngineClient
    from eagle3ops.profiling.reading import Profile

BASELINE = "baseline"
_TRACE_TIMEOUT_S = 300.0


class ProfileSpec(StageSpec):
    """What is profiled."""

    speculation: SpeculationSpec | None = None
    """The setting; the one that `serve` uses when left out."""
    baseline: bool = True
    """Profile the target alone, too."""
    steps: int = Field(default=20, ge=3, le=500)
    """Decode steps in a trace. A trace of a large model has some thousand events a step."""
    batch: int = Field(default=1, ge=1)
    """Requests at once."""
    tokens: int = Field(default=160, ge=32)
    """Of the longer answer from which the time of a step without the profiler is taken."""
    repeats: int = Field(default=3, ge=1)


class ProfileJob(Job):
    """Figures in `profile.json`, bars in `profile.txt` and `profile.svg`, the traces under `traces/`."""

    name: ClassVar[str] = "profile"
    Spec: ClassVar[type[StageSpec]] = ProfileSpec
    needs: ClassVar[tuple[str, ...]] = ("fetch", "generate", "train")
    reads: ClassVar[tuple[str, ...]] = ("target", "engine", "seed", "stages.serve")
    uses_gpu: ClassVar[bool] = True
    code: ClassVar[tuple[str, ...]] = (
        "eagle3ops.jobs.profile",
        "eagle3ops.jobs.serve",
        "eagle3ops.profiling",
        "eagle3ops.engines",
    )

    def plan(self, ctx: PlanContext) -> Plan:
        """One engine after the other."""
        spec = ctx.spec
        assert isinstance(spec, ProfileSpec)
        stage = ctx.pipeline.stages["serve"]
        assert isinstance(stage, ServeStageSpec)
        return Plan(
            inputs=("drafter/", "engine"),
            outputs=("profile.json", "profile.txt", "profile.svg", "traces/"),
            forecast=engine_forecast(ctx, rows=spec.batch, length=512),
            refusal=engine_refusal(ctx, speculation=True, topk=(spec.speculation or stage.speculation).topk),
        )

    async def run(self, ctx: Context) -> None:
        """Measure a step, trace some, attribute, write."""
        from eagle3ops.bench.plots import stacked, standing_alone
        from eagle3ops.profiling.reading import bars, sentence, table

        spec, stage = ctx.spec, ctx.pipeline.stages["serve"]
        assert isinstance(spec, ProfileSpec)
        assert isinstance(stage, ServeStageSpec)
        chosen = spec.speculation or stage.speculation
        sides: dict[str, SpeculationSpec | None] = {BASELINE: None} if spec.baseline else {}
        sides[chosen.label] = chosen
        profiles: dict[str, Profile] = {}
        for number, (label, speculation) in enumerate(sides.items()):
            setting = serve_spec(ctx, stage.model_copy(update={"port": None}), speculation)
            async with started(ctx, setting, f"engine-profile-{label.replace('/', '-')}") as client:
                profiles[label] = await profiled(ctx, spec, client, label)
            ctx.progress(number + 1, len(sides), "servers profiled")
        told = sentence(profiles[chosen.label], profiles.get(BASELINE))
        write_json(
            ctx.out / "profile.json",
            {
                "batch": spec.batch,
                "sentence": told,
                "profiles": {label: profile.as_dict() for label, profile in profiles.items()},
            },
        )
        write_atomic(ctx.out / "profile.txt", f"{told}\n\n{table(profiles)}")
        picture = stacked({label: profile.parts for label, profile in profiles.items()}, "milliseconds of one step")
        if picture is not None:
            write_atomic(ctx.out / "profile.svg", standing_alone(picture))
        for name, note in (("profile.json", told), ("profile.txt", "the same as bars"), ("profile.svg", "a picture")):
            ctx.artifact(ctx.out / name, note=note)
        for label, profile in profiles.items():
            ctx.metric(f"step_ms_{label}", profile.step_ms)
            ctx.metric(f"waiting_share_{label}", 1.0 - min(1.0, profile.times.busy_ms / profile.step_ms))
        for line in bars(profiles[chosen.label]):
            ctx.info(line)
        ctx.info(told)


async def profiled(ctx: Context, spec: ProfileSpec, client: "EngineClient", label: str) -> "Profile":
    """One server: the time of a step from answers of two lengths, then a trace of `spec.steps` steps.

    Raises:
        Eagle3opsError: no trace came, or it holds no steps.
    """
    from eagle3ops.engines.base import on_gpu
    from eagle3ops.engines.client import Sampling
    from eagle3ops.profiling.phases import step_times
    from eagle3ops.profiling.reading import Profile
    from eagle3ops.profiling.trace import read_trace

    rows = [row for row in read_answers(ctx.inputs["generate"] / "answers.jsonl") if row.split == "heldout"]
    prompts = [rows[at % len(rows)].prompt_ids for at in range(spec.batch)]

    async def answer(tokens: int) -> tuple[float, float, int]:
        """Seconds, steps of the longest row, tokens of all rows."""
        answers = await client.generate_batch(prompts, Sampling(max_new_tokens=tokens, ignore_eos=True))
        taken = [one.completion_tokens if one.verify_steps is None else one.verify_steps for one in answers]
        return max(one.latency_s for one in answers), float(max(taken)), sum(one.completion_tokens for one in answers)

    short, long = spec.tokens // 8, spec.tokens
    # Kernels are compiled at their first use.
    await answer(long)
    steps_ms, yields = [], []
    for _ in range(spec.repeats):
        (brief, few, little), (whole, many, much) = await answer(short), await answer(long)
        steps_ms.append(1000.0 * (whole - brief) / max(1.0, many - few))
        yields.append((much - little) / max(1.0, many - few) / spec.batch)
    folder = ctx.out / "traces" / label.replace("/", "-")
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    # The prefill is a step, too, and the first and last steps are not whole.
    await client.start_profile(folder, spec.steps + 3, on_gpu=on_gpu(ctx.pipeline.engine.device))
    needed = int((spec.steps + 6) * max(1.0, median(yields))) + 8
    await answer(max(long, needed))
    traces = [read_trace(path) for path in await written(folder)]
    found = [step_times(trace) for trace in traces]
    # Ranks compute alike; the one that works longest sets the pace.
    times = max(found, key=lambda one: one.busy_ms)
    return Profile(label=label, times=times, step_ms=max(1e-6, median(steps_ms)), tokens=max(1e-6, median(yields)))


async def written(folder: Path) -> list[Path]:
    """The traces below `folder`, once they are whole.

    Raises:
        Eagle3opsError: none came, or they did not come to an end.
    """
    deadline = time.monotonic() + _TRACE_TIMEOUT_S
    seen: dict[Path, int] = {}
    while time.monotonic() < deadline:
        await asyncio.sleep(1.0)
        now = await asyncio.to_thread(_sizes, folder)
        if now and now == seen and all(now.values()):
            return list(now)
        seen = now
    raise Eagle3opsError(
        f"no trace appeared below {folder} within {_TRACE_TIMEOUT_S:.0f} s",
        remedy="see the engine's log: its profiler may be missing, or the answer was shorter than the steps asked for",
    )


def _sizes(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in sorted(folder.glob("*.trace.json*")) if ".part" not in path.name}
