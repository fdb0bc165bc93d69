"""How do the host, the selected run and all others stand, and what waits for a person?"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, ClassVar

from rich.text import Text
from textual import events, work
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widget import Widget

from eagle3ops.errors import Eagle3opsError
from eagle3ops.screens.base import named
from eagle3ops.screens.feeds.watching import RunDetail, RunRow
from eagle3ops.screens.overview.attention import Matter, matters
from eagle3ops.screens.overview.graph import graph_lines, now_line, verdict_lines
from eagle3ops.screens.overview.host_choice import Hosts, other_hosts
from eagle3ops.screens.overview.lines import (
    event_lines,
    hosts_line,
    link_lines,
    matter_lines,
    no_runs_lines,
    run_lines,
    status_line,
    unread_lines,
)
from eagle3ops.screens.room import RunDeeds
from eagle3ops.screens.widgets.cells import Line, cell
from eagle3ops.screens.widgets.gpu_strip import GpuStrip
from eagle3ops.screens.widgets.lines import Lines, Table
from eagle3ops.words import plain

LOW = 34
"""On a terminal of fewer rows the stages are not in boxes, and the panes are cut down."""
NARROW = 100
"""On one of fewer columns likewise."""
ASK_S = 10.0
"""Between two questions for drafters, while runs change ..."""
ASK_AGAIN_S = 60.0
"""... and while they do not: the host reads many files to answer."""
EAGER_S = 0.02
"""Between two looks whether the first answer is there."""
SLOW_S = 10
"""Between two paintings of ages that grow by the minute."""
EVENTS = 400
"""Lines of events at most."""


class Pane(Table):
    """A table that says which one it is when its cursor is wanted elsewhere."""

    class Wanted(Message):
        """The cursor is wanted on another line of a pane."""

        def __init__(self, pane: "Pane", to: int) -> None:
            self.pane, self.to = pane, to
            super().__init__()

    def _want(self, to: int) -> None:
        count = len(self._lines)
        if count:
            self.post_message(self.Wanted(self, min(count - 1, max(0, to))))

    def on_click(self, event: events.Click) -> None:
        """Select the line under the mouse; a second click opens it."""
        super().on_click(event)
        if event.chain > 1 and self.line_at(event) is not None:
            self.call_later(self.screen.run_action, "open")


class Overview(RunDeeds):
    """Hosts and GPUs above, the pipeline of the selected run below them, then runs, matters and events."""

    ROOM = "overview"
    CSS_PATH = "room.tcss"
    PLACE = "Overview"
    AUTO_FOCUS = "#runs"
    BINDINGS: ClassVar[list[BindingType]] = [
        *named(
            "overview",
            [
                Binding(
                    "enter",
                    "open",
                    "Open",
                    tooltip="Open the selected run, or what waits for a decision",
                ),
                Binding(
                    "o", "app.room('logs')", "Logs", show=False, tooltip="What the processes of the selected run say"
                ),
                Binding("g", "app.gpus", "GPUs", show=False, tooltip="What the machine's GPUs and processes do"),
                Binding("d", "waiting", "Decide", tooltip="Go to what waits for a decision"),
                Binding("H", "hosts", "Hosts", tooltip="Look at another host; runs go on"),
            ],
        )
    ]

    def __init__(self) -> None:
        super().__init__()
        self._painted: dict[str, tuple[object, ...]] = {}
        self._titles: dict[str, str] = {}
        self._matters: list[Matter] = []
        self._matter: str | None = None
        """Key of the matter that the cursor is on."""
        self._others: list[str] = []
        self._drafters: dict[str, Any] = {}
        self._asked_at = float("-inf")
        self._asked_of: list[RunRow] | None = None

    def body(self) -> Iterable[Widget]:
        """The panes."""
        yield Lines(id="hosts")
        yield GpuStrip(id="gpus")
        yield Vertical(
            Lines(id="pipeline", classes="titled"),
            Horizontal(
                Pane(id="runs", classes="titled"),
                Vertical(Pane(id="waiting", classes="titled"), Lines(id="events", classes="titled"), id="right"),
                id="lower",
            ),
            id="panes",
        )

    def on_mount(self) -> None:
        """Name the panes; the file of hosts is read when the first picture stands."""
        self._entitle("#runs", "Runs")
        self._entitle("#pipeline", "Pipeline")
        self._entitle("#waiting", "Needs a decision")
        self._entitle("#events", "Events, newest first")
        self.query_one("#events").can_focus = True
        self.set_timer(2.0, self._read_hosts)
        self._eager = self.set_interval(EAGER_S, self._glance_eagerly)

    def _glance_eagerly(self) -> None:
        """Until the runs are there for the first time, look more often: somebody has just opened the console."""
        if self.runs.rows is not None:
            self._eager.stop()
            self._glance()

    def look(self) -> None:
        """Paint what is new, pane by pane; ages grow once a second."""
        low = self.size.height < LOW or self.size.width < NARROW
        self.set_class(low, "low")
        self.set_class(not self.runs.rows, "nothing")
        self.query_one("#panes").set_class(bool(self.runs.stale), "stale")
        now = self.console.clock()
        self.query_one(GpuStrip).look(tall=not low, second=int(now))
        self._paint("#hosts", (self.runs.link.state, self.runs.way, self._read_age, tuple(self._others)), self._hosts)
        self._look_at_runs(now, low)
        asked = now - self._asked_at
        due = asked > ASK_AGAIN_S or (asked > ASK_S and self.runs.rows != self._asked_of)
        if due and self.runs.rows and self.runs.link.state.kind == "connected":
            self._asked_at, self._asked_of = now, self.runs.rows
            self._ask_drafters()

    def _look_at_runs(self, now: float, low: bool) -> None:
        """Paint the panes about runs, each only for what stands on it.

        What moves all the time waits for the next whole second, so that one refresh of the screen carries all of it; a
        change of state does not wait.
        """
        runs, link = self.runs, self.runs.link.state
        detail = runs.detail
        going_on = detail is not None and detail.row.status == "running"
        stands: tuple[object, ...] = ()
        if detail is not None:
            statuses = tuple((stage.status, None if going_on else stage.done) for stage in detail.stages)
            stands = (detail.row.run_id, detail.row.status, statuses, len(detail.verdicts), detail.cause)
        state = (runs.rows is None, not runs.rows, runs.unread, runs.selected, stands, link, bool(runs.stale))
        self._paint("#pipeline", (*state, int(now) if going_on else int(now / SLOW_S), low), self._pipeline)
        fresh = any(now - row.since < 60 for row in runs.rows or ())
        tick = int(now) if fresh else int(now / SLOW_S)
        self._paint("#runs", (runs.rows, runs.selected, bool(runs.stale), tick), self._runs)
        tail = detail.tail if detail is not None else []
        self._paint("#events", (runs.selected, len(tail), tail[-1] if tail else None), self._events)
        machine = self.console.feed.machine.version // 4
        answers = (id(self._drafters), self.console.incidents.version)
        waits = (runs.rows, *state, int(now / 2), machine, answers, self._matter, self._deciding)
        self._paint("#waiting", waits, self._waiting)

    def _paint(self, selector: str, state: tuple[object, ...], paint: Callable[[Lines], None]) -> None:
        """Paint a pane when what it is made from has changed, or its own size has."""
        pane = self.query_one(selector, Lines)
        told = (*state, pane.room)
        if self._painted.get(selector) != told and pane.room.width:
            self._painted[selector] = told
            paint(pane)

    def _entitle(self, selector: str, title: str) -> None:
        """A title costs the whole pane a repaint, so only when it changes."""
        if self._titles.get(selector) != title:
            self._titles[selector] = title
            self.query_one(selector).border_title = Text(title)

    @property
    def _read_age(self) -> int | None:
        """Whole seconds since the runs were read; 0 while that is as recent as it should be."""
        return None if self.runs.read_at is None else int(self.runs.late)

    def _hosts(self, pane: Lines) -> None:
        link, way, width = self.runs.link, self.runs.way, pane.room.width
        line = hosts_line(link.name, link.state, way, self._read_age, self._others, width, self.console.glyphs)
        pane.show((), [line])

    def _pipeline(self, pane: Lines) -> None:
        runs, width = self.runs, pane.room.width
        if not runs.rows:
            known = runs.rows is not None and runs.link.state.kind in ("connected", "closed")
            self._entitle("#pipeline", "No run yet" if known else "Not read" if runs.unread else "Not connected")
            if runs.unread is not None:
                pane.show((), unread_lines(*runs.unread, width))
            elif known:
                pane.show((), no_runs_lines(runs.link.name, runs.where, runs.root is not None, width))
            else:
                pane.show((), link_lines(runs.link.name, runs.link.state, width))
            return
        self._entitle("#pipeline", runs.selected or "")
        if runs.detail is not None and runs.detail.row.run_id == runs.selected:
            pane.show((), self._detail(runs.detail, width))
        else:
            # As many lines as before: a run that is passed on the way to another moves nothing.
            blank: list[Line] = [()] * (pane.get_content_height(pane.size, pane.size, width) - 1)
            pane.show((), [(("Reading ...", "dim"),), *blank])

    def _detail(self, detail: RunDetail, width: int) -> list[Line]:
        now, glyphs, low = self.console.clock(), self.console.glyphs, self.has_class("low")
        lines: list[Line] = [status_line(detail, now, width, glyphs)]
        root = next((stage.root for stage in detail.stages if stage.root), {})
        if root:
            where = f"{plain(root.get('file', ''))}:{plain(root.get('line_no', ''))}"
            lines.append(((cell(f"  {where}  {plain(root.get('text', ''))}", width, glyphs).rstrip(), "bad"),))
        if remedy := plain(root.get("fix") or detail.remedy or ""):
            lines.append(((cell(f"→ {remedy}", width, glyphs).rstrip(), "head"),))
        lines += graph_lines(detail.stages, width, glyphs, boxed=not low)
        works = now_line(detail.stages, width, glyphs, now) if detail.row.status == "running" else ()
        lines += [works] if works else []
        return lines + verdict_lines(detail.verdicts, width, glyphs, most=2 if low else 4)

    def _runs(self, pane: Lines) -> None:
        rows = self.runs.rows or []
        ids = [row.run_id for row in rows]
        selected = self.runs.selected
        cursor = ids.index(selected) if selected in ids else None
        more = self.runs.total - len(rows)
        count = f": {len(rows)}" if self.runs.rows is not None else ""
        self._entitle("#runs", f"Runs{count}" + (f" newest of {self.runs.total}; all: key 9" if more > 0 else ""))
        stale = bool(self.runs.stale)
        now = self.console.clock()
        moved = cursor != pane.cursor
        pane.show((), run_lines(rows, pane.room.width, self.console.glyphs, now, stale=stale), cursor)
        if moved and isinstance(pane, Pane):
            pane.reveal()

    def _events(self, pane: Lines) -> None:
        tail = self.runs.detail.tail if self.runs.detail is not None else []
        pane.show((), event_lines(tail, pane.room.width, EVENTS))

    @property
    def _deciding(self) -> bool:
        """Whether the cursor is among what waits."""
        return self.focused is not None and self.focused.id == "waiting"

    def _waiting(self, pane: Lines) -> None:
        runs, feed = self.runs, self.console.feed
        if runs.rows is None:
            self._matters = []
            self._entitle("#waiting", "Needs a decision")
            pane.show((), [(("not known yet", "dim"),)])
            return
        snapshot = feed.machine.snapshot
        # What is wrong with the machine is seen in its sample.
        incidents = [one for one in self.console.incidents.open if one.run]
        self._matters = matters(runs.rows, runs.detail, snapshot, incidents, self._drafters, self.console.clock())
        keys = [matter.key for matter in self._matters]
        if self._matter not in keys:
            self._matter = keys[0] if keys else None
        count = sum(one.severity != "info" for one in incidents)
        title = f"Needs a decision: {len(keys)}" if keys else "Needs a decision"
        self._entitle("#waiting", title + (f", open incidents: {count}" if count else ""))
        cursor = keys.index(self._matter) if self._matter is not None and self._deciding else None
        moved = cursor != pane.cursor
        pane.show((), matter_lines(self._matters, pane.room.width, self.console.glyphs), cursor)
        if moved and isinstance(pane, Pane):
            pane.reveal()

    @work(exclusive=True, group="drafters", exit_on_error=False)
    async def _ask_drafters(self) -> None:
        """What drafters there are, where the host can say."""
        hello = self.runs.link.hello
        if hello is None or "drafters.list" not in hello.ops:
            return
        # Their own room says why they cannot be read; here the last answer stays.
        with suppress(Eagle3opsError):
            if (found := await self.runs.ask("drafters.list")) != self._drafters:
                self._drafters = found

    @work(exclusive=True, group="hosts", exit_on_error=False)
    async def _read_hosts(self) -> None:
        """Which other hosts there are; what is wrong with their file is said where one is chosen."""
        try:
            self._others = await asyncio.to_thread(other_hosts, self.runs.link.name)
        except Eagle3opsError:
            self._others = []

    def on_pane_wanted(self, message: Pane.Wanted) -> None:
        """Another run was selected, or another matter: its run is selected with it."""
        if message.pane.id == "runs":
            rows = self.runs.rows or []
            if message.to < len(rows):
                self.runs.select(rows[message.to].run_id)
        elif message.to < len(self._matters):
            self._choose(self._matters[message.to])
        self.look()

    def _choose(self, matter: Matter) -> None:
        self._matter = matter.key
        if matter.run is not None:
            self.runs.select(matter.run)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Among what waits, the keys are for the run that the line is about."""
        if event.widget.id == "waiting":
            matter = self._at_cursor()
            if matter is not None:
                self._choose(matter)
            self.look()

    def on_descendant_blur(self, event: events.DescendantBlur) -> None:
        """The cursor goes with the focus."""
        if event.widget.id == "waiting":
            self.call_after_refresh(self.look)

    def _at_cursor(self) -> Matter | None:
        return next((matter for matter in self._matters if matter.key == self._matter), None)

    async def action_open(self) -> None:
        """Open the selected run, or go where the selected matter is decided."""
        matter = self._at_cursor() if self._deciding else None
        if matter is None:
            if self.runs.selected is not None:
                await self.app.run_action("app.room('run')")
            elif self.runs.rows is not None:
                # There is nothing to open yet but the form that makes the first one.
                await self.app.run_action("app.room('launch')")
            return
        self._choose(matter)
        await self.app.run_action(f"app.room('{matter.room}')")

    def action_waiting(self) -> None:
        """Put the cursor on what waits for a decision."""
        self.query_one("#waiting").focus()

    @work(exit_on_error=False)
    async def action_hosts(self) -> None:
        """Choose the host to look at."""
        here = self.runs.link.name
        chosen = await self.app.push_screen_wait(Hosts(here))
        if chosen is not None and chosen != here:
            self.workers.cancel_group(self, "drafters")
            await self.app.switch_host(chosen)  # type: ignore[attr-defined]
            self._painted.clear()
            self._drafters, self._asked_at, self._matters = {}, float("-inf"), []
            self._read_hosts()
