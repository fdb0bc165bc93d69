"""Which incidents are there, of the runs and of the machine, and which of them are news?

One feed of the console for all rooms. The runs' incidents are asked for; the machine's are concluded from its samples,
and as a sample knows only the present, it is remembered here when each began and that it is over.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from eagle3ops.errors import Eagle3opsError
from eagle3ops.hosts.link import Link
from eagle3ops.hosts.transport import ConnectionRefusedForGood
from eagle3ops.screens.feeds.machine_feed import MachineFeed
from eagle3ops.screens.feeds.runs_feed import RunsFeed
from eagle3ops.watchdog.incidents.incident import Incident, from_json
from eagle3ops.watchdog.incidents.machine import machine_incidents
from eagle3ops.words import elsewhere, plain

READ_S = 5.0
"""Between questions while nobody looks."""
WATCHED_S = 2.0
"""The same while somebody does."""
SOON_S = 2.0
"""So long somebody may wait for what was asked just now."""
RUNS = 20
"""The newest runs that are asked about."""
REMEMBERED = 200
"""Incidents kept that the host no longer tells of."""


class Watched(Protocol):
    """What the feed looks at."""

    link: Link
    runs: RunsFeed
    feed: MachineFeed


class IncidentsFeed:
    """All that is known of incidents; `run` keeps it up to date, `version` grows with every change."""

    def __init__(
        self, console: Watched, *, clock: Callable[[], float], on_new: Callable[[Incident], None] | None = None
    ) -> None:
        self._console = console
        self._clock = clock
        self._on_new = on_new or (lambda incident: None)
        self.incidents: tuple[Incident, ...] = ()
        """The newest first."""
        self.left_out = 0
        self.version = 0
        self.read_at: float | None = None
        """When the runs' ones were last read."""
        self.failure = ""
        self.remedy = ""
        """What to do about the failure."""
        self.watched = False
        """Whether somebody looks: then it is read more often."""
        self._told: dict[str, set[str]] = {}
        self._of: RunsFeed | None = None
        self._asked: dict[str, Incident] = {}
        self._machine: dict[str, Incident] = {}
        self._past: dict[str, Incident] = {}
        self._wake = asyncio.Event()

    @property
    def open(self) -> list[Incident]:
        """Those that stand."""
        return [one for one in self.incidents if not one.over]

    def hurry(self) -> None:
        """Read again now."""
        self._wake.set()

    async def why_failed(self, run: str) -> str:
        """What the newest incident says of a run that has just failed; empty where that is not to be had soon."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SOON_S):
                await self._read()
        of_run = [one for one in self.open if one.run == run and one.severity == "error" and one.kind != "verdict"]
        return of_run[0].title.replace(" failed: ", ": ", 1) if of_run else ""

    async def run(self) -> None:
        """Read for as long as the console is open."""
        while True:
            self._wake.clear()
            await self._read()
            try:
                async with asyncio.timeout(WATCHED_S if self.watched else READ_S):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _read(self) -> None:
        runs = self._console.runs
        if runs is not self._of:
            # Another host: nothing that is known of the one before holds.
            self._of, self._told, self._asked, self._machine, self._past = runs, {}, {}, {}, {}
            self.read_at = None
        try:
            answer = await runs.ask("incidents.list", runs=RUNS)
        except ConnectionRefusedForGood as error:
            self.failure, self.remedy = plain(error.what), plain(error.remedy or "")
            # The machine's own incidents go on being concluded when only the runs' ones are not to be had.
            self._conclude()
            if not self._console.link.connected:
                await self._wake.wait()
            return
        except Eagle3opsError as error:
            self.failure, self.remedy = plain(error.what), plain(error.remedy or "")
            self._conclude()
            return
        if runs is self._console.runs:
            self.take(answer)

    def take(self, answer: dict[str, Any]) -> None:
        """Learn from an answer of `incidents.list`."""
        sent = answer.get("incidents")
        host = self._console.link.name
        told = (cleaned(data, host) for data in (sent if isinstance(sent, list) else ()))
        fresh = {one.id: one for one in told if one is not None}
        left_out = answer.get("left_out")
        self.left_out = left_out if isinstance(left_out, int) else 0
        self._forget(one for key, one in self._asked.items() if key not in fresh)
        self._asked, self.failure, self.read_at = fresh, "", self._clock()
        self._conclude()

    def _forget(self, gone: Iterable[Incident]) -> None:
        """What is no longer told of is over; a silence that ended, a GPU that is well again."""
        for one in gone:
            self._past[one.id] = dataclasses.replace(one, over=True)
        while len(self._past) > REMEMBERED:
            self._past.pop(next(iter(self._past)))

    def _conclude(self) -> None:
        if not self._console.feed.stale:
            present = {one.id: one for one in map(_clean, machine_incidents(self._console.feed.sample))}
            self._forget(one for key, one in self._machine.items() if key not in present)
            self._machine = {
                key: dataclasses.replace(one, first=min(one.first, self._machine[key].first))
                if key in self._machine
                else one
                for key, one in present.items()
            }
        known = {**self._past, **self._asked, **self._machine}
        for key in {*self._asked, *self._machine}:
            self._past.pop(key, None)
        found = tuple(sorted(known.values(), key=lambda one: (-one.last, one.id)))
        if found != self.incidents:
            self.incidents = found
            self.version += 1
        self._tell()

    def _tell(self) -> None:
        """News are told once each; what was there before the console looked is not news."""
        for source, known in (("runs", self._asked), ("machine", self._machine)):
            seen = self._told.get(source)
            if seen is None and (self.read_at is None if source == "runs" else self._console.feed.sample is None):
                continue
            standing = {key: one for key, one in known.items() if not one.over}
            for key in standing.keys() - (standing.keys() if seen is None else seen):
                self._on_new(standing[key])
            self._told[source] = (seen or set()) | standing.keys()


def cleaned(data: object, host: str = "local") -> Incident | None:
    """An incident of an answer, in plain text and with command lines that mean its host; None for what is none."""
    found = from_json(data)
    return None if found is None else _clean(found, host)


def _clean(one: Incident, host: str = "local") -> Incident:
    def mean(words: str) -> str:
        return plain(words if host == "local" else elsewhere(words, host))

    return dataclasses.replace(
        one,
        title=plain(one.title),
        explanation=plain(one.explanation),
        run=plain(one.run),
        stage=plain(one.stage),
        kind=plain(one.kind),
        folder=plain(one.folder),
        evidence=tuple(dataclasses.replace(each, what=plain(each.what)) for each in one.evidence),
        remedies=tuple(
            dataclasses.replace(each, words=mean(each.words), command=mean(each.command)) for each in one.remedies
        ),
    )
