"""How are the events of a run told to a person, as lines or as progress bars?"""

import contextlib
import sys
from collections.abc import Mapping
from typing import Any, Protocol, TextIO

from eagle3ops.runs.events import Event
from eagle3ops.words import headline, human_seconds, outcome_of, outcome_word, plain


class Narrator(Protocol):
    """Tells events as they come."""

    def tell(self, event: Event) -> None:
        """Tell one event."""

    def close(self) -> None:
        """Leave the terminal as it was."""


def line(event: Event) -> str | None:
    """One line for a change of state; None for what is not one."""
    data, stage = event.data, plain(event.stage or "run")
    if event.kind == "run":
        return _run_line(data)
    if event.kind == "stage":
        return _stage_line(stage, data)
    if event.kind == "verdict":
        word = outcome_word(outcome_of(data))
        return f"{stage}: verdict {plain(data.get('name', ''))}: {word}: {plain(data.get('reason', ''))}"
    if event.kind == "incident":
        title = plain(data.get("title", "")).removeprefix(f"stage {stage}: ")
        return None if data.get("again") else f"{stage}: watchdog: {title}"
    if event.kind == "remedy":
        return _remedy_line(stage, data)
    if event.kind in ("info", "warn"):
        prefix = "warning: " if event.kind == "warn" else ""
        return f"{stage}: {prefix}{plain(data.get('text', ''))}"
    return None


def lines(event: Event) -> list[str]:
    """What is said of an event where there is room: `line`, and below it a root cause, a remedy, where evidence is."""
    first = line(event)
    if first is None:
        return []
    data = event.data
    if event.kind == "run" and data.get("status") != "running":
        first = f"run: {plain(data.get('status'))}"  # why is said below, with what to do about it
    found = [first]
    root = data.get("root") if event.kind == "stage" else None
    if isinstance(root, Mapping):
        where = f"{plain(root.get('file', ''))}:{plain(root.get('line_no', ''))}"
        found.append(f"  cause: {where}  {plain(root.get('text', ''))[:300]}")
        found += [f"    {plain(words)}" for words in (root.get("explanation"),) if words]
        found += [f"    -> {plain(words)}" for words in (root.get("fix"),) if words]
    if event.kind == "incident":
        found += [f"    {plain(words)}" for words in (data.get("explanation"),) if words]
        remedies = data.get("remedies")
        told = [one.get("words") for one in remedies if isinstance(one, Mapping)] if isinstance(remedies, list) else []
        found += [
            f"    -> {plain(words)}" for words in told if words and not str(words).startswith("the evidence is in")
        ]
    if event.kind == "remedy" and data.get("evidence"):
        found.append(f"    the evidence is in {plain(data['evidence'])}")
    return found


REMEDIES = {
    "restart": "ended and started again",
    "bisect": "ended and started again with something left out",
    "give_up": "ended for good",
    "release_lock": "a stale lock",
    "notify": "nothing is done",
}
"""What the watchdog does, in words."""


def _remedy_line(stage: str, data: Mapping[str, Any]) -> str:
    step = data.get("step")
    what = REMEDIES.get(step, plain(step)) if isinstance(step, str) else "a remedy"
    return f"{stage}: watchdog: {what}: {plain(data.get('why', ''))}"


def _run_line(data: Mapping[str, Any]) -> str | None:
    status = data.get("status")
    if status == "running":
        return f"run: started, {len(data.get('stages', ()))} stages"
    cause = data.get("cause")
    return f"run: {plain(status)}{': ' + headline(cause) if cause else ''}"


def _stage_line(stage: str, data: Mapping[str, Any]) -> str:
    status = data.get("status")
    if status == "reused":
        return f"{stage}: done before, skipped"
    took = data.get("seconds")
    text = f"{stage}: {plain(status)}"
    if status == "running" and data.get("attempt"):
        text += f", attempt {plain(data['attempt'])}"
    if isinstance(took, int | float) and status != "running":
        text += f" after {human_seconds(took)}"
    error = data.get("error")
    return f"{text}: {headline(error)}" if error else text


class Lines:
    """One line for each change of state, for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def tell(self, event: Event) -> None:
        """Write the line, if there is one; a reader that has gone does not end the run."""
        with contextlib.suppress(OSError):
            for text in lines(event):
                self.stream.write(text + "\n")
            self.stream.flush()

    def close(self) -> None:
        """Nothing to put back."""


class Bars:
    """Progress bars with rate and time left, and the lines above them."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self.console = Console(stderr=True, highlight=False, markup=False)
        self.progress = Progress(
            TextColumn("{task.description:>9}", markup=False),
            BarColumn(bar_width=30),
            TextColumn("{task.percentage:>3.0f} %", markup=False),
            TextColumn("{task.fields[rate]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("left", markup=False),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
        )
        self.progress.start()
        self.tasks: dict[str, TaskID] = {}

    def tell(self, event: Event) -> None:
        """Move the bar, or write the line above the bars."""
        stage = event.stage or "run"
        if event.kind == "progress":
            self._advance(stage, event.data)
            return
        if event.kind == "stage" and event.data.get("status") != "running" and stage in self.tasks:
            self.progress.remove_task(self.tasks.pop(stage))
        for text in lines(event):
            self.progress.console.print(text, soft_wrap=True, markup=False, highlight=False)

    def _advance(self, stage: str, data: Mapping[str, Any]) -> None:
        done, total, unit = data.get("done", 0), data.get("total"), plain(data.get("unit", ""))
        if stage not in self.tasks:
            self.tasks[stage] = self.progress.add_task(stage, total=total, completed=done, rate=unit)
        task = self.tasks[stage]
        speed = next((item.speed for item in self.progress.tasks if item.id == task), None)
        rate = f"{done:,.0f} {unit}, {speed:,.1f}/s" if speed else f"{done:,.0f} {unit}"
        self.progress.update(task, total=total, completed=done, rate=rate)

    def close(self) -> None:
        """Take the bars away."""
        self.progress.stop()


class Json:
    """One event a line on standard output. A reader that has gone does not end the run, nor change its exit code."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.open = True

    def tell(self, event: Event) -> None:
        """Write the event as it stands in the file."""
        if not self.open:
            return
        try:
            self.stream.write(event.line() + "\n")
            self.stream.flush()
        except OSError as error:
            self.open = False
            # Python would complain once more when it closes the stream at exit.
            sys.stdout = None
            if not isinstance(error, BrokenPipeError):
                with contextlib.suppress(OSError):
                    sys.stderr.write(f"events are no longer written: {error.strerror}; the run goes on\n")

    def close(self) -> None:
        """Nothing to put back."""
