"""Where do two greedy outputs of one prompt part, and how sure is the engine itself at that place?

An engine that tells log probabilities is asked for those of the two tokens: their difference is the difference of the
logits. How far its own rounding moves such differences is measured as well: the same places once as they were decoded,
token by token, and once as part of a prompt, which is how a verification step computes them.
"""

from collections.abc import Sequence

from eagle3ops.engines.client import EngineClient, EngineRefused, Sampling

NOISE_TEXTS, NOISE_PLACES = 6, 8


def first_divergence(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first differing token; a proper prefix differs where it ends; None when equal."""
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return None if len(a) == len(b) else min(len(a), len(b))


def torn(a: Sequence[int], b: Sequence[int], limit: int) -> bool:
    """Whether one output goes on where the other ended without having reached the limit: tokens were lost or added."""
    return len(a) != len(b) and first_divergence(a, b) == min(len(a), len(b)) < limit


async def engine_gap(client: EngineClient, context: Sequence[int], token_a: int, token_b: int) -> float | None:
    """How much likelier, in logits, the engine finds one of two tokens after `context`; None where it does not tell."""
    try:
        one, other = await client.next_logprobs(context, [token_a, token_b])
    except EngineRefused:
        return None
    return abs(one - other)


async def engine_noise(client: EngineClient, prompts: Sequence[Sequence[int]], tokens: int) -> float | None:
    """The largest change of the gap between the two likeliest tokens from decoding to prefilling the same text.

    Args:
        client: of the baseline.
        prompts: some of them are answered, `NOISE_TEXTS` at most.
        tokens: of every answer.

    Returns:
        None where the engine tells no log probabilities.
    """
    worst = 0.0
    for ids in prompts[:NOISE_TEXTS]:
        try:
            answer, places = await client.top_logprobs(ids, Sampling(max_new_tokens=tokens))
        except EngineRefused:
            return None
        count = min(len(places), len(answer.output_ids))
        for at in range(0, count, max(1, count // NOISE_PLACES)):
            if len(places[at]) < 2:
                continue
            (first, token_a), (second, token_b) = sorted(places[at], reverse=True)[:2]
            # All of it has to be computed again: what is left of a remembered prefix is one token, as in decoding.
            await client.flush_cache()
            again = await client.next_logprobs([*ids, *answer.output_ids[:at]], [token_a, token_b])
            worst = max(worst, abs((first - second) - (again[0] - again[1])))
    return worst
