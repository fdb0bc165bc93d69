"""How fast and how well does each setting answer? Interleaved requests to a baseline and its rivals.

Equal servers on one machine have differed by half within minutes, so settings are never measured one after another:
every prompt goes to every engine in turn, and the order rotates from prompt to prompt.
"""

from collections.abc import Callable, Mapping, Sequence

from eagle3ops.bench.accept import AcceptStats, combine
from eagle3ops.bench.paired import Sample
from eagle3ops.engines.client import Answer, EngineClient, Sampling
from eagle3ops.errors import Eagle3opsError


def counters(answer: Answer) -> AcceptStats:
    """The counters of one speculative answer.

    Raises:
        Eagle3opsError: it carries none, so the engine did not speculate.
    """
    if answer.verify_steps is None:
        raise Eagle3opsError("the engine reports no verification steps: it runs without a drafter")
    return AcceptStats(
        answer.verify_steps,
        answer.correct_drafts or 0,
        answer.proposed_drafts or 0,
        tuple(answer.histogram or ()),
    )


def accept_stats(answers: Sequence[Answer]) -> AcceptStats:
    """Sum the counters of speculative answers. Raises as `counters`."""
    return combine(counters(answer) for answer in answers)


async def answer_all(
    client: EngineClient,
    prompts: Sequence[list[int]],
    sampling: Sampling,
    *,
    batch: int,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Answer]:
    """Answers to all prompts, `batch` of them at once."""
    answers: list[Answer] = []
    for first in range(0, len(prompts), batch):
        answers += await client.generate_batch(list(prompts[first : first + batch]), sampling)
        progress(len(answers))
    return answers


async def interleaved(
    clients: Mapping[str, EngineClient],
    prompts: Sequence[list[int]],
    sampling: Sampling,
    *,
    warmup: int = 1,
    rounds: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, list[tuple[Sample, Answer]]]:
    """One request at a time (batch 1), every prompt to every engine, the order rotated by one each time.

    Args:
        clients: engines by label, the baseline among them.
        prompts: token ids.
        sampling: `ignore_eos` with a fixed `max_new_tokens` gives every engine the same number of tokens.
        warmup: prompts that are sent and not counted.
        rounds: how often the whole list is repeated.

    Returns:
        For every label one sample and answer per prompt and round, in the same order: paired.
    """
    labels = list(clients)
    for ids in prompts[:warmup]:
        for label in labels:
            await clients[label].generate(ids, sampling)
    samples: dict[str, list[tuple[Sample, Answer]]] = {label: [] for label in labels}
    total = rounds * len(prompts) * len(labels)
    done = 0
    for turn in range(rounds * len(prompts)):
        ids = prompts[turn % len(prompts)]
        shift = turn % len(labels)
        for label in labels[shift:] + labels[:shift]:
            answer = await clients[label].generate(ids, sampling)
            samples[label].append((Sample(answer.completion_tokens, answer.latency_s), answer))
            done += 1
            progress(done, total)
    return samples
