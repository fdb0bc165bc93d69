"""Does the HTTP server speak as its clients expect, survive bad requests, and end when it should?"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_tiny import CONFIG, VOCAB, MarkovDrafter, tiny_target, write_tiny_model

from eagle3ops.engines.base import ServeSpec
from eagle3ops.engines.client import Answer, EngineClient, EngineError, EngineRefused, Sampling, parse_answer
from eagle3ops.engines.reference.__main__ import parse_aux_layers
from eagle3ops.engines.reference.drafting import SpecSettings, Speculator
from eagle3ops.engines.reference.engine import Engine
from eagle3ops.engines.reference.protocol import BadRequest, ChatBody, GenerateBody, check_prompt, parse, prompts_of
from eagle3ops.engines.reference.server import Server
from eagle3ops.engines.reference.worker import Worker
from eagle3ops.engines.registry import adapter
from eagle3ops.engines.serving import free_port
from eagle3ops.errors import RequestError

Http = TestClient[Any, Any]


@pytest.fixture
async def http() -> AsyncIterator[Http]:
    """A speculating server around the tiny target, in this process."""
    target = tiny_target(depth_scale=0.35)
    speculator = Speculator(MarkovDrafter(target), target, SpecSettings(3, 1, 4), 8)
    worker = Worker(Engine(target, speculator=speculator, stops=(VOCAB - 1,), max_running=8))
    server = Server(worker, None, model="tiny", context=512, info={"dtype": "float32"}, hidden=True)
    worker.start()
    try:
        async with TestClient(TestServer(server.app(), handler_cancellation=True)) as client:
            yield client
    finally:
        worker.stop()


async def _post(http: Http, body: object, path: str = "/generate") -> tuple[int, Any]:
    async with http.post(path, json=body) as response:
        return response.status, await response.json()


async def test_generate_has_the_shape_that_clients_read(http: Http) -> None:
    body = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 20, "temperature": 0, "ignore_eos": True}}
    status, raw = await _post(http, body)
    assert status == 200
    answer = parse_answer(raw)
    assert answer.finish_reason == "length"
    assert (answer.prompt_tokens, answer.completion_tokens) == (3, 20)
    assert len(answer.output_ids) == 20
    assert answer.verify_steps is not None
    assert answer.correct_drafts is not None
    assert answer.completion_tokens == 1 + answer.verify_steps + answer.correct_drafts
    assert raw["meta_info"]["spec_accept_length"] == pytest.approx(answer.accept_length)
    assert answer.latency_s > 0
    status, both = await _post(http, {**body, "input_ids": [[1, 2, 3], [4, 5]]})
    assert status == 200
    assert [len(item["output_ids"]) for item in both] == [20, 20]
    assert both[0]["output_ids"] == answer.output_ids


async def test_hidden_states_come_as_prompt_rows_and_then_one_row_a_token(http: Http) -> None:
    params = {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True}
    _, raw = await _post(http, {"input_ids": [1, 2, 3], "sampling_params": params, "return_hidden_states": True})
    states = raw["meta_info"]["hidden_states"]
    assert torch.tensor(states[0]).shape == (3, 96)
    assert torch.tensor(states[1:]).shape == (5, 96)


async def test_streaming_sends_growing_answers_and_ends(http: Http) -> None:
    params = {"max_new_tokens": 9, "temperature": 0, "ignore_eos": True}
    async with http.post("/generate", json={"input_ids": [5], "sampling_params": params, "stream": True}) as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        lines = [line[6:] for line in (await response.text()).split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    lengths = [len(json.loads(line)["output_ids"]) for line in lines[:-1]]
    assert lengths == sorted(set(lengths))
    assert lengths[-1] == 9


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"input_ids": [1, VOCAB]}, f"token id {VOCAB} is out of the vocabulary of {VOCAB}"),
        ({"input_ids": [-1]}, "greater than or equal to 0"),
        ({"input_ids": []}, "empty"),
        ({"input_ids": [[1], []]}, "empty"),
        ({"input_ids": [1] * 500}, "exceed the context of 512"),
        ({}, "either text or input_ids"),
        ({"text": "a"}, "no tokenizer"),
        ({"input_ids": [1], "text": "a"}, "not both"),
        ({"input_ids": [1], "sampling_params": {"beam": 2}}, "unknown parameter"),
        ({"input_ids": [1], "logprob": True}, "unknown parameter"),
        ({"input_ids": [1.5]}, "valid integer"),
        ({"input_ids": "1"}, "valid list"),
        ({"input_ids": [1], "sampling_params": {"temperature": -1}}, "temperature"),
        ({"input_ids": [1], "sampling_params": {"max_new_tokens": 0}}, "max_new_tokens"),
        ({"input_ids": [[1], [2]], "stream": True}, "single prompt"),
        ([], "JSON object"),
    ],
)
async def test_bad_requests_are_refused_with_a_sentence_and_serving_goes_on(
    http: Http, body: object, words: str
) -> None:
    status, raw = await _post(http, body)
    assert status == 400
    assert words in raw["error"]["message"]
    status, _ = await _post(http, {"input_ids": [1], "sampling_params": {"max_new_tokens": 2}})
    assert status == 200


async def test_other_endpoints(http: Http) -> None:
    for path in ("/health", "/health_generate"):
        async with http.get(path) as response:
            assert response.status == 200
    async with http.get("/model_info") as response:
        assert (await response.json())["model_path"] == "tiny"
    async with http.get("/v1/models") as response:
        assert (await response.json())["data"][0]["max_model_len"] == 512
    await _post(http, {"input_ids": [1], "sampling_params": {"max_new_tokens": 5, "ignore_eos": True}})
    async with http.get("/server_info") as response:
        info = await response.json()
    assert info["dtype"] == "float32"
    assert info["internal_states"][0]["avg_spec_accept_length"] >= 1
    async with http.get("/metrics") as response:
        text = await response.text()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert values['sglang:generation_tokens_total{model_name="tiny"}'] == "6"
    assert values['sglang:num_running_reqs{model_name="tiny"}'] == "0"
    async with http.get("/nope") as response:
        assert response.status == 404
    status, raw = await _post(http, {"messages": [{"role": "user", "content": "hi"}]}, "/v1/chat/completions")
    assert (status, "no tokenizer" in raw["error"]["message"]) == (400, True)


async def test_a_client_that_goes_away_frees_its_row(http: Http) -> None:
    params = {"max_new_tokens": 500, "temperature": 0, "ignore_eos": True}
    with pytest.raises(asyncio.TimeoutError):
        await http.post(
            "/generate", json={"input_ids": [1], "sampling_params": params}, timeout=aiohttp.ClientTimeout(total=0.05)
        )
    for _ in range(200):
        async with http.get("/server_info") as response:
            state = (await response.json())["internal_states"][0]
        if state["num_running_reqs"] == state["num_queue_reqs"] == 0:
            return
        await asyncio.sleep(0.02)
    pytest.fail("the row was not freed")


async def test_a_broken_step_is_a_500_and_serving_goes_on(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: object) -> None:
        raise RuntimeError("out of cheese")

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "_prefill", broken)
        status, raw = await _post(http, {"input_ids": [1]})
    assert status == 500
    assert "out of cheese" in raw["error"]["message"]
    status, _ = await _post(http, {"input_ids": [1], "sampling_params": {"max_new_tokens": 2}})
    assert status == 200


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 60) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*GenerateBody.model_fields, "x"]), _JSON) | _JSON)
@settings(max_examples=200, deadline=None)
def test_no_generate_body_crashes_the_parser(raw: object) -> None:
    try:
        body = parse(GenerateBody, raw)
        texts, _ = prompts_of(body)
    except BadRequest:
        return
    assert all(isinstance(t, str) or all(type(k) is int for k in t) for t in texts)


@given(st.dictionaries(st.sampled_from([*ChatBody.model_fields, "x"]), _JSON))
@settings(max_examples=100, deadline=None)
def test_no_chat_body_crashes_the_parser(raw: dict[str, object]) -> None:
    try:
        body = parse(ChatBody, raw)
        check_prompt([1], body.params(5), VOCAB, 512)
    except BadRequest:
        return
    assert body.messages


@given(_JSON | st.fixed_dictionaries({"output_ids": _JSON, "meta_info": _JSON}))
@settings(max_examples=200, deadline=None)
def test_no_answer_crashes_the_client(raw: object) -> None:
    with suppress(EngineError):
        assert isinstance(parse_answer(raw), Answer)


@pytest.mark.recordings
def test_the_client_reads_what_sglang_answers(recordings: Path) -> None:
    raw = json.loads((recordings / "gpu" / "http" / "generate_one_full.json").read_text())
    answer = parse_answer(raw)
    assert answer.completion_tokens == len(answer.output_ids)
    assert answer.verify_steps is None or sum(answer.histogram or []) == answer.verify_steps


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_no_log_line_crashes_the_parser(line: str) -> None:
    for text in (line, "Decode batch, #running-req: 1, gen throughput (token/s): " + line):
        fact = adapter("reference").parse_log(text)
        assert fact is None or fact.kind


def test_log_lines_are_understood() -> None:
    parse_log = adapter("reference").parse_log
    ready = parse_log("[2026-01-01 00:00:00] The reference engine is ready at http://127.0.0.1:5")
    assert ready is not None
    assert ready.data == {"url": "http://127.0.0.1:5"}
    decode = parse_log(
        "[x] Decode batch, #running-req: 2, #queue-req: 0, accept len: 2.50, gen throughput (token/s): 40.25"
    )
    assert decode is not None
    assert decode.data == {"running": 2.0, "accept_len": 2.5, "throughput": 40.25}


@pytest.mark.parametrize("text", ["2,15,27", "boundary:a", "boundary:1,1", "boundary:99", "moon:1", "boundary:"])
def test_aux_layers_on_the_command_line_need_their_convention(text: str) -> None:
    with pytest.raises(RequestError, match="--aux-layers"):
        parse_aux_layers(text, 30)
    assert parse_aux_layers("layer_outputs:1,14,26", 30).boundary == (2, 15, 27)


async def _start(spec: ServeSpec, log: Path) -> asyncio.subprocess.Process:
    with log.open("wb") as out:
        return await asyncio.create_subprocess_exec(
            *adapter("reference").argv(spec), stdout=out, stderr=out, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )


async def test_a_real_server_process_serves_and_ends_on_sigterm(tmp_path: Path) -> None:
    model, log = write_tiny_model(tmp_path / "model"), tmp_path / "engine.log"
    spec = ServeSpec(model=model, port=free_port(), dtype="float32", device="cpu", max_running_requests=4)
    process = await _start(spec, log)
    async with EngineClient(spec.url, log=log) as client:
        await client.wait_ready(process, 60)
        sampling = Sampling(max_new_tokens=12, ignore_eos=True)
        first = await client.generate_batch([[1, 2], [3, 4, 5]], sampling)
        again = await client.generate_batch([[1, 2], [3, 4, 5]], sampling)
        assert [a.output_ids for a in first] == [a.output_ids for a in again]
        assert first[0].accept_length is None
        with pytest.raises(EngineRefused, match="out of the vocabulary"):
            await client.generate([VOCAB], sampling)
        assert (await client.server_info())["served_model_name"] == str(model)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 15) == 0
        assert not await client.health()
        with pytest.raises(EngineError, match=r"exit code 0.*\n.*shutting down|exit code 0[\s\S]*shutting down"):
            await client.generate([1], sampling)
    assert sum("is ready at" in line for line in log.read_text().splitlines()) == 1


async def test_a_server_that_cannot_start_is_explained_by_its_log(tmp_path: Path) -> None:
    model, log = write_tiny_model(tmp_path / "model"), tmp_path / "engine.log"
    (model / "config.json").write_text(json.dumps({**CONFIG, "architectures": ["Nope"]}))
    spec = ServeSpec(model=model, port=free_port(), device="cpu")
    process = await _start(spec, log)
    async with EngineClient(spec.url, log=log) as client:
        with pytest.raises(EngineError, match="exit code 1") as caught:
            await client.wait_ready(process, 60)
    assert "'Nope'" in str(caught.value)
    assert str(log) in str(caught.value)


def _lives(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--attention-backend", "triton"), "knows no --attention-backend"),
        (("--max-running-requests", "many"), "invalid int value: 'many'"),
    ],
)
def test_an_argument_that_it_does_not_take_is_refused_before_the_start(given: tuple[str, ...], says: str) -> None:
    spec = ServeSpec(model=Path("/m"), port=1, device="cpu")
    adapter("reference").require(replace(spec, arguments=("--context-length", "128")))
    with pytest.raises(RequestError, match=says):
        adapter("reference").require(replace(spec, arguments=given))


async def _loading(process: asyncio.subprocess.Process) -> None:
    """Return when it has begun to load, which takes seconds."""
    assert process.stderr is not None
    while b"importing torch" not in (line := await process.stderr.readline()):
        assert line, "it ended before it loaded anything"


async def test_a_server_that_still_loads_ends_at_once_on_sigterm(tmp_path: Path) -> None:
    spec = ServeSpec(model=write_tiny_model(tmp_path / "model"), port=free_port(), device="cpu", dtype="float32")
    process = await asyncio.create_subprocess_exec(*adapter("reference").argv(spec), stderr=asyncio.subprocess.PIPE)
    await _loading(process)
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    rest = await asyncio.wait_for(process.stderr.read(), 60)
    assert await process.wait() == -signal.SIGTERM
    assert b"loading weights" not in rest


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl is Linux's")
async def test_a_server_that_still_loads_dies_with_its_parent(tmp_path: Path) -> None:
    spec = ServeSpec(model=write_tiny_model(tmp_path / "model"), port=free_port(), device="cpu", dtype="float32")
    code = (
        "import subprocess, sys; from eagle3ops.runs.leash import leashed; "
        "p = subprocess.Popen(leashed(sys.argv[1:])); print(p.pid, flush=True); p.wait()"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, *adapter("reference").argv(spec), stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert parent.stdout is not None
    assert parent.stderr is not None
    child = int(await parent.stdout.readline())
    await _loading(parent)
    parent.kill()
    # The pipe closes when the last that writes to it is gone.
    rest = await asyncio.wait_for(parent.stderr.read(), 60)
    await parent.wait()
    # Which it closes a moment before it is gone itself.
    for _ in range(1000):
        if not _lives(child):
            break
        await asyncio.sleep(0.01)
    assert not _lives(child)
    assert b"loading weights" not in rest


async def test_a_profile_of_the_next_steps_is_written_whole(http: Http, tmp_path: Path) -> None:
    from eagle3ops.profiling.phases import step_times
    from eagle3ops.profiling.trace import read_trace

    order = {"output_dir": str(tmp_path / "p"), "num_steps": 6, "activities": ["CPU"]}
    for wrong in ({**order, "output_dir": "relative"}, {**order, "num_steps": 0}, {**order, "activities": []}):
        status, raw = await _post(http, wrong, "/start_profile")
        assert status == 400
        assert raw["error"]["message"]
    async with http.post("/start_profile", json=order) as response:
        assert (response.status, await response.text()) == (200, "Start profiling.\n")
    status, raw = await _post(http, order, "/start_profile")
    assert status == 400
    assert "wait for its file" in raw["error"]["message"]
    body = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 40, "temperature": 0, "ignore_eos": True}}
    assert (await _post(http, body))[0] == 200
    while not (found := list((tmp_path / "p").glob("*-TP-0.trace.json.gz"))):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    times = step_times(read_trace(found[0]))
    assert times.speculative
    assert times.steps == 5
    assert {"draft", "verify", "draft_extend"} <= set(times.phases)
