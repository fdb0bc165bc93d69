"""How do the server's event loop and the engine meet? One thread for torch, asked and answered through queues.

The engine has a thread of its own because a forward pass holds its thread for tens of milliseconds, in which the event
loop must go on accepting, streaming and noticing clients that leave. One thread, because the passes share caches and
because torch's own worker threads already use every core. When nothing is to be done it waits on a condition.
"""

import asyncio
import logging
import threading
import time
import traceback
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from eagle3ops.engines.reference.engine import Engine
from eagle3ops.engines.reference.protocol import BadRequest
from eagle3ops.engines.reference.requests import Event, Request, SamplingParams

log = logging.getLogger(__name__)
_LOG_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """What is to be traced, and where the trace goes."""

    folder: Path
    steps: int
    activities: tuple[torch.profiler.ProfilerActivity, ...]


class Worker:
    """Runs an engine in a thread.

    Attributes:
        failed: why the last broken step broke, or None.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.failed: str | None = None
        self._profile: ProfileRequest | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the thread after its current step."""
        with self.engine.wake:
            self._stopping = True
            self.engine.wake.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        engine = self.engine
        logged = time.monotonic()
        while True:
            with engine.wake:
                engine.wake.wait_for(lambda: engine.waiting or engine.running or self._stopping)
                if self._stopping:
                    return
            try:
                self._profiled()
            except Exception as error:  # noqa: BLE001 - one broken step must not take the server down
                self.failed = f"{type(error).__name__}: {error}"
                log.error("Error: a step of the engine failed: %s\n%s", self.failed, traceback.format_exc())
                engine.fail_all(self.failed)
            if time.monotonic() - logged > _LOG_EVERY_S:
                logged = time.monotonic()
                self._log()

    def profile(self, request: ProfileRequest) -> None:
        """Trace the next decode steps.

        Raises:
            BadRequest: a trace is being made.
        """
        with self.engine.wake:
            if self._profile is not None:
                raise BadRequest("a profile is being made; wait for its file")
            self._profile = request

    def _profiled(self) -> None:
        """One step, or as many as a trace is wanted of."""
        request = self._profile
        if request is None:
            self.engine.step()
            return
        try:
            with torch.profiler.profile(activities=request.activities) as trace:
                for _ in range(request.steps):
                    if not self.engine.step():
                        break
            name = f"{time.time():.6f}-TP-0.trace.json.gz"
            request.folder.mkdir(parents=True, exist_ok=True)
            # It appears whole: who waits for it takes what has its name.
            trace.export_chrome_trace(str(request.folder / f"{name}.part.gz"))
            (request.folder / f"{name}.part.gz").rename(request.folder / name)
            log.info("Profile of %d steps: %s", request.steps, request.folder / name)
        except OSError as error:
            log.error("Error: no profile can be written to %s: %s", request.folder, error.strerror)
        finally:
            self._profile = None

    def _log(self) -> None:
        counters = self.engine.counters
        accept = "" if counters.accept_length is None else f"accept len: {counters.accept_length:.2f}, "
        log.info(
            "Decode batch, #running-req: %d, #queue-req: %d, %sgen throughput (token/s): %.2f",
            len(self.engine.running), len(self.engine.waiting), accept, counters.throughput,
        )  # fmt: skip

    @contextmanager
    def submitted(
        self, prompts: Sequence[list[int]], sampling: Sequence[SamplingParams], ids: Sequence[str], *,
        hidden: bool = False, stream: bool = False,
    ) -> Iterator[list["Ticket"]]:  # fmt: skip
        """Queue prompts as one piece; whatever has not ended on leaving is cancelled, so a client that goes away
        frees its rows."""
        loop = asyncio.get_running_loop()
        tickets = [
            Ticket(loop, prompt, params, name, hidden, stream)
            for prompt, params, name in zip(prompts, sampling, ids, strict=True)
        ]
        self.engine.submit([ticket.request for ticket in tickets])
        try:
            yield tickets
        finally:
            for ticket in tickets:
                ticket.request.cancelled = True
            with self.engine.wake:
                self.engine.wake.notify()


class Ticket:
    """A submitted request as the event loop sees it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        prompt: list[int],
        params: SamplingParams,
        name: str,
        hidden: bool,
        stream: bool,
    ) -> None:
        self._loop = loop
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self.request = Request(name, prompt, params, self._notify, want_hidden=hidden, stream=stream)

    def _notify(self, event: Event) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    async def events(self) -> AsyncIterator[Event]:
        """Every event up to the last one."""
        while True:
            event = await self._events.get()
            yield event
            if event.finish is not None or event.error is not None:
                return

    async def last(self) -> Event:
        """The event that ends the request."""
        async for event in self.events():
            last = event
        return last
