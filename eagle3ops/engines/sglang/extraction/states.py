"""What is sent to the server, and how far ahead, so that the rows of shard after shard come with their states?"""

import asyncio
import mmap
import os
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch

from eagle3ops.answers import AnswerRow
from eagle3ops.engines.client import EngineClient, EngineError, Sampling, log_tail
from eagle3ops.engines.sglang.extraction.room import Pending
from eagle3ops.engines.sglang.extraction.spool import RING_BYTES, ServerGone, Spool
from eagle3ops.features.quantised import QuantisedRow
from eagle3ops.features.writer import FeatureRow

AHEAD_BYTES = 6 << 30
"""States that are on their way or wait to be written, at most; the rows of one shard may take more."""
PREFIX = "eagle3ops-"
ROWS_A_POST = 128
_THREADS_EACH = 2


def within(available: int) -> tuple[int, int]:
    """Bytes of the ring and of `ahead_bytes` on a host with so much memory available."""
    page = mmap.PAGESIZE
    return min(RING_BYTES, available // 8 // page * page), min(AHEAD_BYTES, available // 4)


@dataclass(slots=True, eq=False)
class _Shard:
    rows: list[Pending]
    answered: "Future[Any]"
    size: int


class EngineStates:
    """Hidden states of rows, shard by shard, from a running server; used from a thread that is not the loop's.

    Args:
        loop: where `client` lives.
        ahead_bytes: see `AHEAD_BYTES`.
    """

    def __init__(
        self,
        client: EngineClient,
        loop: asyncio.AbstractEventLoop,
        spool: Spool,
        *,
        max_tokens: int,
        ahead_bytes: int = AHEAD_BYTES,
    ) -> None:
        self.client, self.spool = client, spool
        self.layers, self.hidden_size = spool.layers, spool.hidden_size
        self.workers = max(1, min(8, (os.cpu_count() or 1) // 2))
        """Threads that may write shards while more come."""
        self._loop, self._max_tokens, self._ahead = loop, max_tokens, ahead_bytes
        self._nonce, self._count = uuid.uuid4().hex[:8], 0

    def shards(self, chunks: Iterable[Sequence[AnswerRow]]) -> Iterator[Sequence[FeatureRow | QuantisedRow]]:
        """The rows of each chunk with their states, in the order given."""
        todo, waiting, ahead = iter(chunks), deque[tuple[Sequence[AnswerRow], _Shard]](), 0
        following = next(todo, None)
        # The threads that receive and write would otherwise each start as many as there are cores.
        threads = torch.get_num_threads()
        torch.set_num_threads(min(threads, _THREADS_EACH))
        try:
            while following is not None or waiting:
                while following is not None and (not waiting or ahead < self._ahead):
                    shard = self._begin(following)
                    waiting.append((following, shard))
                    ahead += shard.size
                    following = next(todo, None)
                chunk, shard = waiting.popleft()
                try:
                    self.spool.wait(shard.rows, shard.answered)
                except ServerGone as error:
                    raise EngineError(f"{error.what}; {log_tail(self.client.log)}") from error
                ahead -= shard.size
                yield [
                    self.spool.row(pending, row.id, len(row.prompt_ids))
                    for row, pending in zip(chunk, shard.rows, strict=True)
                ]
        finally:
            torch.set_num_threads(threads)
            for _, shard in waiting:
                shard.answered.cancel()

    def _begin(self, chunk: Sequence[AnswerRow]) -> _Shard:
        first = self._count + 1
        self._count += len(chunk)
        rows = self.spool.expect(
            [f"{PREFIX}{self._nonce}-{number}" for number in range(first, self._count + 1)],
            [(row.prompt_ids + row.output_ids)[: self._max_tokens] for row in chunk],
        )
        answered = asyncio.run_coroutine_threadsafe(self._send(rows), self._loop)
        return _Shard(rows, answered, rows[0].room.states.nbytes)

    async def _send(self, rows: Sequence[Pending]) -> None:
        try:
            posts = [rows[first : first + ROWS_A_POST] for first in range(0, len(rows), ROWS_A_POST)]
            await asyncio.gather(*(self._post(post) for post in posts))
        except Exception as error:  # noqa: BLE001  (whoever waits for the rows raises it)
            self.spool.fail(error)

    async def _post(self, rows: Sequence[Pending]) -> None:
        answers = await self.client.generate_batch(
            [row.ids.tolist() for row in rows], Sampling(max_new_tokens=0), rids=[row.rid for row in rows]
        )
        for answer, row in zip(answers, rows, strict=True):
            if answer.finish_reason == "abort" or answer.prompt_tokens != row.tokens:
                raise EngineError(
                    f"the engine ended a request of {row.tokens} tokens as {answer.finish_reason}, after reading "
                    f"{answer.prompt_tokens}"
                )
