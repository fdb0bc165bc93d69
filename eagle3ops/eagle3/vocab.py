"""Which tokens may a drafter propose? The most frequent ones among those the target itself wrote."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3ops.errors import RequestError


@dataclass(frozen=True, slots=True, eq=False)
class DraftVocabulary:
    """A draft vocabulary and how much of the text it covers.

    Attributes:
        ids: int64 `[N]`, ascending.
        unique: how many different tokens the counted text holds; fewer than N means that ids were padded.
        coverage: share of the counted tokens that are in it, 0 to 1.
    """

    ids: Tensor
    vocab_size: int
    unique: int
    coverage: float

    @property
    def d2t(self) -> Tensor:
        """Offsets: draft id i stands for token `i + d2t[i]`; int64 `[N]`."""
        return self.ids - torch.arange(self.ids.numel())

    @property
    def t2d(self) -> Tensor:
        """Whether a token is in it; bool `[V]`."""
        mask = torch.zeros(self.vocab_size, dtype=torch.bool)
        mask[self.ids] = True
        return mask


def count_tokens(rows: Iterable[tuple[Tensor, Tensor]], vocab_size: int) -> Tensor:
    """Occurrences of every token, int64 `[V]`, over `(token_ids, loss_mask)` where the mask is set.

    Raises:
        RequestError: a token id is outside the vocabulary, so the rows belong to another target.
    """
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for token_ids, loss_mask in rows:
        ids = token_ids[loss_mask].long()
        if not ids.numel():
            continue
        if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
            raise RequestError(
                f"token {int(ids.max())} does not exist in a vocabulary of {vocab_size}",
                remedy="extract the features with the target that is trained for",
            )
        counts += torch.bincount(ids, minlength=vocab_size)
    return counts


def build_vocabulary(counts: Tensor, size: int) -> DraftVocabulary:
    """The `size` most frequent tokens; equal counts go to the lower id, missing ones are padded by the lowest ids.

    Raises:
        RequestError: `size` is not between 1 and the target's vocabulary, or nothing was counted.
    """
    vocab_size = counts.numel()
    if not 1 <= size <= vocab_size:
        raise RequestError(
            f"a draft vocabulary of {size} tokens cannot be chosen from a target vocabulary of {vocab_size}",
            remedy="set draft_vocab_size to at most the target's vocabulary",
        )
    total = int(counts.sum())
    if total == 0:
        raise RequestError(
            "the features hold no token that the target wrote: every loss mask is empty",
            remedy="check the chat template and the loss mask of the extracted rows",
        )
    # A stable sort gives ties, and the tokens never seen, in ascending order of id.
    ids = counts.argsort(descending=True, stable=True)[:size].sort().values
    return DraftVocabulary(
        ids=ids, vocab_size=vocab_size, unique=int((counts > 0).sum()), coverage=int(counts[ids].sum()) / total
    )


def coverage_of(ids: Tensor, counts: Tensor) -> float:
    """Share of the tokens in `counts` `[V]` that `ids` covers, 0 to 1."""
    return int(counts[ids].sum()) / max(1, int(counts.sum()))
