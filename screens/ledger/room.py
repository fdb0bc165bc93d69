"""Which runs were there, what changed from one to another, and what did one think of it?"""

import asyncio
from collections.abc import Iterable
from typing import Any, ClassVar

from rich.text import Text
from textual import events, work
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Input

from eagle3ops.errors import Eagle3opsError
from eagle3ops.screens.base import named
from eagle3ops.screens.feeds.watching import RunRow
from eagle3ops.screens.gpus.tables import refusal_lines
from eagle3ops.screens.ledger.book import ORDERS, Book, LedgerRow
from eagle3ops.screens.ledger.lines import (
    comparison_lines,
    detail_lines,
    patch_lines,
    table_head,
    table_line,
    when_words,
)
from eagle3ops.screens.ledger.note_drafts import NoteDrafts
from eagle3ops.screens.ledger.note_form import NoteForm
from eagle3ops.screens.room import RunDeeds
from eagle3ops.screens.widgets.cells import Line
from eagle3ops.screens.widgets.confirm import ConfirmByName
from eagle3ops.screens.widgets.lines import Lines, Table
from eagle3ops.words import human_bytes, plain

READ_S = 5.0
"""Between looks at what has changed, where nothing says that something has."""
SOON_S = 1.0
"""The same where the newest runs have changed."""
KEEP_S = 0.3
"""After the last key of a note, before it is written down."""
LOW = 30
"""On a terminal of fewer rows the lower pane gets less."""


