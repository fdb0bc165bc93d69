"""How does a job run without the console? Create a run, start its supervisor, follow its events, say how it ended."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from types import FrameType
from uuid import uuid4

from eagle3ops import locations
from eagle3ops.commands.story import Ending, Story, narrator, say
from eagle3ops.errors import ExitCode, RequestError
from eagle3ops.locations import expanded
from eagle3ops.runs.directory import RunDirectory
from eagle3ops.runs.job import Registry, load_registry
from eagle3ops.runs.orders import Order, Started, cancel, place, resume
from eagle3ops.runs.planning import free_bytes
from eagle3ops.runs.roots import require_root
from eagle3ops.spec.bundled import bundled
from eagle3ops.spec.load import dump_pipeline, load_pipeline, parse_pipeline, require_known_names
from eagle3ops.spec.models import Pipeline

POLL_S = 0.1
DEFAULT_PIPELINE = "demo"
SUPERVISOR_LOG = "supervisor.log"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request on the command line."""

    job: str = "pipeline"
    spec: str | None = None
    overrides: Sequence[str] = ()
    host: str | None = None
    root: str | None = None
    json: bool = False
    detach: bool = False
    yes: bool = False
    key: str | None = None
    """Idempotency key; without one, every call is a run of its own."""


def read_pipeline(spec: str | None, registry: Registry, overrides: Sequence[str]) -> tuple[Pipeline, str]:
    """Load a pipeline file, or one that comes with eagle3ops by its name; also returns where it came from."""
    specs = registry.specs()
    known = bundled()
    name = DEFAULT_PIPELINE if spec is None else spec
    if not name:
        raise RequestError("the name of the pipeline file is empty", remedy="is the variable that names it set?")
    if name in known and not (spec and Path(spec).is_file()):
        source = f"{name}.yaml (comes with eagle3ops)"
        return parse_pipeline(known[name].read_bytes(), source, specs, overrides), source
    path = expanded(name)
    if not path.exists() and path.suffix not in (".yaml", ".yml"):
        require_known_names([name], [*sorted(known)], "file or bundled pipeline")
    return load_pipeline(path, specs, overrides), str(path.absolute())


def run_job(asked: Asked) -> int:
    """Carry out `eagle3ops --job NAME`; returns the exit code."""
    registry = load_registry()
    require_known_names([asked.job], ["pipeline", *registry.names()], "job")
    pipeline, source = read_pipeline(asked.spec, registry, asked.overrides)
    host, key = asked.host or pipeline.host, asked.key or uuid4().hex
    if host != "local":
        from eagle3ops.commands import remote

        return remote.run_job(
            host,
            asked.root,
            pipeline,
            job=asked.job,
            source=source,
            key=key,
            forced=asked.yes,
            json=asked.json,
            detach=asked.detach,
            named=asked.key is not None,
        )
    root = locations.root(asked.root)
    require_root(root)
    locations.require_writable(root)
    started = place(
        Order(
            job=asked.job,
            spec_text=dump_pipeline(pipeline),
            source=source,
            root=root,
            cache=locations.cache(),
            forced=asked.yes,
            key=key,
        )
    )
    return attend(started, json=asked.json, detach=asked.detach)


def take_up_again(run: RunDirectory, *, json: bool, detach: bool, yes: bool = False) -> int:
    """Go on with a run where it stopped."""
    # What earlier supervisors said is no reason for how this one ends.
    said = _size(run.logs / SUPERVISOR_LOG)
    return attend(resume(run, token=uuid4().hex, forced=yes), json=json, detach=detach, said=said)


