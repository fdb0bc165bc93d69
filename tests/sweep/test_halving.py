"""Are only those points dropped that rank low, or lie below all that go on, and is the forecast the schedule?"""

from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.bench.paired import Ratio
from eagle3ops.sweep.halving import Halving, decide
from eagle3ops.sweep.schedule import schedule

ratios = st.tuples(st.floats(0.1, 5), st.floats(0, 1), st.floats(0, 1)).map(
    lambda drawn: Ratio(drawn[0], drawn[0] * (1 - drawn[1] / 2), drawn[0] * (1 + drawn[2]), 8)
)
fields = st.dictionaries(st.integers(0, 40).map(str), ratios, min_size=1, max_size=20)


@given(fields, st.integers(2, 5), st.booleans())
def test_who_goes_on(field: dict[str, Ratio], eta: int, by_rank: bool) -> None:
    halving = Halving(eta=eta, by_rank=by_rank)
    decisions = decide(field, halving)
    assert sorted(one.label for one in decisions) == sorted(field)
    kept = [one for one in decisions if one.kept]
    keep = halving.keepers(len(field))
    assert len(kept) == keep if by_rank else len(kept) >= keep
    best = max(ratio.value for ratio in field.values())
    assert field[kept[0].label].value == best
    for one in decisions:
        if not one.kept:
            assert all(field[one.label].value <= field[other.label].value for other in decisions[:keep])
            if not by_rank:
                assert all(field[one.label].high < field[other.label].low for other in decisions[:keep])
        assert one.why


def test_a_point_that_may_be_as_good_stays_where_bounds_decide() -> None:
    field = {"a": Ratio(1.5, 1.3, 1.7, 8), "b": Ratio(1.4, 1.2, 1.6, 8), "c": Ratio(0.5, 0.4, 0.6, 8)}
    outcome = {one.label: one for one in decide(field, Halving(eta=3, by_rank=False))}
    assert outcome["b"].kept
    assert not outcome["c"].kept
    assert outcome["c"].why == "its upper bound 0.60 lies below 1.30, the lowest bound of those that go on"
    outcome = {one.label: one for one in decide(field, Halving(eta=3))}
    assert not outcome["b"].kept
    assert outcome["b"].why == "place 2 of 3, 1 go on"


def test_fourteen_points_at_once_need_no_restart() -> None:
    halving = Halving(first=8, eta=2, rungs=3)
    found = schedule({1: 14}, 14, halving, final_pairs=32, lanes=1, room=14)
    assert found.field == (14, 7, 4)
    assert (found.starts, found.waves) == (15, 1)
    assert found.requests == 2 * (14 * 8 + 7 * 16 + 4 * 32) + 3 * 32


def test_with_less_room_survivors_are_started_again() -> None:
    found = schedule({1: 14}, 14, Halving(first=8, eta=2, rungs=3), final_pairs=32, lanes=1, room=6)
    assert found.waves == 3 + 2 + 1 + 1
    two = schedule({1: 14}, 14, Halving(first=8, eta=2, rungs=3), final_pairs=32, lanes=2, room=7)
    assert (two.starts, two.waves) == (16, 1)
    assert two.sequential_requests < found.sequential_requests


@given(st.integers(1, 30), st.integers(2, 4), st.integers(1, 5))
def test_the_forecast_ends_with_one_or_more(points: int, eta: int, rungs: int) -> None:
    sizes = Halving(eta=eta, rungs=rungs).field_from(0, points)
    assert len(sizes) == rungs
    assert sizes == sorted(sizes, reverse=True)
    assert min(sizes) >= 1
