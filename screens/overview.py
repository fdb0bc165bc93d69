"""Which runs are there, how does the selected one stand, and what did it say last?"""

import time
from typing import Any, ClassVar
from uuid import uuid4

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.message import Message
from textual.widgets import Footer, Header, OptionList, RichLog, Static
from textual.widgets.option_list import Option

from eagle3ops.errors import Eagle3opsError
from eagle3ops.hosts.link import Link, LinkState
from eagle3ops.hosts.transport import ConnectionRefusedForGood
from eagle3ops.screens.base import ConsoleScreen, named
from eagle3ops.screens.confirm import Confirm
from eagle3ops.screens.endings import Endings
from eagle3ops.screens.gpu_strip import GpuStrip
from eagle3ops.screens.logs import Logs
from eagle3ops.screens.watching import NEWEST, QUIET_S, RunDetail, RunRow, RunWatch, StageRow, age, run_rows
from eagle3ops.words import human_seconds, plain

_MARKS = {
    "running": ("●", "bold cyan"),
    "done": ("✓", "green"),
    "reused": ("✓", "green"),
    "failed": ("✗", "bold red"),
    "verdict FAIL": ("!", "bold red"),
    "cancelled": ("■", "yellow"),
    "interrupted": ("◌", "yellow"),
    "waiting": ("·", "dim"),
}
_RESUMABLE = {"failed", "cancelled", "interrupted", "created"}


