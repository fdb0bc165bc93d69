"""Where does a new drafter start? As near to the target as its shapes allow, or from an earlier drafter."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from eagle3ops.eagle3.checkpoint import CheckpointError, LoadReport, fit, read_drafter_config, read_tensors
from eagle3ops.eagle3.drafter import Drafter
from eagle3ops.eagle3.target_head import TargetHead
from eagle3ops.eagle3.training_data import Row

NOISE = 0.02
"""Standard deviation of what the target cannot provide."""
RIDGE = 0.03
"""Penalty of the regression, relative to the variance of a scaled aux dimension."""
RIDGE_MAX = 8192
"""Widest aux states `[A*H]` that are regressed on: the system has the square of it."""
RIDGE_TOKENS = 200_000
RIDGE_ROWS = 64


@torch.no_grad()
def from_target(drafter: Drafter, head: TargetHead, aux_scale: Tensor, rows: Sequence[Row], seed: int) -> list[str]:
    """Fill a drafter from its target and its data; returns the names of what is not noise.

    The head's rows and the norm are the target's own. `fc` starts as the ridge regression of the target's next final
    state on the aux states, so that the first logits already are a guess of the next token: after 300 thousand
    trained positions it was worth 0.1 of accept length over passing the last aux state through.

    Args:
        aux_scale: `[A*H]`, by which training divides the aux states.
        rows: to regress on.
        seed: of the noise.
    """
    generator = torch.Generator().manual_seed(seed)
    for parameter in drafter.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=NOISE, generator=generator)
        else:
            nn.init.ones_(parameter)
    ids = drafter.d2t + torch.arange(drafter.d2t.numel())
    drafter.lm_head.weight.copy_(head.lm_head_weight[ids])
    drafter.norm.weight.copy_(head.norm_weight)
    hidden = drafter.config.hidden_size
    if drafter.config.aux_size <= RIDGE_MAX:
        drafter.fc.weight.copy_(next_state_regression(rows, aux_scale))
    else:
        last = aux_scale[-hidden:]
        drafter.fc.weight[:, -hidden:] += torch.diag(last / last.square().mean().sqrt())
    return ["lm_head", "norm", "fc"]


def next_state_regression(rows: Sequence[Row], aux_scale: Tensor) -> Tensor:
    """Linear map `[H, A*H]` from scaled aux states at p towards the final state at p + 1, by ridge regression.

    Its outputs have a root mean square of 1. The norms behind it make their length irrelevant to what is computed, but
    not to learning: a length of 26 drowns what the layer adds, and weights that large hardly move at the usual rates.
    Positions 0 and 1 are left out: the attention sink at 0 would outweigh all others.
    """
    width, hidden = rows[0].aux.shape[-1], rows[0].final.shape[-1]
    gram, cross, count = torch.zeros(width, width), torch.zeros(width, hidden), 0
    for start in range(0, len(rows), RIDGE_ROWS):
        some = [row for row in rows[start : start + RIDGE_ROWS] if row.token_ids.numel() > 2]
        if not some or count >= RIDGE_TOKENS:
            continue
        x = torch.cat([row.aux[1:-1] for row in some]).float() / aux_scale
        y = torch.cat([row.final[2:] for row in some]).float()
        # Of prompts the final states may not have been kept.
        there = ~y.isnan().any(-1)
        if not bool(there.all()):
            x, y = x[there], y[there]
        gram += x.T @ x
        cross += x.T @ y
        count += x.shape[0]
    # Scaled aux states have a mean square of 1, so the penalty is relative to the variance of one dimension.
    penalised = gram.double()
    penalised.diagonal().add_(RIDGE * max(1, count))
    solution: Tensor = torch.linalg.solve(penalised, cross.double())
    squares = (solution * (gram.double() @ solution)).sum() / max(1, count * hidden)
    return (solution / squares.sqrt().clamp_min(1e-12)).T.float()


@torch.no_grad()
def from_drafter(drafter: Drafter, folder: Path, aux_scale: Tensor) -> LoadReport:
    """Continue from an exported drafter; returns what was loaded, missing, unexpected and misshapen.

    Its draft vocabulary is adopted with it, because the rows of its head mean those tokens.

    Raises:
        CheckpointError: it reads other layers, or a tensor does not fit (its vocabulary's size included).
    """
    config = read_drafter_config(folder, drafter.config.aux_layers.num_layers)
    if config.aux_layers != drafter.config.aux_layers:
        raise CheckpointError(
            f"{folder}: reads {config.aux_layers}, the features hold {drafter.config.aux_layers}",
            remedy="extract the layers that the drafter reads",
        )
    tensors = read_tensors(folder)
    report = fit(drafter.config, tensors)
    if not report.clean:
        raise CheckpointError(f"{folder}: does not fit this training: {report}")
    values = {**drafter.state_dict(), **tensors}
    values["t2d"] = drafter.t2d.clone().zero_()
    values["t2d"][values["d2t"] + torch.arange(values["d2t"].numel())] = True
    values["fc.weight"] = (values["fc.weight"].double() * aux_scale.double()).float()
    drafter.load_state_dict(values)
    return report
