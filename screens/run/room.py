"""How does the selected run stand: its stages, processes, figures, artifacts and verdicts?"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from textual import events, on, work
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widget import Widget

from eagle3ops.screens.base import named
from eagle3ops.screens.feeds.series import Group
from eagle3ops.screens.feeds.watching import RunDetail
from eagle3ops.screens.run.details import (
    figures_of,
    metric_head,
    metric_line,
    metric_plot,
    process_detail,
)
from eagle3ops.screens.run.findings import (
    artifact_detail,
    artifact_head,
    artifact_line,
    verdict_detail,
    verdict_line,
)
from eagle3ops.screens.run.parts import (
    Live,
    ProcessEntry,
    live_of,
    reproducing,
)
from eagle3ops.screens.run.reading import RunReading
from eagle3ops.screens.run.tables import (
    process_head,
    process_line,
    process_widths,
    run_lines,
    stage_detail,
    stage_head,
    stage_line,
)
from eagle3ops.screens.run.tabs import TABS, TabBar
from eagle3ops.screens.widgets.cells import Line
from eagle3ops.screens.widgets.clipboard import copy
from eagle3ops.screens.widgets.glyphs import Glyphs
from eagle3ops.screens.widgets.lines import Lines, Table
from eagle3ops.words import outcome_word

TALL = 38
"""From so many rows on the stages stay in sight beside what else is looked at."""
WIDE = 130
"""From so many columns on there is room for panes side by side."""
PLOT_EVERY_S = 1.0
"""Figures that grow are painted anew no more often."""


class Run(RunReading):
    """Stages above, and below them what was chosen of the rest, with all about the selected line."""

    ROOM = "run"
    CSS_PATH = "room.tcss"
    PLACE = "Run"
    BINDINGS: ClassVar[list[BindingType]] = [
        *named(
            "run",
            [
                *(
                    Binding(tab[0], f"tab('{tab}')", tab.capitalize(), show=False, tooltip=what)
                    for tab, what in TABS.items()
                ),
                Binding(
                    "enter,o",
                    "open_log",
                    "Log",
                    key_display="enter",
                    tooltip="Open the log of the stage or process",
                ),
                Binding("y", "copy", "Copy", tooltip="Copy the command, path, reason or values of the selected line"),
                Binding("Y", "copy_whole", "Copy all", show=False, tooltip="Copy the command with its environment"),
                Binding("e", "everything", "Environment", tooltip="All variables, or only those that differ"),
                Binding("left,less_than_sign", "curve(-1)", "Curve before", show=False, tooltip="Bring it out"),
                Binding("right,greater_than_sign", "curve(1)", "Next curve", tooltip="Bring the next curve out"),
                Binding("ctrl+d", "below(1)", "Scroll down", show=False, tooltip="In what is below the list"),
                Binding("ctrl+u", "below(-1)", "Scroll up", show=False, tooltip="In what is below the list"),
                Binding("l", "logarithmic", "Log scale", tooltip="Draw the figures on a logarithmic scale, or not"),
            ],
        )
    ]

    def __init__(self) -> None:
        super().__init__()
        self._cursors: dict[str, Any] = {}
        """Tab -> key of the selected line."""
        self._curve = 0
        self._log = False
        self._everything = False
        self._plotted: tuple[float, int] = (0.0, -1)
        self._shown: object = None
        """What the lower pane is about; it begins at its top when that changes."""

    def panes(self) -> Iterable[Widget]:
        """The panes inside the frame."""
        yield Lines(id="status")
        yield Horizontal(Table(id="stages"), Lines(id="verdicts"), id="upper")
        yield TabBar(id="tabs")
        yield Vertical(Table(id="list"), Lines(id="detail"), id="lower")

    def on_mount(self) -> None:
        """The stages have the keys."""
        self.query_one("#detail").can_focus = True
        self.action_tab(self.tab)

    def on_resize(self, event: events.Resize) -> None:
        """Another size makes another layout."""
        self.set_class(event.size.height >= TALL, "tall")
        self.set_class(event.size.width >= WIDE, "wide")

    def state(self) -> tuple[object, ...]:
        """What a painting depends on besides the answer."""
        runs, console = self.runs, self.console
        detail, watch = runs.detail, runs.watch
        now = console.clock()
        running = detail is not None and detail.row.status == "running"
        if watch is not None and (now - self._plotted[0] >= PLOT_EVERY_S or now < self._plotted[0]):
            self._plotted = (now, watch.series.version)
        live = console.feed.machine.version if running and self.tab != "metrics" else 0
        sizes = tuple(self.query_one(name, Lines).room for name in ("#stages", "#list", "#detail", "#status"))
        cursor = self._cursors.get(self.tab), self._curve, self._log, self._everything
        seconds = int(now) if running else 0
        return (self.tab, cursor, detail, live, sizes, self.parts, self._plotted[1], seconds, runs.stale, watch)

    def draw(self, answer: dict[str, Any]) -> None:
        """Paint all panes; what has not changed costs nothing."""
        detail = self.runs.detail
        if detail is None:
            return
        if not self.query_one("#detail", Lines).room.width:
            # The panes have only just come up and have no size yet.
            self.call_after_refresh(self._glance)
            return
        glyphs, now = self.console.glyphs, self.console.clock()
        stale = bool(self.runs.stale or self.console.feed.stale)
        live = None if stale else live_of(self.console.feed.machine.snapshot, detail.row.run_id)
        status = self.query_one("#status", Lines)
        status.show((), run_lines(detail, now, max(1, status.room.width), may_resume=not self.read_only))
        self._draw_stages(detail, live, now, glyphs)
        self.query_one("#tabs", TabBar).show_tabs(self.tab, self._counts(detail))
        self._draw_list(detail, live, now, glyphs)

    def _counts(self, detail: RunDetail) -> dict[str, int]:
        watch = self.runs.watch
        return {
            "stages": len(detail.stages),
            "processes": len(self.started),
            "metrics": len(watch.series.groups) if watch is not None else 0,
            "artifacts": len(self.made) or (watch.artifacts if watch is not None else 0),
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
            table.show(stage_head(width, glyphs), lines, at if self.tab == "stages" else None)
        verdicts = self.query_one("#verdicts", Lines)
        if (room := verdicts.room.width) > 0 and self.has_class("tall"):
            told: list[Line] = [verdict_line(*verdict, room, glyphs) for verdict in detail.verdicts]
            verdicts.show((("verdicts", "head"),), told or [(("none yet", "dim"),)])

    def _draw_list(self, detail: RunDetail, live: Live | None, now: float, glyphs: Glyphs) -> None:
        table, pane = self.query_one("#list", Table), self.query_one("#detail", Lines)
        width = max(1, table.room.width)
        keys, head, line = self._rows(detail, live, now, glyphs, width)
        if self.tab != "stages":
            if self._cursors.get(self.tab) not in keys:
                self._cursors[self.tab] = keys[0] if keys else None
            at = keys.index(self._cursors[self.tab]) if keys else None
            lines = [line(number) for number in range(len(keys))] or [((self._nothing(detail), "dim"),)]
            if left := self.left_out.get(self.tab):
                lines.append(((f"and {left:,} older ones, which the host did not send", "dim"),))
            moved = at != table.cursor
            table.show(head if keys else (), lines, at)
            if moved:
                table.reveal()
        told = self._detail(detail, live, max(1, pane.room.width), pane.room.height, glyphs)
        key = (self.tab, self._cursors.get(self.tab), detail.row.run_id)
        if self._shown != key:
            self._shown = key
            pane.scroll_to(y=0, animate=False)
        pane.show((), told)

    def _rows(
        self, detail: RunDetail, live: Live | None, now: float, glyphs: Glyphs, width: int
    ) -> tuple[list[Any], Line, Callable[[int], Line]]:
        """Keys of the lines of the list, its heading, and how one of them is made."""
        if self.tab == "processes":
            rows = self.started
            widths = process_widths(width, rows)
            return (
                [row.event for row in rows],
                process_head(widths, glyphs),
                lambda at: process_line(rows[at], self._live(rows[at], live), now, widths, glyphs),
            )
        if self.tab == "metrics":
            groups = self._groups()
            return (
                [(group.stage, group.name) for group in groups],
                metric_head(width, glyphs),
                lambda at: metric_line(groups[at], width, glyphs),
            )
        if self.tab == "artifacts":
            artifacts = self.made
            return (
                [artifact.path for artifact in artifacts],
                artifact_head(width, glyphs),
                lambda at: artifact_line(artifacts[at], width, glyphs),
            )
        if self.tab == "verdicts":
            verdicts = detail.verdicts
            return (
                [name for name, _, _ in verdicts],
                (("verdict", "head"),),
                lambda at: verdict_line(*verdicts[at], width, glyphs),
            )
        return [stage.name for stage in detail.stages], (), lambda at: ()

    def _nothing(self, detail: RunDetail) -> str:
        if self.tab == "artifacts" and not self.artifacts_read:
            return "Reading ..."
        words = {
            "processes": self.lacking or "No process was started yet, or an older eagle3ops started them.",
            "metrics": "No figure was reported yet.",
            "artifacts": "No stage has made anything yet.",
            "verdicts": "Nothing was judged yet.",
        }
        return words.get(self.tab, "") + (" The run goes on." if detail.row.status == "running" else "")

    @staticmethod
    def _live(entry: ProcessEntry, live: Live | None) -> Any:
        return live.by_pid.get(entry.pid) if live is not None and entry.pid and entry.state == "running" else None

    def _groups(self) -> list[Group]:
        """Curves first, then single figures; the stage that runs before others, then the training, loss before all."""
        watch = self.runs.watch
        groups = list(watch.series.groups.values()) if watch is not None else []
        stages = self.runs.detail.stages if self.runs.detail is not None else []
        running = next((stage.name for stage in stages if stage.status == "running"), "")

        def rank(group: Group) -> tuple[bool, bool, bool, bool]:
            return group.points < 2, group.stage != running, group.stage != "train", "loss" not in group.name

        return sorted(groups, key=rank)

    def _selected(self, rows: Iterable[Any], key: Callable[[Any], Any]) -> Any:
        wanted = self._cursors.get(self.tab)
        return next((row for row in rows if key(row) == wanted), None)

    def _process(self) -> ProcessEntry | None:
        found: ProcessEntry | None = self._selected(self.started, lambda row: row.event)
        return found

    def _group(self) -> Group | None:
        found: Group | None = self._selected(self._groups(), lambda group: (group.stage, group.name))
        return found

    def _detail(self, detail: RunDetail, live: Live | None, width: int, height: int, glyphs: Glyphs) -> list[Line]:
        if self.tab == "stages":
            stage = self._selected(detail.stages, lambda row: row.name)
            return stage_detail(stage, live, figures_of(self._groups(), stage.name), width, glyphs) if stage else []
        if self.tab == "processes" and (entry := self._process()) is not None:
            environment, why = self.environment(entry)
            now = self._live(entry, live)
            return process_detail(entry, now, environment, why, width, everything=self._everything)
        if self.tab == "metrics" and (group := self._group()) is not None:
            read = f"read {max(0, int(self.console.clock() - max(s.last_ts for s in group.members.values())))} s ago"
            running = detail.row.status == "running"
            chosen = self._curve % max(1, len(group.members))
            return metric_plot(group, chosen, width, height, glyphs, log=self._log, read=read if running else "")
        if self.tab == "artifacts":
            artifact = self._selected(self.made, lambda row: row.path)
            return artifact_detail(artifact, width) if artifact else []
        if self.tab == "verdicts" and self.runs.watch is not None:
            verdict = self._selected(detail.verdicts, lambda row: row[0])
            if verdict is not None:
                stage, _, name = verdict[0].partition("/")
                evidence = self.runs.watch.evidence.get((stage, name), {})
                return verdict_detail(verdict[0], verdict[1], verdict[2], evidence, width)
        return []

    @on(Table.Moved, "#stages")
    def _stage_wanted(self, message: Table.Moved) -> None:
        """Another stage was selected, perhaps while something else was looked at."""
        if self.tab != "stages":
            self.action_tab("stages")
        self._want("stages", [stage.name for stage in self.runs.detail.stages] if self.runs.detail else [], message.to)

    @on(Table.Moved, "#list")
    def _line_wanted(self, message: Table.Moved) -> None:
        """Another line of the list was selected."""
        if self.runs.detail is not None:
            self._want(self.tab, self._rows(self.runs.detail, None, 0.0, self.console.glyphs, 80)[0], message.to)

    def _want(self, tab: str, keys: Sequence[Any], to: int) -> None:
        if to < len(keys):
            self._cursors[tab] = keys[to]
            self.look()

    def on_tab_bar_chosen(self, message: TabBar.Chosen) -> None:
        """A tab was clicked."""
        self.action_tab(message.tab)

    def action_tab(self, tab: str) -> None:
        """Look at another part of the run."""
        self.tab = tab
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
        if self.tab not in places.get(action, (self.tab,)):
            return False
        return super().check_action(action, parameters)

    def action_below(self, by: int) -> None:
        """Scroll what is said of the selected line."""
        pane = self.query_one("#detail", Lines)
        pane.scroll_relative(y=by * max(1, pane.room.height - 1), animate=False)

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
        if self.tab == "processes" and (entry := self._process()) is not None:
            log, offset = entry.log, entry.offset
        elif self.tab == "stages" and (name := self._cursors.get("stages")):
            stages = self.runs.detail.stages if self.runs.detail is not None else []
            root = next((stage.root for stage in stages if stage.name == name), {})
            log, offset = f"{name}.log", None
            if isinstance(root.get("file"), str) and isinstance(root.get("offset"), int):
                # Where it stands why, in the log of whichever process knows.
                log, offset = root["file"], root["offset"]
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
            await self._copy(("command and environment", reproducing(entry, self.environment(entry)[0])))

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
        if self.tab == "processes" and (entry := self._process()) is not None:
            return "command", entry.command
        if self.tab == "metrics" and (group := self._group()) is not None:
            rows = [
                f"{group.stage}\t{f'{group.name} {member}'.strip()}\t{x:g}\t{'' if y is None else f'{y:.9g}'}"
                for member, series in group.members.items()
                for x, y in series.points()
            ]
            return f"{len(rows)} values", "\n".join([f"stage\tfigure\t{group.across}\tvalue", *rows, ""])
        if self.tab == "artifacts" and (artifact := self._selected(self.made, lambda row: row.path)):
            return "path", str(artifact.path)
        if self.tab == "verdicts" and (verdict := self._selected(detail.verdicts, lambda row: row[0])):
            return "verdict", f"{outcome_word(verdict[1])} {verdict[0]}: {verdict[2]}"
        if self.tab == "stages" and (stage := self._selected(detail.stages, lambda row: row.name)):
            return "output folder", str(stage.facts.get("out") or "")
        return None
