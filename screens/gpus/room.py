"""What does each GPU and each process do, and how old is what is said of it?"""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from rich.cells import chop_cells
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.widget import Widget

from eagle3ops.screens.base import named
from eagle3ops.screens.feeds.machine import ProcessRow
from eagle3ops.screens.feeds.machine_feed import MachineFeed
from eagle3ops.screens.gpus.process_table import process_detail, process_head, process_line
from eagle3ops.screens.gpus.process_tree import ORDERS, Branch, tree
from eagle3ops.screens.gpus.tables import gpu_table, gpu_title, host_lines, refusal_lines
from eagle3ops.screens.room import Room
from eagle3ops.screens.widgets.cells import Line
from eagle3ops.screens.widgets.glyphs import glyphs_of
from eagle3ops.screens.widgets.lines import Drawn, Lines, Table

LOW = 30
"""On a terminal of fewer rows the panes around the processes are cut down."""
TREE_S = 2
"""Between two lists of processes: one reads them, and 200 cost as much as all GPUs together."""


class GpusScreen(Room):
    """GPUs above, the host below them, then the processes run by run, and all about the selected one."""

    ROOM = "gpus"
    CSS_PATH = "room.tcss"
    PLACE = "GPUs and processes"
    BINDINGS: ClassVar[list[BindingType]] = [
        *named(
            "gpus",
            [
                Binding("s", "sort", "Sort", tooltip="By CPU, memory, GPU memory, I/O or age"),
            ],
        )
    ]

    def __init__(self) -> None:
        super().__init__()
        self._order = ORDERS[0]
        self._branches: list[Branch] = []
        self._selected: str | None = None
        self._drawn: tuple[object, ...] = ()
        self._listed: tuple[object, ...] = ()
        self._titles: dict[str, str] = {}

    @property
    def _feed(self) -> MachineFeed:
        return self.console.feed

    def body(self) -> Iterable[Widget]:
        """The panes."""
        yield Lines(id="gpus", classes="titled")
        yield Lines(id="host", classes="titled")
        yield Table(id="processes", classes="titled")
        yield Lines(id="selected", classes="titled")

    def on_mount(self) -> None:
        """The list of processes has the keys."""
        self._entitle("#selected", "Selected")
        self.query_one("#selected").can_focus = True
        self.query_one("#processes").focus()

    def on_resize(self, _: events.Resize) -> None:
        """Another width makes other lines."""
        self.set_class(self.app.size.height < LOW, "low")

    def look(self) -> None:
        """Draw the last sample: the figures once in each second, the processes, which one reads, once in every two.

        What a person or the line changed does not wait for the next.
        """
        machine, stale = self._feed.machine, self._feed.stale
        if not self.query_one("#gpus").size.width:
            return
        second, nothing = int(self.console.clock()), machine.snapshot is None
        seen = (stale, machine.failure, nothing, self.size, self._widths(), self.app.theme)
        if (second, *seen) != self._drawn:
            self._drawn = (second, *seen)
            if nothing:
                self._draw_nothing()
            else:
                self._draw_machine(stale)
        turn = (second // TREE_S, *seen)
        if not nothing and (*turn, self._order, self._selected) != self._listed:
            self._draw_processes(stale)
            # Drawing the processes may have selected another one.
            self._listed = (*turn, self._order, self._selected)

    def _widths(self) -> tuple[int, ...]:
        return tuple(self.query_one(name, Lines).room.width for name in ("#gpus", "#host", "#processes"))

    def _draw_nothing(self) -> None:
        state, failure = self._feed.link.state, self._feed.machine.failure
        lines: list[Line] = [(("Nothing read yet.", "dim"),)]
        if failure is not None:
            width = self.query_one("#gpus", Lines).room.width
            lines = refusal_lines(f"The machine cannot be watched: {failure[0]}", failure[1], width)
        elif state.kind == "connected":
            lines = [(("The first sample is on its way.", "dim"),)]
        self._entitle("#gpus", "GPUs")
        self.query_one("#gpus", Lines).show((), lines)

    def _draw_machine(self, stale: str) -> None:
        machine, glyphs = self._feed.machine, glyphs_of(self.app)
        snapshot = machine.snapshot
        assert snapshot is not None
        told = f"STALE: {stale}" if stale else ""
        self._entitle("#gpus", gpu_title(machine), told)
        self._entitle("#host", f"Host {self._feed.link.name}", told)
        gpus, host = self.query_one("#gpus", Lines), self.query_one("#host", Lines)
        head, lines = gpu_table(machine, gpus.room.width, glyphs)
        gpus.show(head, [_faded(line) for line in lines] if stale else lines)
        host.show((), host_lines(snapshot, host.room.width, glyphs, stale=bool(stale)))

    def _draw_processes(self, stale: str) -> None:
        snapshot, glyphs = self._feed.machine.snapshot, glyphs_of(self.app)
        assert snapshot is not None
        table = self.query_one("#processes", Table)
        self._branches = tree(snapshot.processes, self._order)
        keys = [branch.key for branch in self._branches]
        if self._selected not in keys:
            before = table.cursor or 0
            at = min(before, len(keys) - 1) if self._selected is not None else min(1, len(keys) - 1)
            self._selected = keys[at] if keys else None
        cursor = keys.index(self._selected) if self._selected is not None else None
        width = table.room.width
        branches = self._branches
        lines: Sequence[Line] = Drawn(
            len(branches), lambda at: process_line(branches[at], width, glyphs, stale=bool(stale))
        )
        if not lines:
            lines = [(("No process of a run, and none on a GPU.", "dim"),)]
        count = len(snapshot.processes)
        left_out = f", {snapshot.left_out} more are not watched" if snapshot.left_out else ""
        title = f"{count} process{'es' if count != 1 else ''} by {self._order}{left_out}"
        self._entitle("#processes", title, f"STALE: {stale}" if stale else "~ is stale: read over 2 s before the rest")
        follow = cursor != table.cursor
        table.show(process_head(width, glyphs), lines, cursor)
        if follow:
            table.reveal()
        age = self._feed.machine.age(self._feed.clock()) if stale else 0.0
        title = next((branch.title for branch in self._branches if branch.key == self._selected), "No process.")
        self._tell(process_detail(self._process(), age) or title)

    def _process(self) -> ProcessRow | None:
        return next((branch.process for branch in self._branches if branch.key == self._selected), None)

    def _tell(self, detail: str) -> None:
        pane = self.query_one("#selected", Lines)
        width = max(1, pane.room.width)
        pane.show((), [((piece, "plain"),) for line in detail.splitlines() for piece in chop_cells(line, width)])

    def _entitle(self, selector: str, title: str, told: str = "") -> None:
        """A title costs the whole pane a repaint, so only when it changes."""
        if self._titles.get(selector) != title + told:
            self._titles[selector] = title + told
            pane = self.query_one(selector)
            pane.border_title = Text(title)
            pane.border_subtitle = None
            if told:
                pane.border_title = Text(f"{title}   {told}")

    def select_process(self, pid: int) -> bool:
        """Put the cursor on a process; returns False when it is not watched."""
        found = next((one.key for one in self._branches if one.process is not None and one.process.pid == pid), None)
        if found is not None:
            self._selected = found
            self.look()
        return found is not None

    def on_table_moved(self, message: Table.Moved) -> None:
        """Another process was selected."""
        if message.to < len(self._branches):
            self._selected = self._branches[message.to].key
            self.look()

    def action_sort(self) -> None:
        """Sort by the next figure."""
        self._order = ORDERS[(ORDERS.index(self._order) + 1) % len(ORDERS)]
        self.look()


def _faded(line: Line) -> Line:
    return tuple((text, "stale") for text, _ in line)
