"""Is every event of a run seen exactly once and in order, from any place, through agents that die?"""

import asyncio
import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from agent_world import AgentWorld, event_line, event_lines
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.errors import RequestError
from eagle3ops.hosts.agent import ops_events
from eagle3ops.hosts.agent.ops_events import BATCH_BYTES, MAX_EVENT, EventTail
from eagle3ops.hosts.client import WINDOW, AgentClient, ConnectionLost, Stream
from eagle3ops.hosts.local import LocalChannel
from eagle3ops.runs.directory import find_run
from eagle3ops.runs.events import parse_line, read_events


async def numbers(stream: Stream) -> list[int]:
    return [event["seq"] async for items in stream for event in items]


async def take_all(stream: Stream, seen: list[dict[str, Any]]) -> None:
    async for items in stream:
        seen += items


def pid_of(client: AgentClient) -> int:
    channel = client._channel
    assert isinstance(channel, LocalChannel)
    return channel.pid


def drain(tail: EventTail) -> list[int]:
    found = []
    while lines := tail.read():
        for line in lines:
            event = parse_line(line)
            assert event is not None
            found.append(event.seq)
    return found


pieces = st.one_of(
    st.integers(1, 9).map(event_line),
    st.binary(max_size=20),
    st.sampled_from([b"\n", b'{"seq":1}\n', event_line(3)[:20], b"\xff\xfe{\x00}\x00\n"]),
)


@given(st.lists(pieces, max_size=12), st.integers(0, 9))
def test_whatever_is_in_the_file_the_whole_events_come_through(
    tmp_path_factory: pytest.TempPathFactory, content: list[bytes], after: int
) -> None:
    path = tmp_path_factory.mktemp("events") / "events.jsonl"
    path.write_bytes(b"".join(content))
    expected, last = [], after
    for event in read_events(path):
        # As the reader of this machine does it: what does not rise was seen.
        if event.seq > last:
            expected.append(event.seq)
            last = event.seq
    tail = EventTail(path, after)
    tail.seek()
    assert drain(tail) == expected


@pytest.mark.parametrize("after", [0, 1, 777, 2999, 3000, 5000])
def test_a_long_log_is_entered_anywhere_without_reading_what_is_before(tmp_path: Path, after: int) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(event_lines(range(1, 3001), padding=1000))
    tail = EventTail(path, after)
    tail.seek()
    # Never further in front than two batches: the place was looked for, not read up to.
    position = len(event_lines(range(1, min(after, 3000) + 1), padding=1000))
    assert position - 2 * BATCH_BYTES <= tail.offset <= position
    assert drain(tail) == list(range(after + 1, 3001))


def test_a_long_log_with_damage_in_it_is_entered_as_well(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    damage = os.urandom(3 * BATCH_BYTES).replace(b"\n", b" ")
    path.write_bytes(event_lines(range(1, 1001), 1000) + damage + b"\n" + event_lines(range(1001, 2001), 1000))
    for after in (0, 500, 1000, 1500, 1999):
        tail = EventTail(path, after)
        tail.seek()
        assert drain(tail) == list(range(after + 1, 2001))


def test_a_hint_is_used_when_it_is_right_and_only_then(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(event_lines(range(1, 101)))
    right = len(event_lines(range(1, 51)))
    # A hint in front is right too: what is in front is looked at and was seen. One behind would lose events.
    for hint, used in [(right, True), (right + 1, False), (len(event_lines(range(1, 61))), False), (10**9, False)]:
        tail = EventTail(path, 50)
        tail.seek(hint)
        assert (tail.offset == hint) is used
        assert drain(tail) == list(range(51, 101))


def test_a_file_that_was_cut_or_replaced_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(event_lines(range(1, 11)))
    tail = EventTail(path, 0)
    assert drain(tail) == list(range(1, 11))
    path.write_bytes(event_lines(range(9, 12)))
    assert drain(tail) == [11]
    other = tmp_path / "other"
    other.write_bytes(event_lines(range(1, 40)))
    other.replace(path)
    assert drain(tail) == list(range(12, 40))
    path.unlink()
    assert drain(tail) == []


def test_what_is_too_large_or_too_deep_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    deep = b'{"seq":2,"ts":1.0,"stage":null,"kind":"info","data":{"x":' + b"[" * 300 + b"]" * 300 + b"}}\n"
    wide = event_line(3, x=[[] for _ in range(300)])
    path.write_bytes(event_line(1, pad="x" * MAX_EVENT) + deep + wide)
    tail = EventTail(path, 0)
    found = [json.loads(line) for line in [*tail.read(), *tail.read()]]
    assert [event["seq"] for event in found] == [1, 2, 3]
    assert "too many" in found[0]["data"]["omitted"]
    assert "nested" in found[1]["data"]["omitted"]
    assert len(found[2]["data"]["x"]) == 300


def test_a_line_without_end_does_not_fill_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops_events, "MAX_HELD", BATCH_BYTES)
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"x" * (5 * BATCH_BYTES) + b"\n" + event_line(7))
    assert drain(EventTail(path, 0)) == [7]


