"""How are the pieces of many rows worked on together?

Every call into torch gives the interpreter's lock away and waits to get it back. With ten threads, whose wake-ups take
longer than what they do, a handful of calls for each row was what extraction waited for, not bytes (decision 56).
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

MOST_BYTES = 32 << 20
"""Of one part: few calls, and little memory beside the pieces themselves."""


def parts(pieces: Sequence[Tensor], most: int = MOST_BYTES) -> Iterator[Tensor]:
    """The same rows in the same order in fewer tensors, each of at most `most` bytes or of one row.

    Pieces that lie one behind the other in memory are seen as one; others are copied together. The tensors are read
    from, never written to.

    Args:
        pieces: of one dtype, and of one shape behind the first dimension.
    """
    small: list[Tensor] = []
    size = 0
    for whole in _seen_as_one(pieces):
        row = whole[0].numel() * whole.itemsize
        rows = max(1, most // max(1, row))
        for first in range(0, whole.shape[0], rows):
            part = whole[first : first + rows] if whole.shape[0] > rows else whole
            nbytes = part.shape[0] * row
            if small and size + nbytes > most:
                yield _joined(small)
                small, size = [], 0
            small.append(part)
            size += nbytes
    if small:
        yield _joined(small)


def _joined(small: Sequence[Tensor]) -> Tensor:
    return small[0] if len(small) == 1 else torch.cat(list(small))


def _seen_as_one(pieces: Sequence[Tensor]) -> Iterator[Tensor]:
    """Pieces without rows are left out."""
    first: Tensor | None = None
    rows = 0
    for piece in pieces:
        if not piece.shape[0]:
            continue
        if first is not None and _follows(first, rows, piece):
            rows += piece.shape[0]
            continue
        if first is not None:
            yield first.as_strided((rows, *first.shape[1:]), first.stride())
        first, rows = piece, piece.shape[0]
    if first is not None:
        yield first.as_strided((rows, *first.shape[1:]), first.stride())


def _follows(first: Tensor, rows: int, piece: Tensor) -> bool:
    """Whether `piece` lies where row number `rows` of `first` would."""
    return (
        piece.dtype == first.dtype
        and piece.stride() == first.stride()
        and piece.storage_offset() == first.storage_offset() + rows * first.stride(0)
        and piece.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        # At one address there may be a view that ends sooner.
        and piece.untyped_storage().nbytes() == first.untyped_storage().nbytes()
    )
