"""Are the pieces of rows, taken together, the same rows in the same order?"""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from eagle3ops.features.pieces import parts


@st.composite
def in_memory(draw: st.DrawFn) -> list[Tensor]:
    """Rows of one memory, in places of their own, or columns of it; some neighbours, some not, some empty."""
    whole = torch.arange(60.0).view(20, 3).to(draw(st.sampled_from((torch.float32, torch.bfloat16, torch.int32))))
    if draw(st.booleans()):
        whole = whole[:, : draw(st.integers(1, 3))]
    pieces: list[Tensor] = []
    end = 0
    for follows in draw(st.lists(st.booleans(), max_size=8)):
        first = end if follows else draw(st.integers(0, 19))
        piece = whole[first : first + draw(st.integers(0, 6))]
        end = first + len(piece)
        pieces.append(piece.clone() if draw(st.booleans()) else piece)
    return pieces


@given(in_memory(), st.integers(1, 200))
def test_the_rows_are_those_of_the_pieces(pieces: list[Tensor], most: int) -> None:
    found = list(parts(pieces, most))
    assert all(len(part) for part in found)
    rows = [row for piece in pieces for row in piece.tolist()]
    assert [row for part in found for row in part.tolist()] == rows
    assert all(len(part) == 1 or part[0].numel() * part.itemsize * len(part) <= most for part in found)


def test_neighbours_in_memory_are_not_copied() -> None:
    whole = torch.arange(80.0).view(20, 4)
    columns = [whole[a:b, :3] for a, b in ((0, 4), (4, 5), (5, 5), (5, 20))]
    (part,) = parts(columns)
    assert part.data_ptr() == whole.data_ptr()
    assert torch.equal(part, whole[:, :3])
    # Another order, another memory or another width are not neighbours.
    assert len(list(parts([whole[4:], whole[:4]], 4))) == 20
    (copied,) = parts([whole[4:], whole[:4]])
    assert torch.equal(copied, torch.cat((whole[4:], whole[:4])))
    (mixed,) = parts([whole[:4], whole.clone()[4:]])
    assert torch.equal(mixed, whole)


def test_what_only_seems_to_follow_is_copied() -> None:
    whole = torch.arange(80.0).view(20, 4)
    # Every second row, then the rows from where they would go on.
    (part,) = parts([whole[0:4:2], whole[4:6]])
    assert torch.equal(part, torch.cat((whole[0:4:2], whole[4:6])))
    # One address, and a storage that ends sooner.
    numbers = np.arange(8.0)
    first, rest = torch.from_numpy(numbers[:4]), torch.from_numpy(numbers)[4:]
    (part,) = parts([first, rest])
    assert part.tolist() == numbers.tolist()
    # The same place in the same memory, in numbers of another kind.
    ints = torch.arange(8, dtype=torch.int32)
    (part,) = parts([ints[:4], ints.view(torch.float32)[4:]])
    assert part.tolist()[:4] == [0, 1, 2, 3]
    assert part.tolist()[4:] == ints.view(torch.float32)[4:].tolist()
