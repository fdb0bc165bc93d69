"""How does a pipeline file become a run? A form, its text, what it would need, and a start that asks first."""

from collections.abc import Iterable
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Input, TextArea

from eagle3ops.screens.base import named
from eagle3ops.screens.launch.fill import FillIn
from eagle3ops.screens.launch.form import Form
from eagle3ops.screens.launch.lines import about_lines, form_lines, form_title, text_problems
from eagle3ops.screens.launch.plan import GpuRoom, gpu_room
from eagle3ops.screens.launch.verdict import plan_words, short_words, verdict_lines
from eagle3ops.screens.widgets.cells import Line
from eagle3ops.screens.widgets.lines import Lines, Table
from eagle3ops.words import plain

SETTLE_S = 0.5
"""After the last change, before the host is asked what it would come to."""
KEEP_S = 0.3
"""After the last change, before it is written down."""
AGAIN_S = 60.0
"""A plan that is older is asked for again: disks fill up."""
LOW = 30


class Launch(FillIn):
    """The form at the left, or its text; the plan at the right, or behind it where there is little room."""

    ROOM = "launch"
    PLACE = "Launch"
    CSS_PATH = "room.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        *named(
            "launch",
            [
                Binding(
                    "enter",
                    "edit",
                    "Edit",
                    tooltip="Edit the setting, take the next choice, or fold the section",
                ),
                Binding("S", "start", "Start", tooltip="Start what the form holds; shows what it comes to, and asks"),
                Binding("p", "page", "Plan/form", tooltip="Go to the plan, or back to the form"),
                Binding("v", "text", "Text", tooltip="Edit the pipeline file as text, or go back to the form"),
                Binding("o", "begin", "From", tooltip="Start from another pipeline: bundled, a file, that of a run"),
                Binding("slash", "search", "Find", tooltip="Show the settings with these words; also: changed, wrong"),
                Binding("space,right", "turn(1)", "Next choice", show=False, tooltip="The next choice, or unfold"),
                Binding("left", "turn(-1)", "Choice before", show=False, tooltip="The choice before, or fold"),
                Binding("z", "fold_all", "Fold all", show=False, tooltip="Fold or unfold all sections"),
                Binding("n", "next_problem", "Next problem", show=False, tooltip="Go to the next thing that is wrong"),
                Binding("r", "reset", "Reset", show=False, tooltip="The setting as it was at the start"),
                Binding("R", "reset_all", "Reset all", show=False, tooltip="All as at the start; keeps it as a draft"),
                Binding("x", "use_default", "Default", show=False, tooltip="Take the setting out: its default counts"),
                Binding("w", "save", "Save as", show=False, tooltip="Write the text to a file of this machine"),
                Binding("y", "copy_command", "Copy command", show=False, tooltip="Copy the command that starts this"),
            ],
        )
    ]

    def __init__(self) -> None:
        super().__init__()
        self._painted: tuple[object, ...] = ()
        self._titles: dict[str, tuple[str, str]] = {}
        self._shown_form: Form | None = None
        self._settling: Timer | None = None
        self._keeping: Timer | None = None

    def body(self) -> Iterable[Widget]:
        """Form and plan."""
        text = TextArea(id="text", show_line_numbers=True, soft_wrap=False)
        left = Vertical(
            Table(id="form", classes="titled"),
            text,
            Input(id="value"),
            Input(id="words", placeholder="words of a setting, or: changed, wrong"),
            Lines(id="about", classes="titled"),
            id="left",
        )
        yield Horizontal(left, Vertical(Lines(id="plan", classes="titled"), id="right"), id="pages")

    def on_mount(self) -> None:
        """Ask the host what may be set."""
        self.query_one("#plan").can_focus = True
        self.query_one("#form").focus()
        self.open_desk()

    def on_resize(self, _: events.Resize) -> None:
        """Two pages where there is no room for both."""
        self.set_class(self.size.height < LOW, "low")
        self._arrange()

    def on_screen_resume(self) -> None:
        """Back in the room: runs have gone on, disks have filled up."""
        if self.desk.form is not None and self.desk.verdict is not None:
            self.check_now()

    async def on_unmount(self) -> None:
        """Write down what was typed last."""
        await self.keep_now(leave=True)

    # What is painted

    def look(self) -> None:
        """Paint what has changed."""
        desk, form = self.desk, self.desk.form
        if desk.host != self.console.link.name:
            self.change_host()
            return
        if form is not None and form is not self._shown_form:
            self._take_form(form)
        verdict = desk.fresh
        if verdict is not None and not desk.asking and self.console.clock() - desk.asked_at > AGAIN_S:
            self.check_now()
        snapshot = self.console.feed.machine.snapshot
        gpus = gpu_room(snapshot.gpus) if snapshot is not None else gpu_room([])
        widths = tuple(self.query_one(f"#{name}", Lines).room for name in ("form", "about", "plan"))
        state = (
            (form.text, form.job, form.problems, form.origin) if form is not None else None,
            (desk.verdict, desk.trouble, desk.placing, self.runs.way, gpus),
            (frozenset(self._folded), self._selected, self._wanted, self.size, widths, self.app.theme),
            (self._raw, self._before is not None, self._searching, self._on_plan),
        )
        if state == self._painted:
            return
        self._painted = state
        self._paint_plan(gpus)
        if form is None:
            self._paint_nothing()
        else:
            self._paint_form(form)

    def _take_form(self, form: Form) -> None:
        """Another form: fold what need not be looked at first."""
        if self._shown_form is None or self._shown_form.text != form.text:
            self._folded = form.folded_at_first(self.query_one("#form", Table).room.height)
        self._shown_form = form
        if self._raw:
            self._fill_text(form)
        self.touched(at_once=True)

    def _paint_nothing(self) -> None:
        trouble = self.desk.trouble
        lines: list[Line] = [((f"Asking {self.desk.host} what a pipeline may hold ...", "dim"),)]
        if trouble is not None:
            lines = [((plain(trouble.what), "bad"),), ((plain(trouble.remedy or ""), "plain"),)]
            lines += [(), (("ctrl+l asks again.", "dim"),)]
        self._entitle("form", "A pipeline")
        self.query_one("#form", Table).show((), lines)

    def _paint_form(self, form: Form) -> None:
        glyphs = self.console.glyphs
        table, about = self.query_one("#form", Table), self.query_one("#about", Lines)
        self._rows = form.rows(self._folded, self._wanted)
        paths = [row.path for row in self._rows]
        if self._selected not in paths:
            near = min(table.cursor or 0, len(paths) - 1)
            self._selected = paths[near] if paths else None
        cursor = paths.index(self._selected) if self._selected is not None and paths else None
        lines = form_lines(form, self._rows, set() if self._wanted else self._folded, table.room.width, glyphs)
        moved = cursor != table.cursor
        table.show((), lines, cursor)
        if moved:
            # Once it is known how far it scrolls.
            self.call_after_refresh(table.reveal)
        told = form_title(form)
        if self._wanted:
            told = f"only: {plain(self._wanted)}   {told}"
        self._entitle("form", told, short_words(self.desk, self.runs.way, glyphs) if self._narrow else "")
        self._entitle("text", told)
        if self._raw:
            self._entitle("about", "Text")
            about.show((), text_problems(form, about.room.width, glyphs))
            return
        row = self._row()
        told = "Editing: Enter takes it, Escape leaves it as it was" if self._before is not None else ""
        self._entitle("about", "Finding: Enter goes to the list, Escape shows all again" if self._searching else told)
        about.show((), about_lines(form, row, about.room.width, glyphs))

    def _paint_plan(self, gpus: GpuRoom) -> None:
        pane, glyphs = self.query_one("#plan", Lines), self.console.glyphs
        title, stale = plan_words(self.desk, self.runs.way)
        self._entitle("plan", title)
        lines = verdict_lines(self.desk, pane.room.width, glyphs, gpus)
        pane.show((), [tuple((text, "stale") for text, _ in line) for line in lines] if stale else lines)

    def _entitle(self, name: str, title: str, below: str = "") -> None:
        """A title costs the whole pane a repaint, so only when it changes."""
        if self._titles.get(name) != (title, below):
            self._titles[name] = title, below
            pane = self.query_one(f"#{name}")
            pane.border_title, pane.border_subtitle = Text(title), Text(below)

    def touched(self, *, at_once: bool = False) -> None:
        """Something has changed: ask what it comes to, and write it down, each a little after the last key."""
        for timer in (self._settling, self._keeping):
            if timer is not None:
                timer.stop()
        self._settling = self.set_timer(0.01 if at_once else SETTLE_S, self.check_now)
        self._keeping = self.set_timer(KEEP_S, self.keep_soon)
        self._glance()
