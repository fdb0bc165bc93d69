"""Which numbers decide what training makes of its data?"""

from dataclasses import dataclass
from typing import Literal

from eagle3ops.errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Settings of one training; with the data they determine every weight, bit by bit, on one machine."""

    draft_vocab_size: int = 4096
    ttt_steps: int = 2
    """Draft steps unrolled in training."""
    steps: int | None = None
    """Optimiser steps; None means `epochs` over the data."""
    epochs: int = 10
    tokens_per_step: int = 1024
    """Upper bound on the tokens packed into one step (a longer row makes a step of its own)."""
    step_weight: float = 0.8
    """Step i of the loss counts `step_weight ** i`."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """muon: the matrices of fc and layer by Muon, the rest by AdamW. On two CPU cores a step took twice as long and
    the drafter came out no better after as many positions."""
    lr: float = 2e-3
    """Peak rate of AdamW."""
    muon_lr: float = 0.02
    """Peak rate of Muon."""
    weight_decay: float = 0.01
    beta2: float = 0.95
    warmup: int = 10
    """Steps of linear warm-up before the cosine."""
    final_lr: float = 0.02
    """The cosine ends at this share of the peak."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Of the matrix products; weights, optimiser and softmax stay float32. auto: bfloat16 where it is fast."""
    seed: int = 0
    device: str = "cpu"
    threads: int | None = None
    """CPU threads; part of what makes two runs the same bit by bit. None: what torch is set to."""
    checkpoint_every: int = 50
    log_every: int = 10
    eval_every: int = 0
    """Steps between evaluations on the held-out rows; 0: at the end only."""
    eval_rows: int = 64
    """Held-out rows that are evaluated."""
    predict_steps: tuple[int, ...] = (3,)
    """Drafts per verify step for which the accept length is predicted."""

    def __post_init__(self) -> None:
        positive = (
            "draft_vocab_size", "ttt_steps", "epochs", "tokens_per_step", "step_weight", "lr", "muon_lr", "clip",
            "checkpoint_every", "log_every", "eval_rows",
        )  # fmt: skip
        for name in positive:
            if not getattr(self, name) > 0:
                raise RequestError(f"train: {name} is {getattr(self, name)}; it must be above 0")
        if not self.predict_steps or min(self.predict_steps) < 1:
            raise RequestError(f"train: predict_steps is {self.predict_steps}; it must name steps of at least 1")
        for name in ("weight_decay", "warmup", "final_lr", "eval_every"):
            if not getattr(self, name) >= 0:
                raise RequestError(f"train: {name} is {getattr(self, name)}; it cannot be negative")
        for name in ("steps", "threads"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise RequestError(f"train: {name} is {value}; it must be at least 1")
