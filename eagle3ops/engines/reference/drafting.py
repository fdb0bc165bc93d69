"""What does the drafter propose? Chains and trees of drafts, with a KV cache of real hidden states.

After every verification the drafter is run again over the verified tokens with the target's true aux states
(`extend`), so its cache never keeps what it computed from its own guesses. Drafts then start from the state at the
last verified token (`draft`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from eagle3ops.eagle3.decoding import adjusted_probs, draw
from eagle3ops.eagle3.drafter import Drafter
from eagle3ops.engines.reference.attention import attend, attend_causal, fold_mask, prefix_mask
from eagle3ops.engines.reference.cache import KVCache
from eagle3ops.engines.reference.model import Target
from eagle3ops.engines.reference.requests import Request
from eagle3ops.errors import RequestError


@dataclass(frozen=True, slots=True)
class SpecSettings:
    """Shape of the drafts, in SGLang's terms.

    Attributes:
        steps: depth of the drafts.
        topk: branches kept at each level; 1 is a chain.
        draft_tokens: tokens verified at once, the root included.
    """

    steps: int = 3
    topk: int = 1
    draft_tokens: int = 4

    def __post_init__(self) -> None:
        if self.steps < 1 or self.topk < 1 or self.draft_tokens < 2:
            raise RequestError(f"speculation needs steps, topk >= 1 and draft tokens >= 2, not {self}")
        if self.topk == 1 and self.draft_tokens != self.steps + 1:
            raise RequestError(
                f"a chain (topk 1) of {self.steps} steps verifies {self.steps + 1} draft tokens, not "
                f"{self.draft_tokens}",
                remedy="set draft tokens to steps + 1, or topk above 1",
            )
        if self.draft_tokens > (most := 1 + self.topk + (self.steps - 1) * self.topk**2):
            raise RequestError(
                f"a tree of {self.steps} steps and topk {self.topk} has {most} nodes at most, not {self.draft_tokens}"
            )


@dataclass(frozen=True, slots=True)
class Drafts:
    """A draft tree for each of B rows.

    Attributes:
        tokens: `[B, N]`, the root first.
        parents: B lists of N.
        depths: `[B, N]`, 0 = root.
        visible: which node sees which, bool `[B, N, N]`.
        q: for rows that sample along a chain, the drafter's distributions over the draft vocabulary `[N - 1, Vd]`.
    """

    tokens: Tensor
    parents: list[list[int]]
    depths: Tensor
    visible: Tensor
    q: list[Tensor | None]


class Speculator:
    """The drafter with its cache; row r belongs to the r-th running request, as in the target's cache."""

    def __init__(self, drafter: Drafter, target: Target, settings: SpecSettings, max_rows: int) -> None:
        self.drafter = drafter
        self.target = target
        self.settings = settings
        config = drafter.config
        self.cache = KVCache(1, config.num_key_value_heads, config.head_dim, target.dtype, target.device, max_rows)
        self._group = config.num_attention_heads // config.num_key_value_heads
        self._last_position = drafter.rope.shape[1] - 1
        self._chain = (
            torch.ones(settings.draft_tokens, settings.draft_tokens, dtype=torch.bool).tril().to(target.device)
        )

    @property
    def proposed(self) -> int:
        """Drafts proposed to each verification."""
        return self.settings.draft_tokens - 1

    def _layer(self, ids: Tensor, g: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # Beyond the drafter's table only drafts of tokens that are never emitted are computed.
        return self.drafter.project(self.target.embed(ids), g, positions.clamp(max=self._last_position))

    def prefill(self, rows: slice, aux: Tensor, next_ids: Tensor) -> Tensor:
        """Read whole prompts: aux `[B, T, 3H]` and the tokens after each `[B, T]`, right-padded -> h `[B, T, H]`."""
        steps = next_ids.shape[1]
        self.cache.reserve(rows.stop, steps + self._spare)
        g = self.drafter.fuse(aux)
        q, k, v = self._layer(next_ids, g, torch.arange(steps, device=g.device)[None])
        self.cache.write(0, rows, slice(0, steps), k, v)
        return self.drafter.finish(g, attend_causal(q, k, v))

    @property
    def _spare(self) -> int:
        return self.settings.steps * self.settings.topk + self.settings.draft_tokens + 1

    def extend(self, seen: list[int], aux: Tensor, next_ids: Tensor) -> Tensor:
        """Read newly verified tokens of all rows.

        Args:
            seen: entries each row already has.
            aux: `[B, T, 3H]`; rows with fewer new tokens are padded behind, and the padding is overwritten next time.
            next_ids: the token after each, `[B, T]`.

        Returns:
            h `[B, T, H]`.
        """
        steps = next_ids.shape[1]
        return self._cached(seen, 0, next_ids, self.drafter.fuse(aux), self._chain[:steps, :steps], 0)

    def _cached(self, seen: list[int], at: int, ids: Tensor, g: Tensor, visible: Tensor, deep: int | None) -> Tensor:
        """One pass of the layer; new entries go to `seen + at ...`.

        Args:
            visible: `[T, at + T]` or `[B, T, at + T]`: which entries behind the prefix each query sees.
            deep: position of every query is `seen - 1 + deep`; None: consecutive positions from `seen`. 0 as `deep`
                stands for the latter too.
        """
        rows, steps = ids.shape
        length = max(seen) + at + steps
        self.cache.reserve(rows, max(seen) + self._spare)
        device = ids.device
        start = torch.tensor(seen, device=device)
        order = torch.arange(steps, device=device)
        positions = (start - 1 + deep)[:, None].expand(rows, steps) if deep else start[:, None] + order
        q, k, v = self._layer(ids, g, positions)
        if len(set(seen)) == 1:
            self.cache.write(0, slice(0, rows), slice(seen[0] + at, seen[0] + at + steps), k, v)
        else:
            self.cache.write(0, torch.arange(rows, device=device)[:, None], start[:, None] + at + order, k, v)
        keys, values = self.cache.view(0, slice(0, rows), length)
        alone = steps == 1 and visible.dim() == 2 and len(set(seen)) == 1
        mask = None if alone else fold_mask(prefix_mask(start, visible, length, self.cache.dtype), self._group)
        return self.drafter.finish(g, attend(q, keys, values, mask))

    def draft(self, requests: list[Request]) -> Drafts:
        """Propose drafts behind the last token of every running request; `state` holds its h."""
        h = torch.stack([r.state for r in requests if r.state is not None])
        roots = torch.tensor([r.output[-1] for r in requests], device=h.device)
        seen = [r.seen for r in requests]
        if self.settings.topk == 1:
            return self._draft_chain(requests, seen, roots, h)
        return self._draft_tree(seen, roots, h)

    def _pick(self, requests: list[Request], logits: Tensor, q: list[list[Tensor]]) -> Tensor:
        """Draft ids `[B]` from logits `[B, Vd]`: the best, or a draw for the rows that sample."""
        picked = logits.argmax(-1)
        for row, request in enumerate(requests):
            params = request.sampling
            if not params.greedy:
                probs = adjusted_probs(logits[row], params.temperature, params.top_k, params.top_p)
                q[row].append(probs)
                picked[row] = draw(probs, request.generator)
        return picked

    def _draft_chain(self, requests: list[Request], seen: list[int], roots: Tensor, h: Tensor) -> Drafts:
        rows, steps = len(seen), self.settings.steps
        q: list[list[Tensor]] = [[] for _ in requests]
        tokens = [roots]
        g = h[:, None]
        for level in range(steps):
            if level:
                g = self._cached(seen, level - 1, tokens[-1][:, None], g, self._chain[level - 1 : level, :level], level)
            tokens.append(self.drafter.target_ids(self._pick(requests, self.drafter.logits(g[:, 0]), q)))
        nodes = steps + 1
        return Drafts(
            tokens=torch.stack(tokens, dim=1),
            parents=[list(range(-1, steps))] * rows,
            depths=torch.arange(nodes, device=h.device).expand(rows, nodes),
            visible=self._chain,
            q=[torch.stack(row) if row else None for row in q],
        )

    def _draft_tree(self, seen: list[int], roots: Tensor, h: Tensor) -> Drafts:
        rows, (steps, topk) = len(seen), (self.settings.steps, self.settings.topk)
        device = h.device
        best = F.log_softmax(self.drafter.logits(h).float(), dim=-1).topk(topk)
        scores, tokens = best.values, self.drafter.target_ids(best.indices)
        beam = torch.arange(1, topk + 1, device=device).expand(rows, topk)  # node numbers; 0 is the root
        all_scores, all_tokens, all_parents = [scores], [tokens], [torch.zeros_like(tokens)]
        all_depths = [torch.ones_like(tokens)]
        g = h[:, None].expand(rows, topk, -1)
        eye = torch.eye(topk, dtype=torch.bool, device=device).expand(rows, topk, topk)
        visible = eye
        count = 1 + topk
        for level in range(1, steps):
            g = self._cached(seen, (level - 1) * topk, tokens, g, visible, level)
            best = F.log_softmax(self.drafter.logits(g).float(), dim=-1).topk(topk)
            every = (scores[:, :, None] + best.values).flatten(1)
            every_tokens = self.drafter.target_ids(best.indices).flatten(1)
            all_scores.append(every)
            all_tokens.append(every_tokens)
            all_parents.append(beam.repeat_interleave(topk, dim=1))
            all_depths.append(torch.full_like(every_tokens, level + 1))
            if level + 1 < steps:
                scores, kept = every.topk(topk)
                origin = kept // topk
                tokens = every_tokens.gather(1, kept)
                beam = count + kept
                g = g.gather(1, origin[:, :, None].expand(-1, -1, g.shape[-1]))
                visible = visible.gather(1, origin[:, :, None].expand(-1, -1, visible.shape[-1]))
                visible = torch.cat((visible, eye), dim=2)
            count += topk * topk
        flat = torch.cat(all_scores, dim=1)
        # A child never scores above its parent and is numbered after it: a stable sort keeps trees connected.
        kept = torch.sort(flat, dim=1, descending=True, stable=True).indices[:, : self.proposed].sort(dim=1).values
        return self._assemble(
            roots, kept, torch.cat(all_tokens, dim=1), torch.cat(all_parents, dim=1), torch.cat(all_depths, dim=1)
        )

    @staticmethod
    def _assemble(roots: Tensor, kept: Tensor, tokens: Tensor, parents: Tensor, depths: Tensor) -> Drafts:
        rows, nodes = kept.shape[0], kept.shape[1] + 1
        device = roots.device
        number = torch.zeros((rows, tokens.shape[1] + 1), dtype=torch.long, device=device)
        number.scatter_(1, kept + 1, torch.arange(1, nodes, device=device).expand(rows, nodes - 1))
        parent = number.gather(1, parents.gather(1, kept))
        visible = torch.eye(nodes, dtype=torch.bool, device=device).repeat(rows, 1, 1)
        visible[:, :, 0] = True
        index = torch.arange(rows, device=device)
        for node in range(1, nodes):
            visible[:, node] |= visible[index, parent[:, node - 1]]
        return Drafts(
            tokens=torch.cat((roots[:, None], tokens.gather(1, kept)), dim=1),
            parents=[[-1, *row] for row in parent.tolist()],
            depths=torch.cat((torch.zeros_like(roots)[:, None], depths.gather(1, kept)), dim=1),
            visible=visible,
            q=[None] * rows,
        )
