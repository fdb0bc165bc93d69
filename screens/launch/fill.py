"""How is the form filled in? What keys, clicks and typing do to it, and which panes they need."""

from rich.text import Text
from textual import events, work
from textual.widgets import Input, TextArea

from eagle3ops.errors import Eagle3opsError
from eagle3ops.screens.launch.deeds import LaunchDeeds
from eagle3ops.screens.launch.form import JOB, LONGEST, Form, Row
from eagle3ops.screens.widgets.clipboard import copy
from eagle3ops.screens.widgets.lines import Table
from eagle3ops.words import plain

NARROW = 110
"""Columns below which form and plan are two pages."""


class FillIn(LaunchDeeds):
    """The part of the room that takes what a person types."""

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

    def _row(self) -> Row | None:
        return next((row for row in self._rows if row.path == self._selected), None)

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
            pane = self.query_one(f"#{name}")
            if name in ("value", "words") and pane.display and not display and not focus:
                # What cannot be seen must not go on taking keys; it may not even have them yet.
                focus = "#plan" if not wanted["left"] else "#text" if self._raw else "#form"
            pane.display = display
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

    def on_table_moved(self, message: Table.Moved) -> None:
        """Another line was selected."""
        if message.to < len(self._rows) and self._rows[message.to].path != self._selected:
            self._selected = self._rows[message.to].path
            self._end_edit()

    def on_click(self, event: events.Click) -> None:
        """A second click edits."""
        table = self.query_one("#form", Table)
        at = table.line_at(event) if event.chain == 2 and event.widget is table else None
        if at is not None and at < len(self._rows):
            # Both clicks may have come before the table could say that the first one selected the line.
            self._selected = self._rows[at].path
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
        elif row.field.kind in ("flag", "choice") and (form.editable or row.path == JOB):
            choices: list[object] = [False, True] if row.field.kind == "flag" else list(row.field.choices)
            choices += [None] if row.field.nullable else []
            now, _ = form.value(row.field)
            at = choices.index(now) + by if now in choices else 0
            form.put(row.field, choices[at % len(choices)])
            self.touched()
        elif by < 0:
            self._selected = row.section.path if row.path != JOB else self._selected
        self._glance()

    def action_fold_all(self) -> None:
        """Fold all sections, or unfold them when all are folded."""
        form = self.desk.form
        if form is not None:
            every = {section.path for section in form.sections if section.path != JOB}
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
