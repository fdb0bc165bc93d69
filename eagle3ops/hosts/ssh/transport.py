"""How is a host reached over SSH? Through every jump with its key checked by us, to an agent that said hello."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import asyncssh

from eagle3ops.errors import HostUnreachable
from eagle3ops.hosts.prompts import NoPrompts, Prompts
from eagle3ops.hosts.registry import Host, own_known_hosts
from eagle3ops.hosts.ssh import bootstrap
from eagle3ops.hosts.ssh.auth import TRIES, Login, Offer, Secrets, gather, unlock
from eagle3ops.hosts.ssh.channel import Connection, SshChannel, end_task
from eagle3ops.hosts.ssh.config import Endpoint, chain
from eagle3ops.hosts.ssh.errors import explain, key_error, log_in, login_refused, timed_out
from eagle3ops.hosts.ssh.known_hosts import KnownHosts, read_all
from eagle3ops.hosts.transport import AgentDidNotStart, ConnectionRefusedForGood

__all__ = ["Connection", "Limits", "SshChannel", "SshTransport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long to wait, in seconds."""

    connect: float = 20.0
    login: float = 30.0
    dialog: float = 180.0
    """For a login during which a person answers the server's questions."""
    shell: float = 30.0
    """From logged in until the login shell has run `sh`: what its start-up files may take."""
    start: float = 60.0
    """From logged in to the agent's hello."""
    keepalive: float = 15.0
    keepalive_misses: int = 4


