"""How does a job run on another machine? Over an agent there: the run lives there, and only the telling is here."""

import asyncio
import contextlib
import json as jsonlib
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from eagle3ops.commands.story import Ending, Story, narrator, say
from eagle3ops.errors import Eagle3opsError, ExitCode, HostUnreachable
from eagle3ops.words import elsewhere, plain

if TYPE_CHECKING:
    from eagle3ops.hosts.link import Link, LinkState
    from eagle3ops.spec.models import Pipeline

REASONS = 5
"""Different reasons for one outage that a person is told."""


@dataclass(frozen=True, slots=True)
class There:
    """A host and a root on it, and the connection to them."""

    host: str
    root: str | None
    link: "Link"

    async def call(self, op: str, /, **arguments: Any) -> dict[str, Any]:
        """Ask the agent, over as many connections as that takes."""
        if self.root is not None:
            arguments["root"] = self.root
        try:
            return await self.link.call(op, **arguments)
        except HostUnreachable:
            raise
        except Eagle3opsError as error:
            # The host speaks of itself as this machine.
            if error.remedy is None or (remedy := elsewhere(error.remedy, self.host)) == error.remedy:
                raise
            raise type(error)(error.what, remedy=remedy) from error

    def command(self, verb: str, run_id: str) -> str:
        """The command line that does `verb` to a run there."""
        return command(verb, run_id, self.host, self.root)


def command(verb: str, run_id: str, host: str, root: str | None) -> str:
    """The command line that does `verb` to a run on a host."""
    return _command(f"{verb} {run_id}", host, root)


def _command(words: str, host: str, root: str | None) -> str:
    where = "" if root is None else f" --root {shlex.quote(root)}"
    return f"eagle3ops runs {words} --host {shlex.quote(host)}{where}"


def on_host(host: str, root: str | None, work: Callable[[There], Awaitable[int]]) -> int:
    """Do some work over a connection to `host`; returns its exit code.

    Raises:
        RequestError: there is no such host.
        HostUnreachable: the first connection did not come about. Later losses are mended without end.
    """
    return asyncio.run(_on_host(host, root, work))


async def _on_host(host: str, root: str | None, work: Callable[[There], Awaitable[int]]) -> int:
    from eagle3ops.commands.hosts import TerminalPrompts, patiently
    from eagle3ops.hosts.client import skew
    from eagle3ops.hosts.link import Link
    from eagle3ops.hosts.reach import transport_for

    transport = transport_for(host, TerminalPrompts())
    async with Link(transport, on_state=_Notices(host)) as link:
        if (differs := skew(host, await patiently(transport, link.open()))) is not None:
            say(f"{host}: {differs}")
        return await work(There(host, root, link))


def ask(host: str, root: str | None, op: str, **arguments: Any) -> dict[str, Any]:
    """One question to the agent of a host."""
    answer: dict[str, Any] = {}

    async def work(there: There) -> int:
        answer.update(await there.call(op, **arguments))
        return ExitCode.DONE

    on_host(host, root, work)
    return answer


def with_files(host: str, root: str | None, pipeline: "Pipeline") -> "Pipeline":
    """The pipeline as the host is to see it, with the files of this machine that it names sent there."""
    from eagle3ops.hosts.uploads import with_files_there

    ready = [pipeline]

    async def work(there: There) -> int:
        ready[0] = await with_files_there(there, pipeline, say)
        return ExitCode.DONE

    on_host(host, root, work)
    return ready[0]


def run_job(
    host: str,
    root: str | None,
    pipeline: "Pipeline",
    *,
    job: str,
    source: str,
    key: str,
    forced: bool,
    json: bool,
    detach: bool,
    named: bool = True,
) -> int:
    """`eagle3ops --job NAME --host HOST`.

    Args:
        named: the key is the person's own, and may have led to a run before; one that was made up for this call may
            not.
    """
    from eagle3ops.hosts.uploads import with_files_there
    from eagle3ops.spec.load import dump_pipeline

    async def work(there: There) -> int:
        ready = await with_files_there(there, pipeline, say)
        before = there.link.connections
        try:
            started = await there.call(
                "runs.place", job=job, spec_text=dump_pipeline(ready), source=source, forced=forced, key=key
            )
        except HostUnreachable:
            say(f"whether the run was started is not known\n  see: {_command('list', host, root)}")
            raise
        if named and not started["fresh"] and there.link.connections == before:
            # An answer that was lost, and asked for again over a new connection, is no start of long ago.
            say(f"{started['run']} was started for this key before; nothing is started anew")
        return await _attend(there, started, json=json, detach=detach)

    return on_host(host, root, work)


def resume(host: str, root: str | None, run: str, *, json: bool, detach: bool, yes: bool) -> int:
    """`eagle3ops runs resume RUN --host HOST`."""

    async def work(there: There) -> int:
        # `last` may be another run by the time that a lost answer is asked for again.
        run_id = (await there.call("runs.state", run=run))["run"]
        started = await there.call("runs.resume", run=run_id, token=uuid4().hex, forced=yes)
        return await _attend(there, started, json=json, detach=detach)

    return on_host(host, root, work)


def follow(host: str, root: str | None, run: str, *, json: bool) -> int:
    """`eagle3ops runs follow RUN --host HOST`."""

    async def work(there: There) -> int:
        found = await there.call("runs.state", run=run)
        return await _Follower(there, found["run"], found["path"], json=json, cancels=False).follow(0)

    return on_host(host, root, work)


