"""What `sglang.bench_serving` leaves is read with every value in doubt; a recorded line of 0.5.14 is read as it is."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.bench.serving_tool import ToolError, ToolRun, parse_tool_line, write_dataset

# As SGLang 0.5.14 wrote it on a CPU, without its `server_info`.
RECORDED = (
    '{"tag": null, "backend": "sglang", "dataset_name": "custom", "request_rate": Infinity, "max_concurrency": 2, '
    '"sharegpt_output_len": 16, "duration": 0.4722129260044312, "completed": 6, "total_input_tokens": 180, '
    '"total_output_tokens": 96, "request_throughput": 12.706132487240929, "output_throughput": 203.29811979585486, '
    '"total_throughput": 584.4820944130827, "mean_e2e_latency_ms": 154.09516433257284, '
    '"median_e2e_latency_ms": 139.00430650028284, "p99_e2e_latency_ms": 187.7684471448447, '
    '"mean_ttft_ms": 20.361954334172577, "median_ttft_ms": 20.347968500573188, "p99_ttft_ms": 24.38207294762833, '
    '"mean_itl_ms": 8.913899222211006, "median_itl_ms": 7.472569999663392, "p99_itl_ms": 95.53881708656263, '
    '"concurrency": 1.9579535736560993, "accept_length": null}'
)


def test_a_recorded_line() -> None:
    found = parse_tool_line("{}\n" + RECORDED + "\n")
    assert found["completed"] == 6
    assert found["output_throughput"] == pytest.approx(203.298, abs=1e-3)
    assert found["ttft_s"]["p50"] == pytest.approx(0.0203, abs=1e-4)
    assert found["itl_s"]["p99"] == pytest.approx(0.0955, abs=1e-4)
    assert "accept_length" not in found


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
)


@given(st.text() | JSON.map(json.dumps))
def test_garbage_is_refused_in_words(text: str) -> None:
    with pytest.raises(ToolError, match=r"bench_serving"):
        parse_tool_line(text)


@given(st.sampled_from(sorted(json.loads(RECORDED))), JSON)
def test_any_value_in_any_place(key: str, value: Any) -> None:
    line = json.dumps(json.loads(RECORDED) | {key: value})
    try:
        found = parse_tool_line(line)
    except ToolError:
        return
    assert "NaN" not in json.dumps(found)
    assert "Infinity" not in json.dumps(found)


def test_the_command_tells_natural_stop_from_forced_length(tmp_path: Path) -> None:
    known: dict[str, Any] = {"python": "p", "url": "http://h:1", "model": tmp_path, "dataset": tmp_path / "d"}
    run = ToolRun(**known, output=tmp_path / "o", prompts=6, tokens=2, concurrency=2, natural_stop=True)
    argv = run.argv()
    assert "--disable-ignore-eos" in argv
    # It refuses less than four tokens.
    assert argv[argv.index("--sharegpt-output-len") + 1] == "4"
    forced = ToolRun(**known, output=tmp_path / "o", prompts=6, tokens=64, concurrency=2, natural_stop=False)
    assert "--disable-ignore-eos" not in forced.argv()


def test_the_dataset_is_one_conversation_a_line(tmp_path: Path) -> None:
    write_dataset(["one\nline", "two"], tmp_path / "set.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "set.jsonl").read_text().splitlines()]
    assert [row["conversations"][0]["content"] for row in rows] == ["one\nline", "two"]
    assert all(len(row["conversations"]) == 2 for row in rows)
