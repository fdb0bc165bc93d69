"""Loops are found wherever they stand and however long their phrase is, and text is not taken for one."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3ops.bench.accept import AcceptStats
from eagle3ops.bench.diversity import LOOP_TIMES, LOOP_TOKENS, judge, longest_loop

PLAIN = AcceptStats(40, 40, 120, (15, 12, 11, 2))
EASY = AcceptStats(25, 74, 75, (0, 0, 1, 24))


def text(seed: int, length: int = 96) -> list[int]:
    """Tokens as of a text: no phrase follows itself."""
    return random.Random(seed).sample(range(10_000), length)


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(LOOP_TIMES, 12), st.integers(0, 60), st.integers(0, 60), st.integers(0, 9))
def test_a_phrase_said_often_enough_is_a_loop(period: int, times: int, before: int, after: int, seed: int) -> None:
    ids = text(seed, before + period + after)
    ids = [*ids[:before], *ids[before : before + period] * times, *ids[before + period :]]
    found = longest_loop(ids)
    assert found == (period * times if period * times >= LOOP_TOKENS else 0)


@given(st.lists(st.integers(0, 5), max_size=120))
def test_a_loop_is_a_stretch_of_the_answer(ids: list[int]) -> None:
    found = longest_loop(ids)
    assert found == 0 or LOOP_TOKENS <= found <= len(ids)
    if found:
        # Slow and sure: some stretch of that length repeats with a period that fits three times.
        assert any(
            all(a == b for a, b in zip(part, part[period:], strict=False))
            for start in range(len(ids) - found + 1)
            for part in [ids[start : start + found]]
            for period in range(1, found // LOOP_TIMES + 1)
        )


def test_loops_that_carry_the_accept_length_are_an_alarm() -> None:
    outputs = [text(at) for at in range(7)] + [[7, 8, 9] * 32 for _ in range(3)]
    found = judge(outputs, ["stop"] * 7 + ["length"] * 3, [PLAIN] * 7 + [EASY] * 3, outputs)
    assert not found.passed
    assert "looping text raises the accept length by 2" in found.words
    assert (found.served.looping, found.at_limit) == (0.3, 0.3)
    assert found.without_loops == pytest.approx(2.0)


def test_loops_as_in_the_data_that_change_little_are_none() -> None:
    outputs = [text(at) for at in range(9)] + [[7, 8, 9] * 32]
    found = judge(outputs, ["stop"] * 10, [PLAIN] * 10, outputs)
    assert found.passed
    assert "10% of 10 answers loop" in found.words


def test_text_that_is_poorer_than_the_data_is_an_alarm() -> None:
    outputs = [[*text(at, 20)] * 2 + text(at, 4) for at in range(30)]
    found = judge(outputs, ["stop"] * 30, [PLAIN] * 30, [text(at) for at in range(30)])
    assert found.served.looping == 0.0
    assert ["4-grams are distinct" in one for one in found.alarms] == [True]


def test_nothing_but_loops() -> None:
    found = judge([[3] * 64] * 4, ["length"] * 4, [EASY] * 4, [text(at) for at in range(4)])
    assert found.without_loops is None
    assert len(found.alarms) == 3


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), max_size=50), min_size=1, max_size=5), st.data())
def test_shares_are_shares(outputs: list[list[int]], data: st.DataObject) -> None:
    known = data.draw(st.lists(st.lists(st.integers(0, 9), max_size=50), max_size=5))
    found = judge(outputs, ["stop"] * len(outputs), [PLAIN] * len(outputs), known)
    for one in (found.served, *([found.data] if found.data else [])):
        assert all(0.0 <= share <= 1.0 for share in (*one.distinct, one.looping, one.looped_tokens))
    with pytest.raises(ValueError, match="answers"):
        judge(outputs, [], [PLAIN] * len(outputs))
