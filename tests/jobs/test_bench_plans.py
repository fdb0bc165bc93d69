"""Which servers are up together, which loads are made, which divergences count, who takes part: without a server."""

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.answers import AnswerRow
from eagle3ops.bench.contest import accept_difference, duel
from eagle3ops.bench.lineup import SHARE, line_up, shared
from eagle3ops.bench.load import LoadResult, Timed
from eagle3ops.bench.paired import Sample
from eagle3ops.bench.parting import first_divergence, torn
from eagle3ops.engines.base import ServeSpec
from eagle3ops.engines.client import Answer, EngineError, parse_logprobs
from eagle3ops.errors import RequestError, SpecError
from eagle3ops.jobs.bench.loads import fill_bucket, ladder
from eagle3ops.jobs.bench.near_ties import Outputs
from eagle3ops.jobs.bench.spec import BenchSpec
from eagle3ops.jobs.compare.contenders import CompareSpec, contenders, drafter_folder
from eagle3ops.jobs.serve.job import ServeStageSpec, SpeculationSpec
from eagle3ops.prompts import load_prompts
from eagle3ops.prompts.questions import bundled_questions
from eagle3ops.runs.job import load_registry
from eagle3ops.runs.planning import admit, plan_stages
from eagle3ops.spec.load import parse_pipeline
from eagle3ops.spec.models import EngineSpec

GIB = 1 << 30


@given(st.integers(1, 12), st.integers(1, 100 * GIB), st.integers(1, 200 * GIB))
def test_every_setting_meets_a_baseline_and_no_group_is_too_large(count: int, need: int, room: int) -> None:
    labels = [f"{k}/1/{k + 1}" for k in range(count)]
    found = line_up(labels, need, room)
    assert [label for group in found.groups for label in group if label != "baseline"] == labels
    assert all(group[0] == "baseline" for group in found.groups)
    assert found.most * need <= room * SHARE or found.alone
    if found.alone:
        assert 2 * need > room * SHARE
        assert all(len(group) == 2 for group in found.groups)


def test_the_plan_says_why() -> None:
    labels = ["3/1/4", "5/1/6", "3/4/16"]
    assert line_up(labels, None, None).why == "all 4 servers up together"
    assert "all 4 servers up together (10.0 GiB each, 100.0 GiB there)" in line_up(labels, 10 * GIB, 100 * GIB).why
    assert "2 groups of at most 3 servers, a baseline in each" in line_up(labels, 28 * GIB, 100 * GIB).why
    assert "take turns, 2 times each" in line_up(labels, 60 * GIB, 100 * GIB).why


def row(number: int, prompt: int, output: int = 4) -> AnswerRow:
    ids = [number % 50] * prompt
    return AnswerRow(
        id=f"p{number}", split="heldout", messages=[], prompt_ids=ids, output_ids=[7] * output, finish_reason="stop"
    )


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=12),
    st.integers(0, 100),
    st.integers(1, 150),
    st.integers(1, 6),
)
def test_prompts_of_a_bucket_lie_in_it(prompts: list[int], above: int, width: int, count: int) -> None:
    rows = [row(number, length) for number, length in enumerate(prompts)]
    found, padded = fill_bucket(rows, above, above + width, count)
    assert len(found) <= count
    assert all(above < len(ids) <= above + width for ids in found)
    assert padded <= len(found)
    # What is asked stands at the end, as it was.
    assert all(any(ids[-len(one.prompt_ids) :] == one.prompt_ids for one in rows) for ids in found)


def test_a_ladder_has_every_concurrency_with_forced_length_and_arrivals_apart() -> None:
    rows = [row(number, 8) for number in range(200)]
    spec = BenchSpec(concurrency=(1, 8, 32), timing_prompts=40, forced_tokens=256, latency_prompts=8)
    found = ladder(spec, rows)
    assert [(case.kind, case.concurrency, case.sampling.ignore_eos, len(case.prompts)) for case in found] == [
        ("ladder", 1, False, 40),
        ("ladder", 1, True, 40),
        ("latency", 1, False, 8),
        ("ladder", 8, False, 40),
        ("ladder", 8, True, 40),
        ("latency", 8, False, 8),
        ("ladder", 32, False, 64),
        ("ladder", 32, True, 64),
        ("latency", 32, False, 32),
    ]
    # Two blocks of 32 are no basis for an interval: they are repeated.
    assert [case.rounds for case in found if case.kind == "ladder"] == [1, 1, 2, 2, 3, 3]


