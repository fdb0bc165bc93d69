"""What does one measurement of a sweep keep? Blocks of a point beside those of its baseline, as one row of the book."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from eagle3ops.bench.accept import AcceptStats, combine
from eagle3ops.bench.load import LoadResult, measure
from eagle3ops.bench.paired import Ratio, Sample, ratio
from eagle3ops.engines.client import EngineClient, Sampling

BASELINE = "baseline"
BLOCK_PROMPTS_PER_CLIENT = 2
"""Prompts of a block for every request in flight; a rung has many blocks, and each of them is one pair."""


def block_prompts(concurrency: int) -> int:
    """Prompts of one block, which makes one pair."""
    return 1 if concurrency == 1 else BLOCK_PROMPTS_PER_CLIENT * concurrency


async def measured(
    servers: Mapping[str, EngineClient],
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    concurrency: int,
    warmup: int,
    deadline_s: float,
) -> dict[str, Any]:
    """The baseline and one or more points under the same load, block by block in turn, as plain data.

    Raises:
        ServerFailed: one of them died, or did not answer within `deadline_s`.
    """
    results = await measure(
        servers,
        prompts,
        sampling,
        concurrency=concurrency,
        block=block_prompts(concurrency),
        warmup=warmup,
        timeout_s=deadline_s,
    )
    base = results[BASELINE]
    return {
        "concurrency": concurrency,
        "blocks": {label: [[one.tokens, one.seconds] for one in found.blocks] for label, found in results.items()},
        "latency_s": {label: median(one.seconds for one in found.requests) for label, found in results.items()},
        "token_s": {label: _token_seconds(found) for label, found in results.items()},
        "accept": {label: asdict(found.accept) for label, found in results.items() if found.accept is not None},
        "same_output": {label: _same(found, base) for label, found in results.items() if found is not base},
        "requests": len(base.requests),
    }


def _token_seconds(found: LoadResult) -> float | None:
    """Seconds that a client waits for a token, over all requests."""
    tokens = sum(one.answer.completion_tokens for one in found.requests)
    return sum(one.seconds for one in found.requests) / tokens if tokens else None


def _same(found: LoadResult, base: LoadResult) -> int:
    return sum(a.output_ids == b.output_ids for a, b in zip(found.answers, base.answers, strict=True))


def blocks(rows: Sequence[Mapping[str, Any]], label: str) -> list[Sample]:
    """All blocks of one server in several measurements, in order."""
    return [Sample(int(tokens), float(seconds)) for row in rows for tokens, seconds in row["blocks"][label]]


def speedup(rows: Sequence[Mapping[str, Any]], label: str, over: str = BASELINE) -> Ratio:
    """Throughput of one server over that of another, over all pairs of several measurements."""
    return ratio(blocks(rows, label), blocks(rows, over))


def accept_of(rows: Sequence[Mapping[str, Any]], label: str) -> AcceptStats | None:
    """Counters of speculative decoding over several measurements; None where none was reported."""
    found = [row["accept"][label] for row in rows if label in row["accept"]]
    if not found:
        return None
    return combine(
        AcceptStats(
            int(one["verify_steps"]),
            int(one["correct_drafts"]),
            int(one["proposed_drafts"]),
            tuple(int(k) for k in one["histogram"]),
        )
        for one in found
    )
