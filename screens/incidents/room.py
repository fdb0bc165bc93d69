"""What went wrong, what shows it, and what can be done about it?"""

from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import Any, ClassVar

from rich.text import Text
from textual import events, work
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.widget import Widget

from eagle3ops.screens.base import named
from eagle3ops.screens.feeds.watching import RunRow
from eagle3ops.screens.gpus.tables import hanging, refusal_lines
from eagle3ops.screens.incidents.lines import (
    Choice,
    about_lines,
    choice_line,
    choices_of,
    cut_evidence,
    timeline_head,
    timeline_line,
)
from eagle3ops.screens.room import RunDeeds
from eagle3ops.screens.widgets.cells import Line
from eagle3ops.screens.widgets.clipboard import copy
from eagle3ops.screens.widgets.lines import Lines, Table
from eagle3ops.watchdog.evidence.dossier import MANIFEST
from eagle3ops.watchdog.incidents.incident import Incident, Remedy

LOW = 40
"""On a terminal of fewer rows the lower panes get less."""
LEAST = 24
SHOWN = ("all", "those that stand", "of the selected run")


class Incidents(RunDeeds):
    """The timeline above; below it what is known of the selected incident, its evidence and the remedies."""

    ROOM = "incidents"
    CSS_PATH = "room.tcss"
    PLACE = "Incidents"
    BINDINGS: ClassVar[list[BindingType]] = [
        *named(
            "incidents",
            [
                Binding(
                    "enter",
                    "choose",
                    "Choose",
                    tooltip="Go to the evidence and remedies; there: do it",
                ),
                Binding("f", "show", "Filter", tooltip="All, those that stand, or those of the selected run"),
                Binding("y", "copy", "Copy", tooltip="Copy the command line, or the words, under the cursor"),
                Binding("o", "logs", "Logs", tooltip="Open the log that the evidence stands in"),
                Binding("escape", "leave", "Back", show=False, tooltip="To the timeline, then to the room before"),
            ],
        )
    ]

    def __init__(self) -> None:
        super().__init__()
        self._shown = SHOWN[0]
        self._listed: list[Incident] = []
        self._cursor: str | None = None
        self._at_top = True
        self._choices: list[Choice] = []
        self._choice = 0
        self._chosen_of: str | None = None
        self._painted: tuple[object, ...] = ()
        self._revealed_in = Size()
        """How large the list of choices was when its cursor was last brought in sight."""
        self._titles: dict[str, str] = {}

    @property
    def run_row(self) -> RunRow | None:
        """The run of the selected incident."""
        one = self._incident()
        if one is None or not one.run:
            return None
        known = next((row for row in self.runs.rows or () if row.run_id == one.run), None)
        return known or RunRow(one.run, one.run, "?", one.last)

    def body(self) -> Iterable[Widget]:
        """The panes."""
        yield Table(id="timeline", classes="titled")
        yield Lines(id="incident", classes="titled")
        yield Table(id="choices", classes="titled")

    def on_mount(self) -> None:
        """The timeline has the keys."""
        self.query_one("#timeline").focus()
        super().on_mount()

    def on_resize(self, event: events.Resize) -> None:
        """Another size makes other lines."""
        self.set_class(self.app.size.height < LOW, "low")
        self.set_class(self.app.size.height < LEAST, "least")
        super().on_resize(event)

    def on_screen_resume(self) -> None:
        """Somebody looks: read more often, and now."""
        self.console.incidents.watched = True
        self.console.incidents.hurry()
        super().on_screen_resume()

    def on_screen_suspend(self) -> None:
        """Nobody looks any more."""
        self.console.incidents.watched = False

    # What is shown.

    def look(self) -> None:
        """Paint what is new."""
        feed, now = self.console.incidents, self.console.clock()
        state = (
            feed.version, feed.failure, feed.read_at is None, self.runs.stale, self._shown, self.runs.selected,
            self._cursor, self._choice, self.size, self.app.theme, self._rooms(), int(now) // 5,
        )  # fmt: skip
        if state == self._painted or not self.query_one("#timeline").size.width:
            return
        self._painted = state
        self._list()
        self._paint_timeline(now)
        self._paint_incident(now)

    def _rooms(self) -> tuple[Size, ...]:
        return tuple(self.query_one(name, Lines).room for name in ("#timeline", "#incident", "#choices"))

    def _list(self) -> None:
        fits: Callable[[Incident], bool] = lambda one: True  # noqa: E731
        if self._shown == SHOWN[1]:
            fits = lambda one: not one.over  # noqa: E731
        elif self._shown == SHOWN[2]:
            fits = lambda one: one.run == self.runs.selected  # noqa: E731
        before = next((at for at, one in enumerate(self._listed) if one.id == self._cursor), 0)
        self._listed = [one for one in self.console.incidents.incidents if fits(one)]
        if self._at_top and self._listed and not self.query_one("#choices").has_focus:
            # Who has not gone down the list looks at the newest one, whichever that is.
            self._cursor = self._listed[0].id
        elif self._cursor not in {one.id for one in self._listed}:
            self._cursor = self._listed[min(before, len(self._listed) - 1)].id if self._listed else None

    def _incident(self) -> Incident | None:
        """The one under the cursor, also while the cursor is still on its way there."""
        aim = self.query_one("#timeline", Table).aim
        if aim is not None and aim < len(self._listed):
            self._cursor, self._at_top = self._listed[aim].id, aim == 0
        return next((one for one in self._listed if one.id == self._cursor), None)

    def _paint_timeline(self, now: float) -> None:
        table, glyphs, feed = self.query_one("#timeline", Table), self.console.glyphs, self.console.incidents
        width, stale = table.room.width, self.runs.stale
        lines: list[Line] = [timeline_line(one, width, glyphs, now) for one in self._listed]
        if stale:
            lines = [tuple((text, "stale") for text, _ in line) for line in lines]
        cursor = next((at for at, one in enumerate(self._listed) if one.id == self._cursor), None)
        follow = cursor != table.cursor
        table.show(timeline_head(width, glyphs) if lines else (), lines or self._nothing(width), cursor)
        if follow:
            table.reveal()
        standing, count = len(feed.open), len(feed.incidents)
        title = f"{standing} stand{'s' if standing == 1 else ''}, {count - standing} over: {self._shown}"
        if feed.left_out:
            title += f", {feed.left_out} older ones left out"
        self._entitle("#timeline", title, f"STALE: {stale}" if stale else "CANNOT BE READ" if feed.failure else "")

    def _nothing(self, width: int) -> list[Line]:
        feed = self.console.incidents
        if feed.failure:
            return refusal_lines(f"They cannot be read: {feed.failure}", feed.remedy, width)
        if feed.read_at is None:
            return [(("Reading ...", "dim"),)]
        if feed.incidents:
            which = "of the selected run" if self._shown == SHOWN[2] else "stands"
            return [((f"None {which}; f shows others.", "good"),)]
        told = "No incident: nothing that the newest runs recorded, and nothing about the machine."
        return hanging(told, width, "good")

    def _paint_incident(self, now: float) -> None:
        one, glyphs = self._incident(), self.console.glyphs
        about, table = self.query_one("#incident", Lines), self.query_one("#choices", Table)
        width = max(1, about.room.width)
        place = ", ".join(part for part in (one.run or "the machine", one.stage) if part) if one is not None else ""
        self._entitle("#incident", place or "No incident is selected")
        before = self._choices[self._choice] if self._choice < len(self._choices) else None
        self._choices = choices_of(one) if one is not None else []
        if one is None or one.id != self._chosen_of:
            # What can be done comes first to hand; what shows it stands above.
            first = next((at for at, choice in enumerate(self._choices) if choice.remedy is not None), 0)
            self._chosen_of, self._choice = (one.id if one is not None else None), first
        elif before in self._choices:
            # What can be done may have become more or less; the cursor stays on what it was on.
            self._choice = self._choices.index(before)
        self._choice = min(self._choice, max(0, len(self._choices) - 1))
        told = cut_evidence(self._choices, self._choice, table.room.width)
        about.show((), about_lines(one, width, now, told) if one is not None else [])
        self._entitle("#choices", "Evidence, and → what can be done")
        lines = [choice_line(choice, table.room.width, glyphs, read_only=self.read_only) for choice in self._choices]
        follow = (self._choice, table.room) != (table.cursor, self._revealed_in)
        table.show((), lines, self._choice if lines else None)
        if follow:
            self._revealed_in = table.room
            table.reveal()

    def _entitle(self, selector: str, title: str, told: str = "") -> None:
        """A title costs the whole pane a repaint, so only when it changes."""
        if self._titles.get(selector) != title + told:
            self._titles[selector] = title + told
            self.query_one(selector).border_title = Text(f"{title}   {told}" if told else title)

    # What is done.

    def on_table_moved(self, message: Table.Moved) -> None:
        """A cursor is wanted on another line."""
        if message.table.id == "choices":
            self._choice = message.to
        elif message.to < len(self._listed):
            self._cursor, self._at_top = self._listed[message.to].id, message.to == 0
        self.look()

    def action_show(self) -> None:
        """All of them, those that stand, those of the selected run."""
        self._shown = SHOWN[(SHOWN.index(self._shown) + 1) % len(SHOWN)]
        self.look()

    def action_leave(self) -> None:
        """To the timeline, then to the room before."""
        timeline = self.query_one("#timeline")
        if timeline.has_focus:
            self.action_back()
        else:
            timeline.focus()

    def _selected(self) -> Choice | None:
        aim = self.query_one("#choices", Table).aim
        at = aim if aim is not None else self._choice
        return self._choices[at] if at < len(self._choices) else None

    async def action_choose(self) -> None:
        """From the timeline to the choices; there, do what the line says."""
        table = self.query_one("#choices", Table)
        if not table.has_focus:
            self._incident()
            self.look()
            table.focus()
            return
        choice, one = self._selected(), self._incident()
        if choice is None or one is None:
            return
        if choice.evidence is not None:
            await self._open_log(one, choice)
        elif choice.remedy is not None:
            await self._do(one, choice.remedy)

    async def action_logs(self) -> None:
        """Open the log that the evidence under the cursor, or else the first that names one, stands in."""
        one, choice = self._incident(), self._selected()
        if one is None or not one.run:
            self.notify("This incident has no log.", severity="warning")
            return
        if choice is None or choice.evidence is None or choice.evidence.log is None:
            logged = (each for each in self._choices if each.evidence is not None and each.evidence.log is not None)
            choice = next(logged, Choice())
        await self._open_log(one, choice)

    async def _open_log(self, one: Incident, choice: Choice) -> None:
        evidence = choice.evidence
        if not one.run or (evidence is not None and evidence.log is None):
            self.notify("There is no log to this; y copies the words.", severity="warning")
            return
        opener: Callable[..., Any] | None = getattr(self.app, "open_log", None)
        if opener is None or evidence is None:
            self.runs.select(one.run)
            await self.app.run_action("app.room('logs')")
            return
        opened = opener(one.run, evidence.log, offset=evidence.offset)
        if hasattr(opened, "__await__"):
            await opened

    async def _do(self, one: Incident, remedy: Remedy) -> None:
        if remedy.action in ("resume", "cancel") and self.read_only:
            self._copy(remedy.command or remedy.words)
        elif remedy.action == "resume":
            self.action_resume()
        elif remedy.action == "cancel":
            self.action_cancel()
        elif remedy.action == "logs":
            await self.action_logs()
        elif remedy.action == "evidence" and one.run:
            # Its table of contents; all files are listed beside it.
            self.app.open_log(one.run, f"{PurePath(one.folder).name}/{MANIFEST}", 0)  # type: ignore[attr-defined]
        elif remedy.action:
            if one.run:
                self.runs.select(one.run)
            await self.app.run_action(f"app.room('{remedy.action}')")
        elif remedy.command:
            self._copy(remedy.command)

    def action_copy(self) -> None:
        """Copy the command line of a remedy, or the words under the cursor."""
        one, choice = self._incident(), self._selected()
        if one is None:
            return
        if not self.query_one("#choices").has_focus or choice is None:
            self._copy(one.title)
        elif choice.evidence is not None:
            self._copy(choice.evidence.what)
        elif choice.remedy is not None:
            self._copy(choice.remedy.command or choice.remedy.words)

    @work(exit_on_error=False)
    async def _copy(self, text: str) -> None:
        where = await copy(text, self.app.copy_to_clipboard)
        self.notify(text, title=f"Copied {where}", markup=False)
