"""How does a host without eagle3ops get it, without ever losing the one it has?

`install` looks around, says what it will do, sends the wheel of the running version, lets the host build an environment
of its own from it, and proves that an agent of the right version answers. Everything runs behind the one word `sh`, so
that any login shell will do, and nothing of the local environment is sent.
"""

import asyncio
import hashlib
import json
import secrets
import shlex
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import asyncssh

from eagle3ops import __version__
from eagle3ops.errors import Eagle3opsError, HostUnreachable, RequestError
from eagle3ops.hosts.address import is_url
from eagle3ops.hosts.install import remote_install, wheel
from eagle3ops.hosts.install.asking import Script, answered, everything_said, left_in_time, started
from eagle3ops.hosts.install.survey import Interpreter, Survey, choose, parse, script
from eagle3ops.hosts.install.words import explain_failure, shown
from eagle3ops.hosts.registry import Registry
from eagle3ops.hosts.ssh.bootstrap import ENVIRONMENT, explain_waiting_shell
from eagle3ops.hosts.ssh.channel import MAX_WORDS, Connection
from eagle3ops.hosts.ssh.errors import log_in
from eagle3ops.hosts.ssh.transport import SshTransport

SURVEY_LIMIT_S = 60.0
INSTALL_LIMIT_S = 3600.0
EXTRAS = ("train", "gguf", "sglang", "vllm")
CHUNK = 1 << 18
OWN_PYTHON = f"~/{ENVIRONMENT}/bin/python"

_CHATTER = ("Requirement already satisfied", "Looking in ", "eagle3ops is already installed")
"""What pip says that tells a person nothing."""

