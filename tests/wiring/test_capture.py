"""Are an engine's hidden states taken as they are sent, and refused where they are none?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.errors import Eagle3opsError
from eagle3ops.wiring.capture import answer_states, prompt_states

ONE = st.none() | st.floats() | st.integers() | st.text(max_size=3)
NUMBERS = st.recursive(ONE, lambda inner: st.lists(inner, max_size=3), max_leaves=9)


def test_prompt_and_decoded_rows_are_told_apart() -> None:
    prompt, decoded = answer_states([[[1, 2], [3, 4]], [5, 6], [[7, 8], [9, 10]], []])
    assert prompt.tolist() == [[1, 2], [3, 4]]
    assert decoded.tolist() == [[5, 6], [7, 8], [9, 10]]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_refused_by_its_token(wrong: float) -> None:
    with pytest.raises(Eagle3opsError, match="1 of 3 tokens hold NaN or infinity, first of them token 1"):
        prompt_states([[[1, 2], [3, wrong], [5, 6]]])
    with pytest.raises(Eagle3opsError, match="token 0"):
        answer_states([[[1, 2]], [3, wrong]])


@given(NUMBERS)
def test_any_answer_is_rows_of_finite_numbers_or_refused(raw: object) -> None:
    try:
        prompt, decoded = answer_states(raw)
    except Eagle3opsError:
        return
    assert prompt.ndim == decoded.ndim == 2
    assert bool(prompt.isfinite().all())
    assert bool(decoded.isfinite().all())
