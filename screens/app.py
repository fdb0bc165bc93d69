"""The console: what does a person see who types `eagle3ops`?"""

import asyncio
import contextlib
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

from textual import events, work
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.filter import LineFilter, Monochrome, NoColor
from textual.screen import Screen
from textual.theme import Theme
from textual.worker import Worker, WorkerState

from eagle3ops.errors import Eagle3opsError
from eagle3ops.hosts.link import Link, LinkState
from eagle3ops.hosts.reach import LOCAL, transport_for
from eagle3ops.hosts.transport import Transport
from eagle3ops.screens import choices, crash, presence
from eagle3ops.screens.asking import ConsolePrompts
from eagle3ops.screens.base import ConsoleScreen, named
from eagle3ops.screens.feeds.endings import GOING_ON, GOOD, environment, run_command
from eagle3ops.screens.feeds.incidents_feed import IncidentsFeed
from eagle3ops.screens.feeds.machine_feed import MachineFeed
from eagle3ops.screens.feeds.runs_feed import RunsFeed
from eagle3ops.screens.feeds.watching import RunRow
from eagle3ops.screens.help import Help
from eagle3ops.screens.logs.place import LogPlace
from eagle3ops.screens.room import Room
from eagle3ops.screens.rooms import FIRST, ROOMS
from eagle3ops.screens.terminal import forgiving
from eagle3ops.screens.widgets.colours import AsciiOnly, Colourless, Harmless
from eagle3ops.screens.widgets.glyphs import ASCII, BLOCKS
from eagle3ops.settings import Resolved, remember_theme, resolve
from eagle3ops.watchdog.incidents.incident import Incident
from eagle3ops.words import plain

SIGNALS = (signal.SIGTERM, signal.SIGHUP)
KEYS_KEPT = 20
SAMPLES_AFTER_S = 2.0
"""How long the machine's samples wait for the runs, at most."""
ENDING_S = 0.5
"""How much longer than a reading of the runs takes the ending of a run may come after its incident."""
CAUSE_CUT = 160
"""Characters of a cause in a toast."""
FEW_COLOURS = "ansi-dark"
"""The theme of a terminal with 16 colours: its own ones, instead of mixed ones that it would have to guess."""


