"""Which optimiser moves which weight, and at what rate at which step?"""

import math
from collections.abc import Sequence

import torch
from torch import nn

from eagle3ops.eagle3.drafter import Drafter
from eagle3ops.eagle3.train_config import TrainConfig


class Schedule:
    """Linear warm-up, then a cosine down to `final_lr` of the peak; a function of the step alone."""

    def __init__(self, config: TrainConfig, total: int, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._config = config
        self._total = total
        self._optimizers = tuple(optimizers)
        self._peaks = [[float(group["lr"]) for group in optimizer.param_groups] for optimizer in optimizers]

    def factor(self, step: int) -> float:
        """Share of the peak rate at `step` (counted from 0)."""
        config = self._config
        warm = min(1.0, (step + 1) / config.warmup) if config.warmup else 1.0
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, step / max(1, self._total))))
        return warm * (config.final_lr + (1 - config.final_lr) * cosine)

    def set(self, step: int) -> float:
        """Put the rates of `step` into the optimisers; returns the factor."""
        factor = self.factor(step)
        for optimizer, peaks in zip(self._optimizers, self._peaks, strict=True):
            # Looked up anew each time: an optimiser that loads its state replaces its groups.
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * factor
        return factor


def build_optimizers(drafter: Drafter, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """AdamW over everything, or Muon (Jordan, 2024) over the matrices of fc and layer and AdamW over the rest.

    The head stays with AdamW: it is a table of token rows, and orthogonalising it would couple them all.
    """
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, parameter in drafter.named_parameters():
        inner = parameter.ndim == 2 and not name.startswith("lm_head")
        (matrices if inner and config.optimizer == "muon" else rest).append(parameter)
    adamw = torch.optim.AdamW(
        rest, lr=config.lr, betas=(0.9, config.beta2), weight_decay=config.weight_decay, fused=True
    )
    if not matrices:
        return [adamw]
    muon = torch.optim.Muon(matrices, lr=config.muon_lr, weight_decay=config.weight_decay, momentum=0.95)
    return [adamw, muon]
