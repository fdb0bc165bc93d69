"""Is the drafter worth it? The baseline against its rivals, and which drafter the target is served with."""

from collections.abc import Iterable
from textwrap import shorten
from typing import Any, ClassVar
from uuid import uuid4

from rich.text import Text
from textual import events, work
from textual.binding import Binding, BindingType
from textual.widget import Widget

from eagle3ops.errors import Eagle3opsError
from eagle3ops.screens.base import named
from eagle3ops.screens.bench.layout import TALL, bench_lines
from eagle3ops.screens.bench.model import BenchFacts, Drafter, Gate, bench_facts, drafters
from eagle3ops.screens.bench.overrule import Overrule
from eagle3ops.screens.bench.tables import decision_words, drafter_lines, setting_at
from eagle3ops.screens.room import RunRoom
from eagle3ops.screens.widgets.clipboard import copy
from eagle3ops.screens.widgets.confirm import Confirm
from eagle3ops.screens.widgets.lines import Lines, Table
from eagle3ops.screens.widgets.wrapping import wrapped
from eagle3ops.words import plain

AGAIN_S = 30.0
"""Between readings of what other people may have decided."""


class Bench(RunRoom):
    """The selected run's benchmark above, all drafters of its target below."""

    ROOM = "bench"
    PLACE = "Bench"
    OP = "runs.bench"
    CSS_PATH = "room.tcss"
    DESTRUCTIVE = frozenset({"promote", "roll_back"})
    BINDINGS: ClassVar[list[BindingType]] = [
        *named(
            "bench",
            [
                Binding("s", "setting(1)", "Setting", tooltip="Choose the next setting, to be promoted"),
                Binding("S", "setting(-1)", "Setting before", show=False, tooltip="Choose the setting before"),
                Binding("P", "promote", "Promote", tooltip="Serve the target with this drafter at the chosen setting"),
                Binding("B", "roll_back", "Roll back", tooltip="Go back to what was promoted before"),
                Binding(
                    "enter", "open", "Select", tooltip="Select the run of the drafter under the cursor, in every room"
                ),
                Binding("t", "targets", "Targets", show=False, tooltip="Drafters of this target, or of all"),
                Binding(
                    "y", "copy", "Copy launch line", show=False, tooltip="Copy the command that serves what is promoted"
                ),
            ],
        )
    ]

    def __init__(self) -> None:
        super().__init__()
        self.facts = BenchFacts()
        self._facts_of: object = None
        self._chosen: dict[str, str] = {}
        """Run -> setting, where the person has chosen one."""
        self._all_targets = False
        self._cursor: str | None = None
        """Run of the drafter under the cursor."""
        self._drafters: list[Drafter] | None = None
        self._told = ""
        """What else the host said of them."""
        self._read_at = 0.0
        self._reading = False

    def panes(self) -> Iterable[Widget]:
        """The page, and the drafters below it."""
        yield Lines(id="page")
        yield Table(id="drafters")

    def on_mount(self) -> None:
        """Let keys scroll the page."""
        page = self.query_one("#page")
        page.can_focus = True
        page.focus()

    def state(self) -> tuple[object, ...]:
        """What a painting depends on besides the answer."""
        page, table = self.query_one("#page", Lines).room, self.query_one("#drafters", Lines).room
        return (page, table.width, id(self._drafters), self._told, self._cursor, self._all_targets, self.chosen)

    def look(self) -> None:
        """Read the drafters, and what is promoted, again after a while: others decide too."""
        self.set_class(self.app.size.height >= TALL, "tall")
        now = self.console.clock()
        if self.runs.rows and not self._reading and not self.runs.stale and abs(now - self._read_at) >= AGAIN_S:
            self._read_again(now)
        if self.answer is not self._facts_of:
            self._facts_of, self.facts = self.answer, bench_facts(self.answer)
        super().look()

    def _read_again(self, now: float) -> None:
        self._read_at = now
        self._asked = None
        self._read_drafters()

    @work(exclusive=True, group="drafters", exit_on_error=False)
    async def _read_drafters(self) -> None:
        self._reading = True
        try:
            answer = await self.runs.ask("drafters.list")
        except Eagle3opsError as error:
            self._told = f"cannot be read: {plain(error.what)}"
        else:
            self._drafters = drafters(answer)
            notes = [
                (len(answer.get("unreadable") or ()), "with a bench.json that cannot be read"),
                (len(answer.get("damaged") or ()), "damaged records of promotions"),
                (answer.get("left_out") or 0, "older ones not shown"),
            ]
            self._told = ", ".join(f"{count} {what}" for count, what in notes if count)
        finally:
            self._reading = False

    @property
    def chosen(self) -> str:
        """The setting that would be promoted."""
        chosen = self._chosen.get(self.facts.run, "")
        return chosen if chosen in self.facts.timed else self.facts.chosen

    def rows(self) -> list[Drafter]:
        """The drafters in the list: those of the selected run's target, unless all are wanted."""
        rows, wanted = self._drafters or [], self.facts.fingerprint
        return rows if self._all_targets or not wanted else [row for row in rows if row.fingerprint == wanted]

    def draw(self, answer: dict[str, Any]) -> None:
        """Paint the page and the list."""
        if answer is not self._facts_of:
            self._facts_of, self.facts = answer, bench_facts(answer)
        page, table, glyphs = self.query_one("#page", Lines), self.query_one("#drafters", Table), self.console.glyphs
        width, height = page.room.width, self.app.size.height
        page.show((), bench_lines(self.facts, self.chosen, width, height, glyphs, read_only=self.read_only))
        rows = self.rows()
        runs = [row.run for row in rows]
        if self._cursor not in runs:
            self._cursor = self.runs.selected if self.runs.selected in runs else runs[0] if runs else None
        width = table.room.width
        head, lines = drafter_lines(rows, self.runs.selected, width, glyphs, all_targets=self._all_targets)
        if not rows:
            told, look = (self._told, "warn") if self._told else ("none was benchmarked yet", "dim")
            told = "being read" if self._drafters is None and not self._told else told
            head, lines = (), [((piece, look),) for piece in wrapped(f"· {told}", width)]
        follow = runs.index(self._cursor) if self._cursor is not None else None
        moved = follow != table.cursor
        table.show(head, lines, follow)
        if moved:
            self.call_after_refresh(table.reveal)
        whose = "of all targets" if self._all_targets or not self.facts.target else f"of {self.facts.target}"
        title = f"{len(rows)} drafter{'s' if len(rows) != 1 else ''} {whose}, the fastest first"
        title += f"  ({self._told})" if self._told and rows else ""
        if str(table.border_title or "") != title:
            table.border_title = Text(title)

    def on_table_moved(self, message: Table.Moved) -> None:
        """Another drafter is under the cursor."""
        rows = self.rows()
        if message.to < len(rows):
            self._cursor = rows[message.to].run
            self.look()

    def action_open(self) -> None:
        """Look at the run of the drafter under the cursor."""
        if self._cursor is not None:
            self.runs.select(self._cursor)
            self.look()

    def action_targets(self) -> None:
        """All drafters, or those of this target."""
        self._all_targets = not self._all_targets
        self.look()

    def on_click(self, event: events.Click) -> None:
        """A click on a setting chooses it."""
        page = self.query_one("#page", Lines)
        at = page.line_at(event) if event.widget is page else None
        if at is None:
            return
        label = setting_at(page.line(at))
        if label in self.facts.timed:
            self._chosen[self.facts.run] = label
            self.look()

    def action_setting(self, by: int) -> None:
        """Choose another setting."""
        timed = self.facts.timed
        if timed:
            at = timed.index(self.chosen) if self.chosen in timed else 0
            self._chosen[self.facts.run] = timed[(at + by) % len(timed)]
            self.look()

    def action_promote(self) -> None:
        """Ask, and promote; where the gate refuses, only with a reason."""
        facts, setting = self.facts, self.chosen
        if facts.absent or not facts.run or not setting:
            self.notify(
                f"There is nothing to promote: {facts.absent or 'no benchmark'}.", severity="warning", markup=False
            )
            return
        now = facts.current
        if now is not None and (now.run, now.setting) == (facts.run, setting):
            self.notify(f"{now.words} is what is promoted.", markup=False)
            return
        gate = facts.gate.get(setting, Gate())
        what = f"{facts.run} at {setting}"
        means = f"{facts.target or 'The target'} is served with it from now on, in place of {decision_words(now)}."
        wish = {"run": facts.run, "setting": setting, "expected": facts.generation, "token": uuid4().hex}
        if gate.refusals:
            self.app.push_screen(
                Overrule(f"The gate refuses {what}.", gate.refusals, means, yes="Promote it", no="Keep what is"),
                lambda reason: self._overruled(wish, reason),
            )
            return
        cautions = "".join(f"\n· {shorten(caution, 160, placeholder=' ...')}" for caution in gate.cautions[:3])
        self.app.push_screen(
            Confirm(f"Promote {what}?", f"{means}{cautions}", yes="Promote", no="Keep what is"),
            lambda yes: self._confirmed(yes, "drafters.promote", f"Promote {what}", wish),
        )

    def _confirmed(self, yes: bool | None, op: str, title: str, wish: dict[str, Any]) -> None:
        if yes:
            self._decide(op, title, wish)

    def _overruled(self, wish: dict[str, Any], reason: str | None) -> None:
        if reason:
            title = f"Promote {wish['run']} by force"
            self._decide("drafters.promote", title, wish | {"forced": True, "reason": reason})

    def action_roll_back(self) -> None:
        """Ask, and go back to what was promoted before."""
        facts = self.facts
        if facts.current is None:
            told = facts.damaged or f"No drafter is promoted for {facts.target or 'this target'}."
            self.notify(told, severity="warning", markup=False)
            return
        wish = {"target": facts.fingerprint, "expected": facts.generation, "token": uuid4().hex}
        means = f"{facts.target} is served with {decision_words(facts.previous)} from now on."
        self.app.push_screen(
            Confirm(f"Roll back from {facts.current.words}?", means, yes="Roll back", no="Keep it"),
            lambda yes: self._confirmed(yes, "drafters.rollback", f"Roll back {facts.target}", wish),
        )

    @work(exit_on_error=False)
    async def _decide(self, op: str, title: str, wish: dict[str, Any]) -> None:
        """Ask the host to decide; the same checks and words as on the command line."""
        if self.read_only:
            self.notify("The console is read-only.", title=title, severity="warning", markup=False)
            return
        if not self.may_order(title):
            return
        try:
            answer = await self.runs.ask(op, **wish)
        except Eagle3opsError as error:
            self.notify(plain(error), title=title, severity="error", timeout=15, markup=False)
        else:
            now = bench_facts({"promoted": answer}).current
            self.notify(f"Promoted is now {decision_words(now)}.", title=title, markup=False)
        self._read_again(self.console.clock())

    @work(exclusive=True, group="copy", exit_on_error=False)
    async def action_copy(self) -> None:
        """Copy the command that serves what is promoted."""
        now = self.facts.current
        if now is None:
            self.notify("Nothing is promoted, so there is no launch line.", severity="warning")
            return
        where = await copy(now.launch_line, self.app.copy_to_clipboard)
        self.notify(f"Copied {where}.", title="Launch line", markup=False)
