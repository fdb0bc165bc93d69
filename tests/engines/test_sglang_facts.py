"""Are SGLang's start, its server facts and its metrics read as two versions write them?"""

import gzip
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.engines.base import LogFact
from eagle3ops.engines.client import EngineError
from eagle3ops.engines.registry import adapter
from eagle3ops.engines.sglang.metrics import parse_metrics
from eagle3ops.engines.sglang.server_info import parse_server_info
from eagle3ops.engines.starts import gather, read_start

SGLANG = adapter("sglang")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.recordings
def test_a_start_on_a_gpu_is_told_phase_by_phase(recordings: Path, tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_bytes(gzip.decompress((recordings / "gpu/logs/runA-server_base.log.gz").read_bytes()))
    start = read_start(SGLANG, log, 0, 79.4)
    assert start.load_s == pytest.approx(0.29)
    assert start.weights_gb == pytest.approx(0.27)
    assert start.cache_tokens == 400000
    assert start.cache_gb == pytest.approx(8.58)
    assert start.graphs_s == pytest.approx(9.56)
    assert start.max_running_requests == 512
    assert start.draft_type is None
    assert sum(start.phases.values()) == pytest.approx(79.4, abs=0.1)
    assert start.phases["capturing"] == pytest.approx(9, abs=2)
    assert next(iter(start.phases)) == "importing"
    assert "room for 400000 tokens" in str(start)


@pytest.mark.recordings
def test_the_drafter_that_was_loaded_is_named(recordings: Path, tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_bytes(gzip.decompress((recordings / "gpu/logs/E-server_s3k1d4.log.gz").read_bytes()))
    start = read_start(SGLANG, log, 0, 90)
    assert start.draft_type == "LlamaForCausalLMEagle3"
    assert start.draft_load_s is not None
    assert start.weights_gb is not None
    assert start.context_length == 8192


@pytest.mark.recordings
def test_a_start_of_the_later_version_is_read(recordings: Path) -> None:
    start = read_start(SGLANG, recordings / "sglang-cpu/c23a.log", 0, 30)
    assert start.cache_tokens == 2048
    assert start.load_s == pytest.approx(0.03)


def test_a_log_that_is_not_there_tells_nothing(tmp_path: Path) -> None:
    assert read_start(SGLANG, tmp_path / "none.log", 0, 3.0).as_json() == {"ready_s": 3.0, "phases": {}}
    assert read_start(SGLANG, None, 0, 3.0).load_s is None


def test_other_ranks_are_not_counted_again() -> None:
    def weights(rank: str) -> LogFact:
        return LogFact("memory", {"what": "weights", "seconds": 2.0, "gb": 1.0, "type": "A", "rank": rank})

    start = gather([weights("TP0"), weights("TP1"), weights("TP2")], 9.0)
    assert (start.load_s, start.draft_type) == (2.0, None)


@given(
    st.lists(
        st.builds(
            LogFact,
            st.sampled_from(["phase", "ready", "memory", "decode"]),
            st.dictionaries(
                st.sampled_from(["phase", "what", "seconds", "gb", "tokens", "rank", "type"]),
                st.floats(allow_nan=False, allow_infinity=False, min_value=-1e9, max_value=1e9)
                | st.sampled_from(["weights", "cache", "graphs", "limits", "TP1"]),
            ),
            st.none() | st.floats(0, 1e9),
        ),
        max_size=12,
    )
)
def test_no_facts_crash_it(facts: list[LogFact]) -> None:
    start = gather(facts, 1.0)
    assert all(took >= 0 for took in start.phases.values())
    assert str(start)


@pytest.mark.recordings
def test_server_facts_of_a_real_server(recordings: Path) -> None:
    facts = parse_server_info(json.loads((recordings / "gpu/http/base_server_info_after.json").read_text())["json"])
    assert facts.version == "0.5.14"
    assert facts.attention_backend == "triton"
    assert facts.sampling_backend == "pytorch"
    assert facts.token_capacity == 400000
    assert facts.max_running_requests == 512
    assert (facts.weights_gb, facts.cache_gb, facts.graphs_gb) == (0.27, 8.58, 0.3)
    assert facts.lifetime_accept_length is None
    assert facts.as_json()["tp_size"] == 1


def test_server_facts_of_the_later_version() -> None:
    # As `build_server_info` and `internal_state.py` of 0.5.23 make it.
    facts = parse_server_info(
        {
            "version": "0.5.23",
            "attention_backend": "fa3",
            "dp_size": 1,
            "attn_dp_size": 4,
            "tp_size": 8,
            "speculative_algorithm": "EAGLE3",
            "speculative_num_steps": 3,
            "launch_command": "sglang serve",
            "startup_time": {"load_weight": 1.5, "cuda_graph": {"decode": 2.0, "prefill": None}},
            "internal_states": [
                {
                    "memory_usage": {
                        "weight": 1.0,
                        "kvcache": 2.0,
                        "token_capacity": 9,
                        "graph": {"decode": 0.25, "v": 0.5},
                    }
                }
            ],
        }
    )
    assert (facts.dp_size, facts.graphs_gb, facts.token_capacity) == (4, 0.75, 9)
    assert facts.start == {"load_weight": 1.5, "cuda_graph.decode": 2.0}


@given(JSON)
def test_no_answer_crashes_it(raw: object) -> None:
    with pytest.raises(EngineError):
        parse_server_info(raw if not (isinstance(raw, dict) and isinstance(raw.get("version"), str)) else None)
    facts = parse_server_info({"version": "0", "internal_states": [raw], "startup_time": raw, "tp_size": raw})
    assert facts.version == "0"


@pytest.mark.recordings
def test_real_metrics_are_read_and_stale_ones_are_known(recordings: Path) -> None:
    metrics = parse_metrics((recordings / "gpu/http/metrics-eagle3-s3k1d4.txt").read_text())
    assert metrics.verify_calls == 50052
    assert metrics.forward_passes == 481 + 7053
    assert metrics.total("sglang:cuda_graph_passes_total", mode="decode_cuda_graph") == 7053
    # The gauge says the last interval's accept length, and that one request runs; nobody asks anything.
    assert metrics.now("sglang:spec_accept_length", busy=True) == 3.24
    assert metrics.now("sglang:spec_accept_length", busy=False) is None
    assert metrics.now("sglang:num_running_reqs", busy=False) is None
    assert metrics.now("sglang:fwd_occupancy", busy=True) is None
    kinds = {one.name: one.kind for one in metrics.samples}
    assert kinds["sglang:spec_verify_calls_total"] == "counter"
    assert kinds["sglang:spec_accept_length"] == "gauge"


def test_labels_may_hold_anything() -> None:
    (one,) = parse_metrics('a{x="b } \\" 1",y="n\\n"} 2.5 1700000000000\nno line\nb{x="1"\n').samples
    assert (one.labels, one.value, one.kind) == ({"x": 'b } " 1', "y": "n\n"}, 2.5, "untyped")


@given(st.text() | st.text('a{}=",\\ \n0123456789#TYPE', max_size=80))
def test_no_metrics_crash_it(text: str) -> None:
    for one in parse_metrics(text).samples:
        assert re.match(r"[A-Za-z_:]", one.name)
