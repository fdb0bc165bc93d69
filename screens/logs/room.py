"""What do the processes of a run say? Its logs, of any length: read, followed, searched, filtered, copied."""

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from rich.text import Text
from textual import events, on, work
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from eagle3ops.errors import Eagle3opsError
from eagle3ops.runs.log_files import evidence_folder
from eagle3ops.screens.base import named
from eagle3ops.screens.logs.place import LogPlace
from eagle3ops.screens.logs.places import LogPlaces
from eagle3ops.screens.logs.reading import TYPING_S, many
from eagle3ops.screens.logs.source import Document, Matches, RunHost, Which
from eagle3ops.screens.logs.text import parse_place
from eagle3ops.screens.logs.view import LogView
from eagle3ops.screens.widgets.clipboard import copy
from eagle3ops.words import human_bytes, plain

LOOK_S, LONGEST_LOOK_S = 0.3, 2.0
WIDE = 110
"""Columns from which on the list of logs stands beside the log."""

COPY_LINES = 5000
NAME_WIDTH = 26
ALL, BACK = "*", ".."
"""In the list of logs, what stands for all of them as one, and for going back to them from evidence: no log's name."""

_ASKED = {
    "search": "Search: a regular expression; small letters stand for capitals, too",
    "filter": "Filter: a regular expression, ! in front: the lines without it",
    "go": "Go to: a line number, -20 from the end, or 50%",
    "part": "Only: ranks such as 0,3-5, roles such as engine; empty: all",
}
_LEVELS = ("", "warning", "error")


