"""Ops about the host itself: is the agent there, what does the machine do, what does it lack?"""

import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

from eagle3ops import locations
from eagle3ops.errors import RequestError
from eagle3ops.hosts.agent.operation import Batch, Surroundings, operation, stream

MAX_HZ = 10.0
"""As fast as the host's sampler goes."""


def ping(here: Surroundings) -> dict[str, Any]:
    """The host's clock, seconds since 1970."""
    return {"time": time.time()}


def doctor(here: Surroundings) -> dict[str, Any]:
    """What this host has and lacks."""
    from eagle3ops.hosts.doctor.examination import examine

    return {"findings": [asdict(finding) for finding in examine(here.root, locations.cache())]}


def inventory(here: Surroundings) -> dict[str, Any]:
    """The GPUs of this host, or the named reason why there are none."""
    from eagle3ops.telemetry import gpus

    return asdict(gpus.inventory())


async def watch(here: Surroundings, *, hz: float = 2.0) -> AsyncIterator[Batch]:
    """Samples of the host, from the one sampler that all who watch share."""
    if not 0.01 <= hz <= MAX_HZ:
        raise RequestError(f"telemetry.watch: hz is between 0.01 and {MAX_HZ:.0f}, not {hz}")
    from eagle3ops.telemetry.shared import watch as shared_watch

    async with aclosing(shared_watch(hz)) as samples:
        async for sample in samples:
            yield [sample]


OPERATIONS = (
    # Whether the agent lives is asked by whoever would leave it otherwise: not to be answered late for a slow disk.
    operation("ping", ping, at_once=True),
    operation("doctor", doctor),
    operation("telemetry.inventory", inventory),
    stream("telemetry.watch", watch),
)