class Overview(ConsoleScreen[None]):
    """Runs at the left, the selected one at the right."""

    CSS_PATH = "overview.tcss"
    PLACE = "Overview"
    DESTRUCTIVE = frozenset({"resume", "cancel"})
    BINDINGS: ClassVar[list[BindingType]] = [
        *named(
            "overview",
            [
                Binding("r", "resume", "Resume"),
                Binding("c", "cancel", "Cancel"),
                Binding("o", "logs", "Logs", tooltip="What the processes of the selected run say"),
                Binding("g", "app.gpus", "GPUs", tooltip="What the machine's GPUs and processes do"),
                Binding("l", "reconnect", "Reconnect", show=False, tooltip="Try the line to the host now"),
                Binding("tab", "app.focus_next", "Next pane", show=False, tooltip="Go to the next pane"),
            ],
        )
    ]

    class RunEnded(Message):
        """A run that was seen going on has ended."""

        def __init__(self, row: RunRow) -> None:
            super().__init__()
            self.row = row

    def __init__(self, link: Link, root: str | None, refresh_s: float = 1.0) -> None:
        super().__init__()
        self._link = link
        self._root = root
        self._refresh_s = refresh_s
        self._where = root or ""
        self._rows: list[RunRow] = []
        self._watch: RunWatch | None = None
        self._detail: RunDetail | None = None
        self._shown: tuple[float, str, str] | None = None
        self._reading = False
        self._following = False
        self._laid_out = False
        self._endings = Endings()

    def compose(self) -> ComposeResult:
        """Lay the panes out; the hint takes their place as long as there are no runs."""
        yield Header()
        yield Static(id="hint")
        with Horizontal(id="panes"):
            yield OptionList(id="runs", markup=False)
            with Vertical(id="detail"):
                with VerticalScroll(id="summary"):
                    yield Static(id="facts")
                yield RichLog(id="events", markup=False, highlight=False, wrap=True, min_width=20, max_lines=2000)
        yield GpuStrip()
        yield Footer()

    def on_mount(self) -> None:
        """Name the panes, read once now and then every second."""
        for selector, title in (("#runs", "Runs"), ("#summary", "Run"), ("#events", "Events")):
            self.query_one(selector).border_title = title
        self.query_one("#panes").display = False
        self._laid_out = True
        self.show_link(self._link.state)
        self.set_interval(self._refresh_s, self.refresh_runs)
        self.refresh_runs()

    @property
    def _hidden(self) -> bool:
        """Another screen covers this one whole; painting would cost the line to the terminal, for nobody."""
        return self.app.screen is not self and not self.app.screen.is_modal

    def refresh_runs(self) -> None:
        """Ask again; while the last answer is still awaited, what is known grows visibly older."""
        if not self._reading:
            self._read()
        elif not self._hidden:
            self._show_runs(self._rows)
            if self._detail is not None:
                self._show_detail(self._detail)

    def on_screen_resume(self) -> None:
        """What covered this screen is gone."""
        if self._laid_out:
            self.refresh_runs()

    def show_link(self, state: LinkState) -> None:
        """The line to the host came up, dropped, or will not come up; what was known of its runs stays."""
        if not self._laid_out or state.kind == "closed":
            return
        if state.kind == "connected":
            self.query_one("#panes").remove_class("stale")
            self.refresh_runs()
        elif not self._rows:
            self.query_one("#hint", Static).update(_link_hint(self._link.name, state))
        else:
            self.query_one("#panes").add_class("stale")
        if state.kind == "stopped" and self._rows:
            told = plain(state.why or "") + (f"\n→ {plain(state.remedy)}" if state.remedy else "")
            told += "\nThen press l."
            self.notify(told, title=f"{self._link.name}: stopped", severity="error", timeout=120, markup=False)

    @work(exit_on_error=False)
    async def _read(self) -> None:
        self._reading = True
        try:
            found = await self._ask("runs.list", limit=NEWEST)
            self._where = plain(found.get("root", ""))
            rows = run_rows(found.get("runs", []))
            for row in self._endings.take(rows):
                self.post_message(self.RunEnded(row))
            if self._hidden:
                return
            self._show_runs(rows)
            watch = self._watch
            if watch is not None:
                state = await self._ask("runs.state", run=watch.run_id)
                if watch is self._watch:
                    self._detail = watch.detail(state)
                    self._show_detail(self._detail)
                    if state.get("alive") and not self._following:
                        # It was taken up again after the stream of its events had ended.
                        self._follow(watch)
        except ConnectionRefusedForGood:
            # The link says so itself.
            pass
        except Eagle3opsError as error:
            self.notify(plain(error), title="The runs cannot be read", severity="error", markup=False)
        finally:
            self._reading = False

    @work(exclusive=True, group="events", exit_on_error=False)
    async def _follow(self, watch: RunWatch) -> None:
        """Take the events of the selected run as they come."""
        self._following = True
        try:
            async for event in self._link.events(watch.run_id, watch.last_seq, root=self._root):
                watch.take(event)
        except Eagle3opsError as error:
            self.notify(plain(error), title="The events cannot be read", severity="error", markup=False)
        finally:
            if self._watch is watch:
                self._following = False
        self.refresh_runs()

    async def _ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        if self._root is not None:
            arguments["root"] = self._root
        return await self._link.call(op, **arguments)

    def _show_runs(self, rows: list[RunRow]) -> None:
        hint = self.query_one("#hint", Static)
        hint.display = not rows
        if not rows:
            hint.update(self._hint())
        self.query_one("#panes").display = bool(rows)
        options = self.query_one("#runs", OptionList)
        if [row.run_id for row in rows] != [row.run_id for row in self._rows]:
            selected = self._selected()
            options.clear_options()
            options.add_options([Option(_run_label(row), id=row.run_id) for row in rows])
            ids = [row.run_id for row in rows]
            if ids:
                options.highlighted = ids.index(selected) if selected in ids else 0
                if self.focused is None:
                    options.focus()
        else:
            for row in rows:
                options.replace_option_prompt(row.run_id, _run_label(row))
        self._rows = rows

    def _selected(self) -> str | None:
        options = self.query_one("#runs", OptionList)
        if options.highlighted is None or not options.option_count:
            return None
        return options.get_option_at_index(options.highlighted).id

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Another run was selected."""
        run_id = event.option.id
        if run_id is None or (self._watch is not None and self._watch.run_id == run_id):
            return
        self._watch, self._detail = RunWatch(run_id), None
        self._shown = None
        self.query_one("#events", RichLog).clear()
        self._follow(self._watch)
        self.refresh_runs()

    def _show_detail(self, detail: RunDetail) -> None:
        now = time.time()
        self.query_one("#summary").border_title = Text(detail.row.run_id)
        parts: list[Text | Table] = [_status_line(detail, now)]
        if detail.cause:
            parts.append(Text(detail.cause, style="bold red" if detail.row.status != "cancelled" else ""))
        if detail.remedy:
            parts.append(Text(f"→ {detail.remedy}"))
        parts += [Text(), _stage_table(detail.stages, now)]
        if detail.verdicts:
            parts += [Text(), _verdict_table(detail.verdicts)]
        parts += [Text(), Text(detail.path, style="dim")]
        self.query_one("#facts", Static).update(Group(*parts))
        log = self.query_one("#events", RichLog)
        fresh = detail.tail
        if self._shown in fresh:
            fresh = fresh[len(fresh) - fresh[::-1].index(self._shown) :]
        for ts, kind, text in fresh:
            style = {"warn": "yellow", "error": "bold red"}.get(kind, "")
            log.write(Text.assemble((time.strftime("%H:%M:%S ", time.localtime(ts)), "dim"), (text, style)))
        if detail.tail:
            self._shown = detail.tail[-1]

    def _hint(self) -> Group:
        host = "" if self._link.name == "local" else f" --host {self._link.name}"
        root = f" --root {self._where}" if self._root is not None else ""
        where = "" if self._link.name == "local" else f" on {self._link.name}"
        return Group(
            Text(f"No runs in {self._where}{where} yet."),
            Text(),
            Text("Start the demonstration in another terminal; it takes some minutes and appears here:"),
            Text(),
            Text(f"  eagle3ops --job pipeline{host}{root}", style="bold"),
            Text(),
            Text(f"What it would do, with forecasts:  eagle3ops plan{host}{root}"),
            Text(f"What the machine has and lacks:    eagle3ops doctor{host}"),
        )

    def _row(self) -> RunRow | None:
        selected = self._selected()
        return next((row for row in self._rows if row.run_id == selected), None)

    @work(exit_on_error=False)
    async def action_reconnect(self) -> None:
        """Try the line to the host now; from a worker, as it may have to ask for a passphrase."""
        self._link.start()
        self._link.wake()

    def action_logs(self) -> None:
        """What the processes of the selected run say."""
        row = self._row()
        if row is None:
            self.notify("There is no run whose logs could be shown.", severity="warning")
        else:
            self.app.push_screen(Logs(self._link, row.run_id, self._root))

    def action_resume(self) -> None:
        """Take the selected run up again."""
        row = self._row()
        if row is None:
            self.notify("There is no run to resume.", severity="warning")
        elif row.status not in _RESUMABLE:
            self.notify(f"{row.run_id} is {row.status}; there is nothing to resume.", severity="warning", markup=False)
        else:
            self._command("resume", row.run_id)

    def action_cancel(self) -> None:
        """End the selected run, if the person confirms."""
        row = self._row()
        if row is None or row.status != "running":
            text = f"{row.run_id} is not running; it is {row.status}." if row else "There is no run to cancel."
            self.notify(text, severity="warning", markup=False)
            return
        run_id = row.run_id

        def answered(yes: bool | None) -> None:
            if yes:
                self._command("cancel", run_id)

        self.app.push_screen(
            Confirm(
                f"Cancel the run {run_id}?",
                "Its stage is ended. What it has finished is kept, and the run can be resumed.",
                yes="Cancel the run",
                no="Let it run",
            ),
            answered,
        )

    @work(exit_on_error=False)
    async def _command(self, verb: str, run_id: str) -> None:
        """Ask for a resumption or a cancellation: the same checks and words as on the command line."""
        title = f"{verb.capitalize()} {run_id}"
        if self.read_only:
            self.notify("The console is read-only.", title=title, severity="warning", markup=False)
            return
        try:
            if verb == "resume":
                answer = await self._ask("runs.resume", run=run_id, token=uuid4().hex)
                told = "taken up again" if answer.get("fresh") else "was taken up already"
            else:
                answer = await self._ask("runs.cancel", run=run_id)
                told = "asked to end" if answer.get("asked") else f"is {plain(answer.get('status', 'not running'))}"
        except Eagle3opsError as error:
            self.notify(plain(error), title=title, severity="error", markup=False)
        else:
            self.notify(f"{run_id}: {told}", title=title, markup=False)
        self.refresh_runs()


def _link_hint(host: str, state: LinkState) -> Group:
    """What stands in the way of seeing anything, and what to do."""
    lines = [Text(f"{host}: {plain(state)}", style="bold red" if state.kind == "stopped" else "")]
    if state.remedy:
        lines += [Text(), Text(f"→ {plain(state.remedy)}")]
    if state.kind == "stopped":
        lines += [Text(), Text("Trying again is of no use until that is put right; then press l.")]
    return Group(*lines)


def _mark(status: str) -> tuple[str, str]:
    return _MARKS.get(status, ("?", ""))


def _run_label(row: RunRow) -> Text:
    mark, style = _mark(row.status)
    since = age(time.time() - row.since)
    return Text.assemble((f"{mark} ", style), row.name, "\n  ", (f"{row.status}, {since}", "dim"))


def _status_line(detail: RunDetail, now: float) -> Text:
    mark, style = _mark(detail.row.status)
    text = Text.assemble((f"{mark} {detail.row.status}", style), f"  job {detail.job}" if detail.job else "")
    if detail.row.status == "running" and detail.last_event is not None:
        silence = now - detail.last_event
        text.append(f"  last event {age(silence)} ago", style="bold yellow" if silence > QUIET_S else "dim")
    return text


def _stage_table(stages: list[StageRow], now: float) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="dim")
    for name in ("stage", "state", "progress", "pace"):
        table.add_column(Text(name), no_wrap=name != "pace", overflow="ellipsis" if name != "pace" else "fold")
    for stage in stages:
        mark, style = _mark(stage.status)
        pace = Text(", ").join(part for part in (_rate(stage, now), _time(stage)) if part)
        table.add_row(Text(stage.name), Text(f"{mark} {stage.status}", style=style), _progress(stage), pace)
    return table


def _progress(stage: StageRow) -> Text:
    if stage.done is None or stage.status in ("done", "reused", "waiting"):
        return Text("")
    if not stage.total:
        return Text(f"{stage.done:,.0f} {stage.unit}")
    share = min(1.0, max(0.0, stage.done / stage.total))
    filled = round(share * 8)
    return Text.assemble(("█" * filled, "cyan"), ("░" * (8 - filled), "dim"), f" {share:.0%}")


def _rate(stage: StageRow, now: float) -> Text:
    if stage.rate is None or stage.status != "running":
        return Text("")
    stale = stage.read is not None and now - stage.read > QUIET_S
    value = f"{stage.rate:,.0f}" if stage.rate >= 100 else f"{stage.rate:.1f}"
    return Text(f"{value} {stage.unit}/s", style="dim italic" if stale else "")


def _time(stage: StageRow) -> Text:
    if stage.left is not None:
        return Text(f"{human_seconds(stage.left)} left")
    return Text(human_seconds(stage.seconds)) if stage.seconds is not None else Text("")


def _verdict_table(verdicts: list[tuple[str, bool, str]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, show_header=False)
    for name, passed, reason in verdicts:
        word = Text("✓ PASS", style="green") if passed else Text("✗ FAIL", style="bold red")
        table.add_row(word, Text(name), Text(reason))
    return table
