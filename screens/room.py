"""What do all rooms of the console have in common? A bar to the others, one selection, and an eye on what is new."""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Protocol, cast
from uuid import uuid4

from rich.text import Text
from textual import events, work
from textual.app import ComposeResult, ScreenStackError
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widget import Widget
from textual.widgets import Static

from eagle3ops.errors import Eagle3opsError
from eagle3ops.hosts.link import Link
from eagle3ops.hosts.transport import ConnectionRefusedForGood
from eagle3ops.screens.base import ConsoleScreen, named
from eagle3ops.screens.feeds.incidents_feed import IncidentsFeed
from eagle3ops.screens.feeds.machine_feed import MachineFeed
from eagle3ops.screens.feeds.runs_feed import RunsFeed
from eagle3ops.screens.feeds.watching import RunRow
from eagle3ops.screens.widgets.confirm import Confirm
from eagle3ops.screens.widgets.frame import KeyBar, TitleBar
from eagle3ops.screens.widgets.glyphs import Glyphs
from eagle3ops.screens.widgets.room_bar import RoomBar
from eagle3ops.settings import Settings
from eagle3ops.words import plain

LOOK_S = 0.25
"""Between looks at what is new; nothing is painted where nothing has changed."""


class Console(Protocol):
    """What a room needs of the console it is in."""

    link: Link
    feed: MachineFeed
    runs: RunsFeed
    incidents: IncidentsFeed
    settings: Settings
    glyphs: Glyphs

    def clock(self) -> float:
        """Seconds since 1970."""


class Room(ConsoleScreen[None]):
    """One mode of the console."""

    ROOM: ClassVar[str]
    """Its name in the table of rooms."""
    BINDINGS: ClassVar[list[BindingType]] = [
        *named(
            "room",
            [
                Binding("escape", "back", "Back", show=False, tooltip="To the room before"),
                Binding("tab", "app.focus_next", "Next pane", show=False, tooltip="Go to the next pane"),
                Binding("shift+tab", "app.focus_previous", "Pane before", show=False, tooltip="Go to the pane before"),
                Binding("ctrl+l", "reconnect", "Reconnect", show=False, tooltip="Try the line to the host now"),
            ],
        )
    ]

    @property
    def console(self) -> Console:
        """The console that the room is in."""
        return cast(Console, self.app)

    @property
    def runs(self) -> RunsFeed:
        """The runs of the host, and the selected one."""
        return self.console.runs

    @property
    def visible_now(self) -> bool:
        """Whether any of it can be seen; painting what is covered would cost the line to the terminal, for nobody."""
        try:
            screen = self.app.screen
        except ScreenStackError:
            # The console is being left: its timers tick until the last moment.
            return False
        return screen is self or (screen.is_modal and self in self.app.screen_stack)

    def compose(self) -> ComposeResult:
        """The panes between the rows that all rooms have."""
        yield TitleBar()
        yield RoomBar(self.ROOM)
        yield from self.body()
        yield KeyBar()

    @abstractmethod
    def body(self) -> Iterable[Widget]:
        """The panes."""

    def look(self) -> None:
        """Paint what is new, and nothing else; called several times a second while the room can be seen."""

    def on_mount(self) -> None:
        """Draw what is known already, and look for more from time to time."""
        self.call_after_refresh(self._glance)
        self._looking = self.set_interval(LOOK_S, self._glance)

    def on_resize(self, _: events.Resize) -> None:
        """Another size makes other lines."""
        self.call_after_refresh(self._glance)

    def on_screen_resume(self) -> None:
        """Back in the room: what happened meanwhile shows at once."""
        self.call_after_refresh(self._glance)
        self._looking.resume()

    def on_screen_suspend(self) -> None:
        """Another room is entered: ten that go on looking cost more than the one that is seen."""
        if not self.visible_now:
            self._looking.pause()

    def _glance(self) -> None:
        if self.is_mounted and self.is_running and self.visible_now and self.size.width:
            self.look()

    def no_run(self) -> tuple[str, ...]:
        """Why there is no run to show, and what to do about it; nothing when there is one."""
        if self.runs.unread is not None:
            what, remedy = self.runs.unread
            return ("The runs cannot be read.", "", what, f"→ {remedy}" if remedy else "")
        if self.runs.rows is None:
            state = self.console.link.state
            return (f"{self.console.link.name}: {plain(state)}", plain(state.remedy or ""))
        return NO_RUN if self.runs.selected is None else ()

    def may_order(self, title: str) -> bool:
        """Whether something can be ordered of the host now; says why not.

        The link would keep an order until the line is back, and carry out minutes later what nobody waits for any more.
        """
        link = self.console.link
        if link.connected:
            if self.runs.way == "silent":
                told = f"{link.name} has not answered for a while; it is asked, and does it when it comes to."
                self.notify(told, title=title, severity="warning", markup=False)
            return True
        told = f"{link.name}: {plain(link.state)}. Nothing was asked of it; ctrl+l tries the line now."
        self.notify(told, title=title, severity="warning", markup=False)
        return False

    def action_back(self) -> None:
        """To the room before."""
        self.run_worker(self.app.run_action("app.room_before"), exit_on_error=False)

    @work(exit_on_error=False)
    async def action_reconnect(self) -> None:
        """Try the line to the host now; from a worker, as it may have to ask for a passphrase."""
        self.console.link.start()
        self.console.link.wake()
        self.runs.hurry()