class ConsoleApp(App[int]):
    """One host, one root there, its runs, and what can be done with them."""

    TITLE = "eagle3ops"
    DEFAULT_MODE = FIRST
    MODES = {entry.name: entry.make for entry in ROOMS}  # noqa: RUF012  (as Textual has it)
    BINDINGS: ClassVar[list[BindingType]] = [
        *named(
            "app",
            [
                *(
                    Binding(entry.key, f"room('{entry.name}')", entry.label, show=False, tooltip=entry.what)
                    for entry in ROOMS
                ),
                Binding("q", "quit", "Quit", tooltip="Close the console; runs go on"),
                Binding("question_mark,f1", "help", "Help", key_display="?"),
            ],
        )
    ]

    def __init__(
        self,
        root: str | None = None,
        host: str = "local",
        resolved: Resolved | None = None,
        clock: Callable[[], float] = time.time,
        transport: Transport | None = None,
    ) -> None:
        super().__init__()
        self.clock = clock
        self.resolved = resolved or resolve()
        choices.check(self.resolved)
        self.settings = self.resolved.settings
        self.read_only = self.settings.read_only
        self._own_filters: list[LineFilter] = [Harmless()]
        if self.no_color:
            self._own_filters.append(Colourless())
        if self.settings.ascii:
            self._own_filters.append(AsciiOnly())
        self.theme = self._first_theme()
        self._theme_at_first = self.theme
        keymap = choices.keymap(self.resolved)
        self.set_keymap(keymap)
        self._displaced = choices.displaced(keymap) if keymap else []
        self._last_keys: deque[str] = deque(maxlen=KEYS_KEPT)
        self._crash: tuple[BaseException, crash.Facts] | None = None
        self.glyphs = ASCII if self.settings.ascii else BLOCKS
        self._roots = {host: root}
        self._ended: deque[str] = deque(maxlen=100)
        """The runs whose ending was told."""
        self._look_at(host, transport or transport_for(host, ConsolePrompts(self)))
        self._room_before = FIRST

    def get_driver_class(self) -> type[Driver]:
        """As Textual chooses it, made to outlive its terminal."""
        return forgiving(super().get_driver_class())

    def _look_at(self, host: str, transport: Transport) -> None:
        """A line to a host, and what is known through it."""
        self.link = link = Link(transport, on_state=lambda state: self._link_changed(link, state))
        self.feed = MachineFeed(self.link)
        self.runs = RunsFeed(
            self.link,
            self._roots.get(host),
            refresh_s=self.settings.refresh,
            clock=self.clock,
            on_ended=self._run_ended,
            on_failure=self._tell_failure,
            on_gone=self._tell_gone,
        )
        self.incidents = IncidentsFeed(self, clock=self.clock, on_new=self._incident_came)
        self.log_wanted: LogPlace | None = None

    async def switch_host(self, name: str) -> None:
        """Look at another host from now on, in every room; runs on both go on."""
        try:
            transport = await asyncio.to_thread(transport_for, name, ConsolePrompts(self))
        except Eagle3opsError as error:
            self.notify(plain(error), title=f"Host {name}", severity="error", markup=False)
            return
        before = self.link
        for group in ("machine", "runs", "incidents"):
            self.workers.cancel_group(self, group)
        self._look_at(name, transport)
        # What the other rooms show belongs to the host before; they are made anew when they are entered.
        for entry in ROOMS:
            if entry.name != self.current_mode and entry.name in self._screen_stacks:
                await self.remove_mode(entry.name)
                self.add_mode(entry.name, entry.make)
        self._begin()
        await before.close()

    def _begin(self) -> None:
        """Connect, and read for as long as the console looks at this host."""
        self._connect()
        self.run_worker(self.runs.run(), group="runs", exit_on_error=False)
        self.run_worker(self._watch_machine(), group="machine", exit_on_error=False)
        self.run_worker(self.incidents.run(), group="incidents", exit_on_error=False)

    async def _watch_machine(self) -> None:
        """Take samples, once the runs stand there: starting a sampler would hold them up."""
        patience = SAMPLES_AFTER_S
        while self.runs.rows is None and patience > 0:
            await asyncio.sleep(0.05)
            patience -= 0.05
        await self.feed.run()

    def _first_theme(self) -> str:
        if self.settings.theme is not None:
            return self.settings.theme
        few = self.console.color_system == "standard" and not self.no_color
        return FEW_COLOURS if few and FEW_COLOURS in self.available_themes else self.theme

    def get_line_filters(self) -> Sequence[LineFilter]:
        """What every line passes on its way to the terminal."""
        filters = super().get_line_filters()
        if self.no_color:
            filters = [each for each in filters if not isinstance(each, Monochrome | NoColor)]
        return [*filters, *self._own_filters]

    def on_load(self) -> None:
        """Before the terminal is touched: a signal must find somebody who puts it right again."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            with contextlib.suppress(NotImplementedError, RuntimeError):
                loop.add_signal_handler(number, self._signalled, number)

    def _look_for_terminal(self) -> None:
        """Leave when the terminal is gone and nobody said so: its shell may have ignored SIGHUP."""
        if not presence.anybody(web=self.is_web):
            self.exit(return_code=128 + signal.SIGHUP)

    def _signalled(self, number: signal.Signals) -> None:
        """Leave, with the terminal as it was; a second SIGTERM ends at once."""
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
        self.exit(return_code=128 + number)

    def on_mount(self) -> None:
        """Open the overview, and the line to the host."""
        self.theme_changed_signal.subscribe(self, self._theme_chosen)
        if not self.is_headless:
            self.set_interval(presence.LOOK_S, self._look_for_terminal)
            presence.leave_when_gone(web=self.is_web)
        if self.is_web:
            presence.forget_the_page()
        self.set_interval(1.0, self._entitle)
        self._begin()
        for key, loser, winner in self._displaced:
            text = f"The keymap takes {key!r} from {loser}, for {winner}."
            self.notify(text, title="Keymap", severity="warning", timeout=20, markup=False)

    @work(exit_on_error=False)
    async def _connect(self) -> None:
        """Begin to connect from a worker: what asks for a passphrase waits for a screen, and only a worker may."""
        self.link.start()

    async def on_unmount(self) -> None:
        """Hang up; runs go on."""
        await self.link.close()

    def _entitle(self) -> None:
        """Say above all rooms how the line to the host stands."""
        looking, state, way = "read-only, " if self.read_only else "", self.link.state, self.runs.way
        self.sub_title = f"{looking}{self.link.name}: {plain(state) if way == state.kind else way}"

    def _link_changed(self, link: Link, state: LinkState) -> None:
        if state.kind == "closed" or link is not self.link:
            # What becomes of the line to the host before is not about this one.
            return
        self._entitle()
        if state.kind == "connected":
            self.runs.hurry()
            self.incidents.hurry()
        if state.kind == "stopped" and self._may_be_trusted(link):
            self._ask_for_trust(link)
        elif state.kind == "stopped" and self.runs.rows:
            told = plain(state.why or "") + (f"\n→ {plain(state.remedy)}" if state.remedy else "")
            told += "\nThen press ctrl+l."
            self.notify(told, title=f"{self.link.name}: stopped", severity="error", timeout=120, markup=False)

    def _may_be_trusted(self, link: Link) -> bool:
        """Whether the line stopped at a key that is merely unknown; one that has changed is never offered."""
        if link.failure is None or link.name == LOCAL or self.read_only:
            return False
        # What speaks SSH takes a while to import, and is there already where a line over SSH has stopped.
        from eagle3ops.screens.trusting import unknown_key

        return unknown_key(link) is not None

    @work(exclusive=True, group="trust", exit_on_error=False)
    async def _ask_for_trust(self, link: Link) -> None:
        """Let the person compare the fingerprint, and connect when they say that it is the host's."""
        from eagle3ops.screens.trusting import ask_for_trust

        if await ask_for_trust(self, link) and link is self.link:
            link.start()

    def get_key_display(self, binding: Binding) -> str:
        """What the footer and the help call a key: the same everywhere, and never a sign that ASCII lacks."""
        if binding.key == "enter":
            return "enter"
        if binding.key.startswith("f") and binding.key[1:].isdigit():
            # Also where `?` stands for the same: a field takes that one for itself.
            return binding.key.upper()
        return super().get_key_display(binding)

    async def action_room(self, name: str) -> None:
        """Go to a room."""
        if name != self.current_mode:
            self._room_before = self.current_mode
            await self.switch_mode(name)

    async def action_room_before(self) -> None:
        """Go back to the room that one came from."""
        await self.action_room(self._room_before if self._room_before != self.current_mode else FIRST)

    def open_log(self, run_id: str, log: str, offset: int | None = None) -> None:
        """Go to a byte of a log, or to its end; it may be named as events name it, `logs/NAME` or a whole path."""
        name = log.rpartition("/logs/")[2].removeprefix("logs/")
        self.log_wanted = LogPlace(run_id, name, offset)
        self.runs.select(run_id)
        self.run_worker(self._go_to_log(), exit_on_error=False)

    async def _go_to_log(self) -> None:
        await self.action_room("logs")
        if isinstance(self.screen, Room) and self.screen.is_mounted:
            # It may be open already; then it would look for what is new only after a while.
            self.screen.look()

    async def action_gpus(self) -> None:
        """Go to the GPUs and processes."""
        await self.action_room("gpus")

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The palette: Textual's own commands, the rooms, and all that the screen's keys do."""
        ours = [
            SystemCommand("Help", "Every key, and what it does", self.action_help),
            SystemCommand("Quit", "Close the console; runs go on", self.action_quit),
        ]
        names = {"Keys", *(command.title for command in ours)}
        yield from (command for command in super().get_system_commands(screen) if command.title not in names)
        yield from ours
        for entry in ROOMS:
            if entry.name != self.current_mode:
                yield SystemCommand(
                    f"{entry.label} (key {entry.key})", entry.what, partial(self.action_room, entry.name)
                )
        if isinstance(screen, ConsoleScreen):
            yield from screen.commands()

    @work(exclusive=True, group="help", exit_on_error=False)
    async def action_help(self) -> None:
        """Show every key, and what it does."""
        await asyncio.to_thread(choices.actions)
        if not isinstance(self.screen, Help):
            self.push_screen(Help(self.screen, choices.keymap(self.resolved), read_only=self.read_only))

    def action_show_help_panel(self) -> None:
        """Show every key: ours instead of Textual's panel, as it knows the other screens too."""
        self.action_help()

    @work(exit_on_error=False)
    async def _theme_chosen(self, theme: Theme) -> None:
        """Keep a theme that was chosen in the palette for the next time."""
        if theme.name == self._theme_at_first:
            return
        self._theme_at_first = theme.name
        try:
            path = await asyncio.to_thread(remember_theme, theme.name, self.resolved.path)
        except Eagle3opsError as error:
            self.notify(plain(error), title="The theme cannot be kept", severity="warning", markup=False)
            return
        origin = self.resolved.origin("theme")
        if origin in ("command line", "$EAGLE3OPS_THEME"):
            text = f"Kept in {path}; {origin} still comes first."
            self.notify(text, title=f"Theme {theme.name}", markup=False)

    def _run_ended(self, row: RunRow) -> None:
        """A run that was seen going on has ended."""
        self._ended.append(row.run_id)
        self._tell_ended(row)
        self._call_user(row)

    @work(exit_on_error=False)
    async def _tell_ended(self, row: RunRow) -> None:
        severity = "information" if row.status in GOOD else "error" if row.status != "cancelled" else "warning"
        told = row.status
        if row.status not in GOOD and row.status != "cancelled":
            why = await self.incidents.why_failed(row.run_id) if row.status == "failed" else ""
            why = why or row.cause.removeprefix(f"{row.status}: ")
            told += f": {why[:CAUSE_CUT]}" if why else ""
            told += "\n5 opens Incidents." if self.current_mode != "incidents" else ""
        self.notify(told, title=row.run_id, severity=severity, timeout=20, markup=False)  # type: ignore[arg-type]

    def _incident_came(self, incident: Incident) -> None:
        if incident.kind == "silent" and incident.run:
            row = next((one for one in self.runs.rows or () if one.run_id == incident.run), None)
            row = row or RunRow(incident.run, incident.run, incident.kind, incident.last)
            self._call_user(replace(row, status=incident.kind))
        self._tell_incident(incident)

    @work(exit_on_error=False)
    async def _tell_incident(self, incident: Incident) -> None:
        """Something new went wrong; in the room of incidents it is seen without a toast, and so is how a run ended."""
        runs = self.runs
        if self._goes_on(incident.run):
            # It may have ended of that; then its ending says so, and once is enough.
            await asyncio.sleep(ENDING_S + self.settings.refresh)
        told_already = incident.run in self._ended and not self._goes_on(incident.run)
        if self.current_mode == "incidents" or told_already or runs is not self.runs:
            return
        where = plain(f"{incident.run or self.link.name}: {incident.kind}")
        severity = "error" if incident.severity == "error" else "warning"
        told = f"{incident.title}\n5 opens Incidents."
        self.notify(told, title=where, severity=severity, timeout=20, markup=False)  # type: ignore[arg-type]

    def _goes_on(self, run_id: str) -> bool:
        return any(row.run_id == run_id and row.status in GOING_ON for row in self.runs.rows or ())

    def _tell_gone(self, run_id: str) -> None:
        """The selected run was deleted, here or elsewhere."""
        told = "There is no other run." if self.runs.selected is None else f"{self.runs.selected} is selected now."
        self.notify(told, title=f"{run_id} is gone", severity="warning", markup=False)

    def _tell_failure(self, text: str) -> None:
        """Something stands in the way of reading the runs."""
        self.notify(text, title="The runs cannot be read", severity="error", markup=False)

    @work(exit_on_error=False)
    async def _call_user(self, row: RunRow) -> None:
        """The bell and the user's command: a run has ended, or has said nothing for long."""
        wanted = self.settings.notify
        if wanted.bell:
            self.bell()
        if wanted.command is None:
            return
        try:
            await run_command(wanted.command, environment(row, self.link.name), wanted.timeout_s)
        except Eagle3opsError as error:
            self.notify(plain(error), title="notify.command failed", severity="error", markup=False)

    async def on_event(self, event: events.Event) -> None:
        """Remember the last keys for a report, but nothing that is typed into a field."""
        if isinstance(event, events.Key) and not event.is_forwarded:
            # Whatever takes printable keys is a field.
            typed = self.focused is not None and self.focused.check_consume_key("a", "a") and event.is_printable
            self._last_keys.append("(typed)" if typed else event.key)
        await super().on_event(event)

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """A worker of the console itself came to an end that nobody thought of."""
        failed = event.state is WorkerState.ERROR and event.worker.group != "defects"
        if failed and event.worker.error is not None:
            self.report_defect(event.worker.error)

    @work(exit_on_error=False, group="defects")
    async def report_defect(self, error: BaseException) -> None:
        """Something broke that the console outlives: keep the traceback, and say where."""
        facts = self._facts()
        path = await asyncio.to_thread(lambda: crash.leave(crash.report(error, **facts)))
        told = f"{type(error).__name__}: {plain(error)[:200]}\nThe report is in {path}."
        self.notify(told, title="This is a defect of eagle3ops", severity="error", timeout=20, markup=False)

    def _facts(self) -> crash.Facts:
        stack = self._screen_stacks.get(self._current_mode)
        screen, size = (type(stack[-1]).__name__, stack[-1].size) if stack else ("none", self.size)
        state = f"{self.link.name}: {plain(self.link.state)}, connections made: {self.link.connections}"
        return {
            "link": state,
            "screen": screen,
            "size": f"{size.width}x{size.height}",
            "keys": list(self._last_keys),
        }

    def _fatal_error(self) -> None:
        """Leave after an error that nobody caught.

        Textual would print the traceback with all local variables, secrets among them; a report says more, safely.
        """
        error = self._exception
        if self.is_web and isinstance(error, BrokenPipeError):
            # The page's server is gone; that is the end of this console, and no defect.
            self._return_code = 128 + signal.SIGHUP
        elif self._crash is None and error is not None:
            self._crash = (error, self._facts())
        self._close_messages_no_wait()

    def tell_crash(self) -> None:
        """Once the terminal is itself again: write the report, and say where it is."""
        if self._crash is not None:
            error, facts = self._crash
            text = crash.report(error, **facts)
            crash.say(error, crash.leave(text), text)


def main(root: str | None, host: str, resolved: Resolved | None = None) -> int:
    """Open the console on a host; returns the exit code.

    Raises:
        RequestError: there is no such host, or a setting is wrong.
    """
    return run(ConsoleApp(root, host, resolved))


def run(app: ConsoleApp) -> int:
    """Run the console until it ends; returns the exit code: 0, 1 after a crash, 143 or 129 after a signal."""
    app.run()
    app.tell_crash()
    return app.return_code or 0
