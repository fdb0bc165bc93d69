"""What can be asked of a root? Place an order, take a run up again, cancel it; each of them any number of times.

Nothing here prints or waits for a run: headless mode calls it on this machine, the agent on another one.
"""

import hashlib
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from eagle3ops import locations
from eagle3ops.errors import Refused, RequestError
from eagle3ops.runs.directory import RunDirectory, create_run, new_run_id, runs_folder
from eagle3ops.runs.family import end_left_behind, left_behind
from eagle3ops.runs.files import explain_os_error
from eagle3ops.runs.job import Registry, load_registry
from eagle3ops.runs.planning import StagePlan, admit, choose, plan_stages
from eagle3ops.runs.processes import ProcessId, send_signal
from eagle3ops.runs.redact import redact
from eagle3ops.runs.roots import require_root
from eagle3ops.runs.starts import KeyRecord, digest, key_record, launch, locked, started
from eagle3ops.spec.load import dump_pipeline, load_pipeline, parse_pipeline, require_known_names
from eagle3ops.spec.models import Pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A run that somebody wants."""

    job: str = "pipeline"
    spec_text: str
    """A complete pipeline file, as YAML."""
    source: str
    """Where it came from, for people."""
    root: Path
    cache: Path
    forced: bool = False
    """Go on although a forecast says that a stage does not fit."""
    key: str
    """Idempotency key, any text: an order with a key that was used before leads to the same run."""

    def fingerprint(self) -> str:
        """Tells two orders with one key apart."""
        return hashlib.sha256(f"{self.job}\0{self.spec_text}".encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Started:
    """The run that an order led to."""

    run: RunDirectory
    after: int
    """Number of the last event before this start."""
    fresh: bool
    """This call started the supervisor; False for a repeat that found it started."""
    process: subprocess.Popen[bytes] | None
    """The supervisor, where this call started it."""


def place(order: Order) -> Started:
    """Plan, admit, create and start a run; an order with the same key returns the run that is there.

    Raises:
        Refused: a forecast does not fit, or the run of this key was deleted.
        RequestError: the pipeline, the job or the root is wrong, or the key was used for something else.
    """
    if not order.key:
        raise RequestError("an order needs a key", remedy="any text that no other order has, such as a UUID")
    require_root(order.root)
    with key_record(order.root, order.key, create=False) as record:
        found = None if record is None else _known(record, order)
    if found is None:
        found = _create(order)
    token = f"first-{digest(order.key)}"
    try:
        process = launch(found, token)
    except OSError as error:
        raise explain_os_error(error, found.path) or error from error
    return Started(found, 0, process is not None, process)


def _known(record: KeyRecord, order: Order) -> RunDirectory | None:
    """The run of a key; None when its folder is still to be made.

    Raises:
        Refused: the folder was made, and deleted since.
        RequestError: the key was used for another order.
    """
    if record.run_id is None:
        return None
    if record.order != order.fingerprint():
        raise RequestError(
            f"the key {order.key[:80]!r} was used for another order, which led to run {record.run_id}",
            remedy="give every order a key of its own",
        )
    run = RunDirectory(runs_folder(order.root) / record.run_id)
    if run.path.is_dir() and run.request().get("key") == digest(order.key):
        if not record.created:
            record.add(created=run.run_id)
        return run
    if record.created:
        raise Refused(
            f"run {run.run_id}, which the key {order.key[:80]!r} led to, was deleted",
            remedy="place the order with a new key to run it again",
        )
    return None


def _create(order: Order) -> RunDirectory:
    """Make the run's folder, once per key, whoever else is about it and wherever they died."""
    # Nothing is written before the order has proved to be right and to fit.
    registry = load_registry()
    require_known_names([order.job], ["pipeline", *registry.names()], "job")
    pipeline = parse_pipeline(order.spec_text, order.source, registry.specs())
    locations.require_writable(order.root)
    planned = plan_stages(pipeline, registry, order.root, order.cache, [order.job])
    stages = choose(planned, registry, order.job)
    if not order.forced:
        admit(stages, order.root)
    try:
        with key_record(order.root, order.key) as record:
            assert record is not None
            return _known(record, order) or _make(order, record, pipeline, stages)
    except OSError as error:
        raise explain_os_error(error, error.filename or order.root) or error from error


def _make(order: Order, record: KeyRecord, pipeline: Pipeline, stages: list[StagePlan]) -> RunDirectory:
    while True:
        run_id = record.run_id
        if run_id is None or (runs_folder(order.root) / run_id).exists():
            # The second: two orders of one second drew the same id, and the other one was faster.
            run_id = new_run_id(pipeline.name)
            record.add(run_id=run_id, order=order.fingerprint(), key=redact(order.key[:200]))
        try:
            run = create_run(
                order.root,
                pipeline,
                run_id=run_id,
                key=digest(order.key),
                job=order.job,
                forced=order.forced,
                stages=[stage.name for stage in stages],
                spec_text=dump_pipeline(pipeline),
                cache=order.cache,
                source=order.source,
            )
        except FileExistsError:
            if not os.path.lexists(runs_folder(order.root) / run_id):
                # It is not the run that is in the way, and another id would not help.
                raise
            continue
        record.add(created=run.run_id)
        return run


def resume(run: RunDirectory, *, token: str, forced: bool = False) -> Started:
    """Take a run up again where it stopped; a repeat with the same token does nothing new.

    Args:
        run: the run.
        token: id of this request, any text.
        forced: go on although a forecast says that a stage does not fit.

    Raises:
        Refused: the run is going on, or a forecast does not fit.
    """
    if not token:
        raise RequestError("a request to resume needs a token", remedy="any text that no other request has")
    token = f"again-{digest(token)}"
    request = run.request()
    before = started(run, token)
    if before is not None:
        return Started(run, int(before.get("after", 0)), False, None)
    after = run.last_seq()
    intent = run.intent()
    if run.alive():
        if intent is not None and intent.get("token") == token:
            return Started(run, after, False, None)
        raise Refused(f"{run.run_id} is running", remedy=run.command("follow"))
    locations.require_writable(run.path)
    registry = load_registry()
    if forced:
        run.force()
    elif not request.get("forced"):
        _admit_again(run, registry, set(request["stages"]), Path(request["cache"]))
    try:
        process = launch(run, token)
    except OSError as error:
        raise explain_os_error(error, run.path) or error from error
    return Started(run, after, process is not None, process)


def _admit_again(run: RunDirectory, registry: Registry, wanted: set[str], cache: Path) -> None:
    pipeline = load_pipeline(run.spec_file, registry.specs())
    planned = plan_stages(pipeline, registry, run.root, cache, wanted)
    admit([stage for stage in planned if stage.name in wanted], run.root)


def cancel(run: RunDirectory) -> bool:
    """Ask the run's supervisor to end the run; False when there is none.

    Raises:
        Eagle3opsError: it may not be signalled.
    """
    supervisor = ProcessId.from_json(run.living())
    if supervisor is None or not send_signal(supervisor, signal.SIGTERM):
        return False
    # A stopped process would keep the signal for later.
    send_signal(supervisor, signal.SIGCONT)
    return True


def sweep(run: RunDirectory) -> list[int]:
    """End what a supervisor that was killed has left running, and say which processes these were.

    None as long as somebody looks after the run, or is about to: what is theirs is not left.
    """
    if run.alive() or not left_behind(run.path):
        return []
    with locked(run.path / "start.lock", f"the start of {run.run_id}"):
        return [] if run.alive() else end_left_behind(run.path)