@given(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 3), max_size=6), st.integers(1, 6))
def test_an_output_is_torn_when_it_ends_before_the_limit_and_the_other_goes_on(
    a: list[int], b: list[int], limit: int
) -> None:
    at = first_divergence(a, b)
    assert torn(a, b, limit) == torn(b, a, limit)
    if torn(a, b, limit):
        assert at == min(len(a), len(b)) < limit
        assert len(a) != len(b)
    assert not torn(a, a, limit)


def test_outputs_say_where_they_part() -> None:
    outputs = Outputs([[1], [2], [3]], 4)
    outputs.made = {"baseline": [[5, 6, 7, 8], [5, 6, 7, 8], [5, 9]], "3/1/4": [[5, 6, 7, 8], [5, 0, 7, 8], [5, 9, 1]]}
    assert outputs.parted("3/1/4") == [(1, 1)]
    assert outputs.torn("3/1/4") == [2]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["meta_info", "k"]), inner, max_size=2),
)


@given(JSON)
def test_log_probabilities_of_another_shape_are_an_engine_error(shape: Any) -> None:
    try:
        found = parse_logprobs(shape, "k")
    except EngineError:
        return
    assert all(isinstance(value, float) and type(token) is int for place in found for value, token in place)


def test_log_probabilities_as_sglang_sends_them() -> None:
    raw = {"meta_info": {"output_top_logprobs": [[[-0.92, 207, None], [-2.7, 129, None]], None, []]}}
    assert parse_logprobs(raw, "output_top_logprobs") == [[(-0.92, 207), (-2.7, 129)], [], []]


def answer(steps: int | None, correct: int, tokens: int = 10) -> Answer:
    return Answer(
        output_ids=[1] * tokens, text="", finish_reason="stop", prompt_tokens=1, completion_tokens=tokens,
        latency_s=1.0, verify_steps=steps, correct_drafts=correct, proposed_drafts=3 * (steps or 0), histogram=[],
    )  # fmt: skip


def result(seconds: float, answers: list[Answer]) -> LoadResult:
    blocks = [Sample(one.completion_tokens, seconds + 0.01 * (k % 3)) for k, one in enumerate(answers)]
    return LoadResult(1, blocks, [Timed(k, k, seconds, one) for k, one in enumerate(answers)])


def test_a_duel_is_decided_beyond_noise_only() -> None:
    fast = result(0.5, [answer(4, 6)] * 12)
    slow = result(1.0, [answer(8, 2)] * 12)
    won = duel("a", fast, "b", slow)
    assert won.verdict == "better"
    assert won.accept is not None
    assert won.accept.value == pytest.approx(6 / 4 - 2 / 8)
    assert duel("b", slow, "a", fast).verdict == "worse"
    assert duel("a", fast, "a again", fast).verdict == "no difference beyond noise"
    assert duel("a", result(0.5, [answer(4, 6)]), "b", result(1.0, [answer(8, 2)])).verdict == "not comparable"
    assert accept_difference([answer(None, 0)], [answer(4, 6)]) is None
    assert "a against b: better, " in won.words


def world(folder: Path) -> dict[str, Path]:
    """A fetched target and a trained drafter, as far as lint reads them."""
    target = folder / "target"
    target.mkdir()
    (target / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "hidden_size": 64}))
    fetch = folder / "fetch"
    fetch.mkdir()
    facts = {
        "path": str(target), "name": "toy", "fingerprint": "ab" * 32, "source": "made", "num_layers": 8,
        "hidden_size": 64, "vocab_size": 512, "files": [],
    }  # fmt: skip
    (fetch / "target.json").write_text(json.dumps(facts))
    return {"fetch": fetch, "train": folder / "train"}


