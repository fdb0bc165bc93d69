"""train: teach a drafter on stored hidden states, export it, and predict the accept length it will be served with."""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, field_validator

from eagle3ops.runs.context import Context
from eagle3ops.runs.files import write_json
from eagle3ops.runs.job import Forecast, Job, Plan, PlanContext
from eagle3ops.spec.base import StageSpec
from eagle3ops.targets import read_target_info

if TYPE_CHECKING:
    from eagle3ops.eagle3.target_head import TargetHead
    from eagle3ops.features import FeatureRow


class TrainSpec(StageSpec):
    """The recipe; what was tried and what it gave stands in docs/training.md."""

    ttt_steps: int = Field(default=2, ge=1, le=16)
    """Draft steps unrolled in training."""
    draft_vocab_size: int = Field(default=4096, ge=1)
    epochs: int = Field(default=8, ge=1)
    tokens_per_step: int = Field(default=1024, ge=1)
    """Upper bound on the tokens packed into one optimiser step."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """muon: the matrices by Muon, the rest by AdamW; a step costs about twice as much on a CPU."""
    lr: float = Field(default=2e-3, gt=0)
    """Peak rate of AdamW."""
    muon_lr: float = Field(default=0.02, gt=0)
    """Peak rate of Muon."""
    weight_decay: float = Field(default=0.01, ge=0)
    warmup_steps: int = Field(default=10, ge=0)
    step_weight: float = Field(default=0.8, gt=0, le=1)
    """The loss of TTT step i weighs step_weight ** i."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Of the matrix products; weights and optimiser stay float32."""
    init_from: str | None = None
    """Folder of a drafter to continue from."""
    checkpoint_every: int = Field(default=20, ge=1)
    """Optimiser steps between checkpoints: what a kill costs at most."""
    eval_every: int = Field(default=0, ge=0)
    """Optimiser steps between evaluations on held-out rows; 0 evaluates at the end only."""
    eval_rows: int = Field(default=96, ge=1)
    """Held-out rows for evaluation and for the predicted accept length."""
    predict_steps: tuple[int, ...] = (1, 2, 3, 5)
    """Draft steps for which the accept length is predicted."""

    @field_validator("init_from")
    @classmethod
    def _absolute(cls, value: str | None) -> str | None:
        return None if value is None else str(Path(value).expanduser().absolute())


class Train(Job):
    """The exported drafter in `drafter/`, its predicted accept length in `prediction.json`."""

    name: ClassVar[str] = "train"
    Spec: ClassVar[type[StageSpec]] = TrainSpec
    needs: ClassVar[tuple[str, ...]] = ("fetch", "extract")
    reads: ClassVar[tuple[str, ...]] = ("target", "engine", "seed")
    code: ClassVar[tuple[str, ...]] = ("eagle3ops.jobs.train", "eagle3ops.eagle3", "eagle3ops.features")

    @classmethod
    def files(cls, spec: StageSpec) -> list[Path]:
        """The drafter to continue from."""
        assert isinstance(spec, TrainSpec)
        return [] if spec.init_from is None else [Path(spec.init_from) / "model.safetensors"]

    def plan(self, ctx: PlanContext) -> Plan:
        """Positions to train: tokens by epochs by draft steps."""
        spec = ctx.spec
        assert isinstance(spec, TrainSpec)
        tokens = ctx.upstream_tokens("extract")
        seen = None if tokens is None else tokens * spec.epochs
        return Plan(
            inputs=("train/", "heldout/"),
            outputs=("drafter/", "prediction.json", "metrics.jsonl", "tensorboard/"),
            forecast=Forecast(tokens=seen, notes=(f"{spec.epochs} epochs of {spec.ttt_steps} draft steps",)),
        )

    async def run(self, ctx: Context) -> None:
        """Train, or go on from the newest checkpoint."""
        await asyncio.to_thread(self._train, ctx)

    def _train(self, ctx: Context) -> None:
        from eagle3ops.eagle3.target_head import TargetHead
        from eagle3ops.eagle3.train_config import TrainConfig
        from eagle3ops.engines.reference.model import pick_device
        from eagle3ops.features import FeatureReader
        from eagle3ops.features.training import train

        spec = ctx.spec
        assert isinstance(spec, TrainSpec)
        info = read_target_info(ctx.inputs["fetch"])
        device = pick_device(ctx.pipeline.engine.device)
        head = TargetHead.load(info.path, device=device)
        reader = FeatureReader(ctx.inputs["extract"] / "train")
        heldout = FeatureReader(ctx.inputs["extract"] / "heldout")
        config = TrainConfig(
            draft_vocab_size=spec.draft_vocab_size,
            ttt_steps=spec.ttt_steps,
            epochs=spec.epochs,
            tokens_per_step=spec.tokens_per_step,
            step_weight=spec.step_weight,
            optimizer=spec.optimizer,
            lr=spec.lr,
            muon_lr=spec.muon_lr,
            weight_decay=spec.weight_decay,
            warmup=spec.warmup_steps,
            dtype=spec.dtype,
            seed=ctx.pipeline.seed,
            device=str(device),
            checkpoint_every=spec.checkpoint_every,
            eval_every=spec.eval_every,
            eval_rows=spec.eval_rows,
            draft_steps=max(spec.predict_steps),
        )
        result = train(
            reader,
            heldout,
            head,
            ctx.out,
            config,
            progress=lambda done, total: ctx.progress(done, total, "steps"),
            metric=lambda name, value, step: ctx.metric(name, value, step),
            info=ctx.info,
            warn=ctx.warn,
            init_from=None if spec.init_from is None else Path(spec.init_from),
        )
        prediction = predict_accept_length(ctx, spec, head, list(heldout.rows())[: spec.eval_rows])
        facts: dict[str, Any] = {key: value for key, value in asdict(result).items() if key != "renewal"}
        facts["drafter"] = str(result.drafter)
        write_json(ctx.out / "prediction.json", {"accept_length": prediction, "training": facts})
        ctx.metric("tokens", reader.tokens * spec.epochs)
        ctx.artifact(ctx.out / "drafter", note="the exported drafter (LlamaForCausalLMEagle3)")
        ctx.artifact(ctx.out / "tensorboard", note="event files for TensorBoard")
        ctx.metric("vocab_coverage_heldout", result.heldout_coverage or 0.0)
        for steps, record in prediction.items():
            ctx.metric(f"accept_length_predicted_{steps}", record["accept_length"])


def predict_accept_length(
    ctx: Context, spec: TrainSpec, head: "TargetHead", rows: "list[FeatureRow]"
) -> dict[str, dict[str, Any]]:
    """Renewal walk of the exported drafter over held-out answers, by number of draft steps."""
    from eagle3ops.eagle3.checkpoint import load_drafter
    from eagle3ops.eagle3.renewal import predict_rows

    info = read_target_info(ctx.inputs["fetch"])
    drafter = load_drafter(ctx.out / "drafter", info.num_layers, device=head.embed_weight.device)
    walks = predict_rows(drafter, rows, head.embed, spec.predict_steps)
    return {
        str(steps): {
            "accept_length": walk.accept_length,
            "histogram": list(walk.histogram),
            "per_position": walk.per_position(),
        }
        for steps, walk in walks.items()
    }
