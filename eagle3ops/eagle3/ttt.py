"""What does the drafter compute when it drafts several steps from every training position at once?

Training-time test (EAGLE-3, section 3): step i reads step i - 1's output at the same index. Its query at index p sees
the step-0 keys 0..p of its document, and of the later steps only those at index p: what a server has in its cache
when it drafts the i-th token after the verified prefix.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from eagle3ops.eagle3.drafter import Drafter
from eagle3ops.eagle3.packing import Batch

SCORES_MAX = 1 << 27
"""Attention scores held at once (512 MB in float32); longer documents are attended in blocks of queries."""


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _attend_block(query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """`[R, kv, G, Q, D]`, keys `[R, kv, K, D]`, `visible [R, Q, K]` -> attended, and log of the softmax's sum."""
    rows, kv, group, queries, width = query.shape
    scores = (query.reshape(rows, kv, group * queries, width) @ key.transpose(-1, -2)).to(_wide(query))
    scores = (scores * width**-0.5).view(rows, kv, group, queries, -1)
    scores = scores.masked_fill(~visible[:, None, None], float("-inf"))
    total = scores.logsumexp(-1)
    weights = (scores - total.unsqueeze(-1)).exp().to(value.dtype)
    out = weights.reshape(rows, kv, group * queries, -1) @ value
    return out.view(rows, kv, group, queries, width), total


class PrefixAttention:
    """Attention to the step-0 keys of every document, gathered from the packed into a padded layout once."""

    def __init__(self, batch: Batch, key: Tensor, value: Tensor) -> None:
        """`key`, `value`: step 0's, packed `[T, kv, D]`."""
        self._batch = batch
        self._documents, self._queries, self._keys = batch.visible.shape
        self.key = self._pad(key, batch.key_slots, self._keys).transpose(1, 2)
        self.value = self._pad(value, batch.key_slots, self._keys).transpose(1, 2)

    def _pad(self, packed: Tensor, slots: Tensor, length: int) -> Tensor:
        padded = packed.new_zeros(self._documents * length, *packed.shape[1:])
        return padded.index_copy(0, slots, packed).view(self._documents, length, *packed.shape[1:])

    def __call__(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Packed queries `[N, kv, G, D]` -> attended `[N, kv, G, D]`, log-sum-exp of the scores `[N, kv, G]`."""
        padded = self._pad(query, self._batch.query_slots, self._queries).permute(0, 2, 3, 1, 4)
        per_query = self._documents * self._keys * query.shape[1] * query.shape[2]
        block = max(1, SCORES_MAX // per_query)
        outs, totals = [], []
        for start in range(0, self._queries, block):
            part = slice(start, start + block)
            arguments = (padded[:, :, :, part], self.key, self.value, self._batch.visible[:, part])
            if block >= self._queries:
                out, total = _attend_block(*arguments)
            else:
                out, total = checkpoint(_attend_block, *arguments, use_reentrant=False)
            outs.append(out)
            totals.append(total)
        out = torch.cat(outs, dim=3).permute(0, 3, 1, 2, 4).flatten(0, 1)
        total = torch.cat(totals, dim=3).permute(0, 3, 1, 2).flatten(0, 1)
        return out[self._batch.query_slots], total[self._batch.query_slots]


def merge_diagonal(
    query: Tensor, out: Tensor, total: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor]
) -> Tensor:
    """Extend a softmax over the prefix by the drafter's own chain, exactly.

    Args:
        query, out: `[N, kv, G, D]`; total: `[N, kv, G]`, log-sum-exp of the prefix's scores, float32.
        keys, values: of draft steps 1..i at the same index, each `[N, kv, D]`.
    """
    if not keys:
        return out
    key, value = torch.stack(tuple(keys), 2), torch.stack(tuple(values), 2)  # [N, kv, i, D]
    scores = (query @ key.transpose(-1, -2)).to(_wide(query)) * query.shape[-1] ** -0.5  # [N, kv, G, i]
    weights = torch.cat((total.unsqueeze(-1), scores), -1).softmax(-1).to(out.dtype)
    return weights[..., :1] * out + weights[..., 1:] @ value


def unroll(
    drafter: Drafter,
    batch: Batch,
    embed: Callable[[Tensor], Tensor],
    *,
    steps: int,
    aux_scale: Tensor | None = None,
    pick: Callable[[Tensor], Tensor] | None = None,
) -> list[Tensor]:
    """h of every draft step at every query row, each `[N, H]`, before the output norm.

    Args:
        embed: the target's embedding, ids `[...]` -> `[..., H]`.
        steps: draft steps; without `pick` at most as many as the batch was packed for.
        aux_scale: `[A*H]`; the aux states are divided by it.
        pick: h `[N, H]` -> token ids `[N]`: the token that the next step reads, as in serving. By default it reads
            the text's own token, as in training: fed back its own mistakes, a drafter learns worse (EAGLE issue 194).
    """
    config = drafter.config
    groups = (
        config.num_key_value_heads,
        config.num_attention_heads // config.num_key_value_heads,
        config.head_dim,
    )
    aux = batch.aux if aux_scale is None else batch.aux / aux_scale.to(batch.aux.dtype)
    fused = drafter.fuse(aux.to(drafter.fc.weight.dtype))
    query, key, value = drafter.project(embed(batch.next_ids).to(fused.dtype), fused, batch.positions)
    prefix = PrefixAttention(batch, key, value)
    query = query[batch.query_rows].view(-1, *groups)
    out, _ = prefix(query)
    hidden = drafter.finish(fused[batch.query_rows], out.flatten(1, 2))
    states = [hidden]
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for number in range(1, steps):
        ids = batch.steps[number].next_ids if pick is None else pick(hidden)
        embeds = embed(ids).to(hidden.dtype)
        query, key, value = drafter.project(embeds, hidden, batch.query_positions + number)
        query = query.view(-1, *groups)
        keys.append(key)
        values.append(value)
        attended = merge_diagonal(query, *prefix(query), keys, values)
        hidden = drafter.finish(hidden, attended.flatten(1, 2))
        states.append(hidden)
    return states
