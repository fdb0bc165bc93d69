"""Does the load generator pair, interleave, count and time as it says, against real servers of the reference engine?"""

import json
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st
from reference_tiny import VOCAB, MarkovDrafter, tiny_target

from eagle3ops.bench.arrivals import arrivals, percentiles
from eagle3ops.bench.load import ServerFailed, block_size, measure, order, wanted_rounds
from eagle3ops.bench.paired import Sample, ratio, throughput_interval
from eagle3ops.engines.client import EngineClient, EngineError, Sampling
from eagle3ops.engines.reference.drafting import SpecSettings, Speculator
from eagle3ops.engines.reference.engine import Engine
from eagle3ops.engines.reference.server import Server
from eagle3ops.engines.reference.worker import Worker

PROMPTS = [[1 + k, 2, 3 + k % 5] for k in range(10)]


@pytest.fixture
async def servers() -> AsyncIterator[dict[str, EngineClient]]:
    """A baseline and a speculating server around the same tiny target."""
    target = tiny_target(depth_scale=0.35)
    started, clients = [], {}
    for label in ("baseline", "3/1/4"):
        speculator = (
            Speculator(MarkovDrafter(target), target, SpecSettings(3, 1, 4), 8) if label != "baseline" else None
        )
        worker = Worker(Engine(target, speculator=speculator, stops=(VOCAB - 1,), max_running=8))
        worker.start()
        app = Server(worker, None, model="tiny", context=512, info={"dtype": "float32"}, hidden=False).app()
        web = TestServer(app, handler_cancellation=True)
        await web.start_server()
        clients[label] = await EngineClient(str(web.make_url("/"))).__aenter__()
        started.append((worker, web))
    try:
        yield clients
    finally:
        for client in clients.values():
            await client.__aexit__(None, None, None)
        for worker, web in started:
            await web.close()
            worker.stop()


async def test_every_prompt_is_answered_by_every_server_in_paired_blocks(servers: dict[str, EngineClient]) -> None:
    sampling = Sampling(max_new_tokens=12, ignore_eos=True)
    told: list[tuple[int, int]] = []
    found = await measure(
        servers, PROMPTS, sampling, concurrency=3, rounds=2, block=4, progress=lambda *at: told.append(at)
    )
    assert list(found) == ["baseline", "3/1/4"]
    assert told[-1] == (40, 40)
    for result in found.values():
        # Ten prompts in blocks of four: 4, 4, 2, and that twice.
        assert [sample.tokens for sample in result.blocks] == [48, 48, 24, 48, 48, 24]
        assert [request.prompt for request in result.requests] == [*range(10), *range(10)]
        assert all(request.seconds > 0 and request.arrivals is None for request in result.requests)
        assert result.throughput.low <= result.throughput.value <= result.throughput.high
    base, drafted = found["baseline"], found["3/1/4"]
    assert base.accept is None
    assert drafted.accept is not None
    assert sum(drafted.accept.histogram) == drafted.accept.verify_steps
    assert [a.output_ids for a in base.answers] == [a.output_ids for a in drafted.answers]
    assert drafted.over(base).pairs == 6
    assert [request.prompt for request in base.only(lambda k: k < 2)] == [0, 1, 0, 1]


async def test_streamed_tokens_have_arrivals_that_add_up(servers: dict[str, EngineClient]) -> None:
    sampling = Sampling(max_new_tokens=16, ignore_eos=True)
    plain = await measure(servers, PROMPTS[:3], sampling)
    streamed = await measure(servers, PROMPTS[:3], sampling, stream=True, flush=True)
    for label, result in streamed.items():
        assert [a.output_ids for a in result.answers] == [a.output_ids for a in plain[label].answers]
        for request in result.requests:
            assert request.arrivals is not None
            assert 0 < request.arrivals.first_s <= request.seconds
            assert request.arrivals.first_s + sum(request.arrivals.gaps_s) <= request.seconds + 1e-6
            # One gap for every token but those of the first piece.
            assert 1 <= len(request.arrivals.gaps_s) < request.answer.completion_tokens
    assert streamed["3/1/4"].accept is not None


async def test_a_server_that_fails_is_named(servers: dict[str, EngineClient]) -> None:
    with pytest.raises(ServerFailed, match=r"baseline: .*vocabulary") as failed:
        await measure(servers, [[1, 10**6]], Sampling(max_new_tokens=4))
    assert failed.value.label == "baseline"
    gone = EngineClient("http://127.0.0.1:9")
    async with gone:
        with pytest.raises(ServerFailed) as failed:
            await measure({**servers, "gone": gone}, PROMPTS[:2], Sampling(max_new_tokens=4), warmup=0)
    assert failed.value.label == "gone"


