"""train: teach a drafter on stored hidden states, export it, and predict the accept length it will be served with."""

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, field_validator

from eagle3ops.eagle3.listener import Listener
from eagle3ops.engines.footprint import engine_forecast, engine_refusal
from eagle3ops.jobs.extract.job import Extract
from eagle3ops.jobs.extract.quota import QUOTA_FILE, Survey, heldout_bytes, outlook, survey
from eagle3ops.jobs.extract.road import road_of
from eagle3ops.jobs.extract.spec import ExtractSpec
from eagle3ops.jobs.train.turns import last_values, take_turns
from eagle3ops.locations import expanded
from eagle3ops.runs.context import Context
from eagle3ops.runs.files import write_json
from eagle3ops.runs.job import Forecast, Job, Plan, PlanContext, load_registry
from eagle3ops.runs.keys import stage_keys
from eagle3ops.spec.base import StageSpec
from eagle3ops.spec.models import Pipeline
from eagle3ops.targets import read_target_info
from eagle3ops.words import human_bytes

if TYPE_CHECKING:
    from eagle3ops.eagle3.conclusion import TrainResult
    from eagle3ops.eagle3.train_config import TrainConfig

PREDICTION = "prediction.json"


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
        return None if value is None else str(expanded(value).absolute())


class Train(Job):
    """The exported drafter in `drafter/`, its predicted accept length in `prediction.json`."""

    name: ClassVar[str] = "train"
    Spec: ClassVar[type[StageSpec]] = TrainSpec
    needs: ClassVar[tuple[str, ...]] = ("fetch", "generate", "extract")
    reads: ClassVar[tuple[str, ...]] = ("target", "engine", "seed")
    uses_gpu: ClassVar[bool] = True
    code: ClassVar[tuple[str, ...]] = (
        "eagle3ops.jobs.train",
        *Extract.code,
        "eagle3ops.eagle3",
    )

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
        notes = [f"{spec.epochs} epochs of {spec.ttt_steps} draft steps"]
        extract = ctx.pipeline.stages["extract"]
        assert isinstance(extract, ExtractSpec)
        ahead, inputs, refusal = outlook(ctx, extract, tokens), ("train/", "heldout/"), None
        if ahead is not None and ahead.turns and extract.quota is not None:
            disk = max(0, extract.quota - ahead.heldout)
            if extract.place == "memory":
                disk = 0
                notes.append(f"hidden states in shared memory, up to {human_bytes(extract.quota)}; none on disk")
            again = "because every epoch extracts anew" if ahead.turns > 1 else "because all of them fit"
            notes.append(
                f"the quota takes about {ahead.turns} turns of extract and train an epoch, "
                f"{ahead.turns * ahead.epochs} in all; the target reads {ahead.prefilled} tokens instead of {tokens}, "
                f"{again}"
            )
            inputs = ("answers.jsonl", "heldout/")
            # The target is loaded here, too, by whoever computes the states.
            if road_of(ctx, extract)[0] == "engine":
                refusal = engine_refusal(ctx, speculation=False)
            forecast = engine_forecast(
                ctx, rows=extract.rows_per_batch, length=512, tokens=seen, disk_bytes=disk, notes=tuple(notes)
            )
        else:
            forecast = Forecast(tokens=seen, notes=tuple(notes))
        return Plan(
            inputs=inputs,
            outputs=("drafter/", "prediction.json", "metrics.jsonl", "tensorboard/"),
            forecast=forecast,
            refusal=refusal,
        )

    async def run(self, ctx: Context) -> None:
        """Train, or go on from the newest checkpoint."""
        if (ctx.inputs["extract"] / QUOTA_FILE).exists():
            tokens = await self._in_turns(ctx)
        else:
            tokens = await asyncio.to_thread(self._train, ctx)
        written = json.loads((ctx.out / PREDICTION).read_text(encoding="utf-8"))
        ctx.metric("tokens", tokens)
        ctx.artifact(ctx.out / "drafter", note="the exported drafter (LlamaForCausalLMEagle3)")
        ctx.artifact(ctx.out / "tensorboard", note="event files for TensorBoard")
        ctx.metric("vocab_coverage_heldout", written["training"]["heldout_coverage"] or 0.0)
        for steps, record in written["accept_length"].items():
            ctx.metric(f"accept_length_predicted_{steps}", record["accept_length"])

    def _train(self, ctx: Context) -> int:
        """Train on everything at once; returns the tokens seen."""
        from eagle3ops.eagle3.target_head import TargetHead
        from eagle3ops.engines.reference.model import pick_device
        from eagle3ops.features import FeatureReader
        from eagle3ops.features.training import train

        spec = ctx.spec
        assert isinstance(spec, TrainSpec)
        info = read_target_info(ctx.inputs["fetch"])
        head = TargetHead.load(info.path, device=pick_device(ctx.pipeline.engine.device))
        reader = FeatureReader(ctx.inputs["extract"] / "train")
        heldout = FeatureReader(ctx.inputs["extract"] / "heldout")
        result = train(
            reader,
            heldout,
            head,
            ctx.out,
            train_config(ctx.pipeline, spec),
            listener=listener_of(ctx),
            init_from=None if spec.init_from is None else Path(spec.init_from),
        )
        write_prediction(ctx.out, result)
        return reader.tokens * spec.epochs

    async def _in_turns(self, ctx: Context) -> int:
        """Take turns with extraction; returns the tokens seen."""
        spec, extract = ctx.spec, ctx.pipeline.stages["extract"]
        assert isinstance(spec, TrainSpec)
        assert isinstance(extract, ExtractSpec)
        assert extract.quota is not None
        survey = await asyncio.to_thread(lambda: survey_of(ctx, extract, heldout_bytes(ctx.inputs["extract"])))
        turns, tokens = survey.turns, sum(turn.tokens for turn in survey.turns)
        ctx.info(f"{len(turns)} turns of extract and train; the target reads {tokens} tokens in all")
        registry = load_registry()
        key = stage_keys(ctx.pipeline, registry)[self.name]
        in_memory = extract.place == "memory"
        await take_turns(ctx, key, turns, epochs=spec.epochs, quota=extract.quota, in_memory=in_memory)
        # The phases reported them as they came; stored with the outputs they are told again when the stage is skipped.
        ctx.findings.metrics.update(last_values(ctx.out / "metrics.jsonl"))
        ctx.metric("turns", len(turns))
        return tokens


