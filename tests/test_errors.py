"""What is told of several tasks that failed at once."""

import pytest

from eagle3ops.errors import Eagle3opsError, RequestError, first_failure


def test_the_first_failure_comes_alone_and_not_in_a_group() -> None:
    first, group = RequestError("a"), ExceptionGroup("", [Eagle3opsError("b")])
    with pytest.raises(RequestError) as caught, first_failure():
        raise ExceptionGroup("", [ExceptionGroup("", [first]), group])
    assert caught.value is first
    with pytest.raises(RequestError) as caught, first_failure():
        raise first
    assert caught.value is first


def test_it_can_be_told_in_other_words() -> None:
    with pytest.raises(RequestError, match="told: a"), first_failure(lambda error: RequestError(f"told: {error.what}")):
        raise ExceptionGroup("", [Eagle3opsError("a")])
    with pytest.raises(RequestError, match="told: a"), first_failure(lambda error: RequestError(f"told: {error.what}")):
        raise Eagle3opsError("a")


def test_what_is_none_of_ours_goes_on_as_it_came() -> None:
    mixed = ExceptionGroup("", [Eagle3opsError("a"), ValueError("b")])
    with pytest.raises(ExceptionGroup) as caught, first_failure():
        raise mixed
    assert caught.value is mixed
    with pytest.raises(KeyboardInterrupt), first_failure():
        raise KeyboardInterrupt