class SshTransport:
    """A host that SSH reaches. Keeps unlocked keys and typed passwords in memory, so that a reconnect asks nothing."""

    def __init__(self, host: Host, prompts: Prompts | None = None, *, limits: Limits | None = None) -> None:
        self.host = host
        self.name = host.name
        self.prompts: Prompts = prompts or NoPrompts()
        self.limits = limits or Limits()
        self.secrets = Secrets()
        self.waits_for = ""
        """What is waited for now that may take long, in words and with its limit; empty for nothing."""

    async def connect(self) -> Connection:
        """Log in, jump by jump.

        Raises:
            HostUnreachable: not now.
            ConnectionRefusedForGood: a host key, a login, or the SSH configuration has to be put right first.
        """
        made: list[tuple[Endpoint, asyncssh.SSHClientConnection]] = []
        try:
            for endpoint in await asyncio.to_thread(chain, self.host.address):
                via = made[-1] if made else None
                made.append((endpoint, await self._log_in(endpoint, via)))
        except BaseException:
            await Connection(made).close()
            raise
        return Connection(made)

    async def host_keys(self) -> list[tuple[Endpoint, asyncssh.SSHKey | None]]:
        """The key of every server on the way, each on record; logs in to the jumps only.

        Raises:
            HostKeyUnknown: the first that is not on record.
            HostUnreachable, ConnectionRefusedForGood: as `connect`.
        """
        endpoints = await asyncio.to_thread(chain, self.host.address)
        made: list[tuple[Endpoint, asyncssh.SSHClientConnection]] = []
        try:
            for endpoint in endpoints[:-1]:
                made.append((endpoint, await self._log_in(endpoint, made[-1] if made else None)))
            keys = [(endpoint, connection.get_server_host_key()) for endpoint, connection in made]
            keys.append((endpoints[-1], await self._see_key(endpoints[-1], made[-1] if made else None)))
        finally:
            await Connection(made).close()
        return keys

    async def _see_key(
        self, endpoint: Endpoint, via: tuple[Endpoint, asyncssh.SSHClientConnection] | None
    ) -> asyncssh.SSHKey | None:
        """The key that a server shows and proves to have, without logging in."""
        known = await asyncio.to_thread(self.known_hosts, endpoint)
        login = Login(endpoint, Offer(), Secrets(), NoPrompts(), patient=False)
        try:
            connection = await self._attempt(endpoint, via, known, login)
        except asyncssh.HostKeyNotVerifiable as error:
            raise key_error(self.name, endpoint, known, login.shown_key, error.reason) from error
        except (asyncssh.PermissionDenied, _TooManyTries):
            pass
        else:
            await Connection([(endpoint, connection)]).close()
        return login.connection.get_server_host_key() if login.connection is not None else None

    async def open(self) -> SshChannel:
        """Start an agent; returns once it has said hello, with that line still to be read."""
        connection = await self.connect()
        try:
            return await self._start(connection)
        except BaseException:
            await connection.close()
            raise

    async def _start(self, connection: Connection) -> SshChannel:
        channel: SshChannel | None = None
        loop, limits = asyncio.get_running_loop(), self.limits
        began, waited = loop.time(), limits.shell
        self.waits_for = f"the login shell of {self.name}, until it has run `sh` (at most {limits.shell:g} s)"
        try:
            async with asyncio.timeout(limits.shell) as clock:

                def has_begun() -> None:
                    nonlocal waited
                    waited = limits.start
                    self.waits_for = f"an agent on {self.name}, until it has answered (at most {waited:g} s)"
                    clock.reschedule(began + waited)

                channel = await self._session(connection)
                # A shell that has ended already: what it printed says more than the failure to write.
                with contextlib.suppress(OSError):
                    await channel.write(bootstrap.script(self.host.python, self.host.root))
                failure = await channel.until_hello(has_begun)
            if failure is None:
                return channel
            raise self._explain_start(channel, failure)
        except TimeoutError:
            if channel is None:
                raise HostUnreachable(
                    f"{self.name}: logged in, but its SSH server opened no session within {waited:g} s",
                    remedy="the host is overloaded; try again later",
                ) from None
            way = log_in(connection.endpoint)
            explain_silence = bootstrap.explain_silent_agent if channel.begun else bootstrap.explain_waiting_shell
            silent = explain_silence(self.name, channel.printed(), channel.errors(), waited, way)
            raise HostUnreachable(silent.what, remedy=silent.remedy) from None
        finally:
            self.waits_for = ""
            if channel is not None and not channel.greeted:
                await channel.close()

    async def _session(self, connection: Connection) -> SshChannel:
        """A shell that waits for its first line."""
        try:
            # encoding=None: bytes; agent and X11 forwarding are off on the connection.
            process = await connection.ssh.create_process(bootstrap.COMMAND, encoding=None, request_pty=False)
        except asyncssh.ChannelOpenError as error:
            raise HostUnreachable(
                f"{self.name}: logged in, but no session could be opened: {bootstrap.clean(error.reason)}",
                remedy="too many sessions at once (MaxSessions)? Try again",
            ) from error
        except (asyncssh.Error, OSError) as error:
            raise explain(error, self.name, connection.endpoint, via=None) from error
        return SshChannel(connection, process)

    def _explain_start(self, channel: SshChannel, failure: str) -> HostUnreachable:
        """Why the agent did not come up."""
        if channel.lost is not None:
            return HostUnreachable(
                f"{self.name}: the connection was lost while the agent was being started ({channel.lost})",
                remedy="try again",
            )
        found = next(
            (said for line in failure.splitlines() if (said := bootstrap.parse_failure(line.encode())) is not None),
            None,
        )
        way = log_in(channel.connection.endpoint)
        if found is not None:
            absent = bootstrap.explain_failure(found, self.name, self.host.python, way)
        else:
            words = f"{bootstrap.foreign(failure)} {channel.errors()}"
            absent = bootstrap.explain_exit(self.name, channel.status, channel.signal, words, way)
            if channel.signal is not None:
                return HostUnreachable(absent.what, remedy=absent.remedy)
        kind = ConnectionRefusedForGood if absent.sure else AgentDidNotStart
        return kind(absent.what, remedy=absent.remedy)

    def known_hosts(self, endpoint: Endpoint) -> KnownHosts:
        """Every line that counts for an endpoint, with our own file's."""
        return read_all([*endpoint.known_hosts, own_known_hosts()])

    async def _log_in(
        self, endpoint: Endpoint, via: tuple[Endpoint, asyncssh.SSHClientConnection] | None
    ) -> asyncssh.SSHClientConnection:
        known = await asyncio.to_thread(self.known_hosts, endpoint)
        asked_passwords = 0
        patient = False
        while True:
            offer = await gather(endpoint, self.secrets)
            login = Login(endpoint, offer, self.secrets, self.prompts, patient=patient)
            try:
                return await self._attempt(endpoint, via, known, login)
            except asyncssh.HostKeyNotVerifiable as error:
                raise key_error(self.name, endpoint, known, login.shown_key, error.reason) from error
            except (asyncssh.PermissionDenied, _TooManyTries) as error:
                refused: Exception = error
            finally:
                offer.close()
            tried = list(offer.tried)
            if offer.locked or (offer.blind and not login.password_used and not patient):
                for path in dict.fromkeys(offer.locked or offer.blind):
                    await unlock(path, endpoint, self.secrets, self.prompts)
                continue
            if login.password_used:
                tried.append("a password")
            if login.declined:
                raise login_refused(
                    endpoint, [*tried, "the server's questions, unanswered"], offer.skipped
                ) from refused
            if login.dialog_wanted and not patient:
                patient = True
                continue
            if patient or not (login.password_wanted or login.password_used) or asked_passwords >= TRIES:
                self.secrets.passwords.pop(str(endpoint), None)
                raise login_refused(endpoint, tried, offer.skipped) from refused
            wrong = "wrong; " if self.secrets.passwords.pop(str(endpoint), None) is not None else ""
            answer = await self.prompts.secret(f"{wrong}password of {endpoint}")
            asked_passwords += 1
            if answer is None:
                raise login_refused(endpoint, tried, offer.skipped) from refused
            self.secrets.passwords[str(endpoint)] = answer

    async def _attempt(
        self,
        endpoint: Endpoint,
        via: tuple[Endpoint, asyncssh.SSHClientConnection] | None,
        known: KnownHosts,
        login: Login,
    ) -> asyncssh.SSHClientConnection:
        where = f"{endpoint.host} port {endpoint.port}"
        before = via[0] if via else None
        login_s = self.limits.dialog if login.patient else self.limits.login
        try:
            async with asyncio.timeout(self.limits.connect) as clock:
                attempt = asyncio.create_task(self._connect(endpoint, via, known, login, login_s))
                made = asyncio.create_task(login.made.wait())
                try:
                    await asyncio.wait({attempt, made}, return_when=asyncio.FIRST_COMPLETED)
                    clock.reschedule(asyncio.get_running_loop().time() + login_s)
                    return await attempt
                finally:
                    await end_task(made)
                    await end_task(attempt)
        except TimeoutError as error:
            if login.made.is_set():
                raise HostUnreachable(
                    f"{where}: answers, but did not let in within {login_s:g} s",
                    remedy="the host is overloaded, or its DNS or directory service hangs; try again later",
                ) from error
            raise timed_out(where, self.limits.connect) from error
        except (asyncssh.HostKeyNotVerifiable, asyncssh.PermissionDenied):
            raise
        except asyncssh.ConnectionLost as error:
            if "Login timeout" in error.reason:
                raise HostUnreachable(
                    f"{where}: answers, but did not let in within {login_s:g} s",
                    remedy="the host is overloaded, or its DNS or directory service hangs; try again later",
                ) from error
            raise explain(error, self.name, endpoint, via=before) from error
        except asyncssh.DisconnectError as error:
            if "too many authentication failures" in error.reason.lower():
                login.offer.skipped.append("the rest: the server hangs up after too many keys (set IdentitiesOnly yes)")
                raise _TooManyTries from error
            raise explain(error, self.name, endpoint, via=before) from error
        except (asyncssh.Error, OSError) as error:
            raise explain(error, self.name, endpoint, via=before) from error
        except ValueError as error:
            raise ConnectionRefusedForGood(
                f"{where}: the SSH configuration cannot be used: {error}", remedy="mend it in ~/.ssh/config"
            ) from error

    async def _connect(
        self,
        endpoint: Endpoint,
        via: tuple[Endpoint, asyncssh.SSHClientConnection] | None,
        known: KnownHosts,
        login: Login,
        login_s: float,
    ) -> asyncssh.SSHClientConnection:
        proxy: dict[str, object] = {} if via is None else {"proxy_command": None}
        return await asyncssh.connect(
            endpoint.asked,
            endpoint.port,
            username=endpoint.user,
            # Never the configuration's own ProxyJump: asyncssh would go through it without our checks.
            tunnel=via[1] if via else None,
            config=list(endpoint.config),
            known_hosts=_trust(endpoint, known),
            server_host_key_algs=() if endpoint.host_key_algorithms else _algorithms(endpoint, known),
            x509_trusted_certs=None,
            client_factory=lambda: login,
            # All keys come from `login`, in our order and with our words for them.
            client_keys=None,
            agent_forwarding=False,
            x11_forwarding=False,
            # GSSAPI key exchange would replace the check of the host key by Kerberos.
            gss_host=None,
            gss_kex=False,
            gss_auth=False,
            host_based_auth=False,
            connect_timeout=None,
            login_timeout=login_s,
            keepalive_interval=self.limits.keepalive,
            keepalive_count_max=self.limits.keepalive_misses,
            **proxy,
        )


