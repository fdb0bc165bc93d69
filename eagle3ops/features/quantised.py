"""How are hidden states stored in eight bits, and read again?

A token's states of one boundary share a scale, so that the largest number becomes the largest of float8 e4m3 (448).
Boundaries differ in size by an order of magnitude and the first token by two, hence a scale for each of them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

MOST = 448.0
"""The largest finite number of e4m3."""
_TINY = torch.finfo(torch.float32).tiny


def quantise(states: Tensor, hidden_size: int) -> tuple[Tensor, Tensor]:
    """States `[T, S * H]` -> float8_e4m3fn `[T, S * H]` and their scales, float32 `[T, S]`.

    States of zeros have the scale 0, states with NaN or infinity one that is not finite.
    """
    whole = states.float().reshape(states.shape[0], -1, hidden_size)
    scale = whole.abs().amax(-1) / MOST
    return (whole / scale.clamp_min(_TINY).unsqueeze(-1)).to(torch.float8_e4m3fn).flatten(1), scale


def dequantise(stored: Tensor, scale: Tensor) -> Tensor:
    """What `quantise` made -> bfloat16 `[T, S * H]`."""
    whole = stored.float().view(*scale.shape, -1) if stored.numel() else stored.float().unsqueeze(1)
    return (whole * scale.unsqueeze(-1)).bfloat16().flatten(1)


def taught(loss_mask: Tensor) -> Tensor:
    """Positions whose next token the target wrote: the only ones whose final state teaches anything."""
    found = torch.zeros_like(loss_mask)
    found[:-1] = loss_mask[1:]
    return found


@dataclass(frozen=True, slots=True, eq=False)
class QuantisedRow:
    """One conversation whose states are in eight bits already; fields as those of `FeatureRow`.

    Attributes:
        aux, final: float8_e4m3fn; aux_scale: float32 `[T, A]`; final_scale: float32 `[T, 1]`.
    """

    id: str
    token_ids: Tensor
    loss_mask: Tensor
    aux: Tensor
    final: Tensor
    aux_scale: Tensor
    final_scale: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class StoredRow:
    """One conversation as it lies in a shard that is smaller than its states; they are unpacked when they are read.

    Attributes:
        stored_final: of the taught positions only where `partial`.
        aux_scale, final_scale: None where the states are not quantised.
    """

    id: str
    token_ids: Tensor
    loss_mask: Tensor
    stored_aux: Tensor
    stored_final: Tensor
    aux_scale: Tensor | None
    final_scale: Tensor | None
    partial: bool

    @property
    def aux(self) -> Tensor:
        """`[T, A * H]`, bfloat16 where it was quantised."""
        return self.stored_aux if self.aux_scale is None else dequantise(self.stored_aux, self.aux_scale)

    @property
    def final(self) -> Tensor:
        """`[T, H]`; NaN where it was not kept, so that a reader that needs more than was kept is found out."""
        kept = self.stored_final if self.final_scale is None else dequantise(self.stored_final, self.final_scale)
        if not self.partial:
            return kept
        whole = kept.new_full((self.token_ids.numel(), kept.shape[-1]), float("nan"))
        whole[taught(self.loss_mask)] = kept
        return whole