async def test_the_stream_ends_with_the_run_and_says_how_it_stands(agents: AgentWorld) -> None:
    run = agents.made_run()
    run.events_file.write_bytes(event_lines(range(1, 5001)))
    async with await AgentClient.connect(agents.transport()) as client:
        stream = client.stream("runs.events", run="last", after=4990)
        assert await numbers(stream) == list(range(4991, 5001))
        assert stream.result is not None
        assert stream.result["status"] == "interrupted"
        assert stream.result["after"] == 5000
        again = client.stream("runs.events", run=run.run_id, after=5000, offset=stream.result["offset"])
        assert await numbers(again) == []
        assert await numbers(client.stream("runs.events", run="last")) == list(range(1, 5001))


async def test_an_event_is_told_while_the_run_goes_on_and_its_death_too(agents: AgentWorld) -> None:
    run = agents.made_run(alive=True)
    async with await AgentClient.connect(agents.transport()) as client:
        stream = client.stream("runs.events", run="last")
        seen: list[int] = []
        with run.events() as log:
            for number in range(1, 4):
                log.append("info", {"number": number})
                while not seen or seen[-1] < number:
                    seen += [event["seq"] for event in await anext(stream)]
        agents.set_alive(run, False)
        assert await numbers(stream) == []
        assert seen == [1, 2, 3]
        assert stream.result is not None
        assert stream.result["status"] == "interrupted"
        assert "was killed" in stream.result["interruption"]


async def test_a_consumer_that_does_not_take_holds_up_nobody(agents: AgentWorld) -> None:
    run = agents.made_run()
    count = 3 * WINDOW * BATCH_BYTES // 1000
    run.events_file.write_bytes(event_lines(range(1, count), padding=1000))
    async with await AgentClient.connect(agents.transport()) as client:
        slow = client.stream("runs.events", run="last")
        first = await anext(slow)
        for _ in range(50):
            await client.call("ping")
        assert await numbers(client.stream("runs.events", run="last", after=count - 10)) == list(
            range(count - 9, count)
        )
        assert len(slow._batches) <= WINDOW
        rest = await numbers(slow)
        assert [event["seq"] for event in first] + rest == list(range(1, count))


async def test_a_stream_that_is_left_is_stopped_there(agents: AgentWorld) -> None:
    agents.made_run(alive=True)
    async with await AgentClient.connect(agents.transport()) as client:
        for _ in range(300):
            # More than may be open at once: each must have gone.
            async with client.stream("runs.events", run="last") as stream:
                waiting = asyncio.ensure_future(anext(stream))
                await asyncio.sleep(0)
                waiting.cancel()
            await client.call("ping")


async def test_bad_requests_are_explained_by_the_class_that_they_are(agents: AgentWorld) -> None:
    agents.made_run()
    async with await AgentClient.connect(agents.transport()) as client:
        with pytest.raises(RequestError, match="there is no run 'x'"):
            await anext(client.stream("runs.events", run="x"))
        with pytest.raises(RequestError, match="number of an event"):
            await anext(client.stream("runs.events", run="last", after=-1))
        with pytest.raises(RequestError, match="after is a whole number"):
            await anext(client.stream("runs.events", run="last", after="1"))


async def test_an_agent_killed_in_the_middle_costs_no_event_and_not_the_run(agents: AgentWorld) -> None:
    text = (agents.folder / "toy.yaml").read_text() + "stages: {make: {parts: 12, part_s: 0.1}}\n"
    seen: list[dict[str, Any]] = []
    async with await AgentClient.connect(agents.transport()) as client:
        placed = await client.call("runs.place", spec_text=text, key="one", source="toy.yaml")
        stream = client.stream("runs.events", run=placed["run"])
        while not any(event["kind"] == "progress" for event in seen):
            seen += await anext(stream)
        os.kill(pid_of(client), signal.SIGKILL)
        with pytest.raises(ConnectionLost, match="signal 9"):
            await take_all(stream, seen)
        with pytest.raises(ConnectionLost):
            await client.call("ping")
        assert client.closed.is_set()
    run = find_run(agents.root, placed["run"])
    assert run.alive()
    last = seen[-1]["seq"]
    async with await AgentClient.connect(agents.transport()) as client:
        again = await client.call("runs.place", spec_text=text, key="one", source="toy.yaml")
        assert (again["run"], again["fresh"]) == (placed["run"], False)
        stream = client.stream("runs.events", run=placed["run"], after=last)
        await take_all(stream, seen)
        assert stream.result is not None
        assert (stream.result["status"], stream.result["state"]["exit_code"]) == ("done", 0)
    assert seen == [json.loads(line) for line in run.events_file.read_text().splitlines()]


async def test_several_clients_see_the_same(agents: AgentWorld) -> None:
    run = agents.made_run(alive=True)

    async def follow(after: int) -> list[int]:
        async with await AgentClient.connect(agents.transport()) as client:
            return await numbers(client.stream("runs.events", run="last", after=after))

    followers = [asyncio.create_task(follow(after)) for after in (0, 0, 50)]
    generator = random.Random(7)
    with run.events_file.open("ab", buffering=0) as file:
        content, at = event_lines(range(1, 301)), 0
        while at < len(content):
            # Cut anywhere: a reader sees a torn line and waits for its end.
            step = generator.randrange(1, 3000)
            file.write(content[at : at + step])
            at += step
            await asyncio.sleep(0.01)
    agents.set_alive(run, False)
    everything = list(range(1, 301))
    assert await asyncio.gather(*followers) == [everything, everything, everything[50:]]
