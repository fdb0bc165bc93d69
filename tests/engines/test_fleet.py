"""Are requests spread over replicas, is a dead one taken out, and has each its own port and GPUs?"""

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.engines.base import LogFact, ServeSpec
from eagle3ops.engines.client import Answer, EngineClient, EngineError, EngineRefused, Sampling
from eagle3ops.engines.fleet import Fleet
from eagle3ops.engines.places import refuse_taken_port, replicas
from eagle3ops.engines.serving import free_port, running_fleet, side_by_side
from eagle3ops.errors import RequestError

ANSWER = Answer(output_ids=[1], text="", finish_reason="stop", prompt_tokens=1, completion_tokens=1, latency_s=0.0)


class Stand:
    """One server of a fleet, as far as the fleet sees it."""

    def __init__(self, url: str, *, alive: bool = True) -> None:
        self.url, self.alive, self.asked, self.most, self.now = url, alive, 0, 0, 0
        self.refuses = False

    async def generate(self, ids: Sequence[int], sampling: Sampling, hidden: bool = False) -> Answer:
        self.asked += 1
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.01)
        self.now -= 1
        if self.refuses:
            raise EngineRefused("no")
        if not self.alive:
            raise EngineError(f"{self.url} is dead; the last lines of x.log:\n    long")
        return ANSWER

    async def health(self) -> bool:
        return self.alive


def fleet(*stands: Stand, told: list[str] | None = None) -> Fleet:
    return Fleet(cast("list[EngineClient]", list(stands)), None if told is None else told.append)


async def test_requests_are_spread_evenly() -> None:
    stands = [Stand("http://a"), Stand("http://b"), Stand("http://c")]
    many = fleet(*stands)
    await asyncio.gather(*(many.generate([1], Sampling()) for _ in range(30)))
    assert [stand.asked for stand in stands] == [10, 10, 10]
    assert many.served == {"http://a": 10, "http://b": 10, "http://c": 10}


async def test_a_dead_replica_is_taken_out_and_its_requests_are_answered_elsewhere() -> None:
    told: list[str] = []
    dead, good = Stand("http://a", alive=False), Stand("http://b")
    both = fleet(dead, good, told=told)
    answers = await asyncio.gather(*(both.generate([1], Sampling()) for _ in range(8)))
    assert len(answers) == 8
    assert both.urls == ["http://b"]
    assert len(told) == 1
    assert "1 of 2 servers are left" in told[0]
    assert "last lines" not in told[0]
    asked = dead.asked
    await both.generate([1], Sampling())
    assert dead.asked == asked


async def test_when_none_is_left_the_last_failure_is_told() -> None:
    both = fleet(Stand("http://a", alive=False), Stand("http://b", alive=False))
    with pytest.raises(EngineError, match="is dead"):
        await both.generate([1], Sampling())
    assert not await both.health()
    with pytest.raises(EngineError, match="none of the servers"):
        await both.generate([1], Sampling())


async def test_a_request_that_kills_is_not_given_to_every_server() -> None:
    stands = [Stand(f"http://{name}", alive=False) for name in "abcd"]
    many = fleet(*stands)
    with pytest.raises(EngineError, match="is dead"):
        await many.generate([1], Sampling())
    assert sum(stand.asked for stand in stands) == 2
    assert len(many.urls) == 2


async def test_a_refused_request_is_nobodys_death() -> None:
    stand = Stand("http://a")
    stand.refuses = True
    both = fleet(stand, Stand("http://b"))
    with pytest.raises(EngineRefused):
        await both.generate([1], Sampling())
    assert len(both.urls) == 2


SPEC = ServeSpec(model=Path("/m"), port=30000, device="cuda", gpus=2)


def test_each_replica_has_a_port_and_gpus_of_its_own() -> None:
    two = replicas(SPEC, 2, "4,5,6,7")
    assert [one.variables["CUDA_VISIBLE_DEVICES"] for one in two] == ["4,5", "6,7"]
    assert two[0].port == 30000
    assert two[1].port != 30000
    assert replicas(SPEC, 1, "4,5") == [SPEC]
    assert all("CUDA_VISIBLE_DEVICES" not in one.variables for one in replicas(ServeSpec(
        model=Path("/m"), port=1, device="cpu"), 3, ""))  # fmt: skip
    with pytest.raises(RequestError, match="want 4 GPUs, 3 are visible"):
        replicas(SPEC, 2, "0,1,2")


@given(st.integers(1, 4), st.integers(1, 3), st.text("0123456789, GPU-", max_size=30))
def test_no_gpu_is_given_twice(count: int, gpus: int, visible: str) -> None:
    spec = ServeSpec(model=Path("/m"), port=1, device="cuda", gpus=gpus)
    try:
        found = replicas(spec, count, visible)
    except RequestError:
        return
    if count > 1:
        assert all(len(one.variables["CUDA_VISIBLE_DEVICES"].split(",")) == gpus for one in found)


def test_a_port_that_is_taken_is_refused_with_who_has_it() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(RequestError, match=rf"port {port} is taken by .* \(pid \d+\)"):
            refuse_taken_port("127.0.0.1", port)
    refuse_taken_port("127.0.0.1", port)


class Toy:
    """An engine that is Python's own web server."""

    name = "toy"

    def require(self, spec: ServeSpec) -> None: ...

    def argv(self, spec: ServeSpec) -> list[str]:
        return ["serve", str(spec.port)]

    def environment(self, spec: ServeSpec) -> dict[str, str]:
        return dict(spec.variables)

    def parse_log(self, line: str) -> LogFact | None:
        return None

    def launch_line(self, spec: ServeSpec) -> str:
        return ""


async def test_servers_of_a_fleet_start_and_end_together(tmp_path: Path) -> None:
    from aiohttp import web

    events: list[tuple[str, str]] = []

    @asynccontextmanager
    async def spawn(argv: list[str], *, role: str, env: Mapping[str, str]) -> AsyncIterator[Any]:
        async def health(request: web.Request) -> web.Response:
            return web.json_response({})

        app = web.Application()
        app.router.add_get("/health", health)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", int(argv[1])).start()
        events.append(("start", role))
        yield SimpleNamespace(returncode=None, pid=1 << 30)
        events.append(("end", role))
        await runner.cleanup()

    (tmp_path / "config.json").write_text("{}")
    spec = ServeSpec(model=tmp_path, port=free_port(), device="cpu")
    async with running_fleet(Toy(), spec, 3, spawn=spawn, role="engine") as many:
        assert len(many.urls) == 3
        assert events[0] == ("start", "engine")
        assert {role for _, role in events} == {"engine", "engine-1", "engine-2"}
    assert sum(1 for what, _ in events if what == "end") == 3


async def test_all_are_unwound_at_once_and_the_first_problem_is_told() -> None:
    ending, ended = asyncio.Barrier(3), []

    @asynccontextmanager
    async def one(name: str) -> AsyncIterator[None]:
        yield
        # Unwound one after the other, the first would wait here for ever.
        await asyncio.wait_for(ending.wait(), 30)
        ended.append(name)
        if name == "b":
            raise ValueError(name)

    async def three() -> None:
        async with side_by_side(3) as stacks:
            for stack, name in zip(stacks, "abc", strict=True):
                await stack.enter_async_context(one(name))

    with pytest.raises(ValueError, match="b"):
        await three()
    assert sorted(ended) == ["a", "b", "c"]
