"""How does a job hold a server for as long as it needs one?"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from eagle3ops.engines.base import Adapter, ServeSpec, on_gpu
from eagle3ops.engines.client import EngineClient
from eagle3ops.engines.fleet import Fleet
from eagle3ops.errors import Eagle3opsError, RequestError
from eagle3ops.runs.processes import ARGUMENTS_VARIABLE

_START_S, _COMPILE_S = 600.0, 2700.0
_SLOW_DISK = 0.3e9
"""Bytes a second."""

Spawn = Callable[..., AbstractAsyncContextManager[Any]]
"""`Context.spawn`: `(argv, *, role, env=None)` -> context manager that yields an `asyncio.subprocess.Process`."""


@asynccontextmanager
async def running(
    adapter: Adapter,
    spec: ServeSpec,
    *,
    spawn: Spawn,
    role: str = "engine",
    log: Path | None = None,
    timeout_s: float | None = None,
) -> AsyncIterator[EngineClient]:
    """Start a server, wait until it answers, yield a client, end the server.

    Args:
        log: where `spawn` puts the output of this role; quoted when the server dies.
        timeout_s: how long it may take to become ready; left out, what `patience_s` says.

    Raises:
        RequestError: the engine cannot serve this here.
        EngineError: the server did not become ready.
    """
    # It may have to ask another Python what is installed there.
    await asyncio.to_thread(adapter.require, spec)
    await asyncio.to_thread(refuse_taken_port, spec.host, spec.port)
    argv = [*adapter.argv(spec), *added_arguments(os.environ)]
    async with (
        spawn(argv, role=role, env=adapter.environment(spec)) as process,
        EngineClient(spec.url, log=log) as client,
    ):
        await client.wait_ready(process, patience_s(spec) if timeout_s is None else timeout_s)
        yield client


@asynccontextmanager
async def running_fleet(
    adapter: Adapter,
    spec: ServeSpec,
    count: int,
    *,
    spawn: Spawn,
    role: str = "engine",
    logs: Path | None = None,
    report: Callable[[str], None] | None = None,
    timeout_s: float | None = None,
) -> AsyncIterator[Fleet]:
    """`count` servers like `spec`, each on GPUs of its own and at a port of its own (the first at `spec.port`).

    The first is waited for before the others are started: it compiles and caches what the others then find, where all
    at once would wait for each other's locks.

    Args:
        logs: folder in which `spawn` puts `ROLE.log`; from the second on a role ends with its number.
        report: told what a person should know, such as a replica that is taken out.

    Raises:
        RequestError: the engine cannot serve this here, or there are too few GPUs for so many.
        EngineError: one of them did not become ready.
    """
    specs = replicas(spec, count, os.environ.get("CUDA_VISIBLE_DEVICES"))

    async def enter(stack: AsyncExitStack, number: int) -> EngineClient:
        name = role if number == 0 else f"{role}-{number}"
        log = None if logs is None else logs / f"{name}.log"
        server = running(adapter, specs[number], spawn=spawn, role=name, log=log, timeout_s=timeout_s)
        return await stack.enter_async_context(server)

    async with AsyncExitStack() as first, AsyncExitStack() as others:
        clients = [await enter(first, 0)]
        if count > 1:
            stacks = [await others.enter_async_context(AsyncExitStack()) for _ in specs[1:]]
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(enter(stack, number)) for number, stack in enumerate(stacks, 1)]
            except* Eagle3opsError as failed:
                raise failed.exceptions[0] from failed
            clients += [task.result() for task in tasks]
        yield Fleet(clients, report)


def replicas(spec: ServeSpec, count: int, visible: str | None) -> list[ServeSpec]:
    """`count` specs with their ports, and on a machine with GPUs with `spec.gpus` GPUs each.

    Args:
        visible: CUDA_VISIBLE_DEVICES as a run sets it from its leases; None: all GPUs of the machine, in their order.

    Raises:
        RequestError: there are too few GPUs.
    """
    specs = [spec if number == 0 else replace(spec, port=free_port(spec.host)) for number in range(count)]
    if count == 1 or not on_gpu(spec.device):
        return specs
    names = [str(number) for number in range(count * spec.gpus)] if visible is None else _devices(visible)
    if len(names) < count * spec.gpus:
        raise RequestError(
            f"{count} replicas of {spec.gpus} GPUs each want {count * spec.gpus} GPUs, {len(names)} are visible",
            remedy="lower engine.replicas or engine.gpus",
        )
    parts = [names[first : first + spec.gpus] for first in range(0, count * spec.gpus, spec.gpus)]
    return [
        replace(one, variables={**one.variables, "CUDA_VISIBLE_DEVICES": ",".join(part)})
        for one, part in zip(specs, parts, strict=True)
    ]


def _devices(visible: str) -> list[str]:
    return [name for part in visible.split(",") if (name := part.strip())]


def refuse_taken_port(host: str, port: int) -> None:
    """Return if a server can listen at this port.

    Raises:
        RequestError: something listens there already; says who, where that can be seen.
    """
    import errno
    import socket

    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
            # As servers do: what is left of connections that have ended is no obstacle.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise RequestError(f"{host}:{port} cannot be served at: {error.strerror}") from error
        why = f"is taken{_listener(port)}" if error.errno == errno.EADDRINUSE else "is not for this user"
        raise RequestError(
            f"port {port} {why}", remedy="leave stages.serve.port out: a free one is taken; or name another"
        ) from error


def _listener(port: int) -> str:
    import psutil

    with suppress(psutil.Error, OSError):
        for one in psutil.net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port and one.pid:
                with suppress(psutil.Error):
                    return f" by {psutil.Process(one.pid).name()} (pid {one.pid})"
                return f" by process {one.pid}"
    return ""


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


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that nothing listens on at this moment."""
    import socket

    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.bind((host, 0))
        port: int = listener.getsockname()[1]
        return port