class _TooManyTries(Exception):
    """The server hung up after too many keys."""


def _trust(
    endpoint: Endpoint, known: KnownHosts
) -> Callable[[str, str, int | None], tuple[list[asyncssh.SSHKey], ...]]:
    """What asyncssh asks instead of reading files: the keys on record for the endpoint, by our own matching.

    Revoked keys are left out of the trusted ones too. Never None, which would switch the check off.
    """
    revoked = [line.key for line in known.about(endpoint.names, "revoked")]
    trusted = [line.key for line in known.about(endpoint.names, "") if line.key not in revoked]
    authorities = [line.key for line in known.about(endpoint.names, "cert-authority")]
    return lambda host, addr, port: (trusted, authorities, revoked)


def _algorithms(endpoint: Endpoint, known: KnownHosts) -> list[str]:
    """Key types on record first, then the others: a host with another key must show it, or it looks broken."""
    from asyncssh.public_key import get_default_certificate_algs, get_default_public_key_algs

    plain = [name.decode() for name in get_default_public_key_algs()]
    certified = [name.decode() for name in get_default_certificate_algs()]
    on_record = [name.decode() for line in known.about(endpoint.names, "") for name in line.key.sig_algorithms]
    has_authority = bool(known.about(endpoint.names, "cert-authority"))
    wanted = [*(certified if has_authority else []), *on_record, *plain]
    return list(dict.fromkeys(name for name in wanted if name in plain or name in certified))
