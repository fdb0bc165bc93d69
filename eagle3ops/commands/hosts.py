"""What do `hosts add|list|test|remove|trust|install` do?"""

import asyncio
import contextlib
import os
import sys
import termios
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from eagle3ops.commands.output import write, write_json
from eagle3ops.errors import Eagle3opsError, ExitCode, HostUnreachable, RequestError
from eagle3ops.hosts.address import Address, parse_address
from eagle3ops.hosts.prompts import Prompts
from eagle3ops.hosts.registry import LOCAL, Host, Registry, check_name, check_remote_path, find_host, own_known_hosts
from eagle3ops.hosts.transport import Transport
from eagle3ops.words import plain

if TYPE_CHECKING:
    from eagle3ops.hosts.client import AgentClient

CLOCK_WARN_S = 2.0
PINGS = 5
QUIET_S = 5.0
"""What takes longer says what it waits for."""
ANSWER_S = 15.0
"""How long an agent may take to answer one ping."""

T = TypeVar("T")


class TerminalPrompts:
    """Asks the person at the terminal; nobody, when standard input or error is none."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    @staticmethod
    def possible() -> bool:
        """Whether there is a person to ask."""
        return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()

    async def secret(self, question: str) -> str | None:
        """Read a line that is not shown; None for nothing, or nobody."""
        if not self.possible():
            return None
        async with self._turn:
            return await _ask(f"{plain(question)}: ", shown=False) or None

    async def confirm(self, question: str) -> bool:
        """yes, written out; anything else is no."""
        if not self.possible():
            return False
        async with self._turn:
            return (await _ask(f"{plain(question)} [yes/no] ", shown=True)).strip().lower() == "yes"


async def _ask(question: str, *, shown: bool) -> str:
    """One line from the terminal, without its end; empty at the end of input.

    Read by the event loop, not by a thread: a thread that waits for a line holds up whoever presses Ctrl-C.
    """
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    if not shown:
        hidden = [*before]
        hidden[3] &= ~termios.ECHO
        # What was typed ahead is no answer to a question that nobody had seen.
        termios.tcsetattr(terminal, termios.TCSAFLUSH, hidden)
    answered = False
    try:
        sys.stderr.write(question)
        sys.stderr.flush()
        line = await _line(terminal)
        answered = line.endswith(b"\n")
        return line.decode(sys.stdin.encoding, errors="surrogateescape").rstrip("\r\n")
    finally:
        # Half a secret that nobody waits for any longer must not end up in the shell.
        termios.tcsetattr(terminal, termios.TCSADRAIN if answered else termios.TCSAFLUSH, before)
        if not (shown and answered):
            sys.stderr.write("\n")
            sys.stderr.flush()


async def _line(terminal: int) -> bytes:
    loop = asyncio.get_running_loop()
    line = b""
    while not line.endswith(b"\n"):
        readable = asyncio.Event()
        loop.add_reader(terminal, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(terminal)
        data = os.read(terminal, 4096)
        if not data:
            break
        line += data
    return line


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


async def patiently(transport: Transport, work: Awaitable[T]) -> T:
    """The outcome of what is done over a way to a host; says what is waited for when that takes long."""

    async def tell() -> None:
        told = ""
        while True:
            await asyncio.sleep(QUIET_S)
            waits_for = str(getattr(transport, "waits_for", ""))
            if waits_for and waits_for != told:
                told = waits_for
                _say(f"... waiting for {plain(waits_for)}")

    telling = asyncio.create_task(tell())
    try:
        return await work
    finally:
        telling.cancel()


def hosts(args: Namespace, *, json: bool) -> int:
    """`eagle3ops hosts ...`; returns the exit code."""
    command = args.hosts_command
    if command == "list":
        return _list(json=json)
    if command == "add":
        return asyncio.run(_add(args, json=json))
    if command == "remove":
        return _remove(args.name, json=json)
    if command == "trust":
        return asyncio.run(_trust(args.name, args.fingerprint, json=json))
    if command == "install":
        return asyncio.run(_install(args, json=json))
    return asyncio.run(_test(args.name, TerminalPrompts(), json=json))


def _list(*, json: bool) -> int:
    registry = Registry()
    known = registry.hosts()
    if json:
        write_json([{"name": LOCAL, "address": None, "python": None, "root": None}, *map(_as_json, known.values())])
        return ExitCode.DONE
    rows = [("name", "address", "python", "root"), (LOCAL, "this machine", "-", "-")]
    rows += [(host.name, str(host.address), host.python or "-", host.root or "-") for host in known.values()]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if not known:
        _say("add one: eagle3ops hosts add NAME ssh://user@host:port")
    return ExitCode.DONE


def _as_json(host: Host) -> dict[str, Any]:
    return {"name": host.name, "address": str(host.address), "python": host.python, "root": host.root}


async def _add(args: Namespace, *, json: bool) -> int:
    host = Host(
        name=check_name(args.name),
        address=parse_address(args.address),
        python=check_remote_path(args.python, "--python"),
        root=check_remote_path(args.host_root, "--root"),
    )
    registry = Registry()
    # A container comes back under another port: where its Python and its runs are has not changed with it.
    before = registry.hosts().get(host.name)
    kept = [(key, getattr(before, key)) for key in ("python", "root") if before and getattr(host, key) is None]
    kept = [(key, value) for key, value in kept if value is not None]
    host = replace(host, **dict(kept))
    fresh = registry.add(host)
    if json:
        write_json({**_as_json(host), "new": fresh})
    _say(f"{host.name}: {'added' if fresh else 'changed'} ({host.address}) in {registry.path}")
    if kept:
        _say(f"  as before: {', '.join(f'{key} {value}' for key, value in kept)}; `hosts remove` first forgets them")
    if not TerminalPrompts.possible():
        _say(f"  next: eagle3ops hosts test {host.name}")
        return ExitCode.DONE
    await _test(host.name, TerminalPrompts(), json=False, say=_say)
    return ExitCode.DONE


def _remove(name: str, *, json: bool) -> int:
    registry = Registry()
    registry.remove(name)
    if json:
        write_json({"removed": name})
    _say(f"{name}: removed from {registry.path}; what it did and its trusted key stay ({own_known_hosts()})")
    return ExitCode.DONE


def _only_remote(name: str) -> Host:
    if name == LOCAL:
        raise RequestError("local is this machine; it needs no SSH", remedy="eagle3ops hosts list shows the others")
    return find_host(name)


async def _trust(name: str, given: str | None, *, json: bool) -> int:
    from eagle3ops.hosts.ssh.errors import HostKeyUnknown
    from eagle3ops.hosts.ssh.transport import SshTransport
    from eagle3ops.hosts.ssh.trust import trust

    prompts = TerminalPrompts()
    transport = SshTransport(_only_remote(name), prompts)
    try:
        results = await trust(transport, prompts, given)
    except HostKeyUnknown as error:
        if prompts.possible():
            raise
        # Its usual remedy is the very command that was given here.
        itself = error.endpoint.asked == transport.host.address.host
        which = name if itself else str(Address(error.endpoint.asked, port=error.endpoint.port))
        raise HostKeyUnknown(
            error.what,
            remedy=f"nobody can be asked here: get the fingerprint from {which} by another way, then: eagle3ops hosts "
            f"trust {which} --fingerprint SHA256:...",
            endpoint=error.endpoint,
            key=error.key,
            notes=error.notes,
        ) from error
    if json:
        write_json([{"host": str(item.endpoint), "key": item.key, "added": item.added} for item in results])
    for item in results:
        _say(f"{item.endpoint}: {item.key or 'its key'} {'is trusted now' if item.added else 'was trusted already'}")
    return ExitCode.DONE


async def _install(args: Namespace, *, json: bool) -> int:
    from eagle3ops.hosts.install.steps import install, prove
    from eagle3ops.hosts.ssh.transport import SshTransport

    prompts = TerminalPrompts()
    transport = SshTransport(_only_remote(args.name), prompts)

    async def agreed(what: str) -> bool:
        _say(what)
        if args.install_yes:
            return True
        if not prompts.possible():
            raise RequestError("nobody can be asked here", remedy="agree beforehand: --yes")
        return await prompts.confirm("install it?")

    told = install(transport, extras=args.extra, tell=lambda line: _say(plain(line)), confirm=agreed)
    done = await patiently(transport, told)
    await patiently(transport, prove(transport))
    if json:
        write_json(asdict(done))
    _say(f"{done.host}: eagle3ops {done.version} {'is installed' if done.fresh else 'was there already'}")
    return ExitCode.DONE


@dataclass
class _Steps:
    """The steps of a test, said as they are done."""

    say: Callable[[str], None]
    done: list[dict[str, Any]] = field(default_factory=list)

    def good(self, step: str, value: str) -> None:
        self._add(step, True, value, None)

    def bad(self, step: str, error: Eagle3opsError) -> None:
        self._add(step, False, error.what, error.remedy)

    def _add(self, step: str, ok: bool, value: str, remedy: str | None) -> None:
        self.done.append({"step": step, "ok": ok, "value": value, "remedy": remedy})
        self.say(f"{'✓' if ok else '✗'} {step}: {plain(value)}")
        if remedy:
            self.say(f"    -> {plain(remedy)}")


async def _test(name: str, prompts: Prompts, *, json: bool, say: Callable[[str], None] | None = None) -> int:
    steps = _Steps(say or (_say if json else write))
    code = await _examine(name, prompts, steps)
    if json:
        write_json({"host": name, "ok": code == ExitCode.DONE, "steps": steps.done})
    return code


async def _examine(name: str, prompts: Prompts, steps: _Steps) -> int:
    """Key, login, agent, version, round trip, clock: one step after the other, until one fails."""
    from eagle3ops.hosts.client import AgentClient, skew
    from eagle3ops.hosts.reach import transport_for

    transport = transport_for(name, prompts)
    if name != LOCAL:
        from eagle3ops.hosts.ssh.transport import SshTransport
        from eagle3ops.hosts.ssh.trust import trust

        assert isinstance(transport, SshTransport)
        steps.good("address", str(transport.host.address))

        async def key() -> str:
            results = await trust(transport, prompts, None)
            return ", ".join(f"{item.endpoint} {item.key}{' (new)' if item.added else ''}" for item in results)

        async def login() -> str:
            async with await transport.connect() as connection:
                hops = (
                    " through " + ", ".join(str(hop) for hop, _ in connection.hops[:-1]) if connection.hops[1:] else ""
                )
                return f"{connection.endpoint}{hops}"

        for step, action in (("host key", key), ("login", login)):
            if not await _step(steps, step, action):
                return ExitCode.UNREACHABLE
    try:
        client = await patiently(transport, AgentClient.connect(transport))
    except HostUnreachable as error:
        steps.bad("agent", error)
        return ExitCode.UNREACHABLE
    try:
        hello = client.hello
        steps.good("agent", f"eagle3ops {hello.version}, Python {hello.python}, on {hello.host}")
        if (differs := skew(name, hello)) is not None:
            steps.good("version", differs)
        steps.good("root", hello.root)
        trips = []
        offsets = []
        for _ in range(PINGS):
            before, started = time.time(), time.perf_counter()
            answer = await _ping(client)
            trips.append(time.perf_counter() - started)
            if isinstance(answer.get("time"), int | float):
                offsets.append((trips[-1], float(answer["time"]) - (before + trips[-1] / 2)))
        steps.good("round trip", f"{min(trips) * 1000:.1f} ms")
        if offsets:
            offset = min(offsets)[1]
            words = f"{abs(offset) * 1000:.0f} ms {'ahead of' if offset > 0 else 'behind'} this machine"
            if abs(offset) > CLOCK_WARN_S:
                words += " (times of events are the host's; an NTP service keeps clocks together)"
            steps.good("clock", words)
    except HostUnreachable as error:
        steps.bad("agent", error)
        return ExitCode.UNREACHABLE
    finally:
        with contextlib.suppress(OSError):
            await client.close()
    return ExitCode.DONE


async def _ping(client: "AgentClient") -> dict[str, Any]:
    """An answer to a ping; an agent that has said hello may be stopped all the same."""
    try:
        async with asyncio.timeout(ANSWER_S):
            return await client.call("ping")
    except TimeoutError as error:
        raise HostUnreachable(
            f"{client.name}: an agent started (pid {client.hello.pid}) and did not answer within {ANSWER_S:g} s",
            remedy="the host is overloaded, or the process is stopped there; try again, then look at it with ps",
        ) from error


async def _step(steps: _Steps, name: str, action: Callable[[], Awaitable[str]]) -> bool:
    try:
        steps.good(name, await action())
    except HostUnreachable as error:
        steps.bad(name, error)
        return False
    return True
