"""When is a server asked what? In rounds that cost nearly nothing, and closer together once it looks wrong.

Until it has been up: /health every 5 s. Then one token every 30 s, the counters every 10 s. After a failure the next
question comes after 10 s, so that three misses take about a minute and a half; after the third, every 60 s. Where no
token can be asked for, /health takes its place. A failed token is followed by one /health at once: together they tell
whether the HTTP process, the engine or what stands behind it is dead. No question is asked while the same one is under
way.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

from eagle3ops.watchdog.guard.probes import Prober
from eagle3ops.watchdog.state import Probe

EVERY_S = 30.0
COUNTERS_EVERY_S = 10.0
STARTING_EVERY_S = 5.0
AGAIN_S = 10.0
"""After a failure, and while it is accused."""
LOST_EVERY_S = 60.0
"""After so many failures that one more says nothing new."""
MISSES = 3
TELL_WAITING_S = 5.0


class Rounds:
    """The questions to one server, asked when they are due.

    Args:
        prober: who asks.
    """

    def __init__(self, prober: Prober) -> None:
        self.prober = prober
        self.misses = 0
        """Questions in a row that failed: tokens, or /health where no token can be asked for."""
        self._due = {"health": float("-inf"), "generate": float("-inf"), "counters": float("-inf")}
        self._under_way: dict[str, tuple[asyncio.Task[Probe], float]] = {}
        self._told: dict[str, float] = {}

    def tick(self, now: float, *, hurry: bool = False) -> list[Probe]:
        """Start what is due; returns what has been answered since the last call, and what is waited for.

        Args:
            now: monotonic seconds, the prober's clock.
            hurry: it is accused of something: ask now rather than in a while.
        """
        found = self._collect(now)
        prober = self.prober
        if hurry and prober.up and self.misses < MISSES:
            name = "generate" if prober.generates else "health"
            self._due[name] = min(self._due[name], self._last_asked(name) + AGAIN_S * prober.scale)
        if not prober.up or not prober.generates:
            self._ask("health", prober.health, now)
        if prober.up and prober.generates:
            self._ask("generate", prober.generate_one, now)
        if prober.up:
            self._ask("counters", prober.counters, now)
        return found

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = [task for task, _ in self._under_way.values()]
        self._under_way.clear()
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task
        await self.prober.close()

    def _last_asked(self, name: str) -> float:
        return self._told.get(f"asked {name}", float("-inf"))

    def _ask(self, name: str, question: Callable[[], Awaitable[Probe]], now: float) -> None:
        # A generate that waits reads the counters itself, over the same few connections.
        if name in self._under_way or now < self._due[name]:
            return
        self._under_way[name] = (asyncio.ensure_future(_as_task(question)), now)
        self._told[f"asked {name}"] = now

    def _collect(self, now: float) -> list[Probe]:
        found = []
        for name, (task, began) in list(self._under_way.items()):
            if task.done():
                del self._under_way[name]
                found.append(self._answered(name, task, began, now))
            elif now - max(began, self._told.get(name, began)) >= TELL_WAITING_S * self.prober.scale:
                self._told[name] = now
                found.append(Probe(name, began, None, now - began, "no answer yet"))
        return found

    def _answered(self, name: str, task: asyncio.Task[Probe], began: float, now: float) -> Probe:
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            # A defect of the prober is no fault of what is watched.
            self._due[name] = now + EVERY_S * self.prober.scale
            return Probe(name, began, None, now - began, f"could not be asked: {error!r}"[:300])
        probe = task.result()
        decides = name == ("generate" if self.prober.generates else "health")
        if decides and probe.ok is not None:
            self.misses = 0 if probe.ok else self.misses + 1
            if not probe.ok and name == "generate" and "health" not in self._under_way:
                self._due["health"] = float("-inf")
                self._ask("health", self.prober.health, now)
        self._due[name] = now + self._pause(name, probe) * self.prober.scale
        return replace(probe, facts={**probe.facts, "misses": float(self.misses)}) if probe.ok is False else probe

    def _pause(self, name: str, probe: Probe) -> float:
        if name == "counters":
            return COUNTERS_EVERY_S
        if not self.prober.up:
            return STARTING_EVERY_S
        if probe.ok is False:
            return LOST_EVERY_S if self.misses >= MISSES else AGAIN_S
        return EVERY_S


async def _as_task(question: Callable[[], Awaitable[Probe]]) -> Probe:
    return await question()
