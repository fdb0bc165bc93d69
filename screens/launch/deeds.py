"""What can be done with a form: have it judged, kept, saved, exchanged for another one, and started."""

from typing import Any, cast

from textual import work

from eagle3ops.errors import Eagle3opsError, HostUnreachable, Refused
from eagle3ops.screens.launch.desk import Desk
from eagle3ops.screens.launch.dialogs import AskPath, ChooseStart
from eagle3ops.screens.launch.draft import Drafts
from eagle3ops.screens.launch.host import Verdict
from eagle3ops.screens.launch.verdict import summary
from eagle3ops.screens.room import Room
from eagle3ops.screens.widgets.confirm import Confirm, ConfirmByName
from eagle3ops.words import plain


class LaunchDeeds(Room):
    """The part of the room that asks the host, the disk and the person."""

    DESTRUCTIVE = frozenset({"start", "save"})

    def __init__(self) -> None:
        super().__init__()
        self._desk: Desk | None = None
        self._starting = False
        self._told_unkept = False

    @property
    def desk(self) -> Desk:
        """The form of the host that the console is connected to."""
        console = self.console
        if self._desk is None:
            root = console.runs.root
            drafts = Drafts(console.link.name, root or "")
            self._desk = Desk(self._ask, console.link.name, root, console.clock, drafts)
        return self._desk

    async def _ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        return await self.runs.ask(op, **arguments)

    def touched(self, *, at_once: bool = False) -> None:
        """Something has changed."""

    @work(exclusive=True, group="open", exit_on_error=False)
    async def open_desk(self) -> None:
        """Ask the host what may be set, and take up what was left."""
        desk = self.desk
        try:
            await desk.open()
        except Eagle3opsError as error:
            desk.trouble = error
        else:
            desk.trouble = None
            if desk.taken_up is not None:
                told = "What was typed last time is here again; R resets it, o starts from something else."
                self.notify(told, title="Draft taken up")
        self._glance()

    @work(exclusive=True, group="open", exit_on_error=False)
    async def change_host(self) -> None:
        """The console looks at another host now: leave the form of the one before, and open that of this one."""
        await self.keep_now(leave=True)
        self._desk = None
        self.open_desk()

    @work(exclusive=True, group="check", exit_on_error=False)
    async def check_now(self) -> None:
        """Have the host judge what the form holds."""
        await self.desk.check()
        self._glance()

    @work(exit_on_error=False)
    async def keep_soon(self) -> None:
        """Write down what was typed."""
        await self.keep_now()

    async def keep_now(self, *, leave: bool = False) -> None:
        """Write down what was typed; a disk that does not take it is told of once."""
        if self._desk is None:
            return
        try:
            await self._desk.keep(leave=leave)
            self._told_unkept = False
        except OSError as error:
            if not self._told_unkept and self.is_running:
                self._told_unkept = True
                self.notify(plain(error), title="The draft cannot be kept", severity="warning", markup=False)

    @work(exclusive=True, group="begin", exit_on_error=False)
    async def action_reconnect(self) -> None:
        """Try the line to the host now, and ask again."""
        self.console.link.start()
        self.console.link.wake()
        self.runs.hurry()
        if self.desk.form is None:
            self.open_desk()
        else:
            self.check_now()

    @work(exclusive=True, group="begin", exit_on_error=False)
    async def action_begin(self) -> None:
        """Start from another pipeline."""
        desk = self.desk
        if desk.form is None:
            return
        # The run that is looked at first.
        rows = sorted(self.runs.rows or [], key=lambda row: row.run_id != self.runs.selected)
        starts = await desk.starts(rows)
        chosen = await self.app.push_screen(ChooseStart(starts), wait_for_dismiss=True)
        if chosen is None:
            return
        changed = not desk.form.untouched
        try:
            await desk.begin(chosen)
        except Eagle3opsError as error:
            self.notify(plain(error), title="It cannot be started from that", severity="error", markup=False)
            return
        if changed:
            self.notify("What was typed before is kept: o lists it.", title="Put away")
        self.touched(at_once=True)

    @work(exclusive=True, group="begin", exit_on_error=False)
    async def action_reset_all(self) -> None:
        """Everything as it was at the start; what was typed is put away."""
        form = self.desk.form
        if form is None or form.untouched:
            return
        await self.desk.put_away()
        form.reset_all()
        self.notify("What was typed is kept: o lists it.", title="All as at the start")
        self.refill()
        self.touched(at_once=True)

    def refill(self) -> None:
        """The text was changed by something else than typing."""

    @work(exclusive=True, group="begin", exit_on_error=False)
    async def action_save(self) -> None:
        """Write the text to a file of this machine."""
        form = self.desk.form
        if form is None:
            return
        if self.read_only:
            self.notify("The console is read-only.", title="Save", severity="warning")
            return
        name = form.data.get("name") if isinstance(form.data, dict) else None
        first = (
            form.origin.name if form.origin.kind == "file" else f"{plain(name or 'pipeline').replace('/', '-')}.yaml"
        )
        words = "On the machine of this console. A file that is there already is not replaced without asking."
        path = await self.app.push_screen(AskPath("Save the pipeline file as", first, words), wait_for_dismiss=True)
        if path is None:
            return
        try:
            full = await self.desk.save(path, replace=False)
            if full is None:
                question = Confirm(
                    f"Replace {plain(path)}?",
                    "There is a file already; what is in it is lost.",
                    yes="Replace",
                    no="Keep it",
                )
                if not await self.app.push_screen(question, wait_for_dismiss=True):
                    return
                full = await self.desk.save(path, replace=True)
        except Eagle3opsError as error:
            self.notify(plain(error), title="It cannot be saved", severity="error", markup=False)
            return
        self.notify(f"{full}", title="Saved", markup=False)
        self.touched(at_once=True)

    @work(exit_on_error=False)
    async def action_start(self) -> None:
        """Show what it comes to, ask, and start it."""
        if self._starting or self.desk.form is None:
            return
        if self.read_only:
            self.notify("The console is read-only.", title="Start", severity="warning")
            return
        link = self.console.link
        if link.state.kind != "connected":
            told = f"{link.name}: {plain(link.state)}. Nothing can be started until it is back; ctrl+l tries now."
            self.notify(told, title="Start", severity="warning", markup=False)
            return
        self._starting = True
        try:
            await self._start()
        finally:
            self._starting = False

    async def _start(self) -> None:
        desk = self.desk

        def tell(text: str) -> None:
            self.notify(plain(text), markup=False)

        try:
            await desk.send_files(tell)
        except Eagle3opsError as error:
            self.notify(plain(error), title="Not started: a file cannot be sent", severity="error", markup=False)
            return
        await desk.check()
        self._glance()
        form, verdict = desk.form, desk.fresh
        assert form is not None
        if verdict is None or desk.trouble is not None:
            told = plain(desk.trouble) if desk.trouble is not None else "The form was changed meanwhile; once more."
            self.notify(told, title="Not started", severity="warning", markup=False)
            return
        if verdict.problems or verdict.trouble is not None:
            self._tell_problem(verdict)
            return
        what = plain(form.data.get("name", "")) if isinstance(form.data, dict) else ""
        what = f"the pipeline {what}" if form.job == "pipeline" else f"{form.job} of {what}"
        forced = False
        if verdict.refused:
            assert verdict.plan is not None
            forced = await self._forced(what, str(verdict.plan["refused"]), verdict.plan.get("remedy"))
            if not forced:
                return
        else:
            where = f"{desk.host}, in {self.runs.where or 'its usual folder'}"
            question = Confirm(f"Start {what}?", summary(desk, where), yes="Start it", no="Not yet")
            if not await self.app.push_screen(question, wait_for_dismiss=True):
                return
        await self._place(what, forced=forced)

    def _tell_problem(self, verdict: Verdict) -> None:
        if verdict.problems:
            self.notify(
                plain(verdict.problems[0].what), title="Not started: to mend first", severity="error", markup=False
            )
            self.app.call_later(self.run_action, "next_problem")
        elif verdict.trouble is not None:
            told = verdict.trouble.what + (f"\n{verdict.trouble.remedy}" if verdict.trouble.remedy else "")
            self.notify(told, title="Not started", severity="error", markup=False)

    async def _forced(self, what: str, why: str, remedy: object) -> bool:
        """It does not fit: whether a person wants it all the same, and says so twice."""
        told = plain(why) + (f"\n{plain(remedy)}" if remedy else "")
        first = Confirm(f"Refused: {what} does not fit", told, yes="Start it all the same", no="Do not start")
        if not await self.app.push_screen(first, wait_for_dismiss=True):
            return False
        form = self.desk.form
        name = str(form.data.get("name", "")) if form is not None and isinstance(form.data, dict) else ""
        second = ConfirmByName(
            f"Start {what} against the forecast?",
            f"{plain(why)}\nIt may fail half-way, or take memory or disk from others on {self.desk.host}.",
            name=plain(name),
            yes="Start it all the same",
            no="Do not start",
        )
        sure = await self.app.push_screen(second, wait_for_dismiss=True)
        return sure is True

    async def _place(self, what: str, *, forced: bool) -> None:
        try:
            answer = await self.desk.place(forced=forced)
        except Refused as error:
            # It fitted a moment ago, when it was planned.
            if not forced and await self._forced(what, error.what, error.remedy):
                await self._place(what, forced=True)
            return
        except HostUnreachable as error:
            told = f"{plain(error.what)}\nWhether it was started is not known. S asks again, and starts nothing twice."
            self.notify(told, title=f"Start {what}", severity="error", timeout=30, markup=False)
            return
        except Eagle3opsError as error:
            self.notify(plain(error), title=f"{what} was not started", severity="error", markup=False)
            return
        run_id = plain(answer["run"])
        told = "started" if answer.get("fresh") else "had been started already; nothing is started twice"
        self.notify(f"{run_id}: {told}", title=f"Start {what}", markup=False)
        self.runs.select(run_id)
        self.runs.hurry()
        await cast(Any, self.app).action_room("run")
