"""What does the Run room ask its host, and when? Only what is looked at, and again only when events say so."""

from dataclasses import dataclass, field

from textual import work

from eagle3ops.errors import Eagle3opsError
from eagle3ops.screens.room import RunDeeds, RunRoom
from eagle3ops.screens.run.parts import (
    Artifact,
    Environment,
    ProcessEntry,
    read_artifacts,
    read_environment,
    read_processes,
)
from eagle3ops.words import plain

LIVING_S = 10.0
"""How often processes are asked after while one looks at them and nothing is said of them."""
ORPHANS_S = 2.0
"""The same for those of a run that goes on no more."""


@dataclass(slots=True)
class _Asked:
    """What was asked of the host about the selected run, beside its processes."""

    run: str | None = None
    processes: int = -1
    """Events about processes when they were last asked for."""
    asked_at: float = 0.0
    artifacts: tuple[int, object] = (-1, ())
    environments: dict[str, Environment | str] = field(default_factory=dict)
    """By name; a text says why there is none."""


class RunReading(RunRoom, RunDeeds):
    """The answers about the parts of the selected run."""

    OP = "runs.processes"
    BARE = True

    def __init__(self) -> None:
        super().__init__()
        self.tab = "stages"
        """What is looked at."""
        self.started: list[ProcessEntry] = []
        self.made: list[Artifact] = []
        self.left_out: dict[str, int] = {}
        """Tab -> how many the host did not send."""
        self.artifacts_read = False
        self.parts = 0
        """Grows with every answer about a part of the run."""
        self._known = _Asked()
        self._read: object = None

    def look(self) -> None:
        """Ask for what has changed, and paint it."""
        runs, known = self.runs, self._known
        if known.run != runs.selected:
            self._known = known = _Asked(runs.selected)
            self.started, self.made, self.left_out, self.artifacts_read = [], [], {}, False
        watch = runs.watch
        if watch is not None and runs.detail is not None and self.answer is not None:
            # Not while an answer is awaited: asking again would take it back.
            if (self.answered_at or 0.0) >= known.asked_at:
                if known.processes not in (-1, watch.processes) or self._may_have_died(runs.detail.row.status):
                    self._asked, known.asked_at = None, self.console.clock()
                known.processes = watch.processes
            wanted = (watch.artifacts, runs.detail.row.status)
            if self.tab == "artifacts" and known.artifacts != wanted:
                known.artifacts = wanted
                self._ask_artifacts(watch.run_id)
        if self.answer is not None and self.answer is not self._read:
            self._read = self.answer
            self.started, self.left_out["processes"] = read_processes(self.answer)
        super().look()

    def _may_have_died(self, status: str) -> bool:
        """Whether it is time to ask after processes that lived when they were last asked after.

        No event says that one has died together with everything that could have said so.
        """
        living = any(entry.state == "running" for entry in self.started)
        after = ORPHANS_S if status != "running" else LIVING_S if self.tab == "processes" else None
        return living and after is not None and self.console.clock() - (self.answered_at or 0.0) >= after

    @work(exclusive=True, group="artifacts", exit_on_error=False)
    async def _ask_artifacts(self, run_id: str) -> None:
        try:
            answer = await self.runs.ask("runs.artifacts", run=run_id)
        except Eagle3opsError as error:
            self.notify(plain(error), title="The artifacts cannot be read", severity="error", markup=False)
            return
        if run_id == self.runs.selected:
            self.made, self.left_out["artifacts"] = read_artifacts(answer)
            self.artifacts_read = True
            self.parts += 1

    @work(group="environment", exit_on_error=False)
    async def _ask_environment(self, run_id: str, name: str) -> None:
        found: Environment | str
        try:
            found = read_environment(await self.runs.ask("runs.environment", run=run_id, environment=name))
        except Eagle3opsError as error:
            found = plain(error)
        if run_id == self._known.run:
            self._known.environments[name] = found
            self.parts += 1

    def environment(self, entry: ProcessEntry) -> tuple[Environment | None, str]:
        """The variables of a process, or why there are none; asked for when they are first looked at."""
        if not entry.environment:
            return None, "Its environment was not written down: an older eagle3ops started it."
        found = self._known.environments.get(entry.environment)
        if found is None and self._known.run is not None:
            self._known.environments[entry.environment] = "Reading its environment ..."
            self._ask_environment(self._known.run, entry.environment)
            return None, "Reading its environment ..."
        return (None, found or "") if not isinstance(found, Environment) else (found, "")
