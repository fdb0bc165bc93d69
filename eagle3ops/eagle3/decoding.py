"""Which drafts does a verification accept? The rules of speculative decoding as pure functions.

A draft tree is two parallel lists over its nodes: `tokens` and `parents`. Node 0 is the root, the last token that is
already part of the text (its parent is -1); every other node comes after its parent. A chain is a tree in which
every node has one child.

Greedy: a node is accepted when it is the target's own choice after its parent, so the output is plain greedy decoding.

Sampled, chain with drafts drawn from q: accept draft x with probability min(1, p(x) / q(x)), else draw from the
residual max(0, p - q), normalised (Leviathan et al., 2023, arXiv 2211.17192; Chen et al., 2023, arXiv 2302.01318).

Sampled, tree with drafts that are fixed by the drafter and not drawn: draw x from the target's p after a node and
follow the child that holds x, if there is one. Every emitted token is a draw from p given the text before it, so the
rule is lossless whatever the tree is; a child is accepted with probability p(child).
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def adjusted_probs(logits: Tensor, temperature: float, top_k: int = -1, top_p: float = 1.0) -> Tensor:
    """The distribution that sampling draws from.

    Args:
        logits: `[..., V]`.
        temperature: above 0.
        top_k: keep the k most likely tokens; below 1 keeps all.
        top_p: then keep the smallest set of most likely tokens whose probability reaches top_p; 1 keeps all.

    Returns:
        float32 `[..., V]`, summing to 1.
    """
    probs = torch.softmax(logits.float() / temperature, dim=-1)
    vocab = probs.shape[-1]
    limited = 0 < top_k < vocab
    if not limited and top_p >= 1.0:
        return probs
    # Ties are kept or dropped by rank, so exactly k tokens stay and the result does not depend on chance.
    ranked, order = torch.sort(probs, dim=-1, descending=True, stable=True)
    if limited:
        ranked[..., top_k:] = 0
        ranked = ranked / ranked.sum(-1, keepdim=True)
    if top_p < 1.0:
        before = ranked.cumsum(-1) - ranked
        ranked = ranked.masked_fill(before >= top_p, 0)
    kept = torch.zeros_like(probs).scatter_(-1, order, ranked)
    return kept / kept.sum(-1, keepdim=True)


def draw(probs: Tensor, generator: torch.Generator | None) -> int:
    """One token from `[V]`."""
    return int(torch.multinomial(probs, 1, generator=generator))


def walk(tokens: Sequence[int], parents: Sequence[int], choose: Callable[[int], int]) -> tuple[list[int], int]:
    """Follow the target's choices down a draft tree.

    Args:
        tokens, parents: the tree; see the module's docstring.
        choose: node -> the token the target puts after it; called once for each node on the path. The greedy choice
            gives greedy decoding, a draw from the target's distribution gives lossless sampling.

    Returns:
        The accepted nodes in order (the root not among them), and the token after the last of them: the bonus token.
    """
    children: dict[tuple[int, int], int] = {}
    for node in range(1, len(tokens)):
        children.setdefault((parents[node], tokens[node]), node)
    path: list[int] = []
    node = 0
    while True:
        token = choose(node)
        child = children.get((node, token))
        if child is None:
            return path, token
        path.append(child)
        node = child


def reject_chain(drafts: Sequence[int], q: Tensor, p: Tensor, generator: torch.Generator | None) -> tuple[int, int]:
    """Lossless rejection sampling of a chain.

    Args:
        drafts: s tokens, the j-th drawn from `q[j]`.
        q: the drafter's distributions over the target's vocabulary `[s, V]`.
        p: the target's, adjusted as the request asks, `[s + 1, V]`.

    Returns:
        How many drafts are accepted, and the token after them.
    """
    for j, token in enumerate(drafts):
        ratio = float(p[j, token]) / max(float(q[j, token]), 1e-38)
        if float(torch.rand((), generator=generator, device=p.device)) < ratio:
            continue
        residual = (p[j] - q[j]).clamp_(min=0)
        total = float(residual.sum())
        # p == q up to rounding leaves nothing: then a draw from p is the same thing.
        return j, draw(residual if total > 0 else p[j], generator)
    return len(drafts), draw(p[len(drafts)], generator)
