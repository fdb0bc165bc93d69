"""How do requests that wait for a disk stay out of each other's way, also when a disk never answers?

A call that hangs in a dead mount keeps its thread for ever; were threads few and fixed, so many such calls would end
the conversation. So few calls are made at a time, but one that takes long is no longer counted among them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from eagle3ops.errors import Eagle3opsError
from eagle3ops.hosts.agent.operation import P, T

AT_ONCE = 8
"""Calls that are made at the same time."""
SLOW_S = 1.0
"""A call that takes longer gives its turn to another one, and goes on."""
MOST = 96
"""Threads in all: so many calls may hang before new ones are refused."""


class Workers:
    """Threads for the calls of one event loop.

    Args:
        at_once: calls that are made at the same time.
        slow_s: seconds after which a call does not count any more.
        most: threads in all.
        before: awaited before each call, when it is its turn.
    """

    def __init__(
        self,
        *,
        at_once: int = AT_ONCE,
        slow_s: float = SLOW_S,
        most: int = MOST,
        before: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._pool = ThreadPoolExecutor(most, "work")
        self._turns = asyncio.Semaphore(at_once)
        self._slow_s = slow_s
        self._before = before
        self._most = most
        self._busy = 0

    def submit(self, function: Callable[[], object]) -> None:
        """Call it beside everything else; nobody waits for it."""
        self._pool.submit(function)

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in a thread, when it is its turn.

        Raises:
            Eagle3opsError: every thread hangs.
        """
        loop = asyncio.get_running_loop()
        await self._turns.acquire()
        if self._before is not None:
            try:
                await self._before()
            except BaseException:
                self._turns.release()
                raise
        if self._busy >= self._most:
            self._turns.release()
            raise Eagle3opsError(
                f"{self._busy} requests wait for a disk that does not answer; no more can be taken",
                remedy="is a network mount of this host dead? `df` on the host hangs at it",
            )
        self._busy += 1
        turn = _Turn(self._turns)
        timer = loop.call_later(self._slow_s, turn.give_back)

        def ended() -> None:
            timer.cancel()
            turn.give_back()
            self._busy -= 1

        def tell(_: "Future[T]") -> None:
            with suppress(RuntimeError):  # the loop is closed: the agent leaves
                loop.call_soon_threadsafe(ended)

        call = self._pool.submit(partial(function, *args, **kwargs))
        call.add_done_callback(tell)
        return await asyncio.wrap_future(call)


class _Turn:
    """A place among the calls that are made at the same time, given back once."""

    def __init__(self, turns: asyncio.Semaphore) -> None:
        self._turns: asyncio.Semaphore | None = turns

    def give_back(self) -> None:
        """Let another one have it."""
        turns, self._turns = self._turns, None
        if turns is not None:
            turns.release()
