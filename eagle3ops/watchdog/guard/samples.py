"""Where do a guard's samples come from, once a second?

Of a run: from the one sampler of this host and user, which covers everything that carries a run's mark. Of anything
else: from a sampler of the guard's own, as the shared one looks only at runs and at what is on a GPU (decision 0023).
"""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

from eagle3ops.runs.processes import ProcessId
from eagle3ops.telemetry.runtime import TelemetryUnavailable
from eagle3ops.telemetry.sampler import Sampler
from eagle3ops.telemetry.sampler_process import watched_paths
from eagle3ops.telemetry.shared import watch
from eagle3ops.watchdog.guard.aside import Aside, StillBusy

HZ = 1.0
Samples = AsyncGenerator[dict[str, Any], None]


async def shared_samples(say: Callable[[str], None], *, paths: Iterable[str | Path] = ()) -> Samples:
    """Those of the host's sampler; where it cannot be had, of an own one that looks for marked processes."""
    try:
        async with aclosing(watch(HZ)) as feed:
            async for sample in feed:
                # It samples more often than is looked here; what is late is measured by how often is looked.
                yield {**sample, "interval_s": max(1 / HZ, sample["interval_s"])}
    except TelemetryUnavailable as error:
        say(f"{error.what}; sampling on my own")
    async with aclosing(own_samples((), paths=paths, marked=True)) as feed:
        async for sample in feed:
            yield sample


def sees_marks(processes: Iterable[ProcessId]) -> bool:
    """May this user read the environments of these processes, in which the mark of a run stands?"""
    return all(os.access(f"/proc/{process.pid}/environ", os.R_OK) for process in processes)


async def own_samples(
    processes: Collection[ProcessId], *, paths: Iterable[str | Path] = (), marked: bool = False
) -> Samples:
    """Those of a sampler in a thread of this process.

    In a thread, as a driver that has lost its GPU may not come back from a call; then no samples come, which the guard
    notices.

    Args:
        processes: roots of what is looked at; their descendants are found.
        paths: folders whose space matters, besides the usual ones.
        marked: also the processes of runs.
    """
    roots = [(process.pid, process.start) for process in processes]
    places = [*watched_paths(), *paths]
    made: list[Sampler] = []

    def sample() -> dict[str, Any]:
        if not made:
            made.append(Sampler(roots, paths=places, interval_s=1 / HZ, marked=marked))
        return made[0].sample()

    def close() -> None:
        with suppress(Exception):
            for sampler in made:
                sampler.close()

    aside = Aside(sample, "the sampler", at_end=close)
    due = time.monotonic()
    try:
        while True:
            with suppress(StillBusy):
                yield await aside.ask(1.0)
            due = max(due + 1 / HZ, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
    finally:
        aside.close()
