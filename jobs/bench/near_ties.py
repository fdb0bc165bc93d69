"""Where outputs with and without the drafter part, was the target itself undecided? For bench, in the served dtype.

In bf16 greedy outputs part often: verifying several tokens at once rounds differently from decoding one. That is no
error as long as the two tokens lay closer together than rounding moves them; further apart the speculative path is
wrong. The gap is taken from the target in float32, by the reference model, or where that cannot compute this target,
from the engine's own log probabilities.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from eagle3ops.bench.cases import BASELINE
from eagle3ops.bench.parting import engine_gap, engine_noise, first_divergence, torn
from eagle3ops.engines.client import EngineError
from eagle3ops.errors import Eagle3opsError
from eagle3ops.runs.context import Context
from eagle3ops.targets import read_target_info

if TYPE_CHECKING:
    from eagle3ops.engines.client import EngineClient, Sampling

NOISE_TEXTS = 4
"""Texts over which the reference model measures rounding."""


@dataclass(slots=True)
class Outputs:
    """Greedy outputs of the same prompts, all made in the same batches.

    Attributes:
        made: token ids by label; the baseline among them.
        again: the baseline's, made a second time: what parts here parts without any drafter.
        gaps: by label and prompt, the baseline's own logit gap at the first divergence; empty where it tells none.
        noise: how far the engine's rounding moves such gaps; None where it does not tell.
    """

    prompts: list[list[int]]
    limit: int
    made: dict[str, list[list[int]]] = field(default_factory=dict)
    again: list[list[int]] | None = None
    gaps: dict[str, dict[int, float]] = field(default_factory=dict)
    noise: float | None = None

    def parted(self, label: str) -> list[tuple[int, int]]:
        """(prompt, place) of every first divergence of a setting from the baseline at which two tokens differ."""
        found = []
        for index, (a, b) in enumerate(zip(self.made[BASELINE], self.made[label], strict=True)):
            at = first_divergence(a, b)
            if at is not None and at < min(len(a), len(b)):
                found.append((index, at))
        return found

    def torn(self, label: str) -> list[int]:
        """Prompts whose output ends too early or too late."""
        pairs = zip(self.made[BASELINE], self.made[label], strict=True)
        return [index for index, (a, b) in enumerate(pairs) if torn(a, b, self.limit)]


async def collect(outputs: Outputs, clients: "dict[str, EngineClient]", sampling: "Sampling", batch: int) -> None:
    """Have every server that has not done so yet answer; the baseline twice."""
    from eagle3ops.bench.measure import answer_all

    async def answers(client: "EngineClient") -> list[list[int]]:
        await client.flush_cache()
        return [one.output_ids for one in await answer_all(client, outputs.prompts, sampling, batch=batch)]

    for label, client in clients.items():
        if label not in outputs.made:
            outputs.made[label] = await answers(client)
            if label == BASELINE:
                outputs.again = await answers(client)


async def ask_baseline(ctx: Context, outputs: Outputs, base: "EngineClient | None") -> None:
    """Have the baseline, as long as it is up, judge what differs, if it tells log probabilities."""
    if base is None or BASELINE not in outputs.made:
        return
    try:
        if outputs.noise is None:
            outputs.noise = await engine_noise(base, outputs.prompts, outputs.limit)
        if outputs.noise is None:
            return
        for label in outputs.made:
            if label == BASELINE or label in outputs.gaps:
                continue
            found: dict[int, float] = {}
            for index, at in outputs.parted(label):
                a, b = outputs.made[BASELINE][index], outputs.made[label][index]
                gap = await engine_gap(base, [*outputs.prompts[index], *a[:at]], a[at], b[at])
                if gap is not None:
                    found[index] = gap
            outputs.gaps[label] = found
    except EngineError as error:
        outputs.noise = None
        ctx.warn(f"the engine's own log probabilities are not known: {str(error).splitlines()[0]}")


async def judged(ctx: Context, outputs: Outputs) -> dict[str, Any]:
    """The record of all divergences and the verdict over them; the engines may have ended before."""
    labels = [label for label in outputs.made if label != BASELINE]
    try:
        exact = await asyncio.to_thread(margins, ctx, outputs, labels)
        why = "target in float32"
    except (Eagle3opsError, RuntimeError, MemoryError) as error:
        # Another architecture than the reference model computes, or one too large in float32.
        if outputs.noise is None:
            ctx.warn(f"divergences cannot be judged: {error}")
            return record(outputs, labels) | {"passed": False, "judged_by": "nothing", "noise": None, "bound": None}
        ctx.info(f"divergences are judged by the engine's own log probabilities: {str(error).splitlines()[0]}")
        exact, why = engine_margins(outputs, labels), "the engine's own log probabilities"
    told = record(outputs, labels) | exact | {"judged_by": why}
    far = [item for item in told["divergences"] if item["gap"] > told["bound"]]
    lost = {label: outputs.torn(label) for label in labels if outputs.torn(label)}
    told["beyond"], told["torn"] = len(far), lost
    told["passed"] = not far and not lost
    ctx.verdict("divergence", told["passed"], reason(ctx, outputs, told))
    return told


def reason(ctx: Context, outputs: Outputs, told: dict[str, Any]) -> str:
    """What was found, in words."""
    if told["torn"]:
        label, prompts = next(iter(told["torn"].items()))
        return f"{len(prompts)} outputs at {label} end elsewhere than the baseline's, first that of prompt {prompts[0]}"
    widest = max((item["gap"] for item in told["divergences"]), default=0.0)
    count = len(outputs.prompts)
    same = ", ".join(f"{label} {number}" for label, number in told["identical"].items())
    again = "" if told["again"] is None else f" (baseline against itself: {told['again']})"
    return (
        f"of {count} outputs in {ctx.pipeline.engine.dtype} the same as the baseline's: {same}{again}; at "
        f"{len(told['divergences'])} first divergences the widest logit gap is {widest:.3f} by the "
        f"{told['judged_by'].removeprefix('the ')}; rounding moves gaps by up to {told['noise']:.3f}, "
        f"{told['bound']:.3f} allowed, {told['beyond']} beyond"
    )


def record(outputs: Outputs, labels: Sequence[str]) -> dict[str, Any]:
    """What is known without any margin."""
    base = outputs.made[BASELINE]
    again = outputs.again
    return {
        "prompts": len(outputs.prompts),
        "tokens": sum(len(ids) for ids in base),
        "identical": {label: sum(a == b for a, b in zip(base, outputs.made[label], strict=True)) for label in labels},
        "again": None if again is None else sum(a == b for a, b in zip(base, again, strict=True)),
        "engine_noise": outputs.noise,
        "engine_widest": max((gap for found in outputs.gaps.values() for gap in found.values()), default=None),
        "divergences": [],
    }


def margins(ctx: Context, outputs: Outputs, labels: Sequence[str]) -> dict[str, Any]:
    """First divergences with the target's float32 logit gap, and the rounding noise that explains them."""
    import torch

    from eagle3ops.bench.divergence import divergences, rounding_noise
    from eagle3ops.engines.reference.model import Target, pick_device, pick_dtype

    info = read_target_info(ctx.inputs["fetch"])
    device = pick_device(ctx.pipeline.engine.device)
    exact = Target.load(info.path, torch.float32, device)
    rounded = Target.load(info.path, pick_dtype(ctx.pipeline.engine.dtype), device)
    base = outputs.made[BASELINE]
    texts = [[*prompt, *output] for prompt, output in zip(outputs.prompts, base, strict=True)][:NOISE_TEXTS]
    noise = rounding_noise(exact, rounded, texts)
    found = []
    for label in labels:
        for item in divergences(exact, outputs.prompts, base, outputs.made[label]):
            gap = outputs.gaps.get(label, {}).get(item.prompt)
            found.append({"setting": label, **asdict(item), **({} if gap is None else {"engine_gap": gap})})
    # Either side of the comparison is rounded, so a gap of twice the noise can turn.
    return {"noise": noise, "bound": 2.0 * noise, "divergences": found}


def engine_margins(outputs: Outputs, labels: Sequence[str]) -> dict[str, Any]:
    """The same by what the engine says of itself; a divergence that it did not judge counts as beyond all bounds."""
    assert outputs.noise is not None
    found = []
    for label in labels:
        for index, at in outputs.parted(label):
            a, b = outputs.made[BASELINE][index][at], outputs.made[label][index][at]
            gap = outputs.gaps.get(label, {}).get(index, float("1e9"))
            found.append({"setting": label, "prompt": index, "position": at, "token_a": a, "token_b": b, "gap": gap})
    return {"noise": outputs.noise, "bound": 2.0 * outputs.noise, "divergences": found}
