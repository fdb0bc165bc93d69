"""Are vLLM's answers understood, and are the states those that its drafter was given for this prompt?"""

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from eagle3ops.engines.client import EngineError, EngineRefused, Sampling
from eagle3ops.engines.registry import client
from eagle3ops.engines.vllm.adapter import PLUGIN
from eagle3ops.engines.vllm.client import VllmClient, parse_completion, request, rows_of, told_by

# As 0.32.0 answered on a CPU, with the fields that are null left out.
SPECULATIVE = {
    "id": "cmpl-8b571b19c6183c63",
    "object": "text_completion",
    "choices": [
        {
            "index": 0,
            "text": "efning",
            "finish_reason": "length",
            "token_ids": [365, 395, 121, 172],
            "prompt_token_ids": [1, 5, 9],
        }
    ],
    "usage": {"prompt_tokens": 3, "total_tokens": 7, "completion_tokens": 4},
    "metrics": {
        "speculative_decoding": {
            "mean_acceptance_length": 1.5,
            "acceptance_histogram": [1, 1, 0, 0],
            "num_spec_steps": 2,
            "num_accepted_draft_tokens": 1,
            "num_draft_tokens": 6,
            "num_spec_tokens": 3,
            "per_step_accepted": None,
        }
    },
}
PLAIN = {**SPECULATIVE, "metrics": None}


def test_an_answer_with_and_without_speculation_is_read() -> None:
    answer = parse_completion(SPECULATIVE, 0.25)
    assert (answer.output_ids, answer.finish_reason, answer.latency_s) == ([365, 395, 121, 172], "length", 0.25)
    assert (answer.verify_steps, answer.correct_drafts, answer.proposed_drafts) == (2, 1, 6)
    assert answer.histogram == [1, 1, 0, 0]
    assert answer.accept_length == 1.5
    plain = parse_completion(PLAIN, 0.25)
    assert (plain.verify_steps, plain.histogram, plain.accept_length) == (None, None, None)


@pytest.mark.parametrize(
    "change",
    [
        {"choices": []},
        {"choices": [{}, {}]},
        {"choices": [{"token_ids": None, "finish_reason": "stop"}]},
        {"choices": [{"token_ids": [1.5], "finish_reason": "stop"}]},
        {"usage": {"prompt_tokens": "3", "completion_tokens": 4}},
        {"usage": None},
        {"metrics": {"speculative_decoding": {"num_spec_steps": 1}}},
    ],
)
def test_an_answer_that_is_not_understood_is_an_error(change: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match="not understood"):
        parse_completion({**SPECULATIVE, **change}, 0.0)


SCALARS = st.none() | st.booleans() | st.integers() | st.text()
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


@given(JSON, st.sampled_from(["choices", "usage", "metrics", ""]))
def test_no_answer_crashes(value: object, where: str) -> None:
    try:
        parse_completion({**SPECULATIVE, where: value} if where else value, 0.0)
    except EngineError:
        return


def test_what_is_asked_for() -> None:
    body = request([1, 2], Sampling(max_new_tokens=7, seed=3))
    assert (body["prompt"], body["max_tokens"], body["temperature"], body["seed"]) == ([1, 2], 7, 0.0, 3)
    assert body["return_token_ids"] is True
    assert "seed" not in request([1], Sampling())


def test_the_registry_gives_each_engine_its_client() -> None:
    assert isinstance(client("vllm", "http://127.0.0.1:1"), VllmClient)
    assert not isinstance(client("sglang", "http://127.0.0.1:1"), VllmClient)


async def test_what_vllm_is_not_asked_for_is_refused_by_name(tmp_path: Path) -> None:
    asked = VllmClient("http://127.0.0.1:1")
    with pytest.raises(EngineRefused, match="log probabilities") as caught:
        await asked.next_logprobs([1], [2])
    assert caught.value.remedy
    with pytest.raises(EngineRefused, match="log probabilities"):
        await asked.top_logprobs([1], Sampling())
    with pytest.raises(EngineRefused, match="a trace"):
        await asked.start_profile(tmp_path, 1, on_gpu=False)
    with pytest.raises(EngineRefused, match="piece by piece"):
        await anext(asked.stream([1], Sampling()))


def test_states_are_put_together_from_pieces() -> None:
    pieces = [[[5, 6], [[1.0], [2.0]]], [[7], [[3.0]]]]
    assert rows_of([pieces], [5, 6, 7]) == [[1.0], [2.0], [3.0]]
    # A token of the answer came back as input.
    assert rows_of([pieces], [5, 6]) == [[1.0], [2.0]]
    # Another request was computed before it.
    assert rows_of([pieces], [6, 7]) == [[2.0], [3.0]]


