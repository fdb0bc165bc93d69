"""How do all screens look at one machine through one stream of samples?"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import cast

from eagle3ops.errors import Eagle3opsError
from eagle3ops.hosts.link import Link
from eagle3ops.screens.feeds.machine import HZ, Machine
from eagle3ops.words import plain

AGAIN_S = 2.0
"""Between attempts after the agent has refused."""


class MachineFeed:
    """What is known of the machine behind a link; `run` keeps it up to date."""

    def __init__(self, link: Link, clock: Callable[[], float] = time.monotonic) -> None:
        self.link = link
        self.clock = clock
        self.machine = Machine()
        self.sample: object = None
        """The last sample as it came."""

    async def run(self) -> None:
        """Take samples for as long as the console is open; a refusal is kept, and asked again after a while."""
        while True:
            try:
                async with contextlib.aclosing(self.link.telemetry(HZ)) as samples:
                    async for sample in samples:
                        self.machine.take(sample, self.clock())
                        self.sample = sample
            except Eagle3opsError as error:
                self.machine.failure = plain(error.what), plain(error.remedy or "")
            await asyncio.sleep(AGAIN_S)

    @property
    def stale(self) -> str:
        """Why the figures must look stale, in words; empty when they are fresh."""
        return self.machine.stale(self.clock(), self.link.state.kind)


def feed_of(app: object) -> MachineFeed:
    """The feed of a console."""
    return cast(MachineFeed, app.feed)  # type: ignore[attr-defined]
