"""What may a running stage do? Read its inputs, write below `out`, start processes, and report."""

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3ops.runs import environments
from eagle3ops.runs.events import EventLog
from eagle3ops.runs.family import TRACKER_S, descendants, spared
from eagle3ops.runs.leash import PARENT_VARIABLE, leashed
from eagle3ops.runs.processes import ProcessId, boot_id, identify, process_table, signal_all
from eagle3ops.spec.base import StageSpec
from eagle3ops.spec.models import Pipeline
from eagle3ops.words import outcome_word

PROGRESS_INTERVAL_S = 0.5
"""Progress reports closer together than this are dropped, except the last one."""

TERM_GRACE_S = 10.0
"""How long a spawned program may take to end after SIGTERM before it is killed."""


@dataclass(slots=True)
class Findings:
    """What a stage found out: it is stored with the outputs, and told again when the stage is skipped as done."""

    metrics: dict[str, float] = field(default_factory=dict)
    """The last value of every metric."""
    verdicts: dict[str, dict[str, Any]] = field(default_factory=dict)
    artifacts: dict[str, str] = field(default_factory=dict)
    """Path relative to `out` -> note."""
    patches: dict[str, str] = field(default_factory=dict)
    """Recipe -> standing, of what was changed in the source of the engine that it used."""
    identity: str | None = None
    """What downstream stages depend on; None means every byte of the output."""


@dataclass(slots=True)
class Context:
    """One stage of one run, seen from inside. Every report may be made from any thread."""

    pipeline: Pipeline
    spec: StageSpec
    stage: str
    out: Path
    """The stage's folder in the store. What an attempt that was killed left there is found again by the next one."""
    run_dir: Path
    inputs: Mapping[str, Path]
    """Finished output folders of the upstream stages, by stage."""
    cache: Path
    events: EventLog
    findings: Findings = field(default_factory=Findings)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _last_progress: float = 0.0

    def progress(self, done: float, total: float | None, unit: str) -> None:
        """Report how far the stage is; at most two reports a second are written."""
        now = time.monotonic()
        with self._lock:
            finished = total is not None and done >= total
            if not finished and now - self._last_progress < PROGRESS_INTERVAL_S:
                return
            self._last_progress = now
        self._emit("progress", {"done": done, "total": total, "unit": unit})

    def metric(self, name: str, value: float, step: int | None = None) -> None:
        """Report a figure; the last value of each name is kept with the outputs."""
        with self._lock:
            self.findings.metrics[name] = value
        self._emit("metric", {"name": name, "value": value} | ({} if step is None else {"step": step}))

    def artifact(self, path: Path, note: str = "") -> None:
        """Name a file or folder below `out` that a person would want to see."""
        relative = path.relative_to(self.out).as_posix() if path.is_relative_to(self.out) else str(path)
        with self._lock:
            self.findings.artifacts[relative] = note
        self._emit("artifact", {"path": str(path), "note": note})

    def patched(self, recipe: str, standing: str, facts: Mapping[str, Any]) -> None:
        """Say that an engine of this stage runs changed source; told once, however often it is started."""
        with self._lock:
            if self.findings.patches.get(recipe) == standing:
                return
            self.findings.patches[recipe] = standing
        self._emit("info", patch_told(recipe, standing) | {"patch": {**facts, "recipe": recipe, "standing": standing}})

    def identify(self, identity: str) -> None:
        """Say what downstream stages depend on, where that is less than every byte of the output.

        A stage that is made again with another identity makes the stages built on it untrusted.
        """
        with self._lock:
            self.findings.identity = identity

    def verdict(self, name: str, passed: bool | None, reason: str, data: dict[str, Any] | None = None) -> None:
        """Record the outcome of a check: True is PASS, False FAIL, None UNDECIDED.

        FAIL and UNDECIDED do not end the run, but the run then ends with exit code 3. The reason of an undecided one
        says what would decide it.
        """
        verdict = {
            "name": name,
            "passed": bool(passed),
            "verdict": outcome_word(None if passed is None else bool(passed)),
            "reason": reason,
            "data": data or {},
        }
        with self._lock:
            self.findings.verdicts[name] = verdict
        self._emit("verdict", verdict)

    def info(self, text: str) -> None:
        """Tell the person something worth knowing."""
        self._emit("info", {"text": text})

    def warn(self, text: str) -> None:
        """Tell the person something that may be wrong."""
        self._emit("warn", {"text": text})

    @asynccontextmanager
    async def spawn(
        self, argv: Sequence[str], *, role: str, env: Mapping[str, str] | None = None
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        """Run a program for as long as the block lasts; its output is appended to `run_dir/logs/<role>.log`.

        The program gets a process group of its own, which is ended with the block (SIGTERM, 10 s, SIGKILL), and is
        killed when this process dies.

        Args:
            argv: program and arguments; never a shell string.
            role: names the log.
            env: variables to set besides those of this process. `RANK` is told with the process.
        """
        log = self.run_dir / "logs" / f"{role}.log"
        environment = os.environ | dict(env or {})
        process, identity, offset = await start_leashed(argv, log, environment)
        self._emit(
            "process",
            {
                "role": role,
                "state": "started",
                "argv": list(argv),
                "log": f"logs/{role}.log",
                "offset": offset,
                "environment": environments.keep(self.run_dir, environment),
                **({"rank": environment["RANK"]} if environment.get("RANK", "").isdecimal() else {}),
                **(identity.as_json() if identity else {"pid": process.pid}),
            },
        )
        try:
            yield process
        finally:
            await asyncio.shield(end_group(process, identity))
            self._emit("process", {"role": role, "state": "ended", "pid": process.pid, "code": process.returncode})

    def _emit(self, kind: str, data: Mapping[str, Any]) -> None:
        self.events.append(kind, data, self.stage)


def patch_told(recipe: str, standing: str) -> dict[str, Any]:
    """How an event says that an engine was patched."""
    return {"text": f"the engine's source is patched: {recipe}, {standing}",
            "patch": {"recipe": recipe, "standing": standing}}  # fmt: skip


async def start_leashed(
    argv: Sequence[str], log: Path, environment: Mapping[str, str]
) -> tuple[asyncio.subprocess.Process, ProcessId | None, int]:
    """Start a program in a group of its own that is killed when this process dies; its output is appended to `log`.

    Whoever starts one ends it by `end_group`.

    Returns:
        The process, who it is (None: it has gone already), and where in the log its output begins, in bytes.
    """
    return await start_logged(leashed(argv), log, environment)


async def start_logged(
    argv: Sequence[str], log: Path, environment: Mapping[str, str]
) -> tuple[asyncio.subprocess.Process, ProcessId | None, int]:
    """As `start_leashed`, without the leash."""
    with log.open("ab") as output:
        offset = output.tell()
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )
    return process, identify(process.pid), offset