@pytest.mark.parametrize(
    ("workers", "words"),
    [
        ([], "gave its drafter no states"),
        ([[]], "gave its drafter no states"),
        ([[[[5, 8], [[1.0], [2.0]]]]], "the 2 that were sent are not among them"),
        ([[[[6, 5], [[1.0], [2.0]]]]], "the 2 that were sent are not among them"),
        ([[[[5], [[1.0]]]]], "the 2 that were sent are not among them"),
        ([[[[5, 6], [[1.0]]]]], "1 states for 2 tokens"),
        ([[5]], "not understood"),
        ([5], "not understood"),
    ],
)
def test_states_of_other_tokens_are_refused(workers: list[Any], words: str) -> None:
    with pytest.raises(EngineError, match=words):
        rows_of(workers, [5, 6])


@given(st.lists(JSON), st.lists(st.integers()))
def test_no_capture_crashes(workers: list[Any], ids: list[int]) -> None:
    try:
        rows_of(workers, ids)
    except EngineError:
        return


def test_the_runner_is_told_as_it_decides_where_ids_are_read() -> None:
    (first,) = told_by([{"runner": "vllm.v1.worker.cpu_model_runner", "drafter": "EagleProposer"}])
    assert "model runner V1" in first
    (second,) = told_by([{"runner": "vllm.v1.worker.gpu.model_runner", "drafter": "EagleSpeculator"}])
    assert second.startswith("vLLM ran with model runner V2")
    with pytest.raises(EngineError, match="no worker of vLLM has a drafter"):
        told_by([])


class FirstDrafter:
    """What the first model runner calls."""

    def propose(
        self,
        num_speculative_tokens: int,
        target_token_ids: Tensor,
        target_positions: Tensor,
        target_hidden_states: Tensor,
    ) -> str:
        # The engine goes on with its buffers.
        target_hidden_states.zero_()
        target_token_ids.zero_()
        return "drafted"


class SecondDrafter:
    """What V2 calls; as its source reads."""

    def propose(
        self, input_batch: Any, attn_metadata: dict[str, Any], slot_mappings: dict[str, Tensor],
        last_hidden_states: Tensor, aux_hidden_states: list[Tensor] | None, *, dummy_run: bool = False,
    ) -> str:  # fmt: skip
        return "drafted"


def worker(runner: SimpleNamespace) -> Any:
    """vLLM's worker with the extension among its bases."""
    place = importlib.util.spec_from_file_location("eagle3ops_vllm_capture", PLUGIN / "eagle3ops_vllm_capture.py")
    assert place is not None
    assert place.loader is not None
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    found = type("Worker", (module.Capture,), {})()
    found.model_runner = runner
    return found


STATES = torch.arange(12.0).view(3, 4).to(torch.bfloat16)


def test_the_first_model_runner_is_watched() -> None:
    drafter = FirstDrafter()
    one = worker(SimpleNamespace(drafter=drafter))
    assert one.eagle3ops_captured() is None
    assert one.eagle3ops_watch()["drafter"] == "FirstDrafter"
    one.eagle3ops_watch()
    ids = torch.tensor([5, 6, 7])
    told = drafter.propose(
        num_speculative_tokens=1, target_token_ids=ids, target_positions=ids, target_hidden_states=STATES.clone()
    )
    assert told == "drafted"
    # Watched twice, told once; and kept although the engine used its buffers again.
    found = one.eagle3ops_captured()
    assert found == [[[5, 6, 7], STATES.float().tolist()]]
    assert json.loads(json.dumps(found)) == found
    assert one.eagle3ops_captured() == []


@pytest.mark.parametrize("aux", [True, False])
def test_the_second_model_runner_is_watched(aux: bool) -> None:
    drafter = SecondDrafter()
    one = worker(SimpleNamespace(speculator=drafter))
    one.eagle3ops_watch()
    # Padded to 4 tokens.
    batch = SimpleNamespace(input_ids=torch.tensor([5, 6, 7, 0]), num_tokens=3)
    padded = torch.cat([STATES, torch.zeros(1, 4)])
    states = [padded, padded + 1] if aux else None
    drafter.propose(batch, {}, {}, padded + 2, states, dummy_run=True)
    drafter.propose(batch, {}, {}, padded + 2, states)
    ((ids, rows),) = one.eagle3ops_captured()
    assert ids == [5, 6, 7]
    wanted = torch.cat([STATES.float(), STATES.float() + 1], dim=-1) if aux else STATES.float() + 2
    assert rows == wanted.tolist()


def test_a_worker_without_a_drafter_has_nothing_to_tell() -> None:
    one = worker(SimpleNamespace(drafter=None, speculator=None))
    assert one.eagle3ops_watch() is None
    assert one.eagle3ops_captured() is None


def test_the_plugin_is_one_file_that_needs_nothing_of_ours() -> None:
    (module,) = Path(PLUGIN).glob("*.py")
    assert "eagle3ops." not in module.read_text().replace("eagle3ops_", "")
