"""How do all rooms look at the runs of one host, and at the one that is selected, through one line?"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

from eagle3ops.errors import Eagle3opsError, RequestError
from eagle3ops.hosts.link import Link
from eagle3ops.hosts.transport import ConnectionRefusedForGood
from eagle3ops.screens.feeds.endings import Endings
from eagle3ops.screens.feeds.watching import NEWEST, RunDetail, RunRow, RunWatch, run_rows
from eagle3ops.words import plain

LATE_S = 4.0
"""Without an answer for longer, a host looks silent: what was read before is stale, although the line stands."""


class RunsFeed:
    """The runs below one root, and everything about the selected one; `run` keeps it up to date.

    Rooms look at it from time to time and paint what has changed: `version` grows with every change.
    """

    def __init__(
        self,
        link: Link,
        root: str | None,
        *,
        refresh_s: float = 1.0,
        clock: Callable[[], float] = time.time,
        on_ended: Callable[[RunRow], None] | None = None,
        on_failure: Callable[[str], None] | None = None,
        on_gone: Callable[[str], None] | None = None,
    ) -> None:
        self.link = link
        self.root = root
        self.where = root or ""
        """The root, as the host calls it."""
        self.rows: list[RunRow] | None = None
        """Newest first; None until they were read for the first time."""
        self.total = 0
        """How many runs there are; `rows` holds the newest ones."""
        self.selected: str | None = None
        self.watch: RunWatch | None = None
        self.detail: RunDetail | None = None
        self.failure: tuple[str, str] | None = None
        """What stands in the way of reading, and what to do."""
        self.read_at: float | None = None
        """When the runs were last read, in seconds since 1970."""
        self.following = False
        """Whether the events of the selected run are coming in."""
        self.version = 0
        self.clock = clock
        self._refresh_s = refresh_s
        self._on_ended = on_ended or (lambda row: None)
        self._on_failure = on_failure or (lambda text: None)
        self._on_gone = on_gone or (lambda run_id: None)
        self._endings = Endings()
        self._broken_off = False
        """Whether the events of the selected run broke off as the link stopped."""
        self._tag = ""
        """What the last answer about the runs is called: the host leaves out the rows while they are the same."""
        self._wake = asyncio.Event()
        self._follow_anew = asyncio.Event()

    @property
    def row(self) -> RunRow | None:
        """The selected run, as it stands in the list."""
        if self.detail is not None and self.detail.row.run_id == self.selected:
            return self.detail.row
        return next((row for row in self.rows or () if row.run_id == self.selected), None)

    @property
    def late(self) -> float:
        """Seconds since the runs were read; 0 while that is as recent as it should be."""
        age = 0.0 if self.read_at is None else max(0.0, self.clock() - self.read_at)
        return age if age > max(LATE_S, 3.0 * self._refresh_s) else 0.0

    @property
    def way(self) -> str:
        """How the line to the host stands, in a word; `silent` is a line that stands, and brings no answer.

        It takes the link half a minute to give up an agent that hangs; nothing must look fresh until then.
        """
        kind = self.link.state.kind
        if kind != "connected" or not self.late:
            return kind
        return "silent" if self.failure is None else "unreadable"

    @property
    def stale(self) -> str:
        """Why what is shown must look stale, in words; empty when it is fresh."""
        way = self.way
        if self.rows is None or way in ("connected", "closed"):
            return ""
        read = "" if self.read_at is None else f", read {max(0.0, self.clock() - self.read_at):.0f} s ago"
        return f"{way}{read}"

    @property
    def unread(self) -> tuple[str, str] | None:
        """Why the host, which answers, has never told its runs, and what to do; None where that is not so."""
        return self.failure if self.rows is None and self.link.connected else None

    async def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """The host's answer about this root.

        Raises:
            Eagle3opsError: what the host answered.
        """
        if self.root is not None:
            arguments.setdefault("root", self.root)
        return await self.link.call(op, **arguments)

    def select(self, run_id: str | None) -> None:
        """Look at another run, in every room."""
        if run_id == self.selected:
            return
        self.selected = run_id
        self.watch = RunWatch(run_id) if run_id is not None else None
        self.detail = None
        self.version += 1
        self._follow_anew.set()
        self.hurry()

    def step(self, by: int) -> None:
        """Select the run so many places further down the list."""
        ids = [row.run_id for row in self.rows or ()]
        if ids:
            at = ids.index(self.selected) + by if self.selected in ids else 0
            self.select(ids[min(len(ids) - 1, max(0, at))])

    def hurry(self) -> None:
        """Read again now, rather than when it is time."""
        self._wake.set()

    async def run(self) -> None:
        """Read for as long as the console is open."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_reading())
            tasks.create_task(self._keep_following())

    async def _keep_reading(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._read()
                self.failure = None
            except ConnectionRefusedForGood:
                # The link says so itself, and will not come back by itself.
                await self._wake.wait()
            except Eagle3opsError as error:
                self._failed(error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._refresh_s):
                    await self._wake.wait()

    def _failed(self, error: Eagle3opsError) -> None:
        told = plain(error.what), plain(error.remedy or "")
        if told != self.failure:
            self.failure = told
            self.version += 1
            self._on_failure(plain(error))

    async def _read(self) -> None:
        known = {"known": self._tag} if self.rows is not None and self._tag else {}
        found = await self.ask("runs.list", limit=NEWEST, **known)
        unchanged = self.rows is not None and "runs" not in found
        rows = self.rows if self.rows is not None and unchanged else run_rows(found.get("runs", []))
        self._tag = plain(found.get("tag", ""))
        where, total = plain(found.get("root", "")), int(found.get("total", len(rows)))
        for row in self._endings.take(rows):
            self._on_ended(row)
        before = [row.run_id for row in self.rows or ()]
        if (rows, where, total) != (self.rows, self.where, self.total):
            self.rows, self.where, self.total = rows, where, total
            self.version += 1
        if self.selected is None and rows:
            self.select(rows[0].run_id)
        watch = self.watch
        if watch is None:
            self.read_at = self.clock()
            return
        try:
            state = await self.ask("runs.state", run=watch.run_id)
        except RequestError:
            if watch is not self.watch or watch.run_id in {row.run_id for row in rows}:
                raise
            # Somebody deleted it. What was known of it must not go on looking like a run.
            at = before.index(watch.run_id) if watch.run_id in before else 0
            self.select(rows[min(at, len(rows) - 1)].run_id if rows else None)
            self._on_gone(watch.run_id)
            return
        self.read_at = self.clock()
        if watch is not self.watch:
            return
        detail = watch.detail(state)
        if detail != self.detail:
            self.detail = detail
            self.version += 1
        if not self.following and (state.get("alive") or self._broken_off):
            # It was taken up again after the stream of its events had ended, or the stream did not come to its end.
            self._follow_anew.set()

    async def _keep_following(self) -> None:
        """Take the events of the selected run as they come."""
        while True:
            await self._follow_anew.wait()
            self._follow_anew.clear()
            if self.watch is None:
                continue
            self.following = True
            tasks = {asyncio.create_task(self._take(self.watch)), asyncio.create_task(self._follow_anew.wait())}
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                self.following = False
            self.hurry()

    async def _take(self, watch: RunWatch) -> None:
        self._broken_off = False
        try:
            async for event in self.link.events(watch.run_id, watch.last_seq, root=self.root):
                watch.take(event)
                self.version += 1
        except ConnectionRefusedForGood:
            self._broken_off = True
        except Eagle3opsError as error:
            self._on_failure(f"The events cannot be read: {plain(error)}")