async def end_group(process: asyncio.subprocess.Process, leader: ProcessId | None) -> None:
    """End the group that `process` leads and everything below it, also when the leader itself has gone already."""
    doomed = _group(process.pid, leader)
    signal_all(doomed, signal.SIGTERM)
    deadline = time.monotonic() + TERM_GRACE_S
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), TERM_GRACE_S)
    while (doomed := _group(process.pid, leader) | _still(doomed)) and process.returncode is None:
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(0.02)
    # What the leader left behind gets no more time: it ends with the block, as the leader did.
    signal_all(spared(doomed), signal.SIGKILL)
    await process.wait()
    # Nothing of it is there any more when the block is over; trackers end by themselves, the others are just ending.
    deadline = time.monotonic() + TRACKER_S
    while doomed := _still(doomed):
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(0.02)
    signal_all(doomed, signal.SIGKILL)


def _still(processes: dict[int, ProcessId]) -> dict[int, ProcessId]:
    return {pid: process for pid, process in processes.items() if identify(pid) == process}


def _group(pid: int, leader: ProcessId | None) -> dict[int, ProcessId]:
    """The group and session that were led by `leader`, and what is below it.

    Looked for among the descendants of this run only: once the leader is gone, its number may lead another group
    somewhere else on the machine.
    """
    table, boot = process_table(), boot_id()
    lives = pid in table and leader is not None and table[pid].start == leader.start
    if pid in table and not lives:
        return {}
    supervisor = os.environ.get(PARENT_VARIABLE, "")
    ours = descendants(table, {int(supervisor)} if supervisor.isdecimal() else {os.getpid()})
    found = {stat.pid for stat in table.values() if stat.pid in ours and pid in (stat.group, stat.session)}
    if lives:
        found |= {pid} | descendants(table, {pid})
    return {pid: ProcessId(pid, table[pid].start, boot) for pid in found if table[pid].state not in "ZX"}
