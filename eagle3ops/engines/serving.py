"""How does a job hold a server for as long as it needs one?"""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from eagle3ops.engines.base import Adapter, ServeSpec, on_gpu
from eagle3ops.engines.client import EngineClient
from eagle3ops.engines.fleet import Fleet
from eagle3ops.engines.gpu_memory import Returned, gpus_of, held_by, require_room, wait_returned
from eagle3ops.engines.places import free_port, refuse_taken_port, replicas
from eagle3ops.engines.registry import client as client_of
from eagle3ops.engines.starts import read_start
from eagle3ops.errors import RequestError, first_failure
from eagle3ops.runs.context import end_group, start_logged
from eagle3ops.runs.custody import GRACE_S, in_custody
from eagle3ops.runs.family import SWEEP_S, spared, tree
from eagle3ops.runs.processes import ARGUMENTS_VARIABLE, ProcessId, identify, signal_all

__all__ = ["Spawn", "Teller", "added_arguments", "free_port", "patience_s", "running", "running_fleet"]

_START_S, _COMPILE_S = 600.0, 2700.0
_SLOW_DISK = 0.3e9
"""Bytes a second."""
_GONE_S = 10.0
"""After its end, what a server leaves behind may take this long to go: it has been killed by then."""
CUSTODY_S = GRACE_S + SWEEP_S + 10.0
"""Outside of a run the process that keeps a server has ended it by then."""

Spawn = Callable[..., AbstractAsyncContextManager[Any]]
"""`Context.spawn`: `(argv, *, role, env=None)` -> context manager that yields an `asyncio.subprocess.Process`."""


class Teller(Protocol):
    """Tells a person; `Context` does."""

    def info(self, text: str) -> None:
        """Something worth knowing."""
        ...

    def warn(self, text: str) -> None:
        """Something that may be wrong."""
        ...


@asynccontextmanager
async def running(
    adapter: Adapter,
    spec: ServeSpec,
    *,
    spawn: Spawn,
    role: str = "engine",
    log: Path | None = None,
    timeout_s: float | None = None,
    tell: Teller | None = None,
) -> AsyncIterator[EngineClient]:
    """Start a server, wait until it answers, yield a client, end the server, and see that nothing of it is left.

    Args:
        log: where `spawn` puts the output of this role; quoted when the server dies.
        timeout_s: how long it may take to become ready; left out, what `patience_s` says.
        tell: told what the start took, and after the end whether the GPUs' memory is back.

    Raises:
        RequestError: the engine cannot serve this here.
        Refused: the GPUs have no room for it.
        EngineError: the server did not become ready.
    """
    await asyncio.to_thread(refuse, adapter, spec)
    argv = [*adapter.argv(spec), *added_arguments(os.environ)]
    environment = await asyncio.to_thread(adapter.environment, spec)
    offset, began = _size(log), time.monotonic()
    last = _Last()
    try:
        async with (
            spawn(argv, role=role, env=environment) as process,
            client_of(adapter.name, spec.url, log=log) as client,
        ):
            try:
                await client.wait_ready(process, patience_s(spec) if timeout_s is None else timeout_s)
                ready_s = time.monotonic() - began
                # One that dies later can no longer be looked at.
                last = await asyncio.to_thread(_look, process.pid, spec)
                client.start = await asyncio.to_thread(read_start, adapter, log, offset, ready_s)
                if tell is not None:
                    tell.info(f"{role}: {client.start}")
                yield client
            finally:
                last = last.then(await asyncio.to_thread(_look, process.pid, spec))
    finally:
        await asyncio.shield(asyncio.to_thread(_prove_gone, last, spec, role, tell))


def refuse(adapter: Adapter, spec: ServeSpec) -> None:
    """Return if a server may be started as `spec` says.

    Raises:
        RequestError: no model there, a port that is taken, or what the engine itself cannot.
        Refused: no room on the GPUs.
    """
    # It may have to ask another Python what is installed there.
    adapter.require(spec)
    for folder, what in ((spec.model, "the target"), (spec.drafter, "the drafter")):
        if folder is not None and not (folder / "config.json").is_file():
            why = "has no config.json" if folder.is_dir() else "is no folder"
            raise RequestError(f"{folder} {why}, so it is not {what}", remedy="name the folder of a checkpoint")
    refuse_taken_port(spec.host, spec.port)
    require_room(spec)


class _Last:
    """What a server was when it was about to end."""

    def __init__(self, processes: Mapping[int, ProcessId] | None = None) -> None:
        self.processes = dict(processes or {})
        self.held: dict[int, int] = {}
        self.used: dict[int, int] = {}

    def then(self, later: "_Last") -> "_Last":
        """What is known after another look: one that shows nothing on the GPUs does not take back what was seen."""
        both = _Last(self.processes | later.processes)
        newest = later if later.held else self
        both.held, both.used = newest.held, newest.used
        return both


