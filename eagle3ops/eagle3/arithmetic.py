"""In which numbers are matrices multiplied, where the processor has no unit for those that they are stored in?

On a CPU without bfloat16 units (AVX512-BF16, AMX) torch multiplies bfloat16 at a tenth of the speed of float32. There
the products are made in float32 and rounded: what comes out differs from a bfloat16 product as two of those differ, by
the order in which they add up (decision 57).
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def fast_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 matrix products are faster than float32 ones here."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(bool(probe()) for name in probes if (probe := getattr(torch.cpu, name, None)) is not None)


@cache
def widened(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype in which to keep what is multiplied with numbers of `dtype`."""
    slow = dtype == torch.bfloat16 and device.type == "cpu" and not fast_bfloat16(device)
    return torch.float32 if slow else dtype


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias` in the dtype of `x`, whatever that of the weight.

    Args:
        weight, bias: best in the dtype that `widened` names, else they are converted each time.
    """
    wide = widened(x.dtype, x.device)
    return F.linear(x.to(wide), weight.to(wide), None if bias is None else bias.to(wide)).to(x.dtype)


def widen_products(module: nn.Module) -> None:
    """Keep the matrices of a module that only infers as `widened` says; what goes in and comes out stays as it is."""
    for one in module.modules():
        if not isinstance(one, nn.Linear):
            continue
        dtype = one.weight.dtype
        wide = widened(dtype, one.weight.device)
        if wide != dtype:
            one.to(wide)
            one.register_forward_pre_hook(_to(wide))
            one.register_forward_hook(_back_to(dtype))


def _to(dtype: torch.dtype) -> Any:
    return lambda module, given: tuple(x.to(dtype) for x in given)


def _back_to(dtype: torch.dtype) -> Any:
    return lambda module, given, out: out.to(dtype)
