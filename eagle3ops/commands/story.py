"""What is a person told of a run: its events as they come, and at the end how it ended and what to do next?"""

import contextlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3ops.errors import ExitCode
from eagle3ops.narration import Bars, Json, Lines, Narrator
from eagle3ops.runs.events import Event
from eagle3ops.words import outcome_of, outcome_word, plain


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run, or the following of it, ended."""

    code: int
    cause: str | None = None
    remedy: str | None = None
    over: bool = True
    """The run has ended; False when only the following of it has, and the run goes on, or may do so."""


@dataclass(slots=True)
class Story:
    """One run, told on standard error, or as JSON lines on standard output."""

    narrator: Narrator
    command: Callable[[str], str]
    """Verb -> the command line that does it to this run."""
    last: Event | None = None
    """The last event about the run as a whole."""
    verdicts: dict[tuple[str, str], Event] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        """Tell one event."""
        if event.kind == "run":
            self.last = event
        elif event.kind == "verdict":
            self.verdicts[event.stage or "", str(event.data.get("name"))] = event
        self.narrator.tell(event)

    def ended(self) -> Ending | None:
        """How the run says that it ended; None when it has not said so."""
        if self.last is None or self.last.data.get("status") == "running":
            return None
        data = self.last.data
        code = data.get("exit_code")
        return Ending(code if isinstance(code, int) else ExitCode.FAILED, data.get("cause"), data.get("remedy"))

    def conclude(self, ending: Ending, run_id: str, where: str, state: Mapping[str, Any]) -> int:
        """Say how it ended; returns the exit code.

        Args:
            run_id: its id.
            where: its folder, for people.
            state: its `state.json`.
        """
        for (stage, name), event in self.verdicts.items():
            word = outcome_word(outcome_of(event.data))
            say(f"{word}  {plain(stage)}/{plain(name)}: {plain(event.data.get('reason', ''))}")
        if ending.cause:
            # The tail of a log reads as one: a traceback in a single line is read by nobody.
            first, *rest = ending.cause.strip().splitlines() or [""]
            say(f"{run_id}: {plain(first)}")
            for line in rest:
                say(plain(line))
        if ending.remedy:
            say(f"  -> {plain(ending.remedy)}")
        say(f"run {run_id} in {where}")
        if not ending.over:
            say(f"  follow it again: {self.command('follow')}")
        elif ending.code == ExitCode.BAD_REQUEST:
            say("  the request itself has to change: start a new run with it put right")
        elif ending.code not in (ExitCode.DONE, ExitCode.VERDICT_FAIL):
            say(f"  take it up again: {self.command('resume')}")
        else:
            for name, stage in state.get("stages", {}).items():
                if stage.get("out"):
                    say(f"  {plain(name)}: {plain(stage['out'])}")
        return ending.code


def narrator(*, json: bool) -> Narrator:
    """JSON lines, progress bars where a person looks, or plain lines."""
    if json:
        return Json(sys.stdout)
    return Bars() if sys.stderr.isatty() else Lines(sys.stderr)


def say(text: str) -> None:
    """A line for the person; one who has gone is not waited for."""
    with contextlib.suppress(OSError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