class Ledger(RunDeeds):
    """All runs above; below them the one under the cursor, or what changed between the two that are marked."""

    ROOM = "ledger"
    CSS_PATH = "room.tcss"
    PLACE = "Ledger"
    DESTRUCTIVE = frozenset({"delete", "note"})
    BINDINGS: ClassVar[list[BindingType]] = [
        *named(
            "ledger",
            [
                Binding(
                    "enter",
                    "open",
                    "Open",
                    tooltip="Look at the run under the cursor, in every room",
                ),
                Binding("slash", "filter", "Filter", key_display="/", tooltip="Words, -words, figures: speedup>1.2"),
                Binding("s", "sort", "Sort", tooltip="By time, speedup, accept length, time taken, name or status"),
                Binding("space", "mark", "Mark", tooltip="Mark two runs to see what changed between them"),
                Binding("e", "unfold", "Equal too", show=False, tooltip="Of the comparison also what is equal"),
                Binding("n", "note", "Note", tooltip="Hypothesis, change, outcome of the run under the cursor"),
                Binding("p", "patches", "Patches", tooltip="What was changed in the source of this host's engines"),
                Binding("D", "delete", "Delete", tooltip="Delete the run; its name has to be typed"),
                Binding("escape", "escape", "Back", show=False, tooltip="Drop the filter, the marks, or go back"),
            ],
        )
    ]

    def __init__(self) -> None:
        super().__init__()
        self.book = Book()
        self._order = next(iter(ORDERS))
        self._words = ""
        self._rows: list[LedgerRow] = []
        self._viewed: tuple[object, ...] = ()
        self._cursor: str | None = None
        self._moved = False
        self._marks: list[str] = []
        self._unfolded = False
        self._patches: dict[str, Any] | None = None
        """The journal, while it is shown in the lower pane."""
        self._comparison: dict[str, Any] | None = None
        self._compared: tuple[str, ...] = ()
        self._notes: dict[str, tuple[int, list[dict[str, Any]]]] = {}
        self._drafts: dict[str, dict[str, str]] = {}
        self._keeping = asyncio.Lock()
        """By run: a note that was begun, as it is kept on disk, too."""
        self._told_unkept = False
        self._failure: tuple[str, str] | None = None
        """What stands in the way, and what to do."""
        self._read_at: float | None = None
        self._read_of = -1
        self._reading = False
        self._painted: tuple[object, ...] = ()
        self._titles: dict[str, str] = {}
        self._drawn: dict[str, tuple[tuple[object, ...], Line]] = {}

    def body(self) -> Iterable[Widget]:
        """The filter, the runs, and what is said of them."""
        yield Input(id="ledger-filter", placeholder="words, -words, speedup>1.2, accept>=2, wiring:fail; Escape clears")
        yield Table(id="ledger-runs", classes="titled")
        yield Lines(id="ledger-about", classes="titled")

    def on_mount(self) -> None:
        """The runs have the keys."""
        self.query_one("#ledger-about").can_focus = True
        self.query_one("#ledger-runs").focus()
        super().on_mount()

    def on_resize(self, event: events.Resize) -> None:
        """Another size makes other lines."""
        self.set_class(self.app.size.height < LOW, "low")
        super().on_resize(event)

    def on_screen_suspend(self) -> None:
        """In the other rooms it is this run that one wants to see."""
        if self._moved and (row := self._row()) is not None and row.status != "deleted":
            self._moved = False
            self.runs.select(row.run_id)

    @property
    def run_row(self) -> RunRow | None:
        """The run under the cursor."""
        row = self._row()
        return None if row is None else RunRow(row.run_id, row.name, row.status, row.when)

    def _row(self) -> LedgerRow | None:
        """The run under the cursor, also while the cursor is still on its way there."""
        aim = self.query_one("#ledger-runs", Table).aim
        if aim is not None and aim < len(self._rows):
            self._cursor, self._moved = self._rows[aim].run_id, True
        return self.book.rows.get(self._cursor) if self._cursor is not None else None

    # What is known.

    def look(self) -> None:
        """Ask when it is time; paint when there is something new."""
        now = self.console.clock()
        wait = READ_S if self._read_of == self.runs.version else SOON_S
        due = self._read_at is None or now - self._read_at >= wait or now < self._read_at
        if not self._reading and (due or self.book.more or self.book.pending):
            self._read()
        self._order_rows()
        stale = self.runs.stale
        state = (
            *self._viewed, self._cursor, tuple(self._marks), self._unfolded, id(self._comparison), self._failure, stale,
            self.size, self.runs.selected, self.app.theme, self._widths(), len(self._notes), int(now) // 10,
            id(self._patches),
        )  # fmt: skip
        if state != self._painted and self.query_one("#ledger-runs").size.width:
            self._painted = state
            self._paint(now, stale)

    def _widths(self) -> tuple[int, ...]:
        return tuple(self.query_one(name, Lines).room.width for name in ("#ledger-runs", "#ledger-about"))

    def _order_rows(self) -> None:
        viewed = (self.book.version, self._words, self._order)
        if viewed == self._viewed:
            return
        before = next((at for at, row in enumerate(self._rows) if row.run_id == self._cursor), 0)
        self._viewed, self._rows = viewed, self.book.view(self._words, self._order)
        ids = {row.run_id for row in self._rows}
        if self._cursor not in ids:
            wanted = self.runs.selected if self._cursor is None else None
            place = self._rows[min(before, len(self._rows) - 1)].run_id if self._rows else None
            self._cursor = wanted if wanted in ids else place
        self._marks = [run_id for run_id in self._marks if run_id in self.book.rows]

    @work(exclusive=True, group="ledger", exit_on_error=False)
    async def _read(self) -> None:
        self._reading, self._read_of = True, self.runs.version
        book = self.book
        try:
            answer = await self.runs.ask("ledger.rows", generation=book.generation, since=book.since)
            book.take(answer)
            self._failure = None
        except Eagle3opsError as error:
            self._failure = plain(error.what), plain(error.remedy or "")
            book.pending, book.more = 0, False
        finally:
            self._reading, self._read_at = False, self.console.clock()
        self._glance()

    @work(exclusive=True, group="compare", exit_on_error=False)
    async def _compare(self, one: str, two: str) -> None:
        try:
            self._comparison = await self.runs.ask("runs.compare", run=one, other=two)
        except Eagle3opsError as error:
            self._comparison = {"failure": plain(error)}
        self._glance()

    @work(exclusive=True, group="notes", exit_on_error=False)
    async def _read_notes(self, run_id: str, count: int) -> None:
        try:
            answer = await self.runs.ask("runs.notes", run=run_id)
        except Eagle3opsError:
            return
        notes = answer.get("notes")
        self._notes = {run_id: (count, notes if isinstance(notes, list) else [])}
        self._painted = ()
        self._glance()

    # What is shown.

    def _paint(self, now: float, stale: str) -> None:
        table, glyphs = self.query_one("#ledger-runs", Table), self.console.glyphs
        width = table.room.width
        lines = [self._line(row, width, now) for row in self._rows]
        cursor = next((at for at, row in enumerate(self._rows) if row.run_id == self._cursor), None)
        if stale:
            lines = [tuple((text, "stale") for text, _ in line) for line in lines]
        follow = cursor != table.cursor
        table.show(table_head(width, glyphs), lines or self._nothing(width), cursor)
        if follow:
            table.reveal()
        unread = "CANNOT BE READ" if self._failure else ""
        self._entitle("#ledger-runs", self._title(), f"STALE: {stale}" if stale else unread)
        self._paint_about(now)

    def _line(self, row: LedgerRow, width: int, now: float) -> Line:
        """The row's line; with many hundred rows it counts that most of them are as they were."""
        told = when_words(row, now)
        marked, chosen = row.run_id in self._marks, row.run_id == self.runs.selected
        key = (id(row), width, told, marked, chosen)
        known = self._drawn.get(row.run_id)
        if known is None or known[0] != key:
            known = key, table_line(row, width, self.console.glyphs, told, marked=marked, chosen=chosen)
            self._drawn[row.run_id] = known
        return known[1]

    def _nothing(self, width: int) -> list[Line]:
        if self._failure:
            return refusal_lines(*self._failure, width)
        told = "There is no run yet; 0 opens Launch, where one is started."
        if self._read_at is None:
            told = "Reading the runs ..."
        elif self.book.rows:
            told = "No run fits the filter."
        return [((told, "dim"),)]

    def _title(self) -> str:
        count = len(self.book.rows)
        fit = f"{len(self._rows)} of {count} runs" if self._words else f"{count} run{'s' if count != 1 else ''}"
        pending = f", figures of {self.book.pending} still to be read" if self.book.pending else ""
        words = f"   filter: {self._words}" if self._words else ""
        return f"{fit} by {self._order}{pending}{words}"

    def _paint_about(self, now: float) -> None:
        about, glyphs = self.query_one("#ledger-about", Lines), self.console.glyphs
        width = max(1, about.room.width)
        self.set_class(len(self._marks) == 2 or self._patches is not None, "comparing")
        if self._patches is not None:
            self._entitle("#ledger-about", "Patches of this host's engines", "p shows the run again")
            failure = self._patches.get("failure")
            lines: list[Line] = [((piece, "bad"),) for piece in str(failure or "").splitlines()]
            about.show((), lines or patch_lines(self._patches, width, glyphs))
            return
        if len(self._marks) == 2:
            self._entitle("#ledger-about", "What changed", "e shows what is equal too" if not self._unfolded else "")
            found = self._comparison
            if found is None:
                about.show((), [(("Comparing ...", "dim"),)])
            elif "failure" in found:
                about.show((), [((piece, "bad"),) for piece in str(found["failure"]).splitlines()])
            else:
                head, *lines = comparison_lines(found, width, glyphs, unfolded=self._unfolded)
                about.show(head, lines)
            return
        row = self._row()
        marked = "   one is marked: mark another one to compare" if self._marks else ""
        self._entitle("#ledger-about", (row.run_id if row is not None else "No run") + marked)
        notes = None
        if row is not None and row.notes:
            count, known = self._notes.get(row.run_id, (-1, None))
            notes = known
            if count != row.notes:
                self._read_notes(row.run_id, row.notes)
        about.show((), detail_lines(row, notes, width, glyphs) if row is not None else [])

    def _entitle(self, selector: str, title: str, told: str = "") -> None:
        """A title costs the whole pane a repaint, so only when it changes."""
        if self._titles.get(selector) != title + told:
            self._titles[selector] = title + told
            self.query_one(selector).border_title = Text(f"{title}   {told}" if told else title)

    # What is done.

    def on_table_moved(self, message: Table.Moved) -> None:
        """The cursor is wanted on another run."""
        if message.to < len(self._rows):
            self._cursor, self._moved = self._rows[message.to].run_id, True
            self.look()

    async def action_open(self) -> None:
        """Look at the run under the cursor, in every room."""
        row = self._row()
        if row is None:
            return
        if row.status == "deleted":
            self.notify("The run was deleted; only its notes are left.", severity="warning")
            return
        self._moved = False
        self.runs.select(row.run_id)
        await self.app.run_action("app.room('run')")

    def action_filter(self) -> None:
        """Type what the runs have to hold."""
        self.add_class("filtering")
        self.query_one("#ledger-filter").focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter as one types."""
        self._words = event.value.strip()
        self.look()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Back to the runs, with the filter."""
        self.query_one("#ledger-runs").focus()

    def action_escape(self) -> None:
        """Drop the filter, then the marks, then go back to the room before."""
        field = self.query_one("#ledger-filter", Input)
        if field.has_focus or self._words:
            field.value = ""
            self.remove_class("filtering")
            self.query_one("#ledger-runs").focus()
        elif self._patches is not None:
            self.action_patches()
        elif self._marks:
            self._marks = []
            self.look()
        else:
            self.action_back()

    def action_sort(self) -> None:
        """Sort by the next figure."""
        names = list(ORDERS)
        self._order = names[(names.index(self._order) + 1) % len(names)]
        self.look()

    def action_mark(self) -> None:
        """Mark the run, or take its mark away; of three marks the oldest goes."""
        row = self._row()
        if row is None or row.status == "deleted":
            return
        if row.run_id in self._marks:
            self._marks.remove(row.run_id)
        else:
            self._marks = [*self._marks[-1:], row.run_id]
        marks = tuple(sorted(self._marks, key=lambda run_id: self.book.rows[run_id].began))
        if len(marks) == 2 and marks != self._compared:
            self._comparison = None
            self._compare(*marks)
        self._compared = marks
        self.look()

    def action_patches(self) -> None:
        """Show the journal of patches, or the run again."""
        if self._patches is not None:
            self._patches = None
            self.look()
        else:
            self._read_patches()

    @work(exclusive=True, group="patches", exit_on_error=False)
    async def _read_patches(self) -> None:
        try:
            self._patches = await self.runs.ask("patches.journal")
        except Eagle3opsError as error:
            self._patches = {"failure": plain(error)}
        self._glance()

    def action_unfold(self) -> None:
        """Show what is equal too, or only what differs."""
        self._unfolded = not self._unfolded
        self.look()

    @work(exit_on_error=False)
    async def action_note(self) -> None:
        """Write down what one thinks of the run."""
        row = self._row()
        if row is None:
            return
        if row.status == "deleted":
            self.notify("The run was deleted; its notes cannot be added to.", severity="warning")
            return
        run_id, drafts = row.run_id, NoteDrafts(self.console.link.name, self.runs.where)
        if run_id not in self._drafts:
            self._drafts[run_id] = await asyncio.to_thread(drafts.read, run_id)
        if isinstance(self.app.screen, NoteForm):
            return
        form = NoteForm(run_id, self._drafts[run_id], row.note, lambda typed: self._keep_note(drafts, run_id, typed))
        answer = await self.app.push_screen_wait(form)
        said = dict(answer)
        save = said.pop("save", "")
        self._keep_note(drafts, run_id, said, soon=False)
        if save and await self._write_note(run_id, said):
            self._keep_note(drafts, run_id, {}, soon=False)

    @work(group="draft", exit_on_error=False)
    async def _keep_note(self, drafts: NoteDrafts, run_id: str, typed: dict[str, str], *, soon: bool = True) -> None:
        """Write down what was typed, a moment after the last key.

        One after the other: a thread that writes cannot be called back, and what is older must not come last.
        """
        self._drafts[run_id] = typed
        if soon:
            await asyncio.sleep(KEEP_S)
        try:
            async with self._keeping:
                if self._drafts[run_id] is typed:
                    await asyncio.to_thread(drafts.keep, run_id, typed)
        except OSError as error:
            if not self._told_unkept:
                self._told_unkept = True
                told = f"{plain(error)}\nIt is lost if the console is killed before it is saved."
                self.notify(told, title="The note cannot be kept while it is typed", severity="warning", markup=False)

    async def _write_note(self, run_id: str, said: dict[str, str]) -> bool:
        if self.read_only or not self.may_order("The note was not added"):
            return False
        try:
            await self.runs.ask("runs.note", run=run_id, **said)
        except Eagle3opsError as error:
            self.notify(plain(error), title="The note was not added", severity="error", markup=False)
            return False
        self.notify("The note was added.", title=run_id, markup=False)
        self._read_at = None
        self._glance()
        return True

    @work(exit_on_error=False)
    async def action_delete(self) -> None:
        """Delete the run under the cursor, if the person types its name."""
        row = self._row()
        if row is None or self.read_only:
            return
        run_id, title = row.run_id, f"Delete {row.run_id}"
        if row.status == "deleted":
            self.notify("It was deleted already; its notes are kept.", severity="warning")
            return
        if not self.may_order(title):
            return
        try:
            would = await self.runs.ask("runs.delete", run=run_id)
            size = would.get("bytes")
            told = f"{human_bytes(size)} of logs and records" if isinstance(size, int | float) else "Its records"
            kept = " Its notes are kept." if would.get("notes_kept") else ""
            sure = await self.app.push_screen_wait(
                ConfirmByName(
                    f"Delete the run {run_id}?",
                    f"{told} go for good.{kept} Outputs of its stages stay as long as another run needs them.",
                    name=run_id,
                    yes="Delete the run",
                    no="Keep it",
                )
            )
            if not sure or not self.may_order(title):
                return
            await self.runs.ask("runs.delete", run=run_id, delete=True)
        except Eagle3opsError as error:
            self.notify(plain(error), title=title, severity="error", markup=False)
            return
        if self.runs.selected == run_id:
            self.runs.select(None)
        self.notify("Deleted.", title=title, markup=False)
        self._read_at = None
        self.runs.hurry()
        self._glance()