def attend(started: Started, *, json: bool, detach: bool, said: int = 0) -> int:
    """Follow a run to its end, or only to its start with `detach`.

    `said`: bytes that its supervisor's log had before.
    """
    run, process = started.run, started.process
    if not started.fresh:
        say(f"{run.run_id} was started for this key before; nothing is started anew")
    if not detach:
        return Follower(run, started.after if started.fresh else 0, process, json=json, said=said).follow()
    deadline = time.monotonic() + 30
    while process is not None and time.monotonic() < deadline and not run.alive() and process.poll() is None:
        time.sleep(POLL_S)
    say(f"run {run.run_id}\n  follow it: {run.command('follow')}")
    if json:
        sys.stdout.write(dumps({"run": run.run_id, "host": "local", "path": str(run.path)}) + "\n")
    status = None if process is None else process.poll()
    return ExitCode.DONE if status in (None, 0) else _code(status)


def follow(run: RunDirectory, *, json: bool) -> int:
    """Follow a run that another command started, from its first event."""
    return Follower(run, 0, None, json=json, cancels=False).follow()


class Follower:
    """Tells a run's events until it has ended, and says how it ended."""

    def __init__(
        self,
        run: RunDirectory,
        after: int,
        process: subprocess.Popen[bytes] | None,
        *,
        json: bool,
        cancels: bool = True,
        said: int = 0,
    ) -> None:
        self.run = run
        self.said = said
        self.process = process
        self.reader = run.reader(after)
        self.cancels = cancels
        self.interrupted = 0
        self.hung_up = False
        self.story = Story(narrator(json=json), run.command)

    def follow(self) -> int:
        """Until the end; returns the exit code."""
        before = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }
        told = 0
        try:
            while True:
                over = not self._alive()
                for event in self.reader.read():
                    self.story.take(event)
                if over or self.hung_up or self.interrupted > 1:
                    break
                if self.interrupted > told:
                    told = self.interrupted
                    if not self.cancels:
                        break
                    say("cancelling; once more to leave at once")
                    self._cancel()
                time.sleep(POLL_S)
        finally:
            self.story.narrator.close()
            for number, handler in before.items():
                signal.signal(number, handler)
        return self.story.conclude(self._ending(), self.run.run_id, str(self.run.path), self.run.state())

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # A terminal that goes away is no wish to end the run.
        self.hung_up = self.hung_up or number == signal.SIGHUP
        self.interrupted += number != signal.SIGHUP

    def _cancel(self) -> None:
        # Also before it has written down who it is.
        if not cancel(self.run) and self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def _alive(self) -> bool:
        if self.process is not None and self.process.poll() is None:
            return True
        return self.run.alive()

    def _ending(self) -> Ending:
        """From the last event, or from what is left when there is none."""
        ending = self.story.ended()
        if ending is not None:
            return Ending(ExitCode.INTERRUPTED, ending.cause, ending.remedy) if self.interrupted else ending
        if self.hung_up or (self.interrupted and not self.cancels):
            return Ending(ExitCode.INTERRUPTED, "no longer followed; the run goes on", over=False)
        if self.interrupted:
            what = "left before the run had ended; it was asked to end"
            return Ending(ExitCode.INTERRUPTED, what, over=False)
        status = self.process.returncode if self.process is not None else None
        return Ending(_code(status), self._last_words(status))

    def _last_words(self, status: int | None) -> str:
        """Why there is no last event: a full disk, or a supervisor that was killed."""
        free = free_bytes(self.run.path)
        if free is not None and free < 64 * 1024:
            return f"{self.run.root}: no space left on the disk; the run could not write down how it ended"
        with contextlib.suppress(OSError), (self.run.logs / SUPERVISOR_LOG).open("rb") as log:
            log.seek(self.said)
            lines = log.read().decode("utf-8", "replace").strip().splitlines()
            if lines:
                return f"the supervisor ended: {lines[-1]}"
        how = f" by signal {-status}" if status is not None and status < 0 else ""
        return f"the supervisor was ended{how} before the run was"


def _size(file: Path) -> int:
    with contextlib.suppress(OSError):
        return file.stat().st_size
    return 0


def _code(status: int | None) -> int:
    """Exit code for a supervisor without a last word."""
    return status if status is not None and status > 0 else ExitCode.FAILED
