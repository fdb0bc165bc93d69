"""Which process listens at a URL of this machine, and on which ports does a process listen?"""

import ipaddress
import socket
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from eagle3ops.errors import RequestError
from eagle3ops.words import plain

_ANY = frozenset({"0.0.0.0", "::", "::ffff:0.0.0.0"})


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server answers, without what a URL may say besides (users, paths)."""

    scheme: str
    host: str
    port: int

    @property
    def url(self) -> str:
        """`http://127.0.0.1:30000`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def address_of(url: str) -> Address:
    """Read a URL; `:30000` and `localhost:30000` mean http.

    Raises:
        RequestError: it is none.
    """
    text = url.strip()
    text = f"127.0.0.1{text}" if text.startswith(":") else text
    text = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise _not_a_url(url, str(error)) from error
    if parts.scheme not in ("http", "https") or not host or any(c.isspace() or not c.isprintable() for c in host):
        raise _not_a_url(url, "it takes http:// or https://, a host and a port")
    if port is None:
        port = 443 if parts.scheme == "https" else 80
    if not port:
        raise _not_a_url(url, "port 0 is none")
    return Address(parts.scheme, host, port)


def _not_a_url(url: str, why: str) -> RequestError:
    # Without what stands before an @: it may be a password.
    shown = plain(url.rpartition("@")[2])[:200]
    return RequestError(f"{shown!r} is not the URL of a server: {why}", remedy="such as http://127.0.0.1:30000")


def listener(where: Address) -> int:
    """Process id of who listens there; the oldest of several that share the socket.

    Raises:
        RequestError: that address is another machine's, nothing listens there, or it is not seen who does.
    """
    wanted = _addresses(where.host)
    if wanted is None:
        raise RequestError(
            f"{where.host} is not this machine: only what runs here can be watched",
            remedy=f"run eagle3ops watch --url http://127.0.0.1:{where.port} there",
        )
    found = [
        one for one in _listening() if one.laddr.port == where.port and (one.laddr.ip in wanted or one.laddr.ip in _ANY)
    ]
    if not found:
        raise RequestError(
            f"nothing listens at {where.url}", remedy="while it still starts, watch its process: --pid N"
        )
    pids = {one.pid for one in found if one.pid is not None}
    if not pids:
        raise RequestError(
            f"a process listens at {where.url}, but not one of yours", remedy="run it as that user, or as root"
        )
    oldest: int = min(pids, key=_age)
    return oldest


def listening_ports(pid: int) -> dict[int, str]:
    """The TCP ports on which a process listens -> the address at which it is reached from here."""
    import psutil

    try:
        connections = psutil.Process(pid).net_connections(kind="tcp")
    except (psutil.Error, OSError, RuntimeError):
        return {}
    return {
        one.laddr.port: "127.0.0.1" if one.laddr.ip in _ANY else one.laddr.ip
        for one in connections
        if one.status == psutil.CONN_LISTEN and one.laddr
    }


def _addresses(host: str) -> set[str] | None:
    """The addresses of this machine that a name means; None when it means another machine."""
    import psutil

    ours = {item.address.partition("%")[0] for items in psutil.net_if_addrs().values() for item in items}
    try:
        named = {str(ipaddress.ip_address(host))}
    except ValueError:
        if host == "localhost":
            return {"127.0.0.1", "::1"}
        try:
            named = {str(item[4][0]) for item in socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)}
        except OSError:
            named = set()
    local = {address for address in named if address in ours or _loopback(address) or address in _ANY}
    return local | {f"::ffff:{address}" for address in local if ":" not in address} if local else None


def _loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _listening() -> list[Any]:
    import psutil

    try:
        return [one for one in psutil.net_connections(kind="tcp") if one.status == psutil.CONN_LISTEN and one.laddr]
    except (psutil.Error, OSError, RuntimeError) as error:
        raise RequestError(
            f"which process listens there cannot be seen: {error}", remedy="watch its process: --pid N"
        ) from error


def _age(pid: int) -> tuple[float, int]:
    import psutil

    try:
        return psutil.Process(pid).create_time(), pid
    except psutil.Error:
        return float("inf"), pid
