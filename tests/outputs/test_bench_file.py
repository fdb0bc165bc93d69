"""A `bench.json` is read with every number in doubt: garbled, it raises nothing, and what comes out is finite."""

import json
import math
from typing import Any

from bench_worlds import alarmed_json, bench_json
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.outputs.benchfile import parse_bench, parse_setting

numbers = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
json_like = st.recursive(
    numbers,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
PATHS = (
    ("timing", "settings", "3/1/4", "speedup", "low"),
    ("timing", "settings", "3/1/4", "tokens_per_s"),
    ("timing", "settings", "baseline", "per_request"),
    ("timing", "settings", "1/1/2"),
    ("timing", "recommended"),
    ("timing", "worth_it"),
    ("accept",),
    ("accept", "histogram"),
    ("accept", "predicted"),
    ("accept", "alarm"),
    ("accept", "alarm", "positions"),
    ("accept", "alarm", "start"),
    ("accept", "wiring"),
    ("accept", "suspects"),
    ("accept", "diversity"),
    ("accept", "diversity", "served"),
    ("equality", "differ"),
    ("divergence", "divergences"),
)


def finite(value: object) -> bool:
    """No number in it that JSON has no word for."""
    return "NaN" not in json.dumps(value, default=vars_of) and "Infinity" not in json.dumps(value, default=vars_of)


def vars_of(value: object) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(value)  # type: ignore[call-overload,no-any-return]


@given(json_like)
def test_garbage_is_no_bench(data: Any) -> None:
    assert parse_bench(data) is None or finite(parse_bench(data))


@given(st.sampled_from(PATHS), json_like)
def test_any_value_in_any_place(path: tuple[str, ...], value: Any) -> None:
    data = bench_json()
    place: Any = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    bench = parse_bench(data)
    assert bench is not None
    assert finite(bench)
    assert bench.why
    for setting in bench.settings:
        assert setting.speedup is None or setting.speedup.low <= setting.speedup.high


def test_an_alarm_is_read_whole() -> None:
    written = alarmed_json()
    bench = parse_bench(json.loads(json.dumps(written)))
    assert bench is not None
    assert bench.accept is not None
    alarm = bench.accept.alarm
    assert alarm is not None
    assert (alarm.kind, alarm.fired, alarm.start, alarm.wiring) == ("short", True, 2, True)
    assert [one.position for one in alarm.positions] == [1, 2, 3]
    assert alarm.words == written["accept"]["alarm"]["words"]
    assert len(alarm.suspects) == len(written["accept"]["suspects"])
    assert alarm.suspects[0][:2] == ("drafting", "likely")
    assert bench.accept.diversity is not None
    assert bench.accept.diversity.looping == 0.1


def test_what_it_says() -> None:
    bench = parse_bench(bench_json())
    assert bench is not None
    assert bench.chosen is not None
    assert bench.chosen.label == "3/1/4"
    assert "1.20 to 1.50: all of it above 1" in bench.why
    assert {setting.label: setting.dominated_by for setting in bench.settings} == {
        "baseline": "3/1/4",
        "3/1/4": None,
        "1/1/2": "3/1/4",
    }
    assert bench.accept is not None
    # 205 + 150 + 105 of 750 pass the first position, 255 of those 460 the second.
    assert [round(rate, 3) for rate in bench.accept.predicted_by_position] == [0.613, 0.554, 0.412]


def test_where_nothing_is_faster_the_best_is_named_and_the_baseline_recommended() -> None:
    bench = parse_bench(bench_json(low=0.98, value=1.04, high=1.1))
    assert bench is not None
    assert bench.recommended == "baseline"
    assert bench.chosen is not None
    assert bench.chosen.label == "3/1/4"
    assert "no setting is faster beyond noise; the best, 3/1/4" in bench.why


@given(st.text(max_size=12))
def test_a_setting_is_three_counts_or_nothing(label: str) -> None:
    found = parse_setting(label)
    assert found is None or all(0 <= value < 1000 for value in found)
    assert parse_setting("3/1/4") == (3, 1, 4)


def test_numbers_beyond_all_bounds_are_not_known() -> None:
    data = bench_json()
    data["accept"]["gap"] = math.inf
    data["accept"]["served"] = 1e300
    bench = parse_bench(data)
    assert bench is not None
    assert bench.accept is not None
    assert (bench.accept.gap, bench.accept.served) == (None, None)
