"""Further loads of a benchmark in the room: the best of each, everyone's arrivals, whatever the host says."""

from dataclasses import asdict
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from eagle3ops.outputs.benchloads import parse_loads
from eagle3ops.screens.bench.loads import load_facts, load_lines
from eagle3ops.screens.widgets.glyphs import BLOCKS as GLYPHS

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
KEYS = st.sampled_from(["kind", "rows", "label", "speedup", "speedup_low", "speedup_high", "ttft_p50", "name"])
SHAPES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=12
)


def row(times: float) -> dict[str, Any]:
    ratio = {"value": times, "low": times - 0.1, "high": times + 0.1}
    return {"tokens_per_s": 100 * times, "speedup": ratio, "accept_length": 2.5}


RECORD = {
    "ladder": [
        {"concurrency": 1, "natural_stop": True, "settings": {"baseline": {}, "3/1/4": row(1.4), "5/1/6": row(1.6)}},
        {"concurrency": 32, "natural_stop": True, "settings": {"baseline": {}, "3/1/4": row(0.7)}},
    ],
    "latency": [
        {"concurrency": 1, "settings": {"3/1/4": {"ttft_s": {"p50": 0.02, "p99": 0.04}, "itl_s": {"p50": 0.003}}}}
    ],
}


def text(width: int) -> list[str]:
    loads = [asdict(load) for load in parse_loads(RECORD)]
    lines = load_lines(load_facts(loads), width, GLYPHS)
    assert all(sum(cell_len(part) for part, _ in line) <= width for line in lines)
    return ["".join(part for part, _ in line).rstrip() for line in lines]


def test_the_best_of_each_load_and_its_gain() -> None:
    lines = text(90)
    assert lines[1].split() == ["1", "in", "flight", "5/1/6", "160", "1.60x", "1.50", "to", "1.70", "2.50"]
    assert lines[2].split() == ["32", "in", "flight", "3/1/4", "70", "0.70x", "0.60", "to", "0.80", "2.50"]
    assert lines[-1].split() == ["1", "in", "flight", "3/1/4", "20.0", "40.0", "3.0", "-"]


def test_nothing_is_shown_where_only_one_load_was_measured() -> None:
    assert load_lines(load_facts([asdict(parse_loads(RECORD)[0])]), 90, GLYPHS) == []
    assert load_lines(load_facts(None), 90, GLYPHS) == []


@given(SHAPES, st.integers(20, 140))
def test_whatever_the_host_says_fits(shape: Any, width: int) -> None:
    for answer in (shape, [shape], [{"kind": "latency", "rows": [shape]}, {"kind": "ladder", "rows": [shape]}] * 2):
        for line in load_lines(load_facts(answer), width, GLYPHS):
            assert sum(cell_len(part) for part, _ in line) <= width
