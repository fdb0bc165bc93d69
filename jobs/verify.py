"""verify: prove that training and serving feed the drafter the same tensors, before anyone benchmarks."""

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from eagle3ops.answers import AnswerRow, read_answers
from eagle3ops.engines.footprint import engine_forecast, engine_refusal
from eagle3ops.errors import Eagle3opsError
from eagle3ops.jobs.serve import ServeStageSpec, serve_spec, started
from eagle3ops.runs.context import Context
from eagle3ops.runs.files import write_json
from eagle3ops.runs.job import Job, Plan, PlanContext
from eagle3ops.spec.base import StageSpec
from eagle3ops.targets import read_target_info

if TYPE_CHECKING:
    from torch import Tensor

    from eagle3ops.engines.reference.model import Target
    from eagle3ops.wiring.cause import Cause
    from eagle3ops.wiring.verdict import WiringVerdict


class VerifySpec(StageSpec):
    """How much is compared."""

    probes: int = Field(default=3, ge=1)
    """Held-out rows whose hidden states are compared."""
    probe_tokens: int = Field(default=48, ge=4)
    """Tokens of each row that are fed to the engine."""
    min_greedy_agreement: float = Field(default=0.95, ge=0.0, le=1.0)
    """Share of stored final states that have to predict the engine's own token; a real engine reached 0.969."""


class Verify(Job):
    """The wiring verdict in `verdict.json`."""

    name: ClassVar[str] = "verify"
    Spec: ClassVar[type[StageSpec]] = VerifySpec
    needs: ClassVar[tuple[str, ...]] = ("fetch", "generate", "extract", "train", "serve")
    reads: ClassVar[tuple[str, ...]] = ("target", "engine", "seed")
    uses_gpu: ClassVar[bool] = True
    code: ClassVar[tuple[str, ...]] = (
        "eagle3ops.jobs.verify",
        "eagle3ops.jobs.serve",
        "eagle3ops.wiring",
        "eagle3ops.engines",
        "eagle3ops.eagle3",
    )

    def plan(self, ctx: PlanContext) -> Plan:
        """Starts one engine and loads the reference model."""
        spec = ctx.spec
        assert isinstance(spec, VerifySpec)
        return Plan(
            inputs=("features", "drafter/", "engine"),
            outputs=("verdict.json",),
            forecast=engine_forecast(ctx, rows=1, length=spec.probe_tokens, engines=2, dtype="float32"),
            refusal=engine_refusal(ctx, speculation=True, hidden_states=True),
        )

    async def run(self, ctx: Context) -> None:
        """Compare stored features and the running engine with the reference model at every boundary."""
        from eagle3ops.eagle3.checkpoint import check_export

        spec = ctx.spec
        assert isinstance(spec, VerifySpec)
        heldout = [row for row in read_answers(ctx.inputs["generate"] / "answers.jsonl") if row.split == "heldout"]
        rows = heldout[: spec.probes]
        texts = [(row.prompt_ids + row.output_ids)[: spec.probe_tokens] for row in rows]
        info = read_target_info(ctx.inputs["fetch"])
        if problems := check_export(ctx.inputs["train"] / "drafter", info.num_layers):
            raise Eagle3opsError(f"the exported drafter is not sound: {'; '.join(problems)}", remedy="train it again")
        served = await captured_over_http(ctx, texts)
        sides, causes, agreement = await asyncio.to_thread(judge_sides, ctx, rows, texts, served)
        agreed = agreement >= spec.min_greedy_agreement
        passed = agreed and all(side.passed for side in sides)
        reasons = [side.reason for side in sides if side.passed == passed]
        if not agreed:
            reasons.append(
                f"stored final states predict only {agreement:.1%} of the engine's own greedy tokens "
                f"(at least {spec.min_greedy_agreement:.0%} expected): wrong final state, norm or head"
            )
        reasons += [f"{cause.words}; {cause.fix}" for cause in causes.values()]
        data: dict[str, Any] = {
            "greedy_agreement": agreement,
            "sides": [side.as_dict() for side in sides],
            "causes": {side: cause.as_dict() for side, cause in causes.items()},
        }
        reason = "; ".join(reasons)
        record = {"passed": passed, "reason": reason, **data}
        write_json(ctx.out / "verdict.json", record)
        ctx.artifact(ctx.out / "verdict.json", note="wiring verdict with the fingerprint of every segment")
        ctx.metric("greedy_agreement", agreement)
        ctx.verdict("wiring", passed, reason, data)


