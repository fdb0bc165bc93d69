"""How does a job run without the console? Create a run, start its supervisor, follow its events, say how it ended."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from eagle3ops import locations
from eagle3ops.errors import Eagle3opsError, ExitCode, Refused, RequestError
from eagle3ops.narration import Bars, Json, Lines, Narrator, plain
from eagle3ops.runs.directory import RunDirectory, create_run
from eagle3ops.runs.events import Event
from eagle3ops.runs.files import explain_os_error
from eagle3ops.runs.job import Registry, load_registry
from eagle3ops.runs.planning import StagePlan, admit, choose, free_bytes, plan_stages
from eagle3ops.runs.processes import is_alive
from eagle3ops.runs.supervisor import launch
from eagle3ops.spec.load import dump_pipeline, load_pipeline, parse_pipeline, require_known_names
from eagle3ops.spec.models import Pipeline

POLL_S = 0.1
DEFAULT_PIPELINE = "demo"


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


def bundled() -> dict[str, Any]:
    """The pipeline files that come with eagle3ops, by name."""
    from importlib import resources

    folder = resources.files("eagle3ops.assets.pipelines")
    return {item.name.removesuffix(".yaml"): item for item in folder.iterdir() if item.name.endswith(".yaml")}


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
    path = Path(name).expanduser()
    if not path.exists() and path.suffix not in (".yaml", ".yml"):
        require_known_names([name], [*sorted(known)], "file or bundled pipeline")
    return load_pipeline(path, specs, overrides), str(path.absolute())


def require_local(host: str) -> None:
    """Refuse a host that is not this one."""
    if host != "local":
        raise RequestError(f"unknown host {host!r}", remedy="use --host local, which is the default")


def run_job(asked: Asked) -> int:
    """Carry out `eagle3ops --job NAME`; returns the exit code."""
    registry = load_registry()
    require_known_names([asked.job], ["pipeline", *registry.names()], "job")
    pipeline, source = read_pipeline(asked.spec, registry, asked.overrides)
    require_local(asked.host or pipeline.host)
    root, cache = locations.root(asked.root), locations.cache()
    locations.require_writable(root)
    stages = choose(plan_stages(pipeline, registry, root, cache), registry, asked.job)
    if not asked.yes:
        admit(stages, root)
    run = _create(root, pipeline, asked, stages, cache, source)
    return start(run, json=asked.json, detach=asked.detach)


def _create(
    root: Path, pipeline: Pipeline, asked: Asked, stages: Sequence[StagePlan], cache: Path, source: str
) -> RunDirectory:
    try:
        return create_run(
            root,
            pipeline,
            job=asked.job,
            forced=asked.yes,
            stages=[stage.name for stage in stages],
            spec_text=dump_pipeline(pipeline),
            cache=cache,
            source=source,
        )
    except OSError as error:
        raise explain_os_error(error) or error from error


def resume(run: RunDirectory, *, json: bool, detach: bool, yes: bool = False) -> int:
    """Take a run up again where it stopped."""
    run.request()
    if run.alive():
        raise Refused(f"{run.run_id} is running", remedy=run.command("follow"))
    locations.require_writable(run.path)
    registry = load_registry()
    pipeline = load_pipeline(run.spec_file, registry.specs())
    wanted = set(run.request()["stages"])
    planned = plan_stages(pipeline, registry, run.root, Path(run.request()["cache"]))
    if yes:
        run.force()
    elif not run.request().get("forced"):
        admit([stage for stage in planned if stage.name in wanted], run.root)
    return start(run, json=json, detach=detach)


def start(run: RunDirectory, *, json: bool, detach: bool) -> int:
    """Start the supervisor and follow the run to its end, or only to its start with `detach`."""
    after = run.last_seq()
    try:
        process = launch(run)
    except OSError as error:
        raise explain_os_error(error, run.path) or error from error
    follower = Follower(run, after, process, json=json)
    if not detach:
        return follower.follow()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not run.alive() and process.poll() is None:
        time.sleep(POLL_S)
    sys.stderr.write(f"run {run.run_id}\n  follow it: {run.command('follow')}\n")
    if json:
        for event in follower.reader.read():
            sys.stdout.write(event.line() + "\n")
    return ExitCode.DONE if process.poll() in (None, 0) else _code(process.returncode)


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
    ) -> None:
        self.run = run
        self.process = process
        self.reader = run.reader(after)
        self.cancels = cancels
        self.interrupted = 0
        self.last: Event | None = None
        self.verdicts: dict[tuple[str, str], Event] = {}
        self.narrator: Narrator
        if json:
            self.narrator = Json(sys.stdout)
        elif sys.stderr.isatty():
            self.narrator = Bars()
        else:
            self.narrator = Lines(sys.stderr)

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
                    self._take(event)
                if over or self.interrupted > 1:
                    break
                if self.interrupted > told:
                    told = self.interrupted
                    if not self.cancels:
                        break
                    self._say("cancelling; once more to leave at once")
                    self._cancel()
                time.sleep(POLL_S)
        finally:
            self.narrator.close()
            for number, handler in before.items():
                signal.signal(number, handler)
        return self._summary()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.interrupted += 1

    def _cancel(self) -> None:
        if self.process is None:
            cancel(self.run)
        elif self.process.poll() is None:
            # Also before it has written down who it is.
            self.process.terminate()

    def _alive(self) -> bool:
        if self.process is not None:
            return self.process.poll() is None
        return self.run.alive()

    def _take(self, event: Event) -> None:
        if event.kind == "run":
            self.last = event
        elif event.kind == "verdict":
            self.verdicts[event.stage or "", str(event.data.get("name"))] = event
        self.narrator.tell(event)

    def _say(self, text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def _summary(self) -> int:
        """Say how it ended on standard error; returns the exit code."""
        code, cause, remedy = self._outcome()
        for (stage, name), event in self.verdicts.items():
            word = "PASS" if event.data.get("passed") else "FAIL"
            self._say(f"{word}  {stage}/{name}: {plain(event.data.get('reason', ''))}")
        if cause:
            self._say(f"{self.run.run_id}: {plain(cause)}")
        if remedy:
            self._say(f"  -> {plain(remedy)}")
        self._say(f"run {self.run.run_id} in {self.run.path}")
        if code == ExitCode.BAD_REQUEST:
            self._say("  the request itself has to change: start a new run with it put right")
        elif code not in (ExitCode.DONE, ExitCode.VERDICT_FAIL):
            self._say(f"  take it up again: {self.run.command('resume')}")
        elif self.run.artifacts.is_dir():
            for link in sorted(self.run.artifacts.iterdir()):
                if link.is_symlink():
                    self._say(f"  {link.name}: {link.resolve()}")
        return code

    def _outcome(self) -> tuple[int, str | None, str | None]:
        """Exit code, cause and remedy, from the last event, or from what is left when there is none."""
        if self.last is not None and self.last.data.get("status") != "running":
            data = self.last.data
            code = int(data.get("exit_code", 1))
            return (ExitCode.INTERRUPTED if self.interrupted else code), data.get("cause"), data.get("remedy")
        if self.interrupted:
            if not self.cancels:
                return ExitCode.INTERRUPTED, "no longer followed; the run goes on", None
            return ExitCode.INTERRUPTED, "left before the run had ended", None
        status = self.process.returncode if self.process is not None else None
        return _code(status), self._last_words(status), None

    def _last_words(self, status: int | None) -> str:
        """Why there is no last event: a full disk, or a supervisor that was killed."""
        free = free_bytes(self.run.path)
        if free is not None and free < 64 * 1024:
            return f"{self.run.root}: no space left on the disk; the run could not write down how it ended"
        log = self.run.logs / "supervisor.log"
        with contextlib.suppress(OSError):
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            if lines:
                return f"the supervisor ended: {lines[-1]}"
        how = f" by signal {-status}" if status is not None and status < 0 else ""
        return f"the supervisor was ended{how} before the run was"


def _code(status: int | None) -> int:
    """Exit code for a supervisor without a last word."""
    return status if status is not None and status > 0 else ExitCode.FAILED


def cancel(run: RunDirectory) -> bool:
    """Ask the run's supervisor to end it; False when there is none."""
    supervisor = run.supervisor()
    if supervisor is None or not is_alive(supervisor):
        return False
    try:
        os.kill(int(supervisor["pid"]), signal.SIGTERM)
    except OSError as error:
        raise Eagle3opsError(f"{run.run_id} cannot be cancelled: {error.strerror}") from error
    return True
