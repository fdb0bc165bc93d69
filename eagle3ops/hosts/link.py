"""How does a console stay in touch with a host whose line drops? Reconnect, repeat, take every stream up where it was.

Everything an agent is asked may be asked twice (orders carry a key, resumptions a token), so a call whose answer was
lost is simply repeated. Streams have a cursor: the number of the last event, the offset in a log.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from eagle3ops.errors import Eagle3opsError, HostUnreachable
from eagle3ops.hosts.agent.protocol import Hello
from eagle3ops.hosts.client import AgentClient, ConnectionLost
from eagle3ops.hosts.transport import AgentDidNotStart, ConnectionRefusedForGood, Transport
from eagle3ops.runs.events import Event

CLOSE_S = 5.0


@dataclass(frozen=True, slots=True)
class LinkState:
    """How the link is, for people."""

    kind: Literal["idle", "connecting", "connected", "waiting", "stopped", "closed"]
    attempt: int = 0
    """Failed or short-lived connections in a row."""
    wait_s: float = 0.0
    """Until the next attempt, when `waiting`."""
    why: str | None = None
    remedy: str | None = None

    def __str__(self) -> str:
        because = f" because {self.why}" if self.why else ""
        if self.kind == "connecting":
            return "connecting" + (f", attempt {self.attempt + 1}" if self.attempt else "")
        if self.kind == "waiting":
            return f"trying again in {self.wait_s:.1f} s{because}"
        return f"{self.kind}{because}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """When to try again and when to look, in seconds."""

    first: float = 0.5
    longest: float = 30.0
    good: float = 60.0
    """A connection that held this long starts the count of attempts anew."""
    look: float = 2.0
    """Between looks at the clocks."""
    jump: float = 10.0
    """A look that comes this much too late means that the machine slept."""
    answer: float = 10.0
    """How long a ping may take before the connection counts as dead."""
    quiet: float = 15.0
    """When nothing has arrived for so long, the agent is asked whether it is alive: one that is stopped or hangs
    behind a living server looks like one that has nothing to say."""
    slow: float = 60.0
    """How long a ping may take while something large is being sent, behind which it waits."""

    def delay(self, attempt: int, chance: random.Random) -> float:
        """Full jitter: many consoles that lost one host do not come back in step."""
        return chance.uniform(0.0, min(self.longest, self.first * 2.0 ** min(attempt, 30)))


class Link:
    """One host, for as long as a console wants it.

    Use it as `async with Link(transport) as link:`; that starts connecting at once and raises nothing. `await
    link.open()` waits for the first connection and raises what stands in its way.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        on_state: Callable[[LinkState], None] | None = None,
        pace: Pace | None = None,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        chance: random.Random | None = None,
    ) -> None:
        self.transport = transport
        self.name = transport.name
        self.pace = pace or Pace()
        self.state = LinkState("idle")
        self.hello: Hello | None = None
        """What the agent last said of itself."""
        self.connections = 0
        """How often a connection was made."""
        self._on_state = on_state
        self._wall = wall
        self._monotonic = monotonic
        self._chance = chance or random.Random()
        self._client: AgentClient | None = None
        self._changed = asyncio.Condition()
        self._failure: Eagle3opsError | None = None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._dropping: set[asyncio.Task[None]] = set()

    @property
    def connected(self) -> bool:
        """Whether the line stands."""
        return self.state.kind == "connected"

    @property
    def failure(self) -> Eagle3opsError | None:
        """Why the link has stopped; None while it tries."""
        return self._failure

    async def __aenter__(self) -> "Link":
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def start(self) -> None:
        """Begin to connect, in the background; a link that stopped for good tries again."""
        if self._task is None or self._task.done():
            self._failure, self.state = None, LinkState("connecting")
            self._task = asyncio.create_task(self._keep_up(), name=f"link to {self.name}")

    async def open(self) -> Hello:
        """Wait until the first attempt has come to something.

        Raises:
            HostUnreachable: it failed; the link goes on trying unless it is closed.
            ConnectionRefusedForGood: trying again cannot help.
        """
        self.start()
        async with self._changed:
            await self._changed.wait_for(
                lambda: self._client is not None or self.state.kind in ("waiting", "stopped", "closed")
            )
            if self._client is not None and self.hello is not None:
                return self.hello
        if self._failure is not None:
            raise self._failure
        raise HostUnreachable(self.state.why or f"{self.name}: not connected", remedy=self.state.remedy)

    async def wait_for(self, condition: Callable[[LinkState], bool]) -> LinkState:
        """Wait until the state is as wanted, and return it."""
        async with self._changed:
            await self._changed.wait_for(lambda: condition(self.state))
            return self.state

    def wake(self) -> None:
        """Do not wait any longer: try now, or make sure now that the connection is alive."""
        self._wake.set()

    async def close(self) -> None:
        """Hang up. Runs on the host go on."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._client is not None:
            self._drop(self._client)
        await self._become(LinkState("closed"), failure=HostUnreachable(f"{self.name}: the link was closed"))
        await asyncio.gather(*self._dropping, return_exceptions=True)

    async def call(self, op: str, /, **args: Any) -> dict[str, Any]:
        """Ask the agent; asked again after a reconnect when the answer was lost.

        Raises:
            Eagle3opsError: what the agent answered.
            ConnectionRefusedForGood: the link has stopped.
        """
        while True:
            client = await self._ready()
            try:
                return await client.call(op, **args)
            except ConnectionLost:
                await self._lost(client)

    async def stream(self, op: str, **args: Any) -> AsyncGenerator[list[Any], None]:
        """A stream of the agent, begun anew with the same arguments whenever the line drops.

        Raises: as `call`.
        """
        while True:
            client = await self._ready()
            try:
                async with contextlib.aclosing(client.stream(op, **args)) as batches:
                    async for items in batches:
                        yield items
                return
            except ConnectionLost:
                await self._lost(client)

    async def events(self, run_id: str, after: int = 0, *, root: str | None = None) -> AsyncGenerator[Event, None]:
        """The events of a run from `after` on, each exactly once and in order, until the run has ended.

        Args:
            run_id: the run.
            after: number of the last event that is known already.
            root: the root that the run is in; None is the host's usual one.

        Raises: as `call`.
        """
        last = after
        while True:
            client = await self._ready()
            try:
                batches = client.stream("runs.events", **_given(run=run_id, after=last, root=root))
                async with contextlib.aclosing(batches):
                    async for items in batches:
                        for event in map(_event, items):
                            if event is not None and event.seq > last:
                                last = event.seq
                                yield event
                return
            except ConnectionLost:
                await self._lost(client)

    async def log(
        self, run_id: str, log: str, offset: int = 0, *, root: str | None = None
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """What is added to a log, in pieces with their `offset`, `end` and `text`; none twice.

        Raises: as `call`.
        """
        at = offset
        while True:
            client = await self._ready()
            try:
                batches = client.stream("log.follow", **_given(run=run_id, log=log, offset=at, root=root))
                async with contextlib.aclosing(batches):
                    async for items in batches:
                        for piece in items:
                            if isinstance(piece.get("end"), int):
                                at = piece["end"]
                            yield piece
                return
            except ConnectionLost:
                await self._lost(client)

    async def telemetry(self, hz: float = 2.0) -> AsyncGenerator[Mapping[str, Any], None]:
        """Samples of the host, for as long as one listens; a gap while the line is down.

        Raises: as `call`.
        """
        async with contextlib.aclosing(self.stream("telemetry.watch", hz=hz)) as batches:
            async for items in batches:
                for sample in items:
                    yield sample

    async def _ready(self) -> AgentClient:
        """The connection, once there is one."""
        if self.state.kind == "idle":
            self.start()
        async with self._changed:
            await self._changed.wait_for(lambda: self._client is not None or self._failure is not None)
            if self._client is not None:
                return self._client
        assert self._failure is not None
        raise self._failure

    async def _lost(self, client: AgentClient) -> None:
        """A call found the connection gone: nobody uses it any more."""
        if self._client is client:
            self._client = None
        await asyncio.sleep(0)

    async def _become(self, state: LinkState, *, failure: Eagle3opsError | None = None) -> None:
        async with self._changed:
            self.state = state
            self._failure = failure
            self._changed.notify_all()
        if self._on_state is not None:
            self._on_state(state)

    async def _keep_up(self) -> None:
        """Keep the link up. Whatever ends that is told to those who wait: nobody waits for a task that is dead."""
        try:
            await self._connect_and_watch()
        except Exception as error:  # noqa: BLE001  (the boundary of a task that nobody awaits)
            what = f"{self.name}: {type(error).__name__}: {error}"
            failure = ConnectionRefusedForGood(what, remedy="this is a defect of eagle3ops; please report it")
            failure.__cause__ = error
            await self._become(LinkState("stopped", why=failure.what, remedy=failure.remedy), failure=failure)

    async def _connect_and_watch(self) -> None:
        """Connect, watch, and again; until something stands in the way for good."""
        attempt = 0
        why: Eagle3opsError | None = None
        while True:
            await self._become(LinkState("connecting", attempt, why=why.what if why else None))
            try:
                client = await AgentClient.connect(self.transport)
            except ConnectionRefusedForGood as error:
                if not isinstance(error, AgentDidNotStart) or not self.connections:
                    stopped = LinkState("stopped", attempt, why=error.what, remedy=error.remedy)
                    await self._become(stopped, failure=error)
                    return
                # There was an agent before: that none starts now may pass.
                why = error
            except HostUnreachable as error:
                why = error
            else:
                since = self._monotonic()
                self._client, self.hello = client, client.hello
                self.connections += 1
                self._wake.clear()
                await self._become(LinkState("connected"))
                reason = await self._watch(client)
                self._drop(client)
                why = HostUnreachable(f"{self.name}: {reason}")
                if self._monotonic() - since >= self.pace.good:
                    attempt = 0
            delay = self.pace.delay(attempt, self._chance)
            attempt += 1
            await self._become(LinkState("waiting", attempt, wait_s=delay, why=why.what, remedy=why.remedy))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._wake.wait()
            self._wake.clear()

    async def _watch(self, client: AgentClient) -> str:
        """Until the connection is gone; returns why.

        A machine that slept finds its connections dead long before any keep-alive says so, and no keep-alive of SSH
        tells that the agent hangs: when the clocks jumped, when a person asks, and when nothing has arrived for long,
        the agent has to answer a ping.
        """
        closed = asyncio.create_task(client.closed.wait())
        try:
            while True:
                before = (self._wall(), self._monotonic())
                waker = asyncio.create_task(self._wake.wait())
                await asyncio.wait({closed, waker}, timeout=self.pace.look, return_when=asyncio.FIRST_COMPLETED)
                waker.cancel()
                if closed.done() or self._client is not client:
                    return "the connection was lost"
                late = max(self._wall() - before[0], self._monotonic() - before[1]) - self.pace.look
                if not self._wake.is_set() and late < self.pace.jump and client.silence < self.pace.quiet:
                    continue
                self._wake.clear()
                patience = self.pace.slow if client.sending else self.pace.answer
                if not await self._alive(client, patience):
                    if closed.done() or self._client is not client:
                        return "the connection was lost"
                    return f"the agent did not answer within {patience:g} s"
        finally:
            closed.cancel()

    async def _alive(self, client: AgentClient, patience: float) -> bool:
        """Whether the agent answers, or says anything else: a ping may have to wait its turn."""
        asked = self._monotonic()
        ping = asyncio.create_task(client.call("ping"))
        try:
            await asyncio.wait({ping}, timeout=patience)
            if not ping.done():
                return client.silence < self._monotonic() - asked
            return ping.exception() is None
        finally:
            ping.cancel()

    def _drop(self, client: AgentClient) -> None:
        """Close a connection, aside: one that is dead takes its time, and nobody waits for that."""
        self._client = None

        async def drop() -> None:
            with contextlib.suppress(TimeoutError, OSError):
                async with asyncio.timeout(CLOSE_S):
                    await client.close()

        task = asyncio.create_task(drop(), name=f"closing {self.name}")
        self._dropping.add(task)
        task.add_done_callback(self._dropping.discard)


def _given(**args: Any) -> dict[str, Any]:
    return {name: value for name, value in args.items() if value is not None}


def _event(item: Any) -> Event | None:
    """An event as the agent sends it; None for what is none."""
    if not isinstance(item, dict) or not isinstance(item.get("seq"), int) or not isinstance(item.get("data"), dict):
        return None
    return Event(item["seq"], float(item.get("ts", 0.0)), item.get("stage"), str(item.get("kind", "")), item["data"])
