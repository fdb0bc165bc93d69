"""At which port and on which GPUs does a server run?"""

import errno
import socket
from contextlib import suppress
from dataclasses import replace

from eagle3ops.engines.base import ServeSpec, on_gpu
from eagle3ops.errors import RequestError


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


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that nothing listens on at this moment."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.bind((host, 0))
        port: int = listener.getsockname()[1]
        return port
