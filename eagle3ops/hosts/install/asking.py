"""What does a script for `sh` on a host say, and what is said here when it says nothing, or far too much?"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from typing import TypeVar

import asyncssh

from eagle3ops.errors import Eagle3opsError, HostUnreachable
from eagle3ops.hosts.install.survey import MARK
from eagle3ops.hosts.ssh.bootstrap import COMMAND, clean, explain_waiting_shell
from eagle3ops.hosts.ssh.channel import CLOSE_S, MAX_BANNER, MAX_WORDS, READ_BYTES, Connection, end_task
from eagle3ops.hosts.ssh.errors import log_in
from eagle3ops.hosts.ssh.transport import SshTransport

FILES_LIMIT_S = 60.0
"""How long one step of a file transfer may take: a disk that hangs behind a living server looks like a slow one."""

_OWN_LINE = f"\n{MARK}".encode()

T = TypeVar("T")


@dataclass(slots=True)
class Script:
    """A script that `sh` on a host carries out."""

    process: "asyncssh.SSHClientProcess[bytes]"
    errors: bytearray = field(default_factory=bytearray)
    """The end of standard error, which is always taken: what is not taken would hold up everything else."""

    async def drain(self) -> None:
        """Take standard error until its end."""
        with contextlib.suppress(asyncssh.Error, OSError):
            while data := await self.process.stderr.read(READ_BYTES):
                self.errors += data
                del self.errors[:-MAX_WORDS]

    @property
    def said(self) -> str:
        """The end of standard error."""
        return self.errors.decode(errors="replace")


@contextlib.asynccontextmanager
async def started(connection: Connection, text: bytes, *, eof: bool) -> AsyncIterator[Script]:
    """Begin to carry out a script; with `eof` nothing comes behind it on its standard input."""
    process = await connection.ssh.create_process(COMMAND, encoding=None, request_pty=False)
    script = Script(process)
    draining = asyncio.create_task(script.drain())
    try:
        process.stdin.write(text)
        if eof:
            process.stdin.write_eof()
        yield script
    finally:
        process.close()
        await end_task(draining)


async def everything_said(
    transport: SshTransport, connection: Connection, text: bytes, *, limit_s: float, doing: str
) -> str:
    """Everything that a script says, whose first line begins with the survey's mark.

    Args:
        transport: the host; its limits say how long its login shell may take.
        connection: to it.
        text: the script.
        limit_s: seconds that all of it may take.
        doing: what it does, for messages.

    Raises:
        HostUnreachable: the login shell did not come to it, or it did not come to its end; says what came until then.
        Eagle3opsError: far too much came.
    """
    loop, shell_s, name = asyncio.get_running_loop(), transport.limits.shell, transport.name
    began, waited, output = loop.time(), shell_s, b""
    way = log_in(connection.endpoint)
    transport.waits_for = f"the login shell of {name}, until it has run `sh` (at most {shell_s:g} s)"
    errors = ""
    try:
        async with asyncio.timeout(shell_s) as clock, started(connection, text, eof=True) as script:
            try:
                while data := await script.process.stdout.read(READ_BYTES):
                    output += data
                    if waited != limit_s and _OWN_LINE in output:
                        waited = limit_s
                        transport.waits_for = f"{doing} on {name} (at most {limit_s:g} s)"
                        clock.reschedule(began + limit_s)
                    if len(output) > MAX_BANNER:
                        raise Eagle3opsError(
                            f"{name}: {doing}: more than {MAX_BANNER} bytes came; the last of them: "
                            f"{clean(output[-300:].decode(errors='replace'))}",
                            remedy=f"what its start-up files print must end; see what does: {way} sh -c true",
                        )
            finally:
                errors = script.said
    except TimeoutError as error:
        said = output.decode(errors="replace")
        if _OWN_LINE not in output:
            silent = explain_waiting_shell(name, said[-MAX_WORDS:], errors, waited, way)
            raise HostUnreachable(silent.what, remedy=silent.remedy) from error
        lines = [line.removeprefix(MARK) for line in said.splitlines() if line.startswith(MARK)]
        raise HostUnreachable(
            f"{name}: {doing} there took longer than {limit_s:g} s; it came to: {clean(lines[-1])[:300]}",
            remedy=f"a mount that hangs? Log in by hand and look: {way} df",
        ) from error
    finally:
        transport.waits_for = ""
    return output.decode(errors="replace")


async def answered(step: Awaitable[T], name: str, what: str) -> T:
    """The outcome of one step of a file transfer.

    Raises:
        HostUnreachable: none came in time.
    """
    try:
        async with asyncio.timeout(FILES_LIMIT_S):
            return await step
    except TimeoutError as error:
        raise HostUnreachable(
            f"{name}: {what} had not ended after {FILES_LIMIT_S:g} s",
            remedy="does the disk of its home folder hang? `df` on the host tells; then do it again",
        ) from error


@contextlib.asynccontextmanager
async def left_in_time(sftp: asyncssh.SFTPClient) -> AsyncIterator[None]:
    """Leave a file transfer at the end, also one whose other side does not answer any more."""
    try:
        yield
    finally:
        sftp.exit()
        with contextlib.suppress(TimeoutError, asyncssh.Error, OSError):
            async with asyncio.timeout(CLOSE_S):
                await sftp.wait_closed()
