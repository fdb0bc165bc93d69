"""The draft vocabulary: counted on the target's own tokens, padded, never larger than the target's."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.eagle3.checkpoint import check_vocabulary
from eagle3ops.eagle3.vocab import build_vocabulary, count_tokens
from eagle3ops.errors import RequestError


def test_only_the_targets_own_tokens_count() -> None:
    ids, mask = torch.tensor([3, 3, 3, 5, 6, 5]), torch.tensor([0, 0, 0, 1, 1, 1], dtype=torch.bool)
    assert count_tokens([(ids, mask), (ids, mask)], 8).tolist() == [0, 0, 0, 0, 0, 4, 2, 0]


def test_too_few_tokens_are_padded_by_the_lowest_unused_ids() -> None:
    counts = torch.tensor([0, 0, 0, 9, 0, 2])
    vocabulary = build_vocabulary(counts, 4)
    assert vocabulary.ids.tolist() == [0, 1, 3, 5]
    assert vocabulary.d2t.tolist() == [0, 0, 1, 2]
    assert (vocabulary.unique, vocabulary.coverage) == (2, 1.0)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.data())
def test_the_map_is_sound_and_covers_the_most(counts: list[int], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(counts)))
    tensor = torch.tensor(counts)
    if not any(counts):
        with pytest.raises(RequestError, match="every loss mask is empty"):
            build_vocabulary(tensor, size)
        return
    vocabulary = build_vocabulary(tensor, size)
    assert check_vocabulary(vocabulary.d2t, vocabulary.t2d, len(counts)) == []
    assert vocabulary.coverage == pytest.approx(sum(sorted(counts)[-size:]) / sum(counts))


@pytest.mark.parametrize("size", [0, 7])
def test_a_vocabulary_larger_than_the_targets_is_refused(size: int) -> None:
    with pytest.raises(RequestError, match="cannot be chosen"):
        build_vocabulary(torch.ones(6, dtype=torch.int64), size)


def test_a_token_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(RequestError, match="token 9 does not exist"):
        count_tokens([(torch.tensor([9]), torch.tensor([True]))], 8)