async def test_a_server_that_is_silent_is_named_when_its_time_is_over(servers: dict[str, EngineClient]) -> None:
    with pytest.raises(ServerFailed, match="no answer within 0 s"):
        await measure(servers, PROMPTS[:2], Sampling(max_new_tokens=200, ignore_eos=True), timeout_s=0.001)


async def test_nothing_to_measure_is_refused(servers: dict[str, EngineClient]) -> None:
    wrong: list[dict[str, Any]] = [{"prompts": []}, {"servers": {}}, {"concurrency": 0}, {"rounds": 0}]
    for asked in wrong:
        arguments: dict[str, Any] = {"servers": servers, "prompts": PROMPTS, "sampling": Sampling()} | asked
        with pytest.raises(ValueError, match="at least one"):
            await measure(**arguments)


@given(st.integers(1, 6), st.integers(0, 40))
def test_every_turn_has_every_server_once(count: int, turn: int) -> None:
    labels = [str(k) for k in range(count)]
    assert sorted(order(labels, turn)) == sorted(labels)


def test_no_server_always_follows_the_same_one_or_comes_first() -> None:
    turns = [order(["a", "b", "c"], turn) for turn in range(6)]
    assert {turn[0] for turn in turns} == {"a", "b", "c"}
    before = {(x, y) for turn in turns for x, y in pairwise(turn)}
    assert before == {(x, y) for x in "abc" for y in "abc" if x != y}


def piece(tokens: int, **more: object) -> bytes:
    meta = {"completion_tokens": tokens, "prompt_tokens": 2, "finish_reason": {"type": "length"}, **more}
    return json.dumps({"text": "", "output_ids": list(range(tokens)), "meta_info": meta}).encode()


def test_tokens_of_one_piece_share_its_wait() -> None:
    answer, times = arrivals(10.0, [(10.5, piece(1)), (10.8, piece(4)), (10.8, piece(4)), (11.0, piece(5))])
    assert answer.completion_tokens == 5
    assert times.first_s == pytest.approx(0.5)
    assert times.gaps_s == pytest.approx((0.1, 0.1, 0.1, 0.2))
    assert times.per_token_s == pytest.approx(0.125)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.binary(max_size=60)), max_size=4))
def test_garbled_streams_are_an_engine_error(pieces: list[tuple[float, bytes]]) -> None:
    with pytest.raises(EngineError):
        arrivals(0.0, pieces)


KEYS = st.sampled_from(["meta_info", "completion_tokens", "error", "output_ids"])
SHAPES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner),
)


@given(SHAPES)
def test_pieces_of_another_shape_are_an_engine_error(shape: object) -> None:
    with pytest.raises(EngineError):
        arrivals(0.0, [(1.0, json.dumps(shape).encode())])


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_percentiles_lie_in_order_within_the_values(values: list[float]) -> None:
    found = percentiles(values)
    ranked = [found[f"p{p}"] for p in (50, 90, 95, 99)]
    assert ranked == sorted(ranked)
    assert min(values) <= ranked[0]
    assert ranked[-1] <= max(values)


def test_intervals_widen_with_the_noise() -> None:
    quiet = [Sample(100, 1.0 + 0.01 * (k % 2)) for k in range(20)]
    loud = [Sample(100, 1.0 + 1.0 * (k % 2)) for k in range(20)]
    one, other = throughput_interval(quiet), throughput_interval(loud)
    assert one.low <= one.value <= one.high
    assert other.high - other.low > 5 * (one.high - one.low)
    assert ratio(quiet, quiet).low == ratio(quiet, quiet).high == 1.0


def test_one_pair_has_no_interval() -> None:
    found = ratio([Sample(100, 1.0)], [Sample(100, 2.0)])
    assert (found.value, found.low) == (2.0, 0.0)
    assert found.high > 1000
    assert not found.beyond_noise


@given(st.integers(1, 500), st.integers(1, 64))
def test_blocks_hold_those_in_flight_and_rounds_make_enough_of_them(prompts: int, concurrency: int) -> None:
    size, rounds = block_size(prompts, concurrency), wanted_rounds(prompts, concurrency)
    assert 1 <= size <= 4 * concurrency
    assert size >= concurrency
    assert rounds * -(-prompts // size) >= 6
