"""Do the probes tell a server that works from one that only looks like it?"""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from eagle3ops.watchdog.guard.probes import Prober
from eagle3ops.watchdog.guard.rounds import Rounds
from eagle3ops.watchdog.state import Probe

FAST = 0.02
"""Time limits are so many times theirs: a token has 0.4 s."""


@pytest_asyncio.fixture
async def probers() -> AsyncIterator[Callable[..., Prober]]:
    made: list[Prober] = []

    def make(url: str, scale: float = FAST) -> Prober:
        made.append(Prober(url, scale=scale))
        return made[-1]

    yield make
    for prober in made:
        await prober.close()


@pytest.mark.parametrize("kind", ["sglang", "vllm", "reference"])
async def test_a_healthy_engine(kind: str, start_engine: Any, probers: Any) -> None:
    engine = start_engine(kind)
    prober = probers(engine.url, scale=1.0)
    assert (await prober.health()).ok is True
    probe = await prober.generate_one()
    assert probe.ok is True, probe
    assert prober.kind == kind
    assert (await prober.counters()).facts["queued"] == 0.0


async def test_among_the_requests_of_a_stage_there_is_none_of_its_guard(start_engine: Any) -> None:
    engine, now = start_engine(), [0.0]
    prober = Prober(engine.url, "sglang", may_ask=lambda: True, clock=lambda: now[0])
    engine.mood("busy")
    for _ in range(3):
        await prober.counters()
        now[0] += 10.0
    assert not prober.generates
    engine.mood("")
    await prober.counters()
    now[0] += 10.0
    assert prober.generates
    await prober.close()


async def test_any_other_server_is_not_asked_for_tokens(start_engine: Any, probers: Any) -> None:
    engine = start_engine("nginx")
    prober = probers(engine.url, scale=1.0)
    assert (await prober.health()).ok is True
    assert (await prober.generate_one()).ok is None
    assert not prober.generates
    assert not any(path.startswith(("/generate", "/v1/completions")) for path in engine.asked())


async def test_a_refused_connection_counts_only_once_it_has_been_up(start_engine: Any, probers: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    probe = await probers(f"http://127.0.0.1:{port}", scale=1.0).health()
    assert probe.ok is None
    engine = start_engine()
    prober = probers(engine.url, scale=1.0)
    assert (await prober.health()).ok is True
    engine.end()
    assert (await prober.health()).ok is False
    assert (await prober.generate_one()).ok is False


async def test_a_server_that_starts_is_not_accused(start_engine: Any, probers: Any) -> None:
    engine = start_engine()
    engine.mood("starting")
    probe = await probers(engine.url, scale=1.0).health()
    assert (probe.ok, probe.words) == (None, "/health says 503: not ready yet")


async def test_a_stopped_server_fails_every_question(
    start_engine: Any, probers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eagle3ops.watchdog.guard.probes.COUNTERS_S", 0.3)
    engine = start_engine()
    prober = probers(engine.url)
    os.kill(engine.process.pid, signal.SIGSTOP)
    # The kernel still takes connections for it, also the first one ever.
    assert (await prober.health()).ok is False
    prober.kind, prober.up = "sglang", True
    probe = await prober.generate_one()
    assert probe.ok is False
    assert (await prober.counters()).ok is None


async def test_no_token_although_health_is_well(start_engine: Any, probers: Any) -> None:
    engine = start_engine()
    prober = probers(engine.url)
    prober.kind = "sglang"
    assert (await prober.health()).ok is True
    engine.mood("hang")
    probe = await prober.generate_one()
    assert probe.ok is False
    assert "no token" in probe.words
    assert (await prober.health()).ok is True


async def test_passes_that_move_without_a_queue_do_not_excuse(start_engine: Any, probers: Any) -> None:
    engine = start_engine()
    engine.mood("detokenizer")
    prober = probers(engine.url)
    prober.kind = "sglang"
    assert (await prober.generate_one()).ok is False


async def test_waiting_behind_a_queue_that_is_worked_on_is_no_failure(start_engine: Any, probers: Any) -> None:
    engine = start_engine()
    engine.mood("busy")
    prober = probers(engine.url)
    prober.kind = "sglang"
    question = asyncio.ensure_future(prober.generate_one())
    # Several times as long as a token may take.
    while engine.asked().count("/metrics") < 8 and not question.done():
        await asyncio.wait([question], timeout=0.05)
    assert not question.done()
    engine.mood("")
    assert (await question).ok is True


async def test_a_server_that_generates_nothing_is_not_asked_again(start_engine: Any, probers: Any) -> None:
    engine = start_engine()
    engine.mood("refuse")
    prober = probers(engine.url, scale=1.0)
    prober.kind = "sglang"
    assert (await prober.generate_one()).ok is None
    assert not prober.generates
    asked = engine.asked().count("/generate")
    assert (await prober.generate_one()).ok is None
    assert engine.asked().count("/generate") == asked


async def test_an_engine_that_answers_500(start_engine: Any, probers: Any) -> None:
    engine = start_engine()
    prober = probers(engine.url, scale=1.0)
    prober.kind = "sglang"
    await prober.health()
    engine.mood("broken")
    assert (await prober.generate_one()).ok is False


async def _tick(rounds: Rounds, until: Callable[[Probe], bool], *, hurry: bool = False) -> list[Probe]:
    found: list[Probe] = []
    loop = asyncio.get_running_loop()
    while not any(map(until, found)):
        found += rounds.tick(loop.time(), hurry=hurry)
        await asyncio.sleep(0.02)
    return found


async def test_rounds_ask_one_thing_at_a_time_and_count_misses(start_engine: Any) -> None:
    engine = start_engine()
    prober = Prober(engine.url, scale=FAST, clock=asyncio.get_running_loop().time)
    rounds = Rounds(prober)
    try:
        found = await _tick(rounds, lambda probe: probe.name == "generate" and probe.ok is True)
        assert next(probe for probe in found if probe.ok is not None).name == "health"
        before = engine.asked().count("/generate")
        engine.mood("hang")
        found = await _tick(rounds, lambda probe: probe.ok is False and probe.facts["misses"] == 3)
        # Each miss was one question, and health was asked beside it.
        assert engine.asked().count("/generate") - before in (3, 4)
        assert any(probe.name == "health" and probe.ok for probe in found)
        assert any(probe.name == "generate" and probe.ok is None for probe in found)
        engine.mood("")
        await _tick(rounds, lambda probe: probe.name == "generate" and probe.ok is True)
        assert rounds.misses == 0
    finally:
        await rounds.close()
