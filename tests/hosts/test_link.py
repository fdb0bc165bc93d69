"""Does a link come back by itself, repeat what was asked, and lose or double no event?"""

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_world import Toy, prepare

from eagle3ops.errors import Eagle3opsError, HostUnreachable, RequestError
from eagle3ops.hosts.link import Link, LinkState, Pace
from eagle3ops.hosts.local import LocalTransport
from eagle3ops.hosts.transport import AgentDidNotStart, Channel, ConnectionRefusedForGood
from eagle3ops.runs.events import EventLog

FAST = Pace(first=0.01, longest=0.05, look=0.02, answer=5.0)


class Flaky:
    """Agents of this machine; the first connections fail as told."""

    def __init__(self, root: Path, *failures: HostUnreachable) -> None:
        self.name = "flaky"
        self.failures = list(failures)
        self.opened = 0
        self.inner = LocalTransport(root=str(root))

    async def open(self) -> Channel:
        self.opened += 1
        if self.failures:
            raise self.failures.pop(0)
        return await self.inner.open()


class Counting(Flaky):
    """Counts the pings that are sent."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked = 0
        self.often = asyncio.Event()
        """Three times, that is."""

    async def open(self) -> Channel:
        channel = await super().open()
        write = channel.write

        async def counted(data: bytes) -> None:
            self.asked += data.count(b'"ping"')
            if self.asked >= 3:
                self.often.set()
            await write(data)

        channel.write = counted  # type: ignore[method-assign]
        return channel


class Narrow(Flaky):
    """A line on which a request that is large takes as long as told."""

    delay = 0.0

    async def open(self) -> Channel:
        channel = await super().open()
        write = channel.write

        async def slowly(data: bytes) -> None:
            if len(data) > 100_000:
                await asyncio.sleep(self.delay)
            await write(data)

        channel.write = slowly  # type: ignore[method-assign]
        return channel


def kill_agent(link: Link) -> None:
    assert link.hello is not None
    # Events that one batch brought are told one by one; by then the agent may have been killed already.
    with contextlib.suppress(ProcessLookupError):
        os.kill(link.hello.pid, signal.SIGKILL)


async def test_failures_are_waited_out_and_named(tmp_path: Path) -> None:
    states: list[LinkState] = []
    transport = Flaky(tmp_path, HostUnreachable("no route"), HostUnreachable("refused"))
    async with Link(transport, on_state=states.append, pace=FAST) as link:
        assert (await link.call("ping"))["time"] > 0
        assert transport.opened == 3
    kinds = [state.kind for state in states]
    assert kinds == ["connecting", "waiting", "connecting", "waiting", "connecting", "connected", "closed"]
    assert "no route" in str(states[1])
    assert str(states[4]) == "connecting, attempt 3"


async def test_what_cannot_help_is_not_tried_again(tmp_path: Path) -> None:
    transport = Flaky(tmp_path, ConnectionRefusedForGood("the host key has changed", remedy="ask"))
    async with Link(transport, pace=FAST) as link:
        with pytest.raises(ConnectionRefusedForGood, match="has changed"):
            await link.call("ping")
        with pytest.raises(ConnectionRefusedForGood, match="has changed"):
            await link.call("ping")
        await asyncio.sleep(0.2)
        assert transport.opened == 1
        assert link.state.kind == "stopped"
        # Once it is put right, a person starts it again.
        link.start()
        assert "time" in await link.call("ping")


async def test_an_agent_that_came_up_before_may_come_up_again(tmp_path: Path) -> None:
    """A host that boots, or cannot fork, starts no agent for a while; that ends nothing but the first attempt."""
    never = Flaky(tmp_path, AgentDidNotStart("its login shell ended with exit code 254"))
    async with Link(never, pace=FAST) as link:
        with pytest.raises(AgentDidNotStart, match="exit code 254"):
            await link.call("ping")
        assert link.state.kind == "stopped"
    before = Flaky(tmp_path)
    states: list[LinkState] = []
    async with Link(before, pace=FAST, on_state=states.append) as link:
        await link.open()
        before.failures = [AgentDidNotStart("no Python there", remedy="install it")] * 3
        kill_agent(link)
        await link.wait_for(lambda state: state.kind == "waiting")
        assert "time" in await link.call("ping")
        assert before.opened == 5
        assert any(state.why == "no Python there" and state.remedy == "install it" for state in states)
        before.failures = [ConnectionRefusedForGood("the host key has changed")]
        kill_agent(link)
        await link.wait_for(lambda state: state.kind == "stopped")


async def test_no_agent_among_local_words(tmp_path: Path) -> None:
    """What stops a start is told apart by its words: no eagle3ops there, or a file that is missing just now."""
    for words, kind in (
        ("No module named eagle3ops", ConnectionRefusedForGood),
        ("No module named 'platformdirs'", AgentDidNotStart),
        ("/mnt/venv/bin/python: No such file or directory", AgentDidNotStart),
    ):
        program = f"import sys; sys.stderr.write({words!r}); sys.exit(1)"
        transport = LocalTransport(command=[sys.executable, "-c", program], name="far")
        async with Link(transport, pace=FAST) as link:
            with pytest.raises(ConnectionRefusedForGood) as caught:
                await link.open()
            assert type(caught.value) is kind


async def test_a_defect_is_told_to_those_who_wait(tmp_path: Path) -> None:
    class Broken(Flaky):
        async def open(self) -> Channel:
            raise KeyError("surprise")

    async with Link(Broken(tmp_path), pace=FAST) as link:
        with pytest.raises(ConnectionRefusedForGood, match="surprise"):
            await link.call("ping")
        assert link.state.kind == "stopped"


async def test_open_raises_the_first_failure(tmp_path: Path) -> None:
    async with Link(Flaky(tmp_path, HostUnreachable("refused")), pace=Pace(first=60.0)) as link:
        with pytest.raises(HostUnreachable, match="refused"):
            await link.open()
        link.wake()
        assert (await link.call("ping"))["time"] > 0


async def test_closed_link_answers_nobody(tmp_path: Path) -> None:
    link = Link(Flaky(tmp_path, *[HostUnreachable("down")] * 1000), pace=FAST)
    link.start()
    waiting = asyncio.create_task(link.call("ping"))
    await link.wait_for(lambda state: state.kind == "waiting")
    await link.close()
    with pytest.raises(HostUnreachable, match="closed"):
        await waiting
    with pytest.raises(HostUnreachable, match="closed"):
        await link.call("ping")


async def test_errors_of_the_agent_come_through(tmp_path: Path) -> None:
    async with Link(Flaky(tmp_path), pace=FAST) as link:
        with pytest.raises(RequestError):
            await link.call("runs.show", run="2020-none")
        assert link.connections == 1


async def test_call_is_repeated_when_the_agent_is_killed(tmp_path: Path) -> None:
    async with Link(Flaky(tmp_path), pace=FAST) as link:
        await link.open()
        os.kill(link.hello.pid if link.hello else 0, signal.SIGSTOP)
        call = asyncio.create_task(link.call("ping"))
        await asyncio.sleep(0.05)
        assert not call.done()
        kill_agent(link)
        assert (await call)["time"] > 0
        assert link.connections == 2


async def test_sleep_of_the_machine_is_noticed_at_once(tmp_path: Path) -> None:
    """A wall clock that jumps leads to a ping; a frozen agent does not answer it and is left."""
    ahead = 0.0

    def wall() -> float:
        return time.time() + ahead

    pace = Pace(first=0.01, longest=0.05, look=0.02, jump=10.0, answer=1.0)
    async with Link(Flaky(tmp_path), pace=pace, wall=wall) as link:
        await link.open()
        frozen = link.hello.pid if link.hello else 0
        os.kill(frozen, signal.SIGSTOP)
        try:
            await asyncio.sleep(0.2)
            assert link.connections == 1, "nothing was noticed before the clock jumped"
            ahead = 3600.0
            await link.wait_for(lambda state: link.connections > 1)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(frozen, signal.SIGKILL)
        assert "time" in await link.call("ping")


async def test_a_frozen_agent_is_noticed_and_left(tmp_path: Path) -> None:
    """Its line is alive and silent, as that of an agent with nothing to say; calls and streams go on with another."""
    pace = Pace(first=0.01, longest=0.05, look=0.02, quiet=0.1, answer=0.5)
    states: list[LinkState] = []
    async with Link(Flaky(tmp_path), pace=pace, on_state=states.append) as link:
        await link.open()
        frozen = link.hello.pid if link.hello else 0
        os.kill(frozen, signal.SIGSTOP)
        try:
            assert "time" in await link.call("ping")
            assert link.connections == 2
            assert any("did not answer within 0.5 s" in str(state) for state in states)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(frozen, signal.SIGKILL)


async def test_a_silent_agent_is_asked_now_and_then_and_kept(tmp_path: Path) -> None:
    counting = Counting(tmp_path)
    pace = Pace(first=0.01, longest=0.05, look=0.02, quiet=0.2)
    async with Link(counting, pace=pace) as link:
        await link.open()
        async with asyncio.timeout(60):
            await counting.often.wait()
        assert link.connections == 1


async def test_nobody_is_asked_while_data_arrives(tmp_path: Path) -> None:
    counting = Counting(tmp_path)
    async with Link(counting, pace=Pace(first=0.01, longest=0.05, look=0.02, quiet=5.0)) as link:
        seen = 0
        async with contextlib.aclosing(link.telemetry(hz=10.0)) as samples:
            async for _ in samples:
                seen += 1
                if seen == 20:
                    break
        assert counting.asked == 0
        assert link.connections == 1


async def test_a_large_request_makes_a_link_patient(tmp_path: Path) -> None:
    """A ping waits behind what is being sent, over a line that takes its time."""
    slow = Narrow(tmp_path)
    pace = Pace(first=0.01, longest=0.05, look=0.02, quiet=0.05, answer=0.1, slow=60.0)
    async with Link(slow, pace=pace) as link:
        await link.open()
        slow.delay = 1.0
        with pytest.raises(Eagle3opsError):
            await link.call("runs.show", run="x" * 200_000)
        assert link.connections == 1


async def test_wake_checks_a_live_connection_and_keeps_it(tmp_path: Path) -> None:
    async with Link(Flaky(tmp_path), pace=FAST) as link:
        await link.open()
        for _ in range(3):
            link.wake()
            await asyncio.sleep(0.1)
        assert link.connections == 1
        assert link.state.kind == "connected"


@given(st.integers(0, 10_000), st.integers(0, 2**31))
def test_delays_are_bounded(attempt: int, seed: int) -> None:
    pace = Pace()
    delay = pace.delay(attempt, random.Random(seed))
    assert 0.0 <= delay <= min(30.0, 0.5 * 2 ** min(attempt, 20))


def test_delays_spread() -> None:
    chance = random.Random(1)
    assert len({Pace().delay(8, chance) for _ in range(100)}) == 100
    assert max(Pace().delay(50, chance) for _ in range(1000)) > 25


async def test_events_come_once_and_in_order_while_agents_die(tmp_path: Path) -> None:
    toy = Toy(prepare(tmp_path))
    environment = toy.environment
    assert toy.job("--set", "stages.make.parts=50").returncode == 0
    run = toy.last()
    wanted = [json.loads(line)["seq"] for line in run.events_file.read_text().splitlines()]

    class Transport(Flaky):
        def __init__(self) -> None:
            super().__init__(toy.root)
            self.inner = LocalTransport(root=str(toy.root), environment=environment)

    async with Link(Transport(), pace=FAST) as link:
        seen = []
        async for event in link.events(run.run_id):
            seen.append(event.seq)
            if len(seen) in (1, 7, 30, len(wanted)):
                kill_agent(link)
        assert seen == wanted
        assert [event.seq async for event in link.events(run.run_id, after=wanted[-3])] == wanted[-2:]


async def test_stream_of_a_run_that_is_written_meanwhile(tmp_path: Path) -> None:
    """Events that are appended while agents die: nothing is lost, nothing comes twice."""
    toy = Toy(prepare(tmp_path))
    assert toy.job().returncode == 0
    run = toy.last()
    first = run.last_seq()
    with EventLog(run.events_file) as log:
        for number in range(300):
            log.append("log", {"n": number, "text": "x" * 20_000})
    async with Link(Flaky(toy.root), pace=FAST) as link:
        seen = []
        async for event in link.events(run.run_id, after=first):
            seen.append(event.data["n"])
            if len(seen) % 100 == 1:
                kill_agent(link)
        assert seen == list(range(300))
        assert link.connections > 1


async def test_log_comes_whole_while_agents_die(tmp_path: Path) -> None:
    toy = Toy(prepare(tmp_path))
    assert toy.job().returncode == 0
    run = toy.last()
    text = "".join(f"line {number} ünd so weiter\n" for number in range(60_000))
    (run.logs / "big.log").write_text(text, encoding="utf-8")
    async with Link(Flaky(toy.root), pace=FAST) as link:
        pieces = []
        async for piece in link.log(run.run_id, "big.log"):
            pieces.append(str(piece["text"]))
            if len(pieces) in (1, 5):
                kill_agent(link)
        assert "".join(pieces) == text
        assert link.connections > 1


async def test_telemetry_goes_on_after_a_gap(tmp_path: Path) -> None:
    async with Link(Flaky(tmp_path), pace=FAST) as link:
        seen = 0
        async with contextlib.aclosing(link.telemetry(hz=10.0)) as samples:
            async for sample in samples:
                assert sample
                seen += 1
                if seen == 2:
                    kill_agent(link)
                if link.connections > 1 and seen > 3:
                    break
        assert link.connections > 1