NO_RUN = ("There is no run yet.", "", "0 opens Launch, where one is started.")
RESUMABLE = frozenset({"failed", "cancelled", "interrupted", "created"})


class RunDeeds(Room):
    """What can be done to a run, for rooms that do it: resume and cancel."""

    DESTRUCTIVE = frozenset({"resume", "cancel"})
    BINDINGS: ClassVar[list[BindingType]] = [
        *named(
            "runs",
            [
                Binding("r", "resume", "Resume", tooltip="Take the run up again where it stopped"),
                Binding("c", "cancel", "Cancel", tooltip="End the run; asks first"),
            ],
        )
    ]

    _useless: frozenset[str] = frozenset({"resume", "cancel"})

    @property
    def run_row(self) -> RunRow | None:
        """The run that is meant."""
        return self.runs.row

    @property
    def useless(self) -> frozenset[str]:
        """The actions that would only say why they cannot be done; the row of keys shows them dimmed."""
        status = self.run_row.status if self.run_row is not None else ""
        can = {"resume": status in RESUMABLE, "cancel": status == "running"}
        return frozenset(action for action, possible in can.items() if not possible)

    def _glance(self) -> None:
        super()._glance()
        if self.is_mounted and self.useless != self._useless:
            self._useless = self.useless
            self.refresh_bindings()

    def action_resume(self) -> None:
        """Take the run up again."""
        row = self.run_row
        if row is None:
            self.notify("There is no run to resume.", severity="warning")
        elif row.status not in RESUMABLE:
            self.notify(f"{row.run_id} is {row.status}; there is nothing to resume.", severity="warning", markup=False)
        else:
            self.command("resume", row.run_id)

    def action_cancel(self) -> None:
        """End the run, if the person confirms."""
        row = self.run_row
        if row is None or row.status != "running":
            text = f"{row.run_id} is not running; it is {row.status}." if row else "There is no run to cancel."
            self.notify(text, severity="warning", markup=False)
            return
        run_id = row.run_id

        def answered(yes: bool | None) -> None:
            if yes:
                self.command("cancel", run_id)

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
    async def command(self, verb: str, run_id: str) -> None:
        """Ask for a resumption or a cancellation: the same checks and words as on the command line."""
        title = f"{verb.capitalize()} {run_id}"
        if self.read_only:
            self.notify("The console is read-only.", title=title, severity="warning", markup=False)
            return
        if not self.may_order(title):
            return
        try:
            if verb == "resume":
                answer = await self.runs.ask("runs.resume", run=run_id, token=uuid4().hex)
                told = "taken up again" if answer.get("fresh") else "was taken up already"
            else:
                answer = await self.runs.ask("runs.cancel", run=run_id)
                told = "asked to end" if answer.get("asked") else f"is {plain(answer.get('status', 'not running'))}"
        except Eagle3opsError as error:
            self.notify(plain(error), title=title, severity="error", markup=False)
        else:
            self.notify(f"{run_id}: {told}", title=title, markup=False)
        self.runs.hurry()


