"""How does a host key come to be trusted? A person compares a fingerprint, or a script gives the one it expects."""

import asyncio
from dataclasses import dataclass

from eagle3ops.hosts.prompts import Prompts
from eagle3ops.hosts.registry import own_known_hosts
from eagle3ops.hosts.ssh.config import Endpoint
from eagle3ops.hosts.ssh.errors import HostKeyChanged, HostKeyUnknown, key_error
from eagle3ops.hosts.ssh.known_hosts import append, describe, fingerprint, same_fingerprint
from eagle3ops.hosts.ssh.transport import SshTransport


@dataclass(frozen=True, slots=True)
class Trusted:
    """One server on the way, whose key is trusted."""

    endpoint: Endpoint
    key: str
    """Type and fingerprint."""
    added: bool
    """By this call; False when it was on record."""


async def trust(transport: SshTransport, prompts: Prompts, given: str | None) -> list[Trusted]:
    """See to it that the host's key is on record, and those of the jumps before it.

    A key that is unknown is shown and asked about, or compared with the fingerprint that was given. A changed one is
    never taken. Whether one may log in does not matter here, except at a jump.

    Args:
        transport: the host.
        prompts: who decides when no fingerprint is given.
        given: `SHA256:...` of the host itself.

    Raises:
        HostKeyUnknown: nobody said yes.
        HostKeyChanged: another key is on record, or the fingerprint given is not the host's.
        HostUnreachable: no connection.
    """
    added: set[tuple[str, ...]] = set()
    while True:
        try:
            shown = await transport.host_keys()
            break
        except HostKeyUnknown as error:
            if error.endpoint.names in added:
                raise
            # The fingerprint that was given is the host's own; a jump's key is always asked about.
            await _decide(error, prompts, given if error.endpoint.asked == transport.host.address.host else None)
            await asyncio.to_thread(record, transport, error)
            added.add(error.endpoint.names)
    last, key = shown[-1]
    if given is not None and key is not None and not same_fingerprint(given, key):
        raise HostKeyChanged(
            f"{last}: {describe(key)} is on record and shown, but {given} was expected",
            remedy="ask who runs the host which of the two is right",
        )
    return [Trusted(endpoint, describe(key) if key else "", endpoint.names in added) for endpoint, key in shown]


def record(transport: SshTransport, unknown: HostKeyUnknown) -> None:
    """Put a key on record that a person, who has seen its fingerprint, takes for the host's. Reads and writes files.

    What is on record is read again first: while somebody compared, another key may have come to be trusted, and then
    this one is a changed key like any other.

    Raises:
        HostKeyChanged: another key is on record now, or this one is revoked.
        Eagle3opsError: the file cannot be written.
    """
    known = transport.known_hosts(unknown.endpoint)
    state = known.judge(unknown.endpoint.names, unknown.key).state
    if state == "unknown":
        append(own_known_hosts(), unknown.endpoint.names[0], unknown.key, transport.name)
    elif state != "trusted":
        raise key_error(transport.name, unknown.endpoint, known, unknown.key, "")


async def _decide(error: HostKeyUnknown, prompts: Prompts, given: str | None) -> None:
    where = f"{error.endpoint.host} port {error.endpoint.port}"
    if given is not None:
        if not same_fingerprint(given, error.key):
            raise HostKeyChanged(
                f"{where}: shows {fingerprint(error.key)}, but {given} was expected; nothing was stored",
                remedy="is this the right host? Ask who runs it for its fingerprint",
            )
        return
    if not await prompts.confirm(f"{where} shows the key {describe(error.key)}. Is it the host's?"):
        raise error