async def captured_over_http(ctx: Context, texts: list[list[int]]) -> "list[Tensor]":
    """What the running engine feeds the drafter for each text, `[T, 3H]`, through its public API.

    Raises:
        Eagle3opsError: the engine returned fewer rows than tokens, for example from a prefix cache.
    """
    from eagle3ops.engines.client import Sampling
    from eagle3ops.wiring.capture import prompt_states

    stage = ctx.pipeline.stages["serve"]
    assert isinstance(stage, ServeStageSpec)
    setting = serve_spec(ctx, stage, stage.speculation, return_hidden_states=True)
    captured = []
    async with started(ctx, setting, "engine-verify") as client:
        for done, ids in enumerate(texts):
            answer = await client.generate(ids, Sampling(max_new_tokens=1), return_hidden_states=True)
            states = prompt_states(answer.hidden_states)
            if states.shape[0] != len(ids):
                raise Eagle3opsError(
                    f"the engine returned {states.shape[0]} hidden states for {len(ids)} prompt tokens",
                    remedy="switch the engine's prefix cache off for verification",
                )
            captured.append(states)
            ctx.progress(done + 1, len(texts), "probes")
    return captured


def judge_sides(
    ctx: Context, rows: list[AnswerRow], texts: list[list[int]], served: "list[Tensor]"
) -> "tuple[list[WiringVerdict], dict[str, Cause], float]":
    """Verdicts on stored features and engine, why one fails, and the greedy agreement of the stored final states."""
    import torch

    from eagle3ops.eagle3.checkpoint import read_drafter_config
    from eagle3ops.engines.reference.model import Target, pick_device
    from eagle3ops.features import FeatureReader
    from eagle3ops.wiring.cause import explain, search
    from eagle3ops.wiring.fingerprint import greedy_agreement, match_segments
    from eagle3ops.wiring.verdict import judge

    info = read_target_info(ctx.inputs["fetch"])
    target = Target.load(info.path, torch.float32, pick_device(ctx.pipeline.engine.device))
    reader = FeatureReader(ctx.inputs["extract"] / "heldout")
    wanted = {row.id for row in rows}
    stored = {row.id: row for row in reader.rows() if row.id in wanted}
    trained = read_drafter_config(ctx.inputs["train"] / "drafter", info.num_layers).aux_layers
    name = f"engine {ctx.pipeline.engine.name}"
    captured: dict[str, list[Tensor]] = {"stored features": [], name: []}
    references, normed, predicted, following = [], [], [], []
    for row, ids, states in zip(rows, texts, served, strict=True):
        references.append(all_boundaries(target, ids))
        normed.append(target.normed(references[-1][-1].to(target.device)).float().cpu())
        kept = stored[row.id]
        captured[name].append(states)
        captured["stored features"].append(kept.aux[: len(ids)].float())
        final = kept.final.to(target.device, torch.float32)
        greedy = target.logits(target.normed(final)).argmax(-1).cpu()
        start = len(row.prompt_ids)
        predicted.append(greedy[start - 1 : -1])
        following.append(kept.token_ids[start:].long())
    agreement = greedy_agreement(torch.cat(predicted), torch.cat(following))
    sides, causes = [], {}
    for side, probes in captured.items():
        matches = [match_segments(states, known) for states, known in zip(probes, references, strict=True)]
        sides.append(judge(side, trained, matches))
        if not sides[-1].passed and (cause := explain(trained, search(probes, references, normed))) is not None:
            causes[side] = cause
    return sides, causes, agreement


def all_boundaries(target: "Target", ids: list[int]) -> "Tensor":
    """Every boundary of the reference for one text, float32 `[n + 1, T, H]` on the CPU."""
    import torch

    row = torch.tensor([ids], device=target.device)
    lengths = torch.tensor([len(ids)], device=target.device)
    return target.boundaries(row, lengths, range(target.config.num_layers + 1))[:, 0].float().cpu()
