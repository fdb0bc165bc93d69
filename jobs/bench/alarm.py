"""Is what was served what training predicted? If not, the wiring is measured again, and what is left is named."""

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from eagle3ops.answers import AnswerRow
from eagle3ops.errors import Eagle3opsError
from eagle3ops.jobs.serve.job import ServeStageSpec
from eagle3ops.outputs.lineage import input_of, output_in
from eagle3ops.runs.context import Context, Findings

if TYPE_CHECKING:
    from eagle3ops.bench.diversity import Diversity
    from eagle3ops.bench.gap import Gap
    from eagle3ops.engines.client import Answer


class Limits(Protocol):
    """As much of `BenchSpec` as is needed."""

    @property
    def max_new_tokens(self) -> int: ...
    @property
    def max_gap(self) -> float: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """Served answers, held against the prediction and against the data."""

    rows: Sequence[AnswerRow]
    """Whose prompts were served."""
    heldout: int
    """Held-out prompts there are."""
    answers: "Sequence[Answer]"
    gap: "Gap | None"
    """None where training predicts nothing for what was served."""
    diversity: "Diversity"

    @property
    def alarm(self) -> bool:
        """Whether the accept length is not what was predicted."""
        return self.gap is not None and self.gap.alarm


def hold(
    ctx: Context, spec: Limits, stage: ServeStageSpec, rows: Sequence[AnswerRow], answers: "Sequence[Answer]"
) -> tuple[dict[str, Any], Held]:
    """The record for `bench.json`, and what it was made of; the verdicts are given.

    Args:
        rows: all held-out rows.
        answers: those to the first of them.
    """
    from eagle3ops.bench.accept import combine
    from eagle3ops.bench.diversity import judge
    from eagle3ops.bench.gap import hold_against
    from eagle3ops.bench.measure import counters

    chosen = rows[: len(answers)]
    parts = [counters(answer) for answer in answers]
    served, label = combine(parts), stage.speculation.label
    record: dict[str, Any] = {
        "setting": label,
        "served": served.accept_length,
        "accept_rate": served.accept_rate,
        "histogram": list(served.histogram),
        "by_position": list(served.by_position),
        "verify_steps": served.verify_steps,
    }
    ctx.metric("accept_length_served", served.accept_length)
    data = [row.output_ids[: spec.max_new_tokens] for row in chosen]
    diversity = judge([one.output_ids for one in answers], [one.finish_reason for one in answers], parts, data)
    record["diversity"] = diversity.as_json()
    ctx.metric("looping_answers", diversity.served.looping)
    ctx.verdict("output_diversity", diversity.passed, diversity.words)
    known = predicted_for(ctx, stage)
    if known is None or not served.verify_steps:
        ctx.info(f"no prediction for {label}: training predicts chains of its predict_steps")
        return record, Held(chosen, len(rows), answers, None, diversity)
    gap = hold_against(known["histogram"], parts, spec.max_gap)
    record |= {
        "predicted": known["accept_length"],
        "predicted_histogram": known["histogram"],
        "gap": gap.relative,
        "alarm": gap.as_json(),
    }
    ctx.metric("accept_length_gap", gap.relative)
    wiring = "; the wiring is measured again" if gap.alarm else ""
    ctx.verdict("accept_length", not gap.alarm, f"{gap.words} at {label}{wiring}", gap.as_json())
    return record, Held(chosen, len(rows), answers, gap, diversity)


def predicted_for(ctx: Context, stage: ServeStageSpec) -> dict[str, Any] | None:
    """What training predicts for the served setting; None for trees, and for chains that it did not walk."""
    prediction = json.loads((ctx.inputs["train"] / "prediction.json").read_text(encoding="utf-8"))
    known = prediction["accept_length"].get(str(stage.speculation.steps))
    return known if stage.speculation.topk == 1 and known is not None and sum(known["histogram"]) else None


async def investigate(ctx: Context, spec: Limits, held: Held) -> dict[str, Any]:
    """Measure the wiring of what was served once more, and name who is left to suspect; for `bench.json`."""
    from eagle3ops.bench.suspects import Evidence, next_words, suspects
    from eagle3ops.jobs.generate import GenerateSpec

    assert held.gap is not None
    passed, reason = await wiring_again(ctx)
    if passed is not None:
        ctx.verdict("wiring_again", passed, f"measured because of the accept length: {reason}")
    generate = ctx.pipeline.stages["generate"]
    found = suspects(
        Evidence(
            gap=held.gap,
            diversity=held.diversity,
            wiring=passed,
            wiring_reason=reason,
            temperature=generate.temperature if isinstance(generate, GenerateSpec) else 0.0,
            same_text=same_text(held.rows, held.answers),
            served_prompts=len(held.rows),
            heldout_prompts=held.heldout,
            limit=spec.max_new_tokens,
            longest=max(len(row.output_ids) for row in held.rows),
        )
    )
    ctx.warn(f"accept length {held.gap.relative:+.1%} of what was predicted; {next_words(found)}")
    return {"wiring": {"passed": passed, "reason": reason}, "suspects": [one.as_json() for one in found]}


async def wiring_again(ctx: Context) -> tuple[bool | None, str]:
    """The verify stage's measurement against an engine started as the benchmarked one: passed, and why.

    None where there is no verdict: the hidden states are gone, or the engine hands none over.
    """
    from eagle3ops.jobs.verify import Verify, VerifySpec

    trained = output_in(ctx.out.parent.parent, "train", ctx.inputs["train"].name)
    extracted = None if trained is None else input_of(ctx.out.parent.parent, trained, "extract")
    if extracted is None:
        return None, "the hidden states that the drafter was trained on are gone"
    spec = ctx.pipeline.stages.get("verify")
    findings, out = Findings(), ctx.out / "wiring"
    out.mkdir(exist_ok=True)
    inner = _Aside(
        pipeline=ctx.pipeline,
        spec=spec if isinstance(spec, VerifySpec) else VerifySpec(),
        stage=ctx.stage,
        out=out,
        run_dir=ctx.run_dir,
        inputs={**ctx.inputs, "extract": extracted.folder},
        cache=ctx.cache,
        events=ctx.events,
        findings=findings,
    )
    try:
        await Verify().run(inner)
    except Eagle3opsError as error:
        # The benchmark stands; what could not be found out is said.
        return None, error.what
    told = findings.verdicts["wiring"]
    if not isinstance(told["passed"], bool):
        return None, f"undecided: {told['reason']}"
    return told["passed"], str(told["reason"])


class _Aside(Context):
    """A stage within a stage: its processes and progress are told, its findings are kept for the one that asked."""

    __slots__ = ()

    def _emit(self, kind: str, data: Any) -> None:
        if kind in ("process", "progress", "info", "warn"):
            self.events.append(kind, data, self.stage)


def same_text(rows: Sequence[AnswerRow], answers: "Sequence[Answer]") -> float:
    """Share of the served tokens that stand before an answer's first difference from the data's."""
    same = sum(
        next((at for at, (a, b) in enumerate(zip(row.output_ids, one.output_ids, strict=False)) if a != b),
             min(len(row.output_ids), len(one.output_ids)))
        for row, one in zip(rows, answers, strict=True)
    )  # fmt: skip
    total = sum(len(one.output_ids) for one in answers)
    return same / total if total else 0.0
