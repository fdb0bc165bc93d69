"""Which servers are up on one part of the machine? A baseline and a few settings at a time, each in a task of its own.

A lane is one GPU, or the GPUs that one server takes, or a host without any. Lanes share nothing, so they measure side
by side; within a lane one server at a time is under load.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field

from eagle3ops.engines.client import EngineClient, EngineError
from eagle3ops.errors import Eagle3opsError
from eagle3ops.sweep.points import Setting

Opener = Callable[["Setting | None", "Lane"], AbstractAsyncContextManager[EngineClient]]
"""Starts the server of a setting (None: the baseline) on a lane and ends it with the block."""


@dataclass(slots=True)
class Server:
    """A server that is up, or on its way."""

    task: asyncio.Task[None]
    ready: "asyncio.Future[EngineClient]"
    stop: asyncio.Event
    warm: set[int] = field(default_factory=set)
    """Concurrencies at which it has been warmed up."""

    @property
    def alive(self) -> bool:
        """Its process has not ended, as far as is known."""
        if self.task.done():
            return False
        if not self.ready.done():
            return True
        process = self.ready.result().process if self.ready.exception() is None else None
        return process is not None and process.returncode is None


@dataclass(slots=True)
class Lane:
    """One part of the machine."""

    name: str
    """`GPU 0`, or `host`."""
    gpus: tuple[str, ...]
    """As `CUDA_VISIBLE_DEVICES` takes them; empty where there are none."""
    room: int
    """Settings that may be up at once, beside the baseline."""
    opener: Opener
    deadline_s: float | None
    """For a start; None leaves it to the engine's own patience."""
    starts: int = 0
    """Servers started here."""
    servers: dict[Setting | None, Server] = field(default_factory=dict)

    async def ensure(self, setting: Setting | None) -> Server:
        """The server of a setting, started if it is not up.

        Raises:
            Eagle3opsError: it does not start, or it died while nobody asked it anything.
        """
        server = self.servers.get(setting)
        if server is not None and server.ready.done() and not server.alive:
            fate = self._fate(server)
            await self.end([setting])
            raise EngineError(f"its server ended while it was not asked anything{fate}")
        if server is None:
            server = self.servers[setting] = self._start(setting)
        try:
            async with asyncio.timeout(self.deadline_s):
                await asyncio.shield(server.ready)
        except TimeoutError as error:
            await self.end([setting])
            raise EngineError(f"its server was not ready within {self.deadline_s:.0f} s") from error
        except Eagle3opsError:
            await self.end([setting])
            raise
        return server

    async def make_room(self, wanted: Iterable[Setting]) -> None:
        """End servers that are not wanted, as many as it takes to have room for those that are."""
        keep = set(wanted)
        missing = len([one for one in keep if one not in self.servers])
        others = [one for one in self.servers if one is not None and one not in keep]
        up = len(self.servers) - (None in self.servers)
        await self.end(others[: max(0, up + missing - self.room)])

    async def end(self, settings: Iterable[Setting | None]) -> None:
        """End servers, all at once."""
        ending = [server for one in settings if (server := self.servers.pop(one, None)) is not None]
        for server in ending:
            server.stop.set()
            if not server.ready.done():
                server.task.cancel()
        if ending:
            await asyncio.wait([server.task for server in ending])
        for server in ending:
            with suppress(asyncio.CancelledError):
                server.task.exception()

    async def close(self) -> None:
        """End them all."""
        await self.end(list(self.servers))

    def _start(self, setting: Setting | None) -> Server:
        self.starts += 1
        ready: asyncio.Future[EngineClient] = asyncio.get_running_loop().create_future()
        stop = asyncio.Event()
        return Server(asyncio.create_task(self._hold(setting, ready, stop)), ready, stop)

    async def _hold(self, setting: Setting | None, ready: "asyncio.Future[EngineClient]", stop: asyncio.Event) -> None:
        """The whole life of a server, in one task."""
        try:
            async with self.opener(setting, self) as client:
                ready.set_result(client)
                await stop.wait()
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)
            # Whoever waits for it gets it; it must not be told a second time where nobody waits any more.
            ready.exception()
        finally:
            if not ready.done():
                ready.cancel()

    def _fate(self, server: Server) -> str:
        with suppress(Exception):
            process = server.ready.result().process
            code = None if process is None else process.returncode
            if code is not None:
                return f": signal {-code}" if code < 0 else f": exit code {code}"
        return ""
