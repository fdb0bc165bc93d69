"""How is something called that may never come back, without waiting for it for ever?

Reading a path on a dead NFS mount, the environment of a process in an uninterruptible call or a lost GPU can hang a
thread in the kernel. Such calls are made in a daemon thread of their own, one at a time; nobody waits for its end, and
the interpreter does not either when it leaves.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class StillBusy(Exception):
    """The call has not come back yet. Ask again later: it is not made a second time meanwhile."""

    def __init__(self, name: str, seconds: float) -> None:
        self.name, self.seconds = name, seconds
        super().__init__(f"{name} has not come back for {seconds:.0f} s")


class Aside(Generic[T]):
    """A function without arguments, called in a thread of its own whenever it is asked for.

    Args:
        work: what may hang.
        name: for people, and for the thread.
        at_end: called in the same thread when it ends after `close`.
    """

    def __init__(self, work: Callable[[], T], name: str, *, at_end: Callable[[], None] | None = None) -> None:
        self._work = work
        self._name = name
        self._at_end = at_end
        self._orders: queue.SimpleQueue[asyncio.Future[T] | None] = queue.SimpleQueue()
        self._pending: asyncio.Future[T] | None = None
        self._asked_at = 0.0
        self._thread: threading.Thread | None = None

    async def ask(self, wait_s: float) -> T:
        """Its result; that of an earlier call where that one has only now come back.

        Raises:
            StillBusy: it did not come back within `wait_s` seconds.
            Exception: whatever it raised.
        """
        loop = asyncio.get_running_loop()
        if self._pending is None:
            self._pending, self._asked_at = loop.create_future(), loop.time()
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, args=(loop,), name=self._name, daemon=True)
                self._thread.start()
            self._orders.put(self._pending)
        done, _ = await asyncio.wait([self._pending], timeout=wait_s)
        if not done:
            raise StillBusy(self._name, loop.time() - self._asked_at)
        result, self._pending = self._pending, None
        return result.result()

    def close(self) -> None:
        """Let the thread end, as soon as it comes back."""
        self._orders.put(None)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        while (order := self._orders.get()) is not None:
            result: T | None = None
            error: BaseException | None = None
            try:
                result = self._work()
            except BaseException as raised:  # noqa: BLE001  (it is raised again where it was asked for)
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_settle, order, result, error)
        if self._at_end is not None:
            self._at_end()


def _settle(order: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if order.done():
        return
    if error is None:
        order.set_result(result)
    else:
        order.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
        order.exception()  # whoever asked may have gone; that is no reason to complain


async def call_aside(work: Callable[[], T], name: str, wait_s: float) -> T:
    """Call once in a daemon thread.

    Raises:
        StillBusy: it did not come back within `wait_s` seconds; it goes on.
        Exception: whatever it raised.
    """
    aside = Aside(work, name)
    try:
        return await aside.ask(wait_s)
    finally:
        aside.close()
