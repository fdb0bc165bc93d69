"""How does a job hold a server for as long as it needs one?"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from eagle3ops.engines.base import Adapter, ServeSpec, on_gpu
from eagle3ops.engines.client import EngineClient
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
    argv = [*adapter.argv(spec), *added_arguments(os.environ)]
    async with (
        spawn(argv, role=role, env=adapter.environment(spec)) as process,
        EngineClient(spec.url, log=log) as client,
    ):
        await client.wait_ready(process, patience_s(spec) if timeout_s is None else timeout_s)
        yield client


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