Tell = Callable[[str], None]
Confirm = Callable[[str], Awaitable[bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """What was done."""

    host: str
    version: str
    folder: str
    """The environment on the host."""
    fresh: bool
    """False: this very version was there and works."""
    others: tuple[str, ...]
    """Names of older environments beside it, which runs may still use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What an installation will do, before it does it."""

    host: str
    survey: Survey
    python: Interpreter
    extras: tuple[str, ...]
    wheel: Path
    sha256: str
    sites: tuple[str, ...]
    """Folders of packages that the new environment shares."""
    configured: str | None
    """The interpreter that the user's hosts.yaml names, when it is another than that of our environment."""

    @property
    def name(self) -> str:
        """The environment's folder: equal for equal content."""
        content = json.dumps([self.sha256, sorted(self.extras), self.python.path, self.sites])
        return f"env-{__version__}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"

    @property
    def remote_wheel(self) -> str:
        """Where the wheel goes."""
        return f"{self.survey.base}/wheels/{self.sha256}/{self.wheel.name}"

    def lines(self) -> list[str]:
        """For a person to agree to; what the host said of itself in it cannot steer a terminal."""
        shared = ", ".join(f"{name} {version}" for name, version in self.python.has.items())
        extras = f" with {', '.join(self.extras)}" if self.extras else ""
        lines = [
            f"install eagle3ops {__version__}{extras} on {self.host}",
            f"  wheel        {self.wheel.name}, {self.wheel.stat().st_size:,} bytes, sha256 {self.sha256[:12]}",
            f"  Python       {self.python}",
            f"  environment  {self.survey.base}/{self.name}",
            f"  link         ~/{ENVIRONMENT} -> {self.name}"
            + (f" (now {self.survey.current}, which stays)" if self.survey.current not in ("", self.name) else ""),
        ]
        if self.sites:
            lines.append(f"  shares       {shared} of that Python")
        if self.configured is not None:
            lines.append(f"  hosts.yaml   python of {self.host} becomes {OWN_PYTHON} (now {self.configured})")
        lines.append("  what is missing comes from the package index that pip on the host is set up for")
        return ["".join(character if character.isprintable() else " " for character in line) for line in lines]


async def install(
    transport: SshTransport,
    *,
    extras: Sequence[str] = (),
    tell: Tell,
    confirm: Confirm,
) -> Installed:
    """Install the running version on a host; once more where it is already there and works changes nothing.

    Args:
        transport: the host; its `host.python`, when set, is what the environment is built on.
        extras: of `EXTRAS`.
        tell: told one line at a time what happens.
        confirm: asked once, with what will be done.

    Raises:
        RequestError: an extra that does not exist, or the person said no.
        HostUnreachable: no connection, or it was lost; the host keeps the environment it had.
        Eagle3opsError: the host cannot carry it, or a step failed; with what to do.
    """
    unknown = [extra for extra in extras if extra not in EXTRAS]
    if unknown:
        raise RequestError(f"unknown extra {unknown[0]!r}", remedy=f"known: {', '.join(EXTRAS)}")
    host = transport.name
    with tempfile.TemporaryDirectory(prefix="eagle3ops-wheel-") as scratch:
        built = await asyncio.to_thread(wheel.build, Path(scratch))
        try:
            async with await transport.connect() as connection:
                intent = await _intend(transport, connection, built, extras)
                if not await confirm("\n".join(intent.lines())):
                    raise RequestError("not agreed to; nothing was changed", remedy="--yes agrees beforehand")
                done = await _carry_out(transport, connection, intent, tell)
        except (asyncssh.Error, OSError) as error:
            raise _lost(host, str(error)) from error
    if intent.configured is not None:
        await asyncio.to_thread(_use_own_python, transport)
    others = tuple(str(name) for name in done.get("others", ()))
    if others:
        tell(f"older environments stay in {intent.survey.base}, as runs may still use them: {', '.join(others)}")
    return Installed(
        host=host,
        version=__version__,
        folder=str(done.get("folder", "")),
        fresh=bool(done.get("fresh")),
        others=others,
    )


def _use_own_python(transport: SshTransport) -> None:
    """From now on the agent runs in the new environment, also where hosts.yaml named another interpreter."""
    transport.host = replace(transport.host, python=OWN_PYTHON)
    if not is_url(transport.host.name):
        Registry().add(transport.host)


async def prove(transport: SshTransport) -> None:
    """An agent answers there, and it is this version.

    Raises:
        HostUnreachable: it does not.
        Eagle3opsError: it is another version.
    """
    from eagle3ops.hosts.client import AgentClient

    client = await AgentClient.connect(transport)
    try:
        version = client.hello.version
    finally:
        await client.close()
    if version != __version__:
        raise Eagle3opsError(
            f"{transport.name}: the agent that answers is version {version}, not {__version__}",
            remedy=f"python: in hosts.yaml names another installation; take it out, or name ~/{ENVIRONMENT}/bin/python",
        )


def base_python(configured: str | None) -> str | None:
    """The interpreter that hosts.yaml wants an environment built on; None when it names our own environment."""
    return None if configured is None or f"{ENVIRONMENT}/bin/" in configured else configured


async def _intend(transport: SshTransport, connection: Connection, built: Path, extras: Sequence[str]) -> Intent:
    python = base_python(transport.host.python)
    output = await everything_said(
        transport, connection, script(python), limit_s=SURVEY_LIMIT_S, doing="looking around"
    )
    survey = parse(output, transport.name)
    chosen = choose(survey, transport.name, extras=extras, python=python)
    return Intent(
        host=transport.name,
        survey=survey,
        python=chosen,
        extras=tuple(sorted(set(extras))),
        wheel=built,
        sha256=wheel.sha256_of(built),
        sites=chosen.sites if chosen.has else (),
        configured=python,
    )


async def _carry_out(transport: SshTransport, connection: Connection, intent: Intent, tell: Tell) -> dict[str, Any]:
    await _send(connection, intent, tell)
    outcome = await _build_there(transport, connection, intent, tell)
    if outcome.get("kind") == "damaged":
        tell("the wheel arrived damaged; sending it once more")
        await _send(connection, intent, tell)
        outcome = await _build_there(transport, connection, intent, tell)
    if "kind" in outcome:
        raise explain_failure(intent.host, str(outcome["kind"]), str(outcome.get("detail", "")), intent.python)
    return outcome


async def _send(connection: Connection, intent: Intent, tell: Tell) -> None:
    """Send the wheel under another name, then give it its own. One that is there already is not sent again."""
    target, size, host = intent.remote_wheel, intent.wheel.stat().st_size, intent.host
    try:
        sftp = await answered(connection.ssh.start_sftp_client(), host, "opening a file transfer")
    except (asyncssh.ChannelOpenError, asyncssh.SFTPError) as error:
        raise Eagle3opsError(
            f"{host}: offers no file transfer (SFTP): {error}",
            remedy="its sshd_config needs a line `Subsystem sftp internal-sftp`",
        ) from error
    async with left_in_time(sftp):
        try:
            await answered(sftp.makedirs(target.rpartition("/")[0], exist_ok=True), host, "making a folder")
            if await answered(_is_there(sftp, target, size), host, "looking for the wheel"):
                return
            tell(f"sending {intent.wheel.name}, {size:,} bytes")
            partial = f"{target}.{secrets.token_hex(4)}.part"
            file = await answered(sftp.open(partial, "wb"), host, f"opening {partial}")
            async with file:
                data = intent.wheel.read_bytes()
                for offset in range(0, size, CHUNK):
                    await answered(file.write(data[offset : offset + CHUNK], offset), host, f"writing {partial}")
            await answered(sftp.posix_rename(partial, target), host, f"renaming {partial}")
        except asyncssh.SFTPError as error:
            raise Eagle3opsError(
                f"{host}: {target} could not be written: {error.reason}",
                remedy="is the disk or the quota full, or the folder somebody else's? `df -h ~; ls -ld ~/.local/share`",
            ) from error


async def _is_there(sftp: asyncssh.SFTPClient, target: str, size: int) -> bool:
    return await sftp.exists(target) and (await sftp.stat(target)).size == size


async def _build_there(transport: SshTransport, connection: Connection, intent: Intent, tell: Tell) -> dict[str, Any]:
    """Let the host's own Python build the environment; returns its last word (`done`, or `error` with `kind`)."""
    order = {
        "base": intent.survey.base,
        "wheel": intent.remote_wheel,
        "sha256": intent.sha256,
        "version": __version__,
        "name": intent.name,
        "extras": list(intent.extras),
        "sites": list(intent.sites),
        "python": intent.python.path,
    }
    program = resources.files("eagle3ops.hosts.install").joinpath("remote_install.py").read_text(encoding="utf-8")
    # -I: neither the working folder nor variables of the account decide what is imported.
    line = f"exec {shlex.quote(intent.python.path)} -I -c {shlex.quote(program)} {shlex.quote(json.dumps(order))}\n"
    outcome: dict[str, Any] | None = None
    loop, begun = asyncio.get_running_loop(), False
    came, since = "", loop.time()
    ran: Script | None = None
    try:
        # Standard input stays open: its end tells the program there that nobody listens any more.
        async with (
            asyncio.timeout(transport.limits.shell) as clock,
            started(connection, line.encode(), eof=False) as ran,
        ):
            process = ran.process
            async for raw in process.stdout:
                message = read_message(raw.decode(errors="replace")) or {}
                if message and not begun:
                    begun = True
                    clock.reschedule(since + INSTALL_LIMIT_S)
                if not message:
                    came = f"{came}{raw[:500].decode(errors='replace')}"[-MAX_WORDS:]
                if "done" in message or "error" in message:
                    outcome = message.get("done") or message.get("error")
                elif ("step" in message or "said" in message) and not str(message.get("said", "")).startswith(_CHATTER):
                    tell(shown(str(message.get("step") or f"  {message.get('said', '')}"), 500))
            if isinstance(outcome, dict):
                return outcome
            await process.wait_closed()
            said = shown(ran.said, 500)
    except TimeoutError as error:
        if not begun:
            way = log_in(connection.endpoint)
            silent = explain_waiting_shell(intent.host, came, ran.said if ran else "", transport.limits.shell, way)
            raise HostUnreachable(silent.what, remedy=silent.remedy) from error
        raise Eagle3opsError(
            f"{intent.host}: the installation had not ended after {INSTALL_LIMIT_S / 60:.0f} min and was given up",
            remedy="see what pip waits for there: its index, a proxy, a slow disk",
        ) from error
    if process.returncode is None:
        raise _lost(intent.host, said or "no exit code came")
    raise Eagle3opsError(
        f"{intent.host}: the installation ended with exit code {process.returncode} and said: {said or 'nothing'}",
        remedy="do it again; the host keeps the environment that it had",
    )


def _lost(host: str, reason: str) -> HostUnreachable:
    return HostUnreachable(
        f"{host}: the connection was lost during the installation ({reason})",
        remedy="do it again; the host keeps the environment that it had",
    )


def read_message(line: str) -> dict[str, Any] | None:
    """A message of `remote_install`; None for what a start-up file printed."""
    if not line.startswith(remote_install.MARK):
        return None
    try:
        found = json.loads(line.removeprefix(remote_install.MARK))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
