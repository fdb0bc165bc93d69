"""Which runs are there, how does the selected one stand, and what did it say last?"""

import time
from collections.abc import Iterable
from typing import ClassVar

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widget import Widget
from textual.widgets import OptionList, RichLog, Static
from textual.widgets.option_list import Option

from eagle3ops.hosts.link import LinkState
from eagle3ops.screens.base import named
from eagle3ops.screens.gpu_strip import GpuStrip
from eagle3ops.screens.room import RunDeeds
from eagle3ops.screens.watching import QUIET_S, RunDetail, RunRow, StageRow, age
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


class Overview(RunDeeds):
    """Runs at the left, the selected one at the right."""

    ROOM = "overview"
    CSS_PATH = "overview.tcss"
    PLACE = "Overview"
    BINDINGS: ClassVar[list[BindingType]] = [
        *named(
            "overview",
            [
                Binding("o", "app.room('logs')", "Logs", tooltip="What the processes of the selected run say"),
                Binding("g", "app.gpus", "GPUs", tooltip="What the machine's GPUs and processes do"),
                Binding("l", "reconnect", "Reconnect", show=False, tooltip="Try the line to the host now"),
            ],
        )
    ]

    def __init__(self) -> None:
        super().__init__()
        self._listed: list[RunRow] = []
        self._told: tuple[float, str, str] | None = None
        self._told_of: str | None = None
        self._painted: tuple[object, ...] = ()

    def body(self) -> Iterable[Widget]:
        """The panes; the hint takes their place as long as there are no runs."""
        yield Static(id="hint")
        yield Horizontal(
            OptionList(id="runs", markup=False),
            Vertical(
                VerticalScroll(Static(id="facts"), id="summary"),
                RichLog(id="events", markup=False, highlight=False, wrap=True, min_width=20, max_lines=2000),
                id="detail",
            ),
            id="panes",
        )
        yield GpuStrip()

    def on_mount(self) -> None:
        """Name the panes."""
        for selector, title in (("#runs", "Runs"), ("#summary", "Run"), ("#events", "Events")):
            self.query_one(selector).border_title = title
        self.query_one("#panes").display = False

    def look(self) -> None:
        """Paint what is new; ages grow once a second."""
        runs, now = self.runs, self.console.clock()
        painted = (runs.version, int(now), runs.link.state, self.size)
        if painted == self._painted:
            return
        self._painted = painted
        rows = runs.rows or []
        hint = self.query_one("#hint", Static)
        hint.display = not rows
        if not rows:
            state = runs.link.state
            connected = state.kind == "connected"
            hint.update(self._hint() if connected and runs.rows is not None else _link_hint(runs.link.name, state))
        panes = self.query_one("#panes")
        panes.display = bool(rows)
        panes.set_class(bool(runs.stale), "stale")
        self._show_runs(rows, now)
        if runs.detail is not None:
            self._show_detail(runs.detail, now)

    def _show_runs(self, rows: list[RunRow], now: float) -> None:
        options = self.query_one("#runs", OptionList)
        if [row.run_id for row in rows] != [row.run_id for row in self._listed]:
            options.clear_options()
            options.add_options([Option(_run_label(row, now), id=row.run_id) for row in rows])
            if rows and self.focused is None:
                options.focus()
        else:
            for row in rows:
                options.replace_option_prompt(row.run_id, _run_label(row, now))
        self._listed = rows
        ids = [row.run_id for row in rows]
        if self.runs.selected in ids:
            options.highlighted = ids.index(self.runs.selected)

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Another run was selected."""
        if event.option.id is not None and event.option_list.highlighted == event.option_index:
            self.runs.select(event.option.id)

    def _show_detail(self, detail: RunDetail, now: float) -> None:
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
        if self._told_of != detail.row.run_id:
            self._told_of, self._told = detail.row.run_id, None
            log.clear()
        fresh = detail.tail
        if self._told in fresh:
            fresh = fresh[len(fresh) - fresh[::-1].index(self._told) :]
        for ts, kind, text in fresh:
            style = {"warn": "yellow", "error": "bold red"}.get(kind, "")
            log.write(Text.assemble((time.strftime("%H:%M:%S ", time.localtime(ts)), "dim"), (text, style)))
        if detail.tail:
            self._told = detail.tail[-1]

    def _hint(self) -> Group:
        name = self.runs.link.name
        host = "" if name == "local" else f" --host {name}"
        root = f" --root {self.runs.where}" if self.runs.root is not None else ""
        where = "" if name == "local" else f" on {name}"
        return Group(
            Text(f"No runs in {self.runs.where}{where} yet."),
            Text(),
            Text("Start the demonstration in another terminal; it takes some minutes and appears here:"),
            Text(),
            Text(f"  eagle3ops --job pipeline{host}{root}", style="bold"),
            Text(),
            Text(f"What it would do, with forecasts:  eagle3ops plan{host}{root}"),
            Text(f"What the machine has and lacks:    eagle3ops doctor{host}"),
        )


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


def _run_label(row: RunRow, now: float) -> Text:
    mark, style = _mark(row.status)
    since = age(now - row.since)
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