class Logs(LogPlaces):
    """The list of logs at the left, one log or all at the right, and below it where one is."""

    ROOM = "logs"
    CSS_PATH = "room.tcss"
    PLACE = "Logs"
    BINDINGS: ClassVar[list[BindingType]] = [
        *named(
            "logs",
            [
                Binding("f", "follow", "Follow", tooltip="Stay at the end, or stay here"),
                Binding("slash", "ask('search')", "Find", key_display="/", tooltip="A regular expression"),
                Binding("ampersand", "ask('filter')", "Filter", key_display="&", tooltip="Only lines that match"),
                Binding("e", "level", "Level", tooltip="All lines, warnings and errors, errors only"),
                Binding("m", "merge", "Merge", tooltip="All logs as one, or the log of this line by itself"),
                Binding("number_sign", "ask('part')", "Ranks", key_display="#", tooltip="Only some ranks or roles"),
                Binding("E", "cause", "Cause", tooltip="To the line that says why the run failed"),
                Binding("l", "list", "Logs", tooltip="To the list of logs, or back"),
                Binding("w", "wrap", "Wrap", tooltip="Break long lines, or let them run on"),
                Binding("t", "times", "Times", tooltip="Leave out the times that lines begin with, or show them"),
                Binding("y", "copy", "Copy", tooltip="The line of the cursor, or the selected ones"),
                Binding("n", "next(1)", "Next match", show=False, tooltip="To the next match"),
                Binding("N", "next(-1)", "Previous match", show=False, tooltip="To the match before"),
                Binding("colon,ctrl+g", "ask('go')", "Go to line", show=False, tooltip="A number, -20 or 50%"),
                Binding("greater_than_sign", "other(1)", "Next log", show=False, tooltip="Empty ones are left out"),
                Binding("less_than_sign", "other(-1)", "Previous log", show=False, tooltip="The one before"),
                Binding("left_square_bracket", "run(1)", "Older run", show=False, tooltip="The logs of the run before"),
                Binding("right_square_bracket", "run(-1)", "Newer run", show=False, tooltip="Those of the run after"),
            ],
        )
    ]

    def __init__(self) -> None:
        super().__init__()
        self._asking: str | None = None
        self._told_last = Text()

    def body(self) -> Iterable[Widget]:
        """The list, the log, the line to type in and the status."""
        self._host = RunHost(self.console.link, "", self.runs.root)
        yield Horizontal(
            OptionList(id="log-list", markup=False),
            Vertical(
                LogView(Document(self._host, Which.one("")), id="log"),
                Input(id="log-ask"),
                Static(id="log-status"),
                id="log-pane",
            ),
            id="log-body",
        )

    def on_mount(self) -> None:
        """Begin to look."""
        self._list.border_title = "Logs"
        self._view.focus()
        self.set_interval(1.0, self._show_status)
        self._show_status()

    def look(self) -> None:
        """Turn to the selected run, and to the place in it that somebody points to."""
        wanted: LogPlace | None = getattr(self.app, "log_wanted", None)
        if self.runs.selected is None and self._run_id:
            # It was deleted, and no other is left.
            self.workers.cancel_group(self, "watch")
            self._run_id, self._sizes, self._document, self._evidence = "", {}, None, ""
            self._filter = self._search = self._hit = self._origin = self._error = None
            self._list.clear_options()
            self._view.border_title, self._view.labels = Text(""), ()
            self._view.show(Document(self._host, Which.one("")), 0)
            self._show_status()
        if self.runs.selected is not None and self.runs.selected != self._run_id:
            self._run_id = self.runs.selected
            self._host = RunHost(self.console.link, self._run_id, self.runs.root)
            self._sizes, self._document, self._evidence = {}, None, ""
            self._filter = self._search = self._hit = self._origin = self._error = None
            self._list.clear_options()
            view = self._view
            view.border_title, view.labels = Text(plain(self._run_id)), ()
            view.show(Document(self._host, Which.one("")), 0)
            self._watch()
        if wanted is not None and wanted.run_id == self._run_id:
            self.app.log_wanted = None  # type: ignore[attr-defined]
            self._typed["filter"], self._level = "", ""
            self._open(Which.one(wanted.log), wanted)

    @property
    def _list(self) -> OptionList:
        return self.query_one("#log-list", OptionList)

    def on_resize(self, _: events.Resize) -> None:
        """The list has its place beside the log when there is room; else `l` brings it."""
        self._list.display = self.size.width >= WIDE

    # What is there, and what is added.

    @work(exclusive=True, group="watch", exit_on_error=False)
    async def _watch(self) -> None:
        """Look at the sizes of the logs, and at the end of the one that is shown when it has grown."""
        pause, failed = LOOK_S, False
        while True:
            if not self.visible_now:
                await asyncio.sleep(LOOK_S)
                continue
            try:
                folder = self._evidence
                found = await self._host.call("log.list", **({"evidence": folder} if folder else {}))
                if folder != self._evidence:
                    continue
                self._read_at = self.console.clock()
                self._show_list({str(log["log"]): int(log["size"]) for log in found.get("logs", [])}, found)
                grown = await self._look()
                if failed:
                    failed, self._error = False, None
            except Eagle3opsError as error:
                self._say(error)
                grown, failed = False, True
            self._show_status()
            pause = LOOK_S if grown else min(pause * 1.5, LONGEST_LOOK_S)
            await asyncio.sleep(pause)

    async def _look(self) -> bool:
        """Take in what was added; true when something was."""
        document = self._document
        if document is None or not document.grown(self._sizes):
            return False
        known = document.size >= 0
        if await document.look():
            # Cut, or another file: whatever matched in it is void.
            self._apply_filter()
            self._apply_search(jump=False)
        if document is not self._document:
            return True
        if self._filter is None:
            self._view.changed()
        if not document.counted:
            self._show_status()
            await document.number()
            await document.look()
            self._view.changed()
        for matches in (self._filter, self._search):
            if known and matches is not None and matches.complete:
                await matches.scan(self._scanned)
        return True

    def _show_list(self, sizes: dict[str, int], found: Mapping[str, Any]) -> None:
        total = _log_label("All logs as one", sum(sizes.values()))
        before, self._sizes = self._sizes, sizes
        if list(sizes) != list(before):
            self._list.clear_options()
            self._list.border_title = self._evidence or "Logs"
            if self._evidence:
                self._list.add_option(Option(Text("the run's logs"), id=BACK))
            elif len(sizes) > 1:
                self._list.add_option(Option(total, id=ALL))
            self._list.add_options([Option(_log_label(log, size), id=log) for log, size in sizes.items()])
            if self._document is not None:
                self._listed(self._document.which)
        elif sizes != before:
            if len(sizes) > 1 and not self._evidence:
                self._list.replace_option_prompt(ALL, total)
            for log, size in sizes.items():
                if size != before[log]:
                    self._list.replace_option_prompt(log, _log_label(log, size))
        if self._document is None and sizes:
            times = {str(log["log"]): float(log["modified"]) for log in found["logs"]}
            self._open(Which.one(max(sizes, key=lambda log: (sizes[log] > 0, times[log], sizes[log]))))
        elif self._document is not None and self._document.which.merged:
            which = self._merged()
            if which != self._document.which and any(sizes[log] for log in set(which.logs) - set(before)):
                self._open_anew(which)

    @work(exclusive=True, group="place", exit_on_error=False)
    async def _open_anew(self, which: Which) -> None:
        """There is one log more: merge it, too, and stay at the line."""
        try:
            place = await self._here()
        except Eagle3opsError as error:
            self._say(error)
        else:
            self._open(which, place)

    def _listed(self, which: Which) -> None:
        ids = [option.id for option in self._list.options]
        wanted = ALL if which.merged else which.logs[0]
        self._list.highlighted = ids.index(wanted) if wanted in ids else None

    @on(OptionList.OptionSelected, "#log-list")
    def _selected(self, event: OptionList.OptionSelected) -> None:
        chosen = event.option.id
        if chosen == BACK:
            self._leave_evidence()
        elif chosen is not None:
            self._open_whole(self._merged() if chosen == ALL else Which.one(chosen))
        if chosen is not None:
            self._list.display = self.size.width >= WIDE
            self._view.focus()

    def _open_whole(self, which: Which) -> None:
        """Show a log at its end, or evidence, to which nothing is added, at its beginning."""
        self._open(which, LogPlace(self._run_id, which.logs[0], 0) if self._evidence else None)

    # Keys.

    def action_back(self) -> None:
        """Leave the line that is typed in, the selection, the list, or the screen."""
        if self._asking is not None:
            self._end_asking()
        elif self._view.mark is not None:
            self._view.action_select()
        elif self._list.has_focus and self.size.width < WIDE:
            self.action_list()
        else:
            super().action_back()

    def action_follow(self) -> None:
        """Stay at the end, or stay here."""
        if self._view.follow:
            self._view.follow = False
        else:
            self._view.action_last()
        self._show_status()

    def action_wrap(self) -> None:
        """Break long lines, or let them run out of the window."""
        view = self._view
        view.wrap = not view.wrap
        view.scroll_to(x=0, animate=False)
        view.changed()
        view.go(view.cursor)
        self._show_status()

    def action_times(self) -> None:
        """Show the times at the beginning of lines, or leave them out; a log that has none gets none."""
        view, shown = self._view, self._view.times
        view.times = True
        lines = [view.shown(view.top + row) for row in range(view.height)]
        if any(line is not None and line.time for line in lines):
            view.times = not shown
        else:
            self.notify("The lines here begin with no time; none is made up.", severity="warning")
        view.changed()
        self._show_status()

    def action_level(self) -> None:
        """All lines, warnings and errors, errors only."""
        self._level = _LEVELS[(_LEVELS.index(self._level) + 1) % len(_LEVELS)]
        self._apply_filter()
        self._apply_search(jump=False)

    def action_list(self) -> None:
        """To the list of logs, or back from it."""
        if self._list.has_focus:
            self._list.display = self.size.width >= WIDE
            self._view.focus()
        else:
            self._list.display = True
            self._list.focus()

    def action_other(self, step: int) -> None:
        """The next log that is not empty."""
        if self._document is None:
            return
        which = self._document.which
        names = [log for log, size in self._sizes.items() if size or log == which.logs[0]]
        if which.merged:
            self._open(Which.one(names[0 if step > 0 else -1]))
        elif len(names) > 1 and which.logs[0] in names:
            self._open_whole(Which.one(names[(names.index(which.logs[0]) + step) % len(names)]))

    def action_run(self, step: int) -> None:
        """The logs of another run, which every room then looks at."""
        self.runs.step(step)

    def action_ask(self, what: str) -> None:
        """Ask for a pattern or a place; what was typed last time stands there."""
        self._asking = what
        ask = self.query_one("#log-ask", Input)
        ask.border_title = _ASKED[what]
        ask.border_subtitle = "enter: done   esc: back to the log"
        with self.prevent(Input.Changed):
            ask.value = "" if what == "go" else self._typed[what]
        ask.display = True
        ask.focus()

    def _end_asking(self) -> None:
        self._asking = None
        self.query_one("#log-ask", Input).display = False
        self._view.focus()

    @on(Input.Changed, "#log-ask")
    def _typing(self, event: Input.Changed) -> None:
        if self._asking == "filter":
            self._typed["filter"] = event.value
            self._apply_filter(TYPING_S)

    @on(Input.Submitted, "#log-ask")
    def _typed_in(self, event: Input.Submitted) -> None:
        what = self._asking
        self._end_asking()
        if what == "go":
            row = parse_place(event.value, self._view.rows.count)
            if row is None:
                self.notify("A place is a line number, -20 or 50%.", severity="warning")
            elif isinstance(self._view.rows, Matches) and "%" not in event.value and "-" not in event.value:
                self._go_to_line(int(parse_place(event.value, 1 << 60) or 0))
            else:
                self._view.go(row, middle=True)
        elif what == "part":
            self._choose_part(event.value)
        elif what is not None:
            self._typed[what] = event.value
            if what == "filter":
                self._apply_filter()
            self._apply_search(jump=what == "search")

    @work(exclusive=True, group="jump", exit_on_error=False)
    async def _go_to_line(self, number: int) -> None:
        rows = self._view.rows
        if isinstance(rows, Matches):
            self._view.go(await rows.row_at(number), middle=True)

    @work(exclusive=True, group="copy", exit_on_error=False)
    async def action_copy(self) -> None:
        """Copy the line of the cursor, or the selected ones, and say where to."""
        first, last = self._view.selection()
        if not self._view.rows.count:
            self.notify("There is no line to copy.", severity="warning")
            return
        try:
            lines = await self._view.rows.lines(first, min(last, first + COPY_LINES - 1))
        except Eagle3opsError as error:
            self._say(error)
            return
        text = "\n".join("\t".join(map(plain, line.text.split("\t"))) for line in lines)
        where = await copy(text, self.app.copy_to_clipboard)
        more = f" (at most {COPY_LINES:,} at once)" if last - first >= COPY_LINES else ""
        self.notify(f"{many(len(lines), 'line')}{more}, {where}", title="Copied", markup=False)
        self._view.mark = None
        self._view.redraw()

    # The status.

    def _show_status(self) -> None:
        """Where one is, and what one sees."""
        if not self.is_mounted:
            return
        stale = self.runs.way != "connected"
        self.query_one("#log-body").set_class(stale, "stale")
        how = self._how() if self._document is not None else Text()
        if stale:
            seen = "nothing read yet"
            if self._read_at:
                seen = time.strftime("read at %H:%M:%S", time.localtime(self._read_at))
            state, way = self.console.link.state, self.runs.way
            how = Text(f"! {plain(state) if state.kind == way else way}; {seen}", style="bold yellow")
        self._view.tell(self._why_nothing())
        told = Text("\n").join([self._where(), how])
        if told != self._told_last or told.spans != self._told_last.spans:
            self._told_last = told
            self.query_one("#log-status", Static).update(told, layout=False)


def _log_label(log: str, size: int) -> Text:
    name = plain(log.removeprefix(f"{evidence_folder(log)}/").removesuffix(".log"))
    name = name if len(name) <= NAME_WIDTH else name[: NAME_WIDTH - 1] + "…"
    label = Text.assemble((f"{name:<{NAME_WIDTH}}", "" if size else "dim"), (f"{human_bytes(size):>11}", "dim"))
    label.no_wrap = True
    return label
