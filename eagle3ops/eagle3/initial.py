"""Where does a new drafter start? From noise under the target's head, or from an earlier drafter."""

import math
from pathlib import Path

import torch
from torch import Tensor, nn

from eagle3ops.eagle3.checkpoint import CheckpointError, LoadReport, fit, read_drafter_config, read_tensors
from eagle3ops.eagle3.drafter import Drafter
from eagle3ops.eagle3.target_head import TargetHead


@torch.no_grad()
def from_target(drafter: Drafter, head: TargetHead, seed: int) -> list[str]:
    """Fill a drafter with the target's head over its vocabulary and with noise; returns the names of what is not noise.

    The output norm starts at one, not at the target's. That, and an `fc` that begins as a regression of the next final
    state, start far better and ended worse (docs/training.md).

    Args:
        seed: of the noise, which is that of `nn.Linear`.
    """
    generator = torch.Generator().manual_seed(seed)
    for parameter in drafter.parameters():
        if parameter.ndim == 2:
            nn.init.kaiming_uniform_(parameter, a=math.sqrt(5), generator=generator)
        else:
            nn.init.ones_(parameter)
    ids = drafter.d2t + torch.arange(drafter.d2t.numel())
    drafter.lm_head.weight.copy_(head.lm_head_weight[ids])
    return ["lm_head"]


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
