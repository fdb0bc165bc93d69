"""Are an engine's counters read out of real answers, and does nothing else upset the reading?"""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.engines.reference.answers import metrics
from eagle3ops.engines.reference.counters import Counters
from eagle3ops.watchdog.guard.counters import parse_load, parse_metrics

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.recordings
def test_sglangs_metrics(recordings: Path) -> None:
    found = parse_metrics((recordings / "gpu/http/metrics-base.txt").read_text())
    assert found == {
        "forward_passes": 9921.0,
        "running": 15.0,
        "queued": 0.0,
        "used_tokens": 0.0,
        "generated_tokens": 1624282.0,
        "requests": 8454.0,
    }


@pytest.mark.recordings
def test_vllms_metrics(recordings: Path) -> None:
    found = parse_metrics((recordings / "vllm-cpu/base.metrics").read_text())
    assert found["running"] == found["queued"] == 0.0
    assert found["generated_tokens"] == 264.0
    assert found["forward_passes"] > 200


@pytest.mark.recordings
def test_sglangs_load(recordings: Path) -> None:
    answer = json.loads((recordings / "gpu/http/base_probes.json").read_text())["GET /get_load"]["json"]
    assert parse_load(answer) == {"running": 0.0, "queued": 0.0}


def test_our_own_metrics() -> None:
    found = parse_metrics(metrics(Counters(), 2, 3, 'a "model" with } and { in it', None))
    assert found["running"] == 2.0
    assert found["queued"] == 3.0
    assert found["forward_passes"] == 0.0


def test_ranks_are_added_up() -> None:
    assert parse_load([{"num_reqs": 5, "num_waiting_reqs": 2}, {"num_reqs": 1, "num_waiting_reqs": 0}]) == {
        "running": 4.0,
        "queued": 2.0,
    }
    assert parse_metrics('sglang:num_queue_reqs{tp_rank="0"} 1\nsglang:num_queue_reqs{tp_rank="1"} 2\n') == {
        "queued": 3.0
    }


@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    for wrapped in (text, f"sglang:num_queue_reqs {text}", f"sglang:num_queue_reqs{{a={text}}} {text}"):
        assert all(isinstance(value, float) and value == value for value in parse_metrics(wrapped).values())


@given(JSON)
def test_any_load(data: object) -> None:
    parse_load(data)
    parse_load([{"num_reqs": data, "num_waiting_reqs": data}])
