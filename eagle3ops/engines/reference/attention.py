"""How do queries attend to a KV cache on any device: grouped-query attention as one kernel call, and its masks?

Grouped-query attention is folded: the G query heads that share a key head become G rows of queries of that key head,
so keys and values are read once and never repeated in memory.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def fold_mask(mask: Tensor, group: int) -> Tensor:
    """Additive mask `[B, T, L]` -> `[B, 1, G*T, L]` as `attend` wants it."""
    rows, steps, length = mask.shape
    if group == 1:
        return mask.unsqueeze(1)
    return mask.unsqueeze(1).expand(rows, group, steps, length).reshape(rows, 1, group * steps, length)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attention over all keys that the mask leaves.

    Args:
        q: `[B, T, heads, D]`.
        k, v: `[B, L, kv_heads, D]`; may be views into a cache, and of a wider dtype than `q`.
        mask: from `fold_mask`, in the dtype of `k`, or None where every query sees every key.

    Returns:
        `[B, T, heads, D]` in the dtype of `q`.
    """
    rows, steps, heads, size = q.shape
    kv_heads = k.shape[2]
    group = heads // kv_heads
    folded = q.view(rows, steps, kv_heads, group, size).permute(0, 2, 3, 1, 4).reshape(rows, kv_heads, -1, size)
    out = F.scaled_dot_product_attention(folded.to(k.dtype), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask)
    out = out.to(q.dtype).view(rows, kv_heads, group, steps, size).permute(0, 3, 1, 2, 4)
    return out.reshape(rows, steps, heads, size)


def attend_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal self-attention of a right-padded batch: padding sits after every real token, so it needs no mask.

    Args and result as in `attend`, with L = T.
    """
    group = q.shape[2] // k.shape[2]
    if group > 1:
        k, v = k.repeat_interleave(group, dim=2), v.repeat_interleave(group, dim=2)
    out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
    return out.transpose(1, 2)


def prefix_mask(seen: Tensor, new: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """Additive mask for T new tokens written behind each row's cached prefix.

    Args:
        seen: tokens already in the cache, `[B]`.
        new: which new token (key, at cache index `seen + j`) each new token (query) sees, bool `[T, T]` or `[B, T, T]`.
        length: cache entries looked at, at least `max(seen) + T`.

    Returns:
        `[B, T, length]`: 0 where visible, -inf elsewhere.
    """
    if new.dim() == 2:
        new = new.expand(seen.shape[0], *new.shape)
    slot = torch.arange(length, device=seen.device)
    offset = slot[None, :] - seen[:, None]  # [B, L]: below 0 = prefix, j = new token j
    steps = new.shape[2]
    inside = (offset >= 0) & (offset < steps)
    index = offset.clamp(0, steps - 1)[:, None, :].expand(-1, new.shape[1], -1)
    visible = (offset < 0)[:, None, :] | (new.gather(2, index) & inside[:, None, :])
    mask = torch.zeros(visible.shape, dtype=dtype, device=seen.device)
    return mask.masked_fill_(~visible, float("-inf"))