def _look(pid: int, spec: ServeSpec) -> _Last:
    own = identify(pid)
    last = _Last(tree(pid) | ({} if own is None else {pid: own}))
    gpus = gpus_of(spec)
    last.held = held_by(last.processes, gpus)
    last.used = {gpu.index: gpu.memory_used for gpu in gpus if gpu.memory_used is not None}
    return last


def _prove_gone(last: _Last, spec: ServeSpec, role: str, tell: Teller | None) -> Returned | None:
    """See that a server's processes are gone, and what they held on GPUs is free again; warns where it is not so."""
    # Whoever ended it may have been killed in between. They are known by more than their numbers.
    signal_all(spared(last.processes), signal.SIGKILL)
    deadline = time.monotonic() + _GONE_S
    while (left := [pid for pid, one in last.processes.items() if identify(pid) == one]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.05)
    if left and tell is not None:
        tell.warn(f"{role}: {len(left)} of its processes are still there: {', '.join(map(str, left))}")
    if not last.held:
        return None
    back = wait_returned(last.processes, last.held, last.used, lambda: gpus_of(spec))
    if tell is not None:
        (tell.warn if back.kept else tell.info)(f"{role}: {back}")
    return back


def _size(log: Path | None) -> int:
    try:
        return 0 if log is None else log.stat().st_size
    except OSError:
        return 0


@asynccontextmanager
async def running_fleet(
    adapter: Adapter,
    spec: ServeSpec,
    count: int,
    *,
    spawn: Spawn,
    role: str = "engine",
    logs: Path | None = None,
    tell: Teller | None = None,
    timeout_s: float | None = None,
) -> AsyncIterator[Fleet]:
    """`count` servers like `spec`, each on GPUs of its own and at a port of its own (the first at `spec.port`).

    The first is waited for before the others are started: it compiles and caches what the others then find, where all
    at once would wait for each other's locks.

    Args:
        logs: folder in which `spawn` puts `ROLE.log`; from the second on a role ends with its number.
        tell: told what a person should know, such as a replica that is taken out.

    Raises:
        RequestError: the engine cannot serve this here, or there are too few GPUs for so many.
        Refused: the GPUs have no room for it.
        EngineError: one of them did not become ready.
    """
    specs = replicas(spec, count, os.environ.get("CUDA_VISIBLE_DEVICES"))

    async def enter(stack: AsyncExitStack, number: int) -> EngineClient:
        name = role if number == 0 else f"{role}-{number}"
        log = None if logs is None else logs / f"{name}.log"
        server = running(adapter, specs[number], spawn=spawn, role=name, log=log, timeout_s=timeout_s, tell=tell)
        return await stack.enter_async_context(server)

    async with side_by_side(count) as stacks:
        clients = [await enter(stacks[0], 0)]
        with first_failure():
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(enter(stacks[number], number)) for number in range(1, count)]
        yield Fleet([*clients, *(task.result() for task in tasks)], None if tell is None else tell.warn)


def logged(log: Path) -> Spawn:
    """How a server is started outside of a run: its output is appended to `log`, and all of it ends with this process.

    What it starts in turn ends too, however it left, also where this process is killed and can end nothing itself.
    """

    @asynccontextmanager
    async def spawn(
        argv: Sequence[str], *, role: str, env: Mapping[str, str] | None = None
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        log.parent.mkdir(parents=True, exist_ok=True)
        process, keeper, _ = await start_logged(in_custody(argv), log, os.environ | dict(env or {}))
        try:
            yield process
        finally:
            await asyncio.shield(_end_custody(process, keeper))

    return spawn


async def _end_custody(process: asyncio.subprocess.Process, keeper: ProcessId | None) -> None:
    if keeper is not None:
        signal_all({keeper.pid: keeper}, signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), CUSTODY_S)
    if process.returncode is None:
        # It was stopped, or there is something that cannot be ended.
        await end_group(process, keeper)


@asynccontextmanager
async def side_by_side(count: int) -> AsyncIterator[list[AsyncExitStack]]:
    """Stacks that are unwound at once: SGLang takes 5 to 6 s to end, five of them in turn half a minute."""
    stacks = [AsyncExitStack() for _ in range(count)]
    try:
        yield stacks
    finally:
        ended = await asyncio.gather(*(stack.aclose() for stack in stacks), return_exceptions=True)
        for problem in ended:
            if isinstance(problem, BaseException):
                raise problem


def patience_s(spec: ServeSpec) -> float:
    """Seconds after which a start is given up that neither ended nor was found to hang: imports and compilation, and
    reading the weights from a slow disk."""
    weights = sum(file.stat().st_size for file in spec.model.glob("*.safetensors"))
    return (_COMPILE_S if on_gpu(spec.device) else _START_S) + weights / _SLOW_DISK


def added_arguments(environment: Mapping[str, str]) -> list[str]:
    """What the run's watchdog adds to the command line of an engine when it looks for what hangs; as a rule nothing."""
    with suppress(ValueError, RecursionError):
        added = json.loads(environment.get(ARGUMENTS_VARIABLE, ""))
        if isinstance(added, list) and all(isinstance(one, str) for one in added):
            return added
    return []
