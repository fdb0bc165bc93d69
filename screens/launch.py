"""How does a pipeline file become a run? A form, its text, what it would need, and a start that asks first."""

from collections.abc import Iterable
from typing import ClassVar

from rich.text import Text
from textual import events, work
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Input, TextArea

from eagle3ops.errors import Eagle3opsError
from eagle3ops.screens.base import named
from eagle3ops.screens.clipboard import copy
from eagle3ops.screens.launch_deeds import LaunchDeeds
from eagle3ops.screens.launch_form import LONGEST, Form, Row
from eagle3ops.screens.launch_lines import about_lines, form_lines, form_title, text_problems
from eagle3ops.screens.launch_plan import gpu_room
from eagle3ops.screens.launch_verdict import plan_words, short_words, verdict_lines
from eagle3ops.screens.lines import Lines, Table
from eagle3ops.screens.machine_tables import Line
from eagle3ops.words import plain

SETTLE_S = 0.5
"""After the last change, before the host is asked what it would come to."""
KEEP_S = 0.3
"""After the last change, before it is written down."""
AGAIN_S = 60.0
"""A plan that is older is asked for again: disks fill up."""
NARROW, LOW = 110, 30


class Launch(LaunchDeeds):
    """The form at the left, or its text; the plan at the right, or behind it where there is little room."""

    ROOM = "launch"
    PLACE = "Launch"
    CSS_PATH = "launch.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        *named(
            "launch",
            [
                Binding(
                    "enter",
                    "edit",
                    "Edit",
                    key_display="enter",
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
        self._folded: set[tuple[str, ...]] = set()
        self._rows: list[Row] = []
        self._selected: tuple[str, ...] | None = None
        self._wanted = ""
        self._raw = False
        """Whether the text is shown instead of the form."""
        self._searching = False
        self._on_plan = False
        """Whether the plan is in front, where there is no room for both."""
        self._before: str | None = None
        """The text before the field that is being edited was touched; None while none is."""
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

    @property
    def _narrow(self) -> bool:
        return self.size.width < NARROW

    def _arrange(self, focus: str = "") -> None:
        """Show the panes that are wanted now, so that one of them can have the keys at once."""
        narrow = self._narrow
        self.set_class(narrow, "narrow")
        wanted = {
            "left": not (narrow and self._on_plan),
            "right": not narrow or self._on_plan,
            "form": not self._raw,
            "text": self._raw,
            "value": self._before is not None,
            "words": self._searching,
        }
        for name, display in wanted.items():
            self.query_one(f"#{name}").display = display
        if focus:
            self.query_one(focus).focus()
        self.refresh_bindings()
        self._glance()
        # The form has another height now.
        self.call_after_refresh(self.query_one("#form", Table).reveal)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """No key for what a field takes for itself."""
        typing = self._raw or self._searching or self._before is not None
        if action in ("search", "edit") and typing:
            return False
        return super().check_action(action, parameters)

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
        if verdict is not None and not desk.asking and self.console.clock() - verdict.at > AGAIN_S:
            self.check_now()
        snapshot = self.console.feed.machine.snapshot
        gpus = gpu_room(snapshot.gpus) if snapshot is not None else gpu_room([])
        widths = tuple(self.query_one(f"#{name}", Lines).room for name in ("form", "about", "plan"))
        state = (
            (form.text, form.job, form.problems, form.origin) if form is not None else None,
            (desk.verdict, desk.trouble, desk.placing, self.console.link.state.kind, gpus),
            (frozenset(self._folded), self._selected, self._wanted, self.size, widths, self.app.theme),
            (self._raw, self._before is not None, self._on_plan),
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
            told += f"   only: {plain(self._wanted)}"
        self._entitle(
            "form", told, short_words(self.desk, self.console.link.state.kind, glyphs) if self._narrow else ""
        )
        self._entitle("text", told)
        if self._raw:
            self._entitle("about", "Text")
            about.show((), text_problems(form, about.room.width, glyphs))
            return
        row = self._row()
        self._entitle(
            "about", "Editing: Enter takes it, Escape leaves it as it was" if self._before is not None else ""
        )
        about.show((), about_lines(form, row, about.room.width, glyphs))

    def _paint_plan(self, gpus: object) -> None:
        pane, glyphs = self.query_one("#plan", Lines), self.console.glyphs
        title, stale = plan_words(self.desk, self.console.link.state.kind)
        self._entitle("plan", title)
        lines = verdict_lines(self.desk, pane.room.width, glyphs, gpus)  # type: ignore[arg-type]
        pane.show((), [tuple((text, "stale") for text, _ in line) for line in lines] if stale else lines)

    def _entitle(self, name: str, title: str, below: str = "") -> None:
        """A title costs the whole pane a repaint, so only when it changes."""
        if self._titles.get(name) != (title, below):
            self._titles[name] = title, below
            pane = self.query_one(f"#{name}")
            pane.border_title, pane.border_subtitle = Text(title), Text(below)

    def _row(self) -> Row | None:
        return next((row for row in self._rows if row.path == self._selected), None)

    # What is typed

    def touched(self, *, at_once: bool = False) -> None:
        """Something has changed: ask what it comes to, and write it down, each a little after the last key."""
        for timer in (self._settling, self._keeping):
            if timer is not None:
                timer.stop()
        self._settling = self.set_timer(0.01 if at_once else SETTLE_S, self.check_now)
        self._keeping = self.set_timer(KEEP_S, self.keep_soon)
        self._glance()

    def on_table_moved(self, message: Table.Moved) -> None:
        """Another line was selected."""
        if message.to < len(self._rows) and self._rows[message.to].path != self._selected:
            self._selected = self._rows[message.to].path
            self._end_edit()

    def on_click(self, event: events.Click) -> None:
        """A second click edits."""
        if event.chain == 2 and event.widget is self.query_one("#form"):
            self.action_edit()

    def on_input_changed(self, event: Input.Changed) -> None:
        """What is typed counts at once."""
        form, row = self.desk.form, self._row()
        if event.input.id == "words":
            self._wanted = event.value
            self._glance()
        elif (
            self._before is not None
            and form is not None
            and row is not None
            and row.field is not None
            and event.value != form.shown(row.field)
        ):
            form.type(row.field, event.value)
            self.touched()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter: it is as it shall be."""
        self._searching = False
        self._end_edit(focus="#form")

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        """The text itself was edited."""
        form = self.desk.form
        if form is None or not self._raw or event.text_area.text == form.text:
            return
        form.write(event.text_area.text)
        if form.text != event.text_area.text:
            event.text_area.text = form.text
        self.touched()

    def _fill_text(self, form: Form) -> None:
        area = self.query_one("#text", TextArea)
        if area.text != form.text:
            area.text = form.text

    def refill(self) -> None:
        """The text was changed by something else than typing."""
        if self.desk.form is not None and self._raw:
            self._fill_text(self.desk.form)

    def _end_edit(self, *, undo: bool = False, focus: str = "") -> None:
        form, before = self.desk.form, self._before
        self._before = None
        if undo and before is not None and form is not None and form.text != before:
            form.write(before)
            self.touched()
        self._arrange(focus)

    # Keys

    def action_edit(self) -> None:
        """Edit the selected setting."""
        form, row = self.desk.form, self._row()
        if form is None or row is None:
            return
        if row.field is None or row.field.kind in ("flag", "choice"):
            self.action_turn(1, fold=True)
        elif not form.editable:
            self.notify("The text is no YAML; mend it there (v).", severity="warning")
        elif isinstance(value := form.value(row.field)[0], str) and len(value) > LONGEST:
            self.notify("It is too long for a field; edit it in the text (v).", severity="warning")
        elif row.field.fixed:
            self.notify(f"{row.field.label}: {row.field.takes}.", markup=False)
        else:
            self._before = form.text
            field = self.query_one("#value", Input)
            field.border_title = Text(".".join(row.field.path))
            field.value = form.shown(row.field)
            field.cursor_position = len(field.value)
            self._arrange("#value")

    def action_turn(self, by: int, fold: bool = False) -> None:
        """The next choice of a setting; a section is folded or unfolded."""
        form, row = self.desk.form, self._row()
        if form is None or row is None:
            return
        if row.field is None:
            path = row.section.path
            if path in self._folded and (by > 0 or fold):
                self._folded.discard(path)
            elif by < 0 or fold:
                self._folded.add(path)
        elif row.field.kind in ("flag", "choice") and (form.editable or row.path == ("--job",)):
            choices: list[object] = [False, True] if row.field.kind == "flag" else list(row.field.choices)
            choices += [None] if row.field.nullable else []
            now, _ = form.value(row.field)
            at = choices.index(now) + by if now in choices else 0
            form.put(row.field, choices[at % len(choices)])
            self.touched()
        elif by < 0:
            self._selected = row.section.path if row.path != ("--job",) else self._selected
        self._glance()

    def action_fold_all(self) -> None:
        """Fold all sections, or unfold them when all are folded."""
        form = self.desk.form
        if form is not None:
            every = {section.path for section in form.sections if section.path != ("--job",)}
            self._folded = set() if self._folded >= every else every
            self._glance()

    def action_next_problem(self) -> None:
        """Go to the next thing that is wrong."""
        form = self.desk.form
        if form is None or not form.problems:
            self.notify("Nothing is known to be wrong.")
            return
        every = [row for row in form.rows(set()) if form.problems_at(row)]
        paths = [row.path for row in form.rows(set())]
        here = paths.index(self._selected) if self._selected in paths else -1
        after = [row for row in every if paths.index(row.path) > here] or every
        if after:
            self._wanted = ""
            self._folded.discard(after[0].section.path)
            self._selected = after[0].path
            self._glance()

    def action_page(self) -> None:
        """To the plan, or back to the form."""
        here = self._on_plan if self._narrow else self.focused is self.query_one("#plan")
        self._on_plan = not here
        self._arrange("#plan" if self._on_plan else "#text" if self._raw else "#form")

    def action_text(self) -> None:
        """The pipeline file as text, or the form again."""
        form = self.desk.form
        if form is None:
            return
        self._end_edit()
        self._raw, self._on_plan = not self._raw, False
        if self._raw:
            self._fill_text(form)
        self._arrange("#text" if self._raw else "#form")

    def action_search(self) -> None:
        """Show the settings that have some words."""
        if not self._raw and not (self._narrow and self._on_plan):
            self._searching = True
            self._arrange("#words")

    def action_reset(self) -> None:
        """The selected setting as it was at the start."""
        form, row = self.desk.form, self._row()
        if form is not None and row is not None and row.field is not None:
            form.reset(row.path)
            self.touched()

    def action_use_default(self) -> None:
        """Take the selected setting out of the text."""
        form, row = self.desk.form, self._row()
        if form is not None and row is not None and row.field is not None:
            form.use_default(row.path)
            self.touched()

    @work(exit_on_error=False)
    async def action_copy_command(self) -> None:
        """Copy the command line that starts the same."""
        form = self.desk.form
        if form is None:
            return
        command, why = form.command(self.desk.host, self.desk.root)
        if not command:
            self.notify(why, title="There is no command", severity="warning", markup=False)
            return
        try:
            where = await copy(command, self.app.copy_to_clipboard)
        except (OSError, Eagle3opsError) as error:
            self.notify(plain(error), title="It cannot be copied", severity="error", markup=False)
        else:
            self.notify(f"{command}\n\nCopied {where}.", title="The command", timeout=15, markup=False)

    def action_back(self) -> None:
        """Out of the field, the search, the text or the plan; else to the room before."""
        if self._before is not None:
            self._end_edit(undo=True, focus="#form")
        elif self._searching or self._wanted:
            row = self._row()
            if row is not None:
                # What was found stays in sight.
                self._folded.discard(row.section.path)
            self._wanted = self.query_one("#words", Input).value = ""
            self._searching = False
            self._arrange("#form")
        elif self._on_plan and self._narrow:
            self.action_page()
        elif self._raw:
            self.action_text()
        else:
            super().action_back()