class RunRoom(Room):
    """A room about the selected run, whose content is the answer to one op."""

    OP: ClassVar[str]
    BARE: ClassVar[bool] = False
    """Whether there is something to show where the host is too old to know the op: the answer is empty then."""
    DEFAULT_CSS = """
    RunRoom #content { height: 1fr; border: round $panel; border-title-color: $text-accent; padding: 0 1; }
    RunRoom #content.stale { opacity: 60%; }
    RunRoom #nothing { padding: 1 2; height: 1fr; display: none; }
    RunRoom #content.empty > * { display: none; }
    RunRoom #content.empty > #nothing { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *named(
            "run-room",
            [
                Binding("left_square_bracket", "step(1)", "Older run", show=False, tooltip="Look at the run before"),
                Binding("right_square_bracket", "step(-1)", "Newer run", show=False, tooltip="Look at the run after"),
            ],
        )
    ]

    def __init__(self) -> None:
        super().__init__()
        self.answer: dict[str, Any] | None = None
        """The last answer about the selected run; None while there is none."""
        self.answered_at: float | None = None
        self._asked: tuple[object, ...] | None = None
        self._painted: tuple[object, ...] = ()
        self._words: tuple[str, ...] = ()
        self._failure: Eagle3opsError | None = None
        self.lacking = ""
        """What the host cannot answer, and what to do about it."""

    def arguments(self) -> dict[str, Any]:
        """What is asked beside the run."""
        return {}

    def state(self) -> tuple[object, ...]:
        """What else a painting depends on, such as a cursor: it is painted anew when this changes."""
        return ()

    @abstractmethod
    def panes(self) -> Iterable[Widget]:
        """The panes inside `#content`."""

    @abstractmethod
    def draw(self, answer: dict[str, Any]) -> None:
        """Paint an answer."""

    def body(self) -> Iterable[Widget]:
        """What there is, or words that say why there is nothing."""
        yield Vertical(Static(id="nothing"), *self.panes(), id="content", classes="empty")

    def look(self) -> None:
        """Ask when something has changed; paint when there is something new."""
        runs, detail = self.runs, self.runs.detail
        statuses = tuple((stage.name, stage.status) for stage in detail.stages) if detail is not None else ()
        # After a reconnect, too: much may have happened, and the host may know more than before.
        status, connections = runs.row.status if runs.row else "", self.console.link.connections
        asked = (runs.selected, self.arguments(), statuses, status, connections)
        if asked != self._asked and detail is not None and runs.selected is not None:
            if self._asked is not None and self._asked[0] != runs.selected:
                self.answer = None
            self._asked = asked
            self._ask(runs.selected, self.arguments())
        self._entitle()
        words = self._why_nothing()
        content = self.query_one("#content")
        content.set_class(bool(runs.stale), "stale")
        content.set_class(bool(words), "empty")
        if words:
            if words != self._words:
                self.query_one("#nothing", Static).update(Text("\n".join(words)))
            self._words, self._painted = words, ()
            return
        self._words = ()
        assert self.answer is not None
        painted = (id(self.answer), self.size, self.state(), self.app.theme)
        if painted != self._painted:
            self._painted = painted
            self.draw(self.answer)

    def _why_nothing(self) -> tuple[str, ...]:
        runs = self.runs
        if words := self.no_run():
            return words
        if self._failure is not None:
            return (plain(self._failure.what), "", f"→ {plain(self._failure.remedy)}" if self._failure.remedy else "")
        if self.answer is None:
            return (f"Reading {runs.selected} ...",)
        return ()

    def _entitle(self) -> None:
        row = self.runs.row
        title = f"{row.run_id}  {row.status}" if row is not None else ""
        if self.runs.stale:
            # First, as the end is cut where there is little room.
            title = f"STALE: {self.runs.stale}  {title}"
        content = self.query_one("#content")
        if str(content.border_title or "") != title:
            content.border_title = Text(title)

    @work(exclusive=True, group="answer", exit_on_error=False)
    async def _ask(self, run_id: str, arguments: dict[str, Any]) -> None:
        try:
            answer = await self.runs.ask(self.OP, run=run_id, **arguments)
        except ConnectionRefusedForGood as error:
            if self.BARE and self.console.link.connected:
                self._failure, self.answer, self.answered_at = None, {}, self.console.clock()
                self.lacking = plain(error)
            else:
                self._failure, self._asked = error, None
        except Eagle3opsError as error:
            self._failure, self.answer = error, None
        else:
            self._failure, self.answer, self.answered_at = None, answer, self.console.clock()
            self.lacking = ""
        self._glance()

    def action_step(self, by: int) -> None:
        """Look at another run, in every room."""
        self.runs.step(by)
