"""Why could a host not be reached? Every failure of SSH in a sentence that says what to do."""

import errno
import re
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from eagle3ops.errors import HostUnreachable
from eagle3ops.hosts.ssh.bootstrap import by_hand, clean
from eagle3ops.hosts.ssh.config import Endpoint
from eagle3ops.hosts.ssh.known_hosts import Finding, KnownHosts, describe, fingerprint
from eagle3ops.hosts.transport import ConnectionRefusedForGood

if TYPE_CHECKING:
    import asyncssh


class HostKeyUnknown(ConnectionRefusedForGood):
    """The host showed a key that stands in no known_hosts file."""

    def __init__(
        self, what: str, *, remedy: str, endpoint: Endpoint, key: "asyncssh.SSHKey", notes: Sequence[str] = ()
    ) -> None:
        super().__init__(what, remedy=remedy)
        self.endpoint = endpoint
        self.key = key
        self.notes = tuple(notes)
        """What whoever decides should know: files that could not be read, a check that was switched off."""


class HostKeyChanged(ConnectionRefusedForGood):
    """The host showed another key than the one on record, or a revoked one."""


class LoginRefused(ConnectionRefusedForGood):
    """The host is the right one, and lets nobody in with what was offered."""


def key_error(
    name: str, endpoint: Endpoint, known: KnownHosts, key: "asyncssh.SSHKey | None", reason: str
) -> ConnectionRefusedForGood:
    """A host key that was not accepted.

    Args:
        name: what a person calls the host.
        endpoint: the server that showed the key: the host itself, or a jump on the way.
        known: the lines of all files.
        key: the key; None where only `reason` is known (revoked, a certificate).
        reason: asyncssh's words.
    """
    where = f"{endpoint.host} port {endpoint.port}"
    if key is None and "revoked" in reason:
        lines = known.about(endpoint.names, "revoked")
        at = "; ".join(line.place for line in lines) or "known_hosts"
        return HostKeyChanged(
            f"{where}: its host key, or the authority behind it, is revoked ({at})",
            remedy="do not connect; ask who runs the host for its new key",
        )
    if key is None:
        return ConnectionRefusedForGood(
            f"{where}: its host key cannot be verified: {clean(reason)}",
            remedy="a certificate must name this host and be signed by an authority in known_hosts (@cert-authority)",
        )
    finding = known.judge(endpoint.names, key)
    if finding.state == "changed":
        return _changed(where, finding, key)
    if finding.state == "revoked":
        at = "; ".join(line.place for line in finding.lines)
        return HostKeyChanged(
            f"{where}: its host key {describe(key)} is revoked ({at})",
            remedy="do not connect; ask who runs the host for its new key",
        )
    notes = known.notes[:3]
    if endpoint.unchecked:
        notes.append(
            "the SSH configuration switches the checking of host keys off here (UserKnownHostsFile none or "
            "/dev/null), which eagle3ops does not follow: it checks against its own file"
        )
    authority = known.about(endpoint.names, "cert-authority")
    if authority:
        notes.append(f"an authority is on record ({authority[0].place}), but the host shows a plain key")
    return HostKeyUnknown(
        "; ".join([f"{where}: host key not known: {describe(key)}", *notes]),
        remedy=f"compare the fingerprint with the host's own, then: eagle3ops hosts trust {name}",
        endpoint=endpoint,
        key=key,
        notes=notes,
    )


def _changed(where: str, finding: Finding, key: "asyncssh.SSHKey") -> HostKeyChanged:
    old = "; ".join(f"{describe(line.key)} in {line.place}" for line in finding.lines[:4])
    line = finding.lines[0]
    return HostKeyChanged(
        f"{where}: THE HOST KEY HAS CHANGED. On record: {old}. Shown now: {describe(key)}. Either the host was "
        "reinstalled, or its address belongs to another machine now, or somebody sits in between and would read "
        "everything",
        remedy=f"ask who runs the host whether {fingerprint(key)} is right; only then delete line {line.number} of "
        f"{line.file} by hand and trust the new key",
    )


