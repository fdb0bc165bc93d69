"""A `sweep.json` is read with every number in doubt, and its winner is promoted only on evidence."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_worlds import TREE, make_bench_run, make_sweep_run, point, ratio, sweep_json

from eagle3ops.errors import Refused
from eagle3ops.jobs.report.sweep import sweep_tables
from eagle3ops.outputs import drafters
from eagle3ops.outputs.lineage import outputs
from eagle3ops.outputs.sweepfile import as_bench, parse_sweep

BENCHED, SWEPT = "20261130-010000-toy-aaaa", "20261130-020000-toy-bbbb"

numbers = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
json_like = st.recursive(
    numbers,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, one in inner for place in places(one, (*at, key)))]


def figures(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [one for inner in value.values() for one in figures(inner)]
    if isinstance(value, list | tuple):
        return [one for inner in value for one in figures(inner)]
    return [value] if isinstance(value, float) else []


@given(st.data())
def test_anything_in_any_place_raises_nothing(data: st.DataObject) -> None:
    found: Any = sweep_json()
    place = data.draw(st.sampled_from(places(found)))
    value = data.draw(json_like)
    if place:
        at = found
        for key in place[:-1]:
            at = at[key]
        at[place[-1]] = value
    else:
        found = value
    sweep = parse_sweep(found)
    if sweep is not None:
        assert all(map(math.isfinite, figures(asdict(sweep))))
        assert as_bench(sweep, None).settings
        assert sweep.why


def test_what_it_says() -> None:
    sweep = parse_sweep(sweep_json())
    assert sweep is not None
    assert [one.state for one in sweep.points] == ["finished", "dropped", "failed"]
    assert sweep.combinations_left_out == 2
    assert sweep.why == (
        f"{TREE} @1 reaches 1.40x of the baseline, 95 % interval 1.30 to 1.50, "
        "and 1.25x (1.15 to 1.35) of the default 3/1/4"
    )
    bench = as_bench(sweep, None)
    assert bench.recommended == TREE
    # The winner stands there with the final, on fresh prompts; a point that failed not at all.
    assert [(one.label, one.speedup and one.speedup.value) for one in bench.settings] == [
        ("baseline", None), (TREE, 1.4), ("3/1/4", 1.1),
    ]  # fmt: skip


def test_a_winner_is_promoted_with_its_own_launch_line_and_taken_back(tmp_path: Path) -> None:
    make_bench_run(tmp_path, BENCHED)
    make_sweep_run(tmp_path, BENCHED, SWEPT)
    drafters.promote(tmp_path, run=BENCHED, setting="3/1/4")
    now = drafters.promote(tmp_path, run=SWEPT)["current"]
    assert (now["run"], now["setting"], now["launch_line"]) == (SWEPT, TREE, f"serve --at {TREE}")
    assert now["speedup"]["value"] == 1.4
    assert now["verdicts"]["equal_output"] is True
    assert any("were measured at 3/1/4" in caution for caution in now["cautions"])
    assert drafters.rollback(tmp_path)["current"]["setting"] == "3/1/4"


@pytest.mark.parametrize(
    ("sweep", "before", "why"),
    [
        (sweep_json(value=1.05), None, "not faster beyond noise: 3/4/16 reaches 1.05x"),
        (sweep_json(over_default=1.05), "3/1/4", "not faster than what is promoted now, 3/1/4, beyond noise: 1.05x"),
    ],
)
def test_what_is_not_better_beyond_noise_is_refused(
    tmp_path: Path, sweep: dict[str, Any], before: str | None, why: str
) -> None:
    make_bench_run(tmp_path, BENCHED)
    make_sweep_run(tmp_path, BENCHED, SWEPT, sweep)
    if before is not None:
        drafters.promote(tmp_path, run=BENCHED, setting=before)
    with pytest.raises(Refused, match=why):
        drafters.promote(tmp_path, run=SWEPT, setting=TREE)
    assert why in " ".join(drafters.bench(tmp_path, SWEPT)["gate"][TREE]["refusals"])


def test_a_final_on_prompts_that_chose_its_point_is_told_with_the_gate_and_in_the_report(tmp_path: Path) -> None:
    sweep = sweep_json()
    make_bench_run(tmp_path, BENCHED)
    make_sweep_run(tmp_path, BENCHED, SWEPT, sweep)
    assert not any("flatters" in one for one in drafters.bench(tmp_path, SWEPT)["gate"][TREE]["cautions"])
    sweep["winners"][0]["fresh_prompts"] = False
    again = make_sweep_run(tmp_path, BENCHED, "20261130-030000-toy-cccc", sweep)
    assert any("flatters" in one for one in drafters.bench(tmp_path, again.run_id)["gate"][TREE]["cautions"])
    made = next(one for one in outputs(tmp_path, "sweep") if "fresh_prompts" in (one.folder / "sweep.json").read_text())
    assert f"Not so for {TREE} @1" in sweep_tables(made)[-1].note


def test_a_point_that_was_lucky_in_two_pairs_and_dropped_is_not_taken_for_the_winner(tmp_path: Path) -> None:
    sweep = sweep_json(value=1.05)
    sweep["points"] += [point("2/1/3", 1.9, "dropped", speedup=ratio(1.9, pairs=2))]
    make_bench_run(tmp_path, BENCHED)
    make_sweep_run(tmp_path, BENCHED, SWEPT, sweep)
    assert drafters.bench(tmp_path, SWEPT)["chosen"] == TREE
    with pytest.raises(Refused, match=r"3/4/16 reaches 1\.05x"):
        drafters.promote(tmp_path, run=SWEPT)
    with pytest.raises(Refused, match="only 2 pairs of 2/1/3 were timed"):
        drafters.promote(tmp_path, run=SWEPT, setting="2/1/3")


def test_without_a_benchmark_equal_output_is_not_proven(tmp_path: Path) -> None:
    make_bench_run(tmp_path, BENCHED, without=("equal_output",))
    make_sweep_run(tmp_path, BENCHED, SWEPT)
    with pytest.raises(Refused, match="equal_output is not proven"):
        drafters.promote(tmp_path, run=SWEPT)


def test_a_torn_file_is_told(tmp_path: Path) -> None:
    make_bench_run(tmp_path, BENCHED)
    run = make_sweep_run(tmp_path, BENCHED, SWEPT)
    (file,) = (tmp_path / "stages").glob("sweep-*/sweep.json")
    file.write_text(json.dumps(sweep_json())[:100])
    answer = drafters.bench(tmp_path, run.run_id)
    assert answer["state"] == "absent"
    assert "sweep.json cannot be read" in answer["why"]
