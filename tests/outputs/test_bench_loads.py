"""Further loads of a `bench.json` are read with every value in doubt and shown in the report; old files have none."""

import json
from typing import Any

from bench_worlds import bench_json
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.jobs.report.loads import load_tables
from eagle3ops.outputs.benchfile import parse_bench
from eagle3ops.outputs.benchloads import parse_loads

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
KEYS = st.sampled_from(["settings", "speedup", "value", "low", "high", "ttft_s", "p50", "name", "concurrency"])
SHAPES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)


def loads_json() -> dict[str, Any]:
    """A ladder of two, arrivals, one category, one bucket and the field's tool."""

    def rows(times: float) -> dict[str, Any]:
        ratio = {"value": times, "low": times - 0.1, "high": times + 0.1, "pairs": 6}
        drafted = {"tokens_per_s": 100.0 * times, "low": 90.0, "high": 150.0, "speedup": ratio, "accept_length": 2.5}
        return {"baseline": {"tokens_per_s": 100.0, "low": 95.0, "high": 105.0}, "3/1/4": drafted}

    arrivals = {"ttft_s": {"p50": 0.02, "p99": 0.05}, "itl_s": {"p50": 0.004, "p99": 0.011}}
    both = {"natural_stop": True, "prompts": 40, "max_new_tokens": 256}
    return {
        "ladder": [
            {"concurrency": 1, **both, "settings": rows(1.4)},
            {"concurrency": 32, **both, "natural_stop": False, "settings": rows(0.8)},
        ],
        "latency": [{"concurrency": 1, **both, "settings": {"baseline": arrivals, "3/1/4": arrivals}}],
        "categories": [{"name": "code", "concurrency": 8, **both, "settings": rows(1.6)}],
        "lengths": [{"name": "1 to 256 tokens", "concurrency": 1, **both, "settings": rows(1.3)}],
        "bench_serving": {"baseline": [{"output_throughput": 90.0, "asked_concurrency": 1, **arrivals}]},
    }


def test_what_it_says() -> None:
    loads = parse_loads(loads_json())
    assert [(load.kind, load.words) for load in loads] == [
        ("ladder", "1 in flight, natural stop"),
        ("ladder", "32 in flight, forced to 256 tokens"),
        ("latency", "1 in flight, natural stop"),
        ("categories", "code"),
        ("lengths", "1 to 256 tokens"),
        ("bench_serving", "1 in flight"),
    ]
    best = loads[0].best
    assert best is not None
    assert (best.label, best.speedup, best.accept_length) == ("3/1/4", 1.4, 2.5)
    assert loads[2].rows[1].itl_p99 == 0.011
    assert loads[5].rows[0].tokens_per_s == 90.0


def test_old_files_have_none_and_the_rest_is_read_as_before() -> None:
    bench = parse_bench(bench_json())
    assert bench is not None
    assert bench.loads == ()
    assert load_tables(bench_json()) == ()


def test_the_report_has_a_table_for_each_kind() -> None:
    tables = load_tables(bench_json() | loads_json())
    assert [table.title for table in tables] == [
        "Throughput by requests in flight",
        "Arrivals of tokens, streamed",
        "By kind of question",
        "By length of the prompt",
        "sglang.bench_serving at the same servers",
    ]
    assert tables[0].rows[1] == ("1 in flight, natural stop", "3/1/4", "140.0", "1.40x", "1.30 to 1.50", "2.50")
    assert tables[1].rows[0][2:] == ("20.0 ms", "50.0 ms", "4.0 ms", "11.0 ms")
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)


@given(st.sampled_from(["ladder", "latency", "categories", "lengths", "bench_serving"]), SHAPES)
def test_garbage_is_no_load(kind: str, shape: Any) -> None:
    for record in ({kind: shape}, {kind: [shape]}, {kind: [{"settings": {"a": shape}}]}, shape):
        loads = parse_loads(record)
        told = json.dumps([load.rows for load in loads], default=lambda row: str(row))
        assert "nan" not in told
        assert "inf" not in told
        if isinstance(record, dict):
            load_tables(record)