def test_contenders_that_are_not_there_are_refused_with_what_to_do(tmp_path: Path) -> None:
    inputs = world(tmp_path)
    with pytest.raises(RequestError, match=r"nowhere: no checkpoint"):
        drafter_folder(str(tmp_path / "nowhere"), inputs, tmp_path)
    with pytest.raises(RequestError, match=r"there is no run 'old'"):
        drafter_folder("run:old", inputs, tmp_path)
    assert drafter_folder("ours", inputs, tmp_path) == inputs["train"] / "drafter"


def test_everyone_has_a_name_of_its_own(tmp_path: Path) -> None:
    inputs = world(tmp_path)
    settings = (SpeculationSpec(), SpeculationSpec(steps=1, topk=1, draft_tokens=2))
    spec = CompareSpec(drafters=("ours", "again=ours"), settings=settings)
    found = contenders(spec, ServeStageSpec(), EngineSpec(), inputs, tmp_path)
    assert [one.label for one in found] == ["baseline", "ours 3/1/4", "ours 1/1/2", "again 3/1/4", "again 1/1/2"]
    both = CompareSpec(engines=(EngineSpec(), EngineSpec(dtype="float32")))
    with pytest.raises(RequestError, match=r"two contenders are called"):
        contenders(both, ServeStageSpec(), EngineSpec(), inputs, tmp_path)


@pytest.mark.parametrize("drafters", [("ours", "ours"), ("mine=",)])
def test_drafters_named_twice_or_not_at_all_are_refused(drafters: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"named twice|names no drafter"):
        CompareSpec(drafters=drafters)


def test_a_comparison_of_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="name at least one drafter"):
        CompareSpec(drafters=())


@pytest.mark.parametrize(
    ("steps", "topk", "tokens", "why"),
    [
        (3, 1, 8, "a chain (topk 1) of 3 steps verifies 4 draft_tokens"),
        (1, 4, 64, "a tree of 1 steps with topk 4 holds 5 draft_tokens at most, not 64"),
    ],
)
def test_a_setting_that_no_engine_can_serve_is_refused_before_one_loads(
    steps: int, topk: int, tokens: int, why: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        SpeculationSpec(steps=steps, topk=topk, draft_tokens=tokens)
    assert SpeculationSpec(steps=1, topk=4, draft_tokens=5)
    setting = f"stages.serve.speculation={{steps: {steps}, topk: {topk}, draft_tokens: {tokens}}}"
    text = "schema: 1\nname: x\ntarget: {model: tiny-random}\n"
    with pytest.raises(SpecError) as refused:
        parse_pipeline(text, "x", load_registry().specs(), [setting])
    assert refused.value.what.endswith(f"stages.serve.speculation: {why}")


def test_as_many_requests_as_are_sent_are_answered_at_once_without_a_gpu_too() -> None:
    spec = ServeSpec(model=Path("/m"), port=1, device="cpu", max_running_requests=32)
    assert shared(spec, 64, 100).max_running_requests == 64
    assert shared(spec, 8, 100) == spec


def test_a_port_that_is_taken_is_refused_before_hours_of_training(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        text = f"schema: 1\nname: x\ntarget: {{model: tiny-random}}\nstages: {{serve: {{port: {port}}}}}\n"
        registry = load_registry()
        planned = plan_stages(parse_pipeline(text, "x", registry.specs()), registry, tmp_path / "r", tmp_path / "c")
        with pytest.raises(RequestError, match=f"port {port} is taken"):
            admit(planned, tmp_path)


def test_bundled_questions_are_some_dozens_in_each_category() -> None:
    counts: dict[str, int] = {}
    for prompt in bundled_questions():
        counts[prompt.category] = counts.get(prompt.category, 0) + 1
    assert set(counts) == {"code", "maths", "chat", "reasoning", "summarisation", "translation", "long context"}
    assert min(counts.values()) >= 24


def test_a_row_may_name_its_category(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "one", "category": "law"}\n{"prompt": "two"}\n{"prompt": "three", "category": 3}\n')
    assert [prompt.category for prompt in load_prompts(file).prompts] == ["law", "mine", "mine"]