def explain(error: BaseException, name: str, endpoint: Endpoint, *, via: Endpoint | None) -> HostUnreachable:
    """A failure to connect, other than one of keys and of logging in."""
    import asyncssh

    where = f"{endpoint.host} port {endpoint.port}" + (f" (by way of {via.host})" if via else "")
    if isinstance(error, socket.gaierror):
        return HostUnreachable(
            f"{endpoint.host}: the name does not resolve ({error.strerror})",
            remedy=f"check the name ({name} is {endpoint.asked}), and that this machine is online",
        )
    if isinstance(error, asyncssh.ChannelOpenError):
        return HostUnreachable(
            f"{where}: {via.host if via else 'the jump host'} could not open a connection to it: {clean(error.reason)}",
            remedy="check the name and port as the jump host sees them, and its AllowTcpForwarding",
        )
    if isinstance(error, asyncssh.KeyExchangeFailed):
        return ConnectionRefusedForGood(
            f"{where}: no common cipher or key type ({clean(error.reason)})",
            remedy="update the host's SSH server, or allow what it speaks in ~/.ssh/config",
        )
    if isinstance(error, asyncssh.ProtocolNotSupported | asyncssh.ProtocolError):
        return ConnectionRefusedForGood(
            f"{where}: this is no SSH server, or a broken one ({clean(error.reason)})", remedy="check the port"
        )
    if isinstance(error, asyncssh.Error):
        return HostUnreachable(
            f"{where}: the connection was closed while it was being set up ({clean(error.reason)})",
            remedy="too many connections at once, or a firewall; try again, then look at the host's SSH log",
        )
    number = error.errno if isinstance(error, OSError) else None
    if number is None and isinstance(error, OSError):
        found = re.search(r"\[Errno (\d+)\]", str(error))
        number = int(found[1]) if found else None
    if number == errno.ECONNREFUSED:
        return HostUnreachable(
            f"{where}: refused: nothing listens there",
            remedy="is the host up, sshd running, and the port right (container ports change on restart)?",
        )
    if number in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN):
        return HostUnreachable(
            f"{where}: no route to it", remedy="is this machine online, and the VPN up if one is needed?"
        )
    if number == errno.ETIMEDOUT:
        return timed_out(where, 0)
    if isinstance(error, FileNotFoundError | PermissionError) and endpoint.proxy_command:
        return ConnectionRefusedForGood(
            f"{where}: ProxyCommand cannot be started: {endpoint.proxy_command} ({error.strerror})",
            remedy="mend ProxyCommand in the SSH configuration",
        )
    if isinstance(error, ConnectionError):
        return HostUnreachable(f"{where}: the connection was cut ({clean(str(error))})", remedy="try again")
    return HostUnreachable(
        f"{where}: {clean(str(error)) or type(error).__name__}", remedy=f"try by hand: {log_in(endpoint)}"
    )


def timed_out(where: str, seconds: float) -> HostUnreachable:
    """No answer at all."""
    after = f" within {seconds:g} s" if seconds else ""
    return HostUnreachable(
        f"{where}: no answer{after}", remedy="is the host up, the address right, and no firewall in the way?"
    )


def login_refused(endpoint: Endpoint, tried: Sequence[str], skipped: Sequence[str]) -> LoginRefused:
    """Nothing that was offered was good enough."""
    offered = f"tried: {', '.join(tried)}" if tried else "there was nothing to try: no key, no ssh-agent, no password"
    left = f"; not used: {'; '.join(skipped)}" if skipped else ""
    return LoginRefused(
        f"{endpoint}: permission denied ({offered}{left})",
        remedy=f"put your public key there: ssh-copy-id {_target(endpoint)}; a key with a passphrase: ssh-add FILE",
    )


def log_in(endpoint: Endpoint) -> str:
    """The command with which a person logs in to a server; it reads the same configuration."""
    return by_hand(endpoint.asked, endpoint.user, endpoint.port)


def _target(endpoint: Endpoint) -> str:
    port = f"-p {endpoint.port} " if endpoint.port != 22 else ""
    return f"{port}{endpoint.user}@{endpoint.host}"
