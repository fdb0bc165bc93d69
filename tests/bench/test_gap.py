"""Noise is no alarm, a real gap is one, and the draft position where it starts is the one where it was made."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3ops.bench.accept import AcceptStats, combine
from eagle3ops.bench.gap import Gap, hold_against

RATES = (0.72, 0.75, 0.79)
"""As a real engine had them at 3 steps."""
# Renewal walks of one drafter over 60 recorded answers, fed the right boundaries and others.
WALKS = {
    "right": (1220, 721, 436, 1857),
    "all one later": (1627, 900, 526, 1599),
    "all one earlier": (1563, 849, 494, 1666),
    "swapped": (11261, 20, 8, 0),
}
SERVED = (4013, 2558, 1547, 6105)
"""What SGLang 0.5.14 served with that drafter to 200 prompts."""


def stats(histogram: tuple[int, ...]) -> AcceptStats:
    return AcceptStats(sum(histogram), sum(k * n for k, n in enumerate(histogram)), 0, histogram)


def spread(histogram: tuple[int, ...], answers: int) -> list[AcceptStats]:
    """The same steps, dealt out to answers one after another."""
    steps = [k for k, n in enumerate(histogram) for _ in range(n)]
    random.Random(0).shuffle(steps)
    parts = [steps[at::answers] for at in range(answers)]
    return [stats(tuple(part.count(k) for k in range(len(histogram)))) for part in parts]


def drawn(rates: tuple[float, ...], answers: int, steps: int, seed: int, sway: float = 0.0) -> list[AcceptStats]:
    """Answers whose drafts are accepted with these chances; `sway` moves an answer's chances together."""
    generator = random.Random(seed)
    found = []
    for _ in range(answers):
        shift = generator.uniform(-sway, sway)
        histogram = [0] * (len(rates) + 1)
        for _ in range(steps):
            taken = 0
            while taken < len(rates) and generator.random() < rates[taken] + shift:
                taken += 1
            histogram[taken] += 1
        found.append(stats(tuple(histogram)))
    return found


def test_recorded_walks_against_what_was_served() -> None:
    found = {name: hold_against(walk, spread(SERVED, 200), 0.05) for name, walk in WALKS.items()}
    assert {name: gap.kind for name, gap in found.items()} == {
        "right": "as predicted", "all one later": "above", "all one earlier": "above", "swapped": "above",
    }  # fmt: skip
    assert found["right"].relative == pytest.approx(-0.003, abs=0.001)
    assert {gap.start for name, gap in found.items() if name != "right"} == {1}


@pytest.mark.parametrize("place", [1, 2, 3])
def test_the_gap_starts_where_it_was_made(place: int) -> None:
    worse = tuple(rate - 0.4 * (at + 1 == place) for at, rate in enumerate(RATES))
    walk = combine(drawn(RATES, 60, 80, 1)).histogram
    gap = hold_against(walk, drawn(worse, 96, 60, 2), 0.05)
    assert (gap.kind, gap.start) == ("short", place)
    assert f"starts at draft position {place}" in gap.words
    most = min(gap.positions, key=lambda one: one.tokens)
    assert most.position == place
    assert sum(one.tokens for one in gap.positions) == pytest.approx(gap.served - gap.predicted)


def test_a_late_position_that_costs_little_is_told_and_is_no_alarm() -> None:
    walk = combine(drawn(RATES, 60, 80, 1)).histogram
    gap = hold_against(walk, drawn((*RATES[:2], 0.6), 96, 60, 2), 0.05)
    assert (gap.kind, gap.start) == ("as predicted", 3)
    assert "draft position 3" in gap.words


def test_noise_is_rarely_an_alarm_even_where_answers_are_unlike_each_other() -> None:
    """Twelve answers and an allowance of nothing: the interval alone has to hold alarms back."""
    alarms = starts = 0
    for seed in range(120):
        walk = combine(drawn(RATES, 12, 40, 2 * seed, sway=0.15)).histogram
        gap = hold_against(walk, drawn(RATES, 12, 40, 2 * seed + 1, sway=0.15), 1e-9)
        alarms += gap.alarm
        starts += gap.start is not None
    # 5 % of 120 are 6; without the design effect there were more than 40.
    assert alarms <= 14
    assert starts <= 14


def test_few_steps_are_unclear_and_say_what_would_help() -> None:
    gap = hold_against((20, 10, 6, 10), drawn((0.5, 0.6, 0.6), 3, 8, 5), 0.01)
    assert gap.kind == "unclear"
    assert not gap.alarm
    assert "accept_prompts" in gap.words


def test_an_engine_without_a_histogram_still_raises_the_alarm() -> None:
    served = [AcceptStats(60, 66, 180, ()) for _ in range(50)]
    gap = hold_against(WALKS["right"], served, 0.05)
    assert (gap.kind, gap.start, gap.positions) == ("short", None, ())


def test_nothing_to_compare_is_refused() -> None:
    with pytest.raises(ValueError, match="no verification steps"):
        hold_against((0, 0), [stats((1, 1))], 0.05)
    with pytest.raises(ValueError, match="no verification steps"):
        hold_against((1, 1), [], 0.05)


histograms = st.lists(st.integers(0, 300), min_size=1, max_size=8).map(tuple)


@settings(deadline=None)
@given(histograms.filter(sum), st.lists(histograms, min_size=1, max_size=6), st.floats(0.001, 1.0))
def test_whatever_the_counts_the_numbers_hold_together(
    walk: tuple[int, ...], parts: list[tuple[int, ...]], allowed: float
) -> None:
    answers = [stats(part) for part in parts]
    if not combine(answers).verify_steps:
        return
    gap: Gap = hold_against(walk, answers, allowed)
    assert gap.low <= gap.relative + 1e-9
    assert gap.relative <= gap.high + 1e-9
    assert gap.alarm is (abs(gap.relative) > allowed and not gap.low <= 0.0 <= gap.high)
    for one in gap.positions:
        assert -1.0 - 1e-9 <= one.low <= one.served - one.predicted + 1e-9
        assert one.served - one.predicted <= one.high + 1e-9
    assert gap.start is None or any(one.position == gap.start and one.beyond_noise for one in gap.positions)
    assert gap.words
