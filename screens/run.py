"""How does the selected run stand: its stages, processes, figures, artifacts and verdicts?"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from textual import events, on, work
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widget import Widget

from eagle3ops.errors import Eagle3opsError
from eagle3ops.screens.base import named
from eagle3ops.screens.clipboard import copy
from eagle3ops.screens.glyphs import Glyphs
from eagle3ops.screens.lines import Lines, Table
from eagle3ops.screens.machine_tables import Line
from eagle3ops.screens.room import RunDeeds, RunRoom
from eagle3ops.screens.run_details import (
    figures_of,
    metric_head,
    metric_line,
    metric_plot,
    process_detail,
)
from eagle3ops.screens.run_findings import (
    artifact_detail,
    artifact_head,
    artifact_line,
    verdict_detail,
    verdict_line,
)
from eagle3ops.screens.run_parts import (
    Artifact,
    Environment,
    Live,
    ProcessEntry,
    live_of,
    read_artifacts,
    read_environment,
    read_processes,
    reproducing,
)
from eagle3ops.screens.run_tables import (
    process_head,
    process_line,
    process_widths,
    run_lines,
    stage_detail,
    stage_head,
    stage_line,
)
from eagle3ops.screens.run_tabs import TABS, TabBar
from eagle3ops.screens.series import Group
from eagle3ops.screens.watching import RunDetail
from eagle3ops.words import plain

TALL = 38
"""From so many rows on the stages stay in sight beside what else is looked at."""
WIDE = 130
"""From so many columns on there is room for panes side by side."""
PLOT_EVERY_S = 1.0
"""A plot whose figures grow is drawn anew no more often."""


@dataclass(slots=True)
class _Asked:
    """What was asked of the host about the selected run, beside its processes."""

    run: str | None = None
    processes: int = -1
    """Events about processes when they were last asked for."""
    artifacts: tuple[int, object] = (-1, ())
    environments: dict[str, Environment | str] = field(default_factory=dict)
    """By name; a text says why there is none."""


class Run(RunRoom, RunDeeds):
    """Stages above, and below them what was chosen of the rest, with all about the selected line."""

    ROOM = "run"
    OP = "runs.processes"
    CSS_PATH = "run.tcss"
    PLACE = "Run"
    BINDINGS: ClassVar[list[BindingType]] = [
        *named(
            "run",
            [
                *(
                    Binding(tab[0], f"tab('{tab}')", tab.capitalize(), show=False, tooltip=what)
                    for tab, what in TABS.items()
                ),
                Binding("enter,o", "open_log", "Log", tooltip="Open the log of the selected stage or process"),
                Binding("y", "copy", "Copy", tooltip="Copy the command, path, reason or values of the selected line"),
                Binding("Y", "copy_whole", "Copy all", show=False, tooltip="Copy the command with its environment"),
                Binding("e", "everything", "Environment", tooltip="All variables, or only those that differ"),
                Binding("left,less_than_sign", "curve(-1)", "Curve before", show=False, tooltip="Bring it out"),
                Binding("right,greater_than_sign", "curve(1)", "Next curve", tooltip="Bring the next curve out"),
                Binding("l", "logarithmic", "Log scale", tooltip="Draw the figures on a logarithmic scale, or not"),
            ],
        )
    ]

    def __init__(self) -> None:
        super().__init__()
        self._tab = "stages"
        self._cursors: dict[str, Any] = {}
        """Tab -> key of the selected line."""
        self._curve = 0
        self._log = False
        self._everything = False
        self._processes: list[ProcessEntry] = []
        self._artifacts: list[Artifact] = []
        self._left_out: dict[str, int] = {}
        self._parts = 0
        """Grows with every answer about a part of the run."""
        self._plotted: tuple[float, int] = (0.0, -1)
        self._known = _Asked()
        self._tops: dict[str, object] = {}

    def panes(self) -> Iterable[Widget]:
        """The panes inside the frame."""
        yield Lines(id="status")
        yield Horizontal(Table(id="stages"), Lines(id="verdicts"), id="upper")
        yield TabBar(id="tabs")
        yield Vertical(Table(id="list"), Lines(id="detail"), id="lower")

    def on_mount(self) -> None:
        """The stages have the keys."""
        self.query_one("#detail").can_focus = True
        self.action_tab(self._tab)

    def on_resize(self, event: events.Resize) -> None:
        """Another size makes another layout."""
        self.set_class(event.size.height >= TALL, "tall")
        self.set_class(event.size.width >= WIDE, "wide")

    def look(self) -> None:
        """Ask for what has changed, and paint it."""
        runs, known = self.runs, self._known
        if known.run != runs.selected:
            self._known = known = _Asked(runs.selected)
            self._processes, self._artifacts, self._left_out = [], [], {}
        watch = runs.watch
        if watch is not None and runs.detail is not None and self.answer is not None:
            if known.processes not in (-1, watch.processes):
                self._asked = None  # one was started, or has ended: ask again
            known.processes = watch.processes
            wanted = (watch.artifacts, runs.detail.row.status)
            if self._tab == "artifacts" and known.artifacts != wanted:
                known.artifacts = wanted
                self._ask_artifacts(watch.run_id)
        super().look()

    @work(exclusive=True, group="artifacts", exit_on_error=False)
    async def _ask_artifacts(self, run_id: str) -> None:
        try:
            answer = await self.runs.ask("runs.artifacts", run=run_id)
        except Eagle3opsError as error:
            self.notify(plain(error), title="The artifacts cannot be read", severity="error", markup=False)
            return
        if run_id == self.runs.selected:
            self._artifacts, self._left_out["artifacts"] = read_artifacts(answer)
            self._parts += 1

    @work(group="environment", exit_on_error=False)
    async def _ask_environment(self, run_id: str, name: str) -> None:
        found: Environment | str
        try:
            found = read_environment(await self.runs.ask("runs.environment", run=run_id, environment=name))
        except Eagle3opsError as error:
            found = plain(error)
        if run_id == self._known.run:
            self._known.environments[name] = found
            self._parts += 1

    def state(self) -> tuple[object, ...]:
        """What a painting depends on besides the answer."""
        runs, console = self.runs, self.console
        detail, watch = runs.detail, runs.watch
        now = console.clock()
        running = detail is not None and detail.row.status == "running"
        if watch is not None and (now - self._plotted[0] >= PLOT_EVERY_S or now < self._plotted[0]):
            self._plotted = (now, watch.series.version)
        live = console.feed.machine.version if running and self._tab != "metrics" else 0
        sizes = tuple(self.query_one(name, Lines).room for name in ("#stages", "#list", "#detail", "#status"))
        cursor = self._cursors.get(self._tab), self._curve, self._log, self._everything
        drawn = watch.series.version if self._tab != "metrics" and watch is not None else self._plotted[1]
        seconds = int(now) if running else 0
        return (self._tab, cursor, detail, live, sizes, self._parts, drawn, seconds, runs.stale, watch)

    def draw(self, answer: dict[str, Any]) -> None:
        """Paint all panes; what has not changed costs nothing."""
        detail = self.runs.detail
        if detail is None:
            return
        if self._tops.get("answer") is not answer:
            self._tops["answer"] = answer
            self._processes, self._left_out["processes"] = read_processes(answer)
        glyphs, now = self.console.glyphs, self.console.clock()
        stale = bool(self.runs.stale or self.console.feed.stale)
        live = None if stale else live_of(self.console.feed.machine.snapshot, detail.row.run_id)
        status = self.query_one("#status", Lines)
        status.show((), run_lines(detail, now, max(1, status.room.width)))
        self._draw_stages(detail, live, now, glyphs)
        self.query_one("#tabs", TabBar).show_tabs(self._tab, self._counts(detail))
        self._draw_list(detail, live, now, glyphs)

    def _counts(self, detail: RunDetail) -> dict[str, int]:
        watch = self.runs.watch
        return {
            "stages": len(detail.stages),
            "processes": len(self._processes),
            "metrics": len(watch.series.groups) if watch is not None else 0,
            "artifacts": len(self._artifacts) or (watch.artifacts if watch is not None else 0),
            "verdicts": len(detail.verdicts),
        }

    def _draw_stages(self, detail: RunDetail, live: Live | None, now: float, glyphs: Glyphs) -> None:
        table = self.query_one("#stages", Table)
        names = [stage.name for stage in detail.stages]
        running = next((stage.name for stage in detail.stages if stage.status in ("running", "failed")), None)
        if self._cursors.get("stages") not in names and names:
            self._cursors["stages"] = running or names[-1]
        width = table.room.width
        if table.display and width:
            lines = [stage_line(stage, live, now, width, glyphs) for stage in detail.stages]
            at = names.index(self._cursors["stages"]) if names else None
            table.show(stage_head(width, glyphs), lines, at if self._tab == "stages" else None)
        verdicts = self.query_one("#verdicts", Lines)
        if (room := verdicts.room.width) > 0 and self.has_class("tall"):
            told: list[Line] = [verdict_line(*verdict, room, glyphs) for verdict in detail.verdicts]
            verdicts.show((("verdicts", "head"),), told or [(("none yet", "dim"),)])

    def _draw_list(self, detail: RunDetail, live: Live | None, now: float, glyphs: Glyphs) -> None:
        table, pane = self.query_one("#list", Table), self.query_one("#detail", Lines)
        width = max(1, table.room.width)
        keys, head, line = self._rows(detail, live, now, glyphs, width)
        if self._tab != "stages":
            if self._cursors.get(self._tab) not in keys:
                self._cursors[self._tab] = keys[0] if keys else None
            at = keys.index(self._cursors[self._tab]) if keys else None
            lines = [line(number) for number in range(len(keys))] or [((self._nothing(detail), "dim"),)]
            if left := self._left_out.get(self._tab):
                lines.append(((f"and {left:,} older ones, which the host did not send", "dim"),))
            moved = at != table.cursor
            table.show(head if keys else (), lines, at)
            if moved:
                table.reveal()
        told = self._detail(detail, live, max(1, pane.room.width), pane.room.height, glyphs)
        key = (self._tab, self._cursors.get(self._tab), detail.row.run_id)
        if self._tops.get("detail") != key:
            self._tops["detail"] = key
            pane.scroll_to(y=0, animate=False)
        pane.show((), told)

    def _rows(
        self, detail: RunDetail, live: Live | None, now: float, glyphs: Glyphs, width: int
    ) -> tuple[list[Any], Line, Callable[[int], Line]]:
        """Keys of the lines of the list, its heading, and how one of them is made."""
        if self._tab == "processes":
            rows = self._processes
            widths = process_widths(width, rows)
            return (
                [row.event for row in rows],
                process_head(widths, glyphs),
                lambda at: process_line(rows[at], self._live(rows[at], live), now, widths, glyphs),
            )
        if self._tab == "metrics":
            groups = self._groups()
            return (
                [(group.stage, group.name) for group in groups],
                metric_head(width, glyphs),
                lambda at: metric_line(groups[at], width, glyphs),
            )
        if self._tab == "artifacts":
            artifacts = self._artifacts
            return (
                [artifact.path for artifact in artifacts],
                artifact_head(width, glyphs),
                lambda at: artifact_line(artifacts[at], width, glyphs),
            )
        if self._tab == "verdicts":
            verdicts = detail.verdicts
            return (
                [name for name, _, _ in verdicts],
                (("verdict", "head"),),
                lambda at: verdict_line(*verdicts[at], width, glyphs),
            )
        return [stage.name for stage in detail.stages], (), lambda at: ()

    def _nothing(self, detail: RunDetail) -> str:
        if self._tab == "artifacts" and self._known.artifacts[0] and not self._parts:
            return "Reading ..."
        words = {
            "processes": "No process was started yet, or an older eagle3ops started them.",
            "metrics": "No figure was reported yet.",
            "artifacts": "No stage has made anything yet.",
            "verdicts": "Nothing was judged yet.",
        }
        return words.get(self._tab, "") + (" The run goes on." if detail.row.status == "running" else "")

    @staticmethod
    def _live(entry: ProcessEntry, live: Live | None) -> Any:
        return live.by_pid.get(entry.pid) if live is not None and entry.pid and entry.state == "running" else None

    def _groups(self) -> list[Group]:
        """Curves first, then single figures, each in the order in which they came up."""
        watch = self.runs.watch
        groups = list(watch.series.groups.values()) if watch is not None else []
        return sorted(groups, key=lambda group: group.points < 2)

    def _selected(self, rows: Iterable[Any], key: Callable[[Any], Any]) -> Any:
        wanted = self._cursors.get(self._tab)
        return next((row for row in rows if key(row) == wanted), None)

    def _process(self) -> ProcessEntry | None:
        found: ProcessEntry | None = self._selected(self._processes, lambda row: row.event)
        return found

    def _group(self) -> Group | None:
        found: Group | None = self._selected(self._groups(), lambda group: (group.stage, group.name))
        return found

    def _environment(self, entry: ProcessEntry) -> tuple[Environment | None, str]:
        """The variables of a process, or why there are none; asked for when they are first looked at."""
        if not entry.environment:
            return None, "Its environment was not written down: an older eagle3ops started it."
        found = self._known.environments.get(entry.environment)
        if found is None and self._known.run is not None:
            self._known.environments[entry.environment] = "Reading its environment ..."
            self._ask_environment(self._known.run, entry.environment)
            return None, "Reading its environment ..."
        return (None, found or "") if not isinstance(found, Environment) else (found, "")

    def _detail(self, detail: RunDetail, live: Live | None, width: int, height: int, glyphs: Glyphs) -> list[Line]:
        if self._tab == "stages":
            stage = self._selected(detail.stages, lambda row: row.name)
            return stage_detail(stage, live, figures_of(self._groups(), stage.name), width, glyphs) if stage else []
        if self._tab == "processes" and (entry := self._process()) is not None:
            environment, why = self._environment(entry)
            now = self._live(entry, live)
            return process_detail(entry, now, environment, why, width, everything=self._everything)
        if self._tab == "metrics" and (group := self._group()) is not None:
            read = f"read {max(0, int(self.console.clock() - max(s.last_ts for s in group.members.values())))} s ago"
            running = detail.row.status == "running"
            chosen = self._curve % max(1, len(group.members))
            return metric_plot(group, chosen, width, height, glyphs, log=self._log, read=read if running else "")
        if self._tab == "artifacts":
            artifact = self._selected(self._artifacts, lambda row: row.path)
            return artifact_detail(artifact, width) if artifact else []
        if self._tab == "verdicts" and self.runs.watch is not None:
            verdict = self._selected(detail.verdicts, lambda row: row[0])
            if verdict is not None:
                stage, _, name = verdict[0].partition("/")
                evidence = self.runs.watch.evidence.get((stage, name), {})
                return verdict_detail(verdict[0], verdict[1], verdict[2], evidence, width)
        return []

    @on(Table.Moved, "#stages")
    def _stage_wanted(self, message: Table.Moved) -> None:
        """Another stage was selected, perhaps while something else was looked at."""
        if self._tab != "stages":
            self.action_tab("stages")
        self._want("stages", [stage.name for stage in self.runs.detail.stages] if self.runs.detail else [], message.to)

    @on(Table.Moved, "#list")
    def _line_wanted(self, message: Table.Moved) -> None:
        """Another line of the list was selected."""
        if self.runs.detail is not None:
            self._want(self._tab, self._rows(self.runs.detail, None, 0.0, self.console.glyphs, 80)[0], message.to)

    def _want(self, tab: str, keys: Sequence[Any], to: int) -> None:
        if to < len(keys):
            self._cursors[tab] = keys[to]
            self.look()

    def on_tab_bar_chosen(self, message: TabBar.Chosen) -> None:
        """A tab was clicked."""
        self.action_tab(message.tab)

    def action_tab(self, tab: str) -> None:
        """Look at another part of the run."""
        self._tab = tab
        for name in TABS:
            self.set_class(name == tab, f"on-{name}")
        self.query_one("#stages" if tab == "stages" else "#list", Table).focus()
        self.refresh_bindings()
        self.call_after_refresh(self._glance)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Only the keys that do something where one is."""
        places = {
            "open_log": ("stages", "processes"),
            "copy_whole": ("processes",),
            "everything": ("processes",),
            "curve": ("metrics",),
            "logarithmic": ("metrics",),
        }
        if self._tab not in places.get(action, (self._tab,)):
            return False
        return super().check_action(action, parameters)

    def action_everything(self) -> None:
        """All variables, or only those that differ."""
        self._everything = not self._everything
        self.look()

    def action_curve(self, by: int) -> None:
        """Bring another curve out."""
        group = self._group()
        if group is not None:
            self._curve = (self._curve % max(1, len(group.members)) + by) % max(1, len(group.members))
            self.look()

    def action_logarithmic(self) -> None:
        """Draw on a logarithmic scale, or not."""
        self._log = not self._log
        self.look()

    @work(exclusive=True, group="log", exit_on_error=False)
    async def action_open_log(self) -> None:
        """Open the log of the selected stage, or of the selected process where it begins."""
        run_id = self.runs.selected
        log, offset = "", None
        if self._tab == "processes" and (entry := self._process()) is not None:
            log, offset = entry.log, entry.offset
        elif self._tab == "stages" and self._cursors.get("stages"):
            log = f"{self._cursors['stages']}.log"
        opener = getattr(self.app, "open_log", None)
        if run_id is None or not log:
            self.notify("It has no log.", severity="warning")
        elif opener is None:
            await self.app.run_action("app.room('logs')")
        else:
            opening = opener(run_id, log, offset)
            if inspect.isawaitable(opening):
                await opening

    @work(exclusive=True, group="copy", exit_on_error=False)
    async def action_copy(self) -> None:
        """Copy what the selected line is about."""
        await self._copy(self._text())

    @work(exclusive=True, group="copy", exit_on_error=False)
    async def action_copy_whole(self) -> None:
        """Copy the command with the variables that were changed for it."""
        entry = self._process()
        if entry is not None:
            await self._copy(("command and environment", reproducing(entry, self._environment(entry)[0])))

    async def _copy(self, what: tuple[str, str] | None) -> None:
        if what is None or not what[1]:
            self.notify("There is nothing to copy.", severity="warning")
            return
        route = await copy(what[1], self.app.copy_to_clipboard)
        self.notify(f"{what[0]}: copied {route}", title="Copied", markup=False)

    def _text(self) -> tuple[str, str] | None:
        """What `y` copies: a name for people, and the text."""
        detail = self.runs.detail
        if detail is None:
            return None
        if self._tab == "processes" and (entry := self._process()) is not None:
            return "command", entry.command
        if self._tab == "metrics" and (group := self._group()) is not None:
            rows = [
                f"{group.stage}\t{f'{group.name} {member}'.strip()}\t{x:g}\t{'' if y is None else f'{y:.9g}'}"
                for member, series in group.members.items()
                for x, y in series.points()
            ]
            return f"{len(rows)} values", "\n".join([f"stage\tfigure\t{group.across}\tvalue", *rows, ""])
        if self._tab == "artifacts" and (artifact := self._selected(self._artifacts, lambda row: row.path)):
            return "path", str(artifact.path)
        if self._tab == "verdicts" and (verdict := self._selected(detail.verdicts, lambda row: row[0])):
            return "verdict", f"{'PASS' if verdict[1] else 'FAIL'} {verdict[0]}: {verdict[2]}"
        if self._tab == "stages" and (stage := self._selected(detail.stages, lambda row: row.name)):
            return "output folder", str(stage.facts.get("out") or "")
        return None
