"""The pieces that target and drafter share: RMSNorm and rotary position embedding."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    """Root-mean-square norm with a learned scale (Zhang and Sennrich, 2019)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """`[..., size]` -> the same shape and dtype."""
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


def rope_table(head_dim: int, positions: int, theta: float, device: torch.device | None = None) -> Tensor:
    """Cosines and sines of the rotary embedding, float32 `[2, positions, head_dim]` (halves layout of Llama)."""
    frequency = 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.float64, device=device) / head_dim))
    angle = torch.outer(torch.arange(positions, dtype=torch.float64, device=device), frequency)
    angle = torch.cat((angle, angle), dim=-1)
    return torch.stack((angle.cos(), angle.sin())).float()


def rotate(x: Tensor, table: Tensor, positions: Tensor) -> Tensor:
    """Apply the rotary embedding.

    Args:
        x: `[..., heads, head_dim]`, any dtype.
        table: from `rope_table`.
        positions: integer `[...]`, the leading dimensions of `x`.
    """
    cos, sin = table[:, positions].unsqueeze(-2).to(x.dtype)
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    out: Tensor = x * cos + turned * sin
    return out
