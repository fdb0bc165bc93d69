"""Does the Pareto front hold what no other point beats, and is a hair's breadth no difference?"""

from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.sweep.outcome import dominates

merits = st.lists(st.floats(0.01, 1e6), min_size=4, max_size=4)


@given(merits, merits)
def test_two_points_do_not_dominate_each_other(one: list[float], other: list[float]) -> None:
    assert not (dominates(one, other, 0.0) and dominates(other, one, 0.0))
    assert not dominates(one, one)


@given(merits, st.integers(0, 3), st.floats(1.1, 10))
def test_better_in_one_and_equal_in_the_rest_dominates(one: list[float], place: int, factor: float) -> None:
    better = list(one)
    better[place] *= factor
    assert dominates(better, one)
    assert not dominates(one, better)


def test_a_little_memory_saves_no_slow_point() -> None:
    fast, slow = (140.0, 135.0, 1.34, 1 / 371e6), (67.0, 66.0, 1.17, 1 / 369e6)
    assert dominates(fast, slow)
    assert not dominates(fast, (67.0, 66.0, 1.77, 1 / 371e6))