def train_config(pipeline: Pipeline, spec: TrainSpec) -> "TrainConfig":
    """What the trainer is told: the stage's settings under the trainer's names, with seed and device."""
    from eagle3ops.eagle3.train_config import TrainConfig
    from eagle3ops.engines.reference.model import pick_device

    same = spec.model_dump(exclude={"warmup_steps", "init_from"})
    return TrainConfig(
        **same,
        warmup=spec.warmup_steps,
        seed=pipeline.seed,
        device=str(pick_device(pipeline.engine.device)),
    )


def survey_of(ctx: Context, extract: ExtractSpec, heldout: int) -> Survey:
    """The turns of this pipeline; the same in every process that asks.

    Args:
        heldout: upper bound of the held-out split's bytes.

    Raises:
        RequestError: the quota is too small for the rows of one step.
    """
    train = ctx.pipeline.stages["train"]
    assert isinstance(train, TrainSpec)
    info = read_target_info(ctx.inputs["fetch"])
    return survey(
        ctx.inputs["generate"] / "answers.jsonl",
        extract,
        train_config(ctx.pipeline, train),
        hidden_size=info.hidden_size,
        vocab_size=info.vocab_size,
        heldout=heldout,
    )


def listener_of(ctx: Context) -> Listener:
    """A training that is heard as the train stage."""
    return Listener(
        progress=lambda done, total: ctx.progress(done, total, "steps"),
        metric=lambda name, value, step: ctx.metric(name, value, step),
        info=ctx.info,
        warn=ctx.warn,
    )


def write_prediction(out: Path, result: "TrainResult", **further: Any) -> None:
    """Leave the predicted accept length, by number of draft steps, and the facts of the training in a file."""
    prediction = {
        str(steps): {
            "accept_length": walk.accept_length,
            "histogram": list(walk.histogram),
            "per_position": walk.per_position(),
        }
        for steps, walk in result.renewals.items()
    }
    facts = {name: value for name, value in asdict(result).items() if name != "renewals"}
    training = {**facts, "drafter": str(result.drafter), **further}
    write_json(out / PREDICTION, {"accept_length": prediction, "training": training})
