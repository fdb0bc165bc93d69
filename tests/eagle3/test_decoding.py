"""Are the acceptance rules right: greedy by definition, sampled by distribution?"""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3ops.eagle3.decoding import adjusted_probs, draw, reject_chain, walk

V = 6


def _fits(counts: torch.Tensor, p: torch.Tensor) -> bool:
    """Chi-square of counts against a distribution; a token of probability 0 must not occur at all."""
    assert not counts[p == 0].any()
    some = p > 0
    if int(some.sum()) == 1:
        return True
    expected = p[some].double() / p[some].double().sum() * counts.sum()
    statistic = ((counts[some].double() - expected) ** 2 / expected).sum()
    freedom = torch.tensor(float(int(some.sum()) - 1), dtype=torch.float64)
    return float(torch.special.gammaincc(freedom / 2, statistic / 2)) > 1e-3


def test_walk_follows_the_choices() -> None:
    #      0 -> 1(a=5) -> 3(c=7);  0 -> 2(b=6) -> 4(c=7)
    tokens, parents = [9, 5, 6, 7, 7], [-1, 0, 0, 1, 2]
    assert walk(tokens, parents, [6, 0, 7, 0, 3].__getitem__) == ([2, 4], 3)
    assert walk(tokens, parents, [5, 8, 0, 0, 0].__getitem__) == ([1], 8)
    assert walk(tokens, parents, [1, 0, 0, 0, 0].__getitem__) == ([], 1)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_walk_is_greedy_decoding_on_any_tree(data: st.DataObject) -> None:
    nodes = data.draw(st.integers(1, 12))
    parents = [-1] + [data.draw(st.integers(0, k - 1)) for k in range(1, nodes)]
    tokens = [data.draw(st.integers(0, 3)) for _ in range(nodes)]
    best = [data.draw(st.integers(0, 3)) for _ in range(nodes)]
    path, bonus = walk(tokens, parents, best.__getitem__)
    for before, node in pairwise([0, *path]):
        assert parents[node] == before
        assert tokens[node] == best[before]
    last = path[-1] if path else 0
    assert bonus == best[last]
    assert not any(parents[k] == last and tokens[k] == bonus for k in range(1, nodes))


def test_adjusted_probs() -> None:
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    torch.testing.assert_close(adjusted_probs(logits, 1.0), torch.tensor([0.5, 0.3, 0.15, 0.05]))
    torch.testing.assert_close(adjusted_probs(logits, 1.0, top_k=2), torch.tensor([0.625, 0.375, 0, 0]))
    torch.testing.assert_close(adjusted_probs(logits, 1.0, top_p=0.6), torch.tensor([0.625, 0.375, 0, 0]))
    torch.testing.assert_close(adjusted_probs(logits, 1.0, top_p=0.4), torch.tensor([1.0, 0, 0, 0]))
    sharp = adjusted_probs(logits, 0.5)
    torch.testing.assert_close(sharp, torch.tensor([0.25, 0.09, 0.0225, 0.0025]) / 0.365)


@given(st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=9), st.floats(0.1, 3), st.integers(-1, 9),
       st.floats(0.05, 1))  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_adjusted_probs_is_always_a_distribution(
    logits: list[float], temperature: float, top_k: int, top_p: float
) -> None:
    probs = adjusted_probs(torch.tensor([logits]), temperature, top_k, top_p)
    assert torch.isfinite(probs).all()
    assert (probs >= 0).all()
    torch.testing.assert_close(probs.sum(), torch.tensor(1.0))
    if top_k > 0:
        assert int((probs > 0).sum()) <= top_k


def _languages(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Target and drafter as Markov chains: logits of the next token given the last one, `[V, V]`."""
    generator = torch.Generator().manual_seed(seed)
    p = 1.5 * torch.randn(V, V, generator=generator)
    return p, p + 1.0 * torch.randn(V, V, generator=generator)


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), [(1.0, -1, 1.0), (0.7, 4, 1.0), (1.3, -1, 0.8)])
def test_rejection_sampling_of_chains_is_lossless(temperature: float, top_k: int, top_p: float) -> None:
    """Pairs of tokens from whole speculative rounds, against the target's own distribution of pairs."""
    target, drafter = _languages(0)
    p = adjusted_probs(target, temperature, top_k, top_p)
    q = adjusted_probs(drafter, temperature)
    generator = torch.Generator().manual_seed(1)
    counts = torch.zeros(V, V)
    for _ in range(4000):
        text = [0]
        while len(text) < 3:
            drafts: list[int] = []
            for _ in range(2):
                drafts.append(draw(q[[text[-1], *drafts][-1]], generator))
            context = torch.tensor([text[-1], *drafts])
            count, token = reject_chain(drafts, q[context[:-1]], p[context], generator)
            text += [*drafts[:count], token]
        counts[text[1], text[2]] += 1
    assert _fits(counts.flatten(), (p[0][:, None] * p).flatten())


def test_the_chi_square_would_see_a_wrong_rule() -> None:
    """Taking every draft must fail, or the test above shows nothing."""
    target, drafter = _languages(0)
    generator = torch.Generator().manual_seed(1)
    p, q = adjusted_probs(target, 1.0), adjusted_probs(drafter, 1.0)
    counts = torch.bincount(torch.multinomial(q[0], 4000, True, generator=generator), minlength=V)
    assert not _fits(counts, p[0])


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), [(1.0, -1, 1.0), (0.7, 3, 0.9)])
def test_sampling_down_a_tree_is_lossless(temperature: float, top_k: int, top_p: float) -> None:
    target, _ = _languages(2)
    p = adjusted_probs(target, temperature, top_k, top_p)
    generator = torch.Generator().manual_seed(3)
    tokens, parents = [0, 1, 2, 3, 1, 4], [-1, 0, 0, 1, 2, 2]
    counts = torch.zeros(V, V)
    for _ in range(4000):
        text = [0]
        while len(text) < 3:
            now = [text[-1], *tokens[1:]]
            path, token = walk(now, parents, lambda node, now=now: draw(p[now[node]], generator))  # type: ignore[misc]
            text += [*(now[node] for node in path), token]
        counts[text[1], text[2]] += 1
    assert _fits(counts.flatten(), (p[0][:, None] * p).flatten())


def test_equal_distributions_accept_every_draft() -> None:
    p = adjusted_probs(_languages(4)[0], 1.0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        drafts = [draw(p[0], generator), 0, 1]
        context = torch.tensor([0, *drafts])
        count, _ = reject_chain(drafts[:1], p[:1], p[context][:2], generator)
        assert count == 1
