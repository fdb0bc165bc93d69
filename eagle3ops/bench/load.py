"""How fast does each of several servers answer? A closed-loop load, dealt to all of them in turn, block by block.

Equal servers on one machine have differed by half within minutes, so no server is measured after another: the prompts
are cut into blocks, every block goes to every server before the next one begins, and the order changes from block to
block. A drift of the machine then hits all alike, and a block of one server is paired with the same block of another.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from eagle3ops.bench.accept import AcceptStats
from eagle3ops.bench.arrivals import Arrivals, arrivals
from eagle3ops.bench.measure import accept_stats
from eagle3ops.bench.paired import Interval, Ratio, Sample, ratio, throughput_interval
from eagle3ops.engines.client import Answer, EngineClient, EngineError, Sampling
from eagle3ops.errors import Eagle3opsError, first_failure

BLOCK_PROMPTS_PER_CLIENT = 4
"""Prompts of a block for every request in flight, so that its end, when fewer are in flight, weighs little."""
WANTED_BLOCKS = 6
"""Blocks that an interval is worth something from; blocks are made smaller for them, down to the requests in flight."""


class ServerFailed(EngineError):
    """One of the servers died, refused or did not answer in time; the others may go on.

    Attributes:
        label: of the server.
    """

    def __init__(self, label: str, cause: Eagle3opsError) -> None:
        super().__init__(f"{label}: {cause}", remedy=cause.remedy)
        self.label = label


@dataclass(frozen=True, slots=True)
class Timed:
    """One answered request, as the client saw it.

    Attributes:
        prompt: index into the prompts.
        block: index of the block that it belongs to.
        seconds: from sending it to the last byte of the answer.
        arrivals: when its tokens came; None where it was not streamed.
    """

    prompt: int
    block: int
    seconds: float
    answer: Answer
    arrivals: Arrivals | None = None


@dataclass(slots=True)
class LoadResult:
    """What one server did under the load.

    Attributes:
        concurrency: requests in flight.
        blocks: new tokens and wall seconds of every block; block i is paired with block i of the other servers.
        requests: every counted request, in the order of block and prompt.
    """

    concurrency: int
    blocks: list[Sample] = field(default_factory=list)
    requests: list[Timed] = field(default_factory=list)

    @property
    def throughput(self) -> Interval:
        """New tokens a second over all blocks, with a bootstrap interval over them."""
        return throughput_interval(self.blocks)

    @property
    def answers(self) -> list[Answer]:
        """The answers, in the order of block and prompt."""
        return [request.answer for request in self.requests]

    @property
    def accept(self) -> AcceptStats | None:
        """Counters of speculative decoding over all requests; None where the server does not speculate."""
        answers = self.answers
        return accept_stats(answers) if answers and answers[0].verify_steps is not None else None

    def over(self, baseline: "LoadResult") -> Ratio:
        """Throughput over that of `baseline`, paired by block.

        Raises:
            ValueError: the two were not measured together.
        """
        return ratio(self.blocks, baseline.blocks)

    def only(self, prompts: Callable[[int], bool]) -> list[Timed]:
        """The requests of some of the prompts, chosen by index."""
        return [request for request in self.requests if prompts(request.prompt)]


async def measure(
    servers: Mapping[str, EngineClient],
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    concurrency: int = 1,
    rounds: int = 1,
    block: int | None = None,
    warmup: int = 1,
    stream: bool = False,
    flush: bool = False,
    timeout_s: float | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, LoadResult]:
    """Send every prompt to every server in interleaved blocks, `concurrency` requests in flight at one server.

    Only one server is under load at a time; the others are resident and idle.

    Args:
        servers: clients of running servers by label, the baseline among them; one alone is allowed.
        prompts: token ids. All servers get the same ones in the same order.
        sampling: temperature 0 for anything that is compared. `ignore_eos` forces the length.
        concurrency: requests in flight; the next is sent when one has ended.
        rounds: how often the whole list is repeated.
        block: prompts of a block; `block_size` when left out.
        warmup: blocks sent to every server first and not counted.
        stream: receive token by token, for `Timed.arrivals`. It costs the engine and this process time, so throughput
            is better measured without.
        flush: ask every server to forget cached prefixes before each of its blocks, where it can.
        timeout_s: longest wait for one answer; the client's own when left out.
        progress: called with counted requests done and in total.

    Returns:
        One result a server, with the same number of blocks in the same order.

    Raises:
        ServerFailed: one of the servers did not answer as it should; its label is named.
        ValueError: there is nothing to measure.
    """
    if not servers or not prompts or concurrency < 1 or rounds < 1:
        raise ValueError("at least one server, prompt, request in flight and round are needed")
    size = block or block_size(len(prompts), concurrency)
    blocks = [range(first, min(first + size, len(prompts))) for first in range(0, len(prompts), size)]
    labels = list(servers)
    results = {label: LoadResult(concurrency) for label in labels}
    load = _Load(servers, prompts, sampling, concurrency, stream, flush, timeout_s)
    for turn in range(warmup):
        for label in labels:
            await load.block(label, blocks[turn % len(blocks)], -1)
    total, done = rounds * len(prompts) * len(labels), 0
    for turn in range(rounds * len(blocks)):
        chosen = blocks[turn % len(blocks)]
        for label in order(labels, turn):
            sample, requests = await load.block(label, chosen, turn)
            results[label].blocks.append(sample)
            results[label].requests += requests
            done += len(chosen)
            progress(done, total)
    return results


def block_size(prompts: int, concurrency: int) -> int:
    """Prompts of a block: one at concurrency 1, else as many for each in flight as leave `WANTED_BLOCKS` blocks."""
    if concurrency == 1:
        return 1
    return min(concurrency * BLOCK_PROMPTS_PER_CLIENT, max(concurrency, prompts // WANTED_BLOCKS))


def wanted_rounds(prompts: int, concurrency: int) -> int:
    """How often these prompts have to be repeated for `WANTED_BLOCKS` blocks."""
    blocks = -(-prompts // block_size(prompts, concurrency))
    return -(-WANTED_BLOCKS // blocks)


def order(labels: Sequence[str], turn: int) -> list[str]:
    """The servers in the order of one turn: rotated by one each time, and every other time backwards, so that none
    always follows the same one."""
    shift = turn % len(labels)
    rotated = [*labels[shift:], *labels[:shift]]
    return rotated[::-1] if turn // len(labels) % 2 else rotated


@dataclass(frozen=True, slots=True)
class _Load:
    servers: Mapping[str, EngineClient]
    prompts: Sequence[Sequence[int]]
    sampling: Sampling
    concurrency: int
    stream: bool
    flush: bool
    timeout_s: float | None

    async def block(self, label: str, chosen: range, number: int) -> tuple[Sample, list[Timed]]:
        """One block at one server: new tokens and wall seconds, and its requests in the order of the prompts."""
        client, waiting = self.servers[label], iter(chosen)
        found: list[tuple[Timed, list[tuple[float, bytes]]]] = []

        async def one_after_another() -> None:
            for index in waiting:
                found.append(await self._request(client, index, number))  # noqa: PERF401 - shared by all workers

        with first_failure(lambda error: ServerFailed(label, error)):
            if self.flush:
                await client.flush_cache()
            began = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self.concurrency, len(chosen))):
                    group.create_task(one_after_another())
            seconds = time.perf_counter() - began
        # Pieces are parsed when the clock has stopped.
        requests = [_parsed(timed, pieces) for timed, pieces in found]
        requests.sort(key=lambda timed: timed.prompt)
        return Sample(sum(timed.answer.completion_tokens for timed in requests), seconds), requests

    async def _request(self, client: EngineClient, index: int, number: int) -> tuple[Timed, list[tuple[float, bytes]]]:
        began = time.perf_counter()
        pieces: list[tuple[float, bytes]] = [(began, b"")]
        try:
            async with asyncio.timeout(self.timeout_s):
                if self.stream:
                    pieces += [piece async for piece in _until_done(client.stream(self.prompts[index], self.sampling))]
                    answer = _PENDING
                else:
                    answer = await client.generate(self.prompts[index], self.sampling)
        except TimeoutError as error:
            raise EngineError(f"{client.url}: no answer within {self.timeout_s:.0f} s") from error
        return Timed(index, number, time.perf_counter() - began, answer), pieces


_PENDING = Answer(output_ids=[], text="", finish_reason="", prompt_tokens=0, completion_tokens=0, latency_s=0.0)
"""Stands where an answer has come in pieces that are not parsed yet."""


async def _until_done(pieces: AsyncIterator[tuple[float, bytes]]) -> AsyncIterator[tuple[float, bytes]]:
    async for when, piece in pieces:
        if piece != b"[DONE]":
            yield when, piece


def _parsed(timed: Timed, pieces: Sequence[tuple[float, bytes]]) -> Timed:
    if timed.answer is not _PENDING:
        return timed
    (began, _), *rest = pieces
    answer, times = arrivals(began, rest)
    return replace(timed, answer=answer, arrivals=times)