async def _attend(there: There, started: dict[str, Any], *, json: bool, detach: bool) -> int:
    run_id = started["run"]
    say(f"run {run_id} on {there.host}")
    if detach:
        say(f"  follow it: {there.command('follow', run_id)}")
        if json:
            placed = {"run": run_id, "host": there.host, "path": started["path"]}
            sys.stdout.write(jsonlib.dumps(placed, ensure_ascii=False) + "\n")
            sys.stdout.flush()
        return ExitCode.DONE
    return await _Follower(there, run_id, started["path"], json=json).follow(started["after"])


class _Follower:
    """Tells a run's events until it has ended, over as many connections as that takes."""

    def __init__(self, there: There, run_id: str, path: str, *, json: bool, cancels: bool = True) -> None:
        self.there = there
        self.run_id = run_id
        self.path = path
        self.cancels = cancels
        self.story = Story(narrator(json=json), lambda verb: there.command(verb, run_id))
        self.interrupted = 0
        self.hung_up = False
        self._woken = asyncio.Event()
        self._cancelling: asyncio.Task[None] | None = None
        self._delivered = False
        """The agent has passed the cancel on, or had nobody to pass it to."""

    async def follow(self, after: int) -> int:
        """Until the end; returns the exit code.

        Raises:
            Eagle3opsError: it cannot be followed any longer; which run that is has been said.
        """
        try:
            return await self._follow(after)
        except Eagle3opsError as error:
            goes_on = "; the run goes on" if isinstance(error, HostUnreachable) else ""
            say(f"{self.run_id} on {self.there.host}: no longer followed{goes_on}")
            say(f"  follow it again: {self.there.command('follow', self.run_id)}")
            if self._cancelling is not None and not self._delivered:
                say(f"the cancel did not reach {self.there.host}\n  {self._cancel_again()}")
            raise

    async def _follow(self, after: int) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal, number)
        reading = asyncio.create_task(self._read(after))
        try:
            await self._until_over(reading)
        finally:
            for task in (reading, self._cancelling):
                if task is not None:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.remove_signal_handler(number)
            self.story.narrator.close()
        state: dict[str, Any] = {}
        if self.story.ended() is None and (self.interrupted or self.hung_up):
            ending = self._left()
        else:
            try:
                found = await self.there.call("runs.state", run=self.run_id)
                state, ending = found["state"], self._ending(found)
            except HostUnreachable:
                told = self.story.ended()
                if told is None:
                    raise
                ending = self._as_left(told)
        return self.story.conclude(ending, self.run_id, f"{self.path} on {self.there.host}", state)

    async def _read(self, after: int) -> None:
        async for event in self.there.link.events(self.run_id, after, root=self.there.root):
            self.story.take(event)

    async def _until_over(self, reading: "asyncio.Task[None]") -> None:
        while True:
            woken = asyncio.create_task(self._woken.wait())
            try:
                await asyncio.wait({reading, woken}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                woken.cancel()
            if reading.done():
                await reading
                return
            self._woken.clear()
            if self.hung_up or self.interrupted > 1 or not self.cancels:
                return
            if self._cancelling is None:
                say("cancelling; once more to leave at once")
                self._cancelling = asyncio.create_task(self._cancel())

    def _on_signal(self, number: int) -> None:
        # A terminal that goes away is no wish to end the run.
        self.hung_up = self.hung_up or number == signal.SIGHUP
        self.interrupted += number != signal.SIGHUP
        self._woken.set()

    async def _cancel(self) -> None:
        try:
            await self.there.call("runs.cancel", run=self.run_id)
        except HostUnreachable:
            return  # whoever reads the events is told the same
        except Eagle3opsError as error:
            say(f"{self.run_id} was not cancelled: {plain(error.what)}")
            return
        self._delivered = True

    def _cancel_again(self) -> str:
        return f"cancel it: {self.there.command('cancel', self.run_id)}"

    def _left(self) -> Ending:
        if self.interrupted and self.cancels:
            if self._delivered:
                return Ending(ExitCode.INTERRUPTED, "left before the run had ended; it was asked to end", over=False)
            what = f"the cancel did not reach {self.there.host}; the run may be going on"
            return Ending(ExitCode.INTERRUPTED, what, self._cancel_again(), over=False)
        return Ending(ExitCode.INTERRUPTED, "no longer followed; the run goes on", over=False)

    def _ending(self, found: dict[str, Any]) -> Ending:
        ending = self.story.ended()
        if ending is None:
            return Ending(ExitCode.FAILED, found["interruption"] or f"it is {found['status']}")
        return self._as_left(ending)

    def _as_left(self, ending: Ending) -> Ending:
        """How the run ended, to somebody who may have asked for its end."""
        remedy = None if ending.remedy is None else elsewhere(ending.remedy, self.there.host)
        return Ending(ExitCode.INTERRUPTED if self.interrupted else ending.code, ending.cause, remedy)


class _Notices:
    """Says on standard error when the line drops and when it is back; silent as long as all is well."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.connected = False
        self.lost = False
        self._said: set[str] = set()
        """Reasons of this outage that were told."""

    def __call__(self, state: "LinkState") -> None:
        if state.kind == "waiting" and self.connected:
            why = (state.why or "the connection was lost").removeprefix(f"{self.host}: ")
            if not self.lost:
                say(f"{self.host}: {plain(why)}; what runs there goes on; reconnecting")
            elif why not in self._said and len(self._said) < REASONS:
                say(f"{self.host}: not yet: {plain(why)}")
                if state.remedy:
                    say(f"  -> {plain(state.remedy)}")
            self.lost = True
            self._said.add(why)
        elif state.kind == "connected":
            if self.lost:
                say(f"{self.host}: connected again")
            self.connected, self.lost = True, False
            self._said.clear()
