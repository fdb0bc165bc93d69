"""Which rows, positions and teacher states does one training batch hold?

Documents lie end to end in a packed `[T, ...]` layout, so no linear layer ever sees padding. Index p of a document is
trained at draft step i exactly where the *predicted* token, p + 2 + i, was written by the target:

    g = fc(aux[p]);  step i reads the embedding of token p + 1 + i and predicts token p + 2 + i;
    its teacher is the target's distribution at position p + 1 + i.

Indices that are trained at no step need keys and values only; the others are the batch's *query rows*.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """One conversation to train on.

    Attributes:
        token_ids: `[L]`; loss_mask: bool `[L]`, about the token itself.
        aux: `[L, A*H]`; final: `[L, H]` before the norm.
        argmax: int `[L]`, the target's own most likely next token at every position (full vocabulary).
    """

    token_ids: Tensor
    loss_mask: Tensor
    aux: Tensor
    final: Tensor
    argmax: Tensor

    def __len__(self) -> int:
        return int(self.token_ids.numel())


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What one draft step trains.

    Attributes:
        next_ids: `[N]`, token p + 1 + i of every query row (0 beyond the document's end).
        rows: `[n]`, the query rows trained at this step.
        teacher: `[n]`, for each of them a row of the batch's teacher states.
        known: `[k]`, which of them (indices into `rows`) are taught a token that can be drafted.
    """

    next_ids: Tensor
    rows: Tensor
    teacher: Tensor
    known: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Packed documents: T key rows, of which N are query rows, over R documents.

    Attributes:
        aux: `[T, A*H]`; next_ids: `[T]`, token p + 1; positions: `[T]`, p.
        query_rows: `[N]`, into T; query_positions: `[N]`.
        key_slots: `[T]`, place of each key in the padded layout `[R, keys_max]`; query_slots: `[N]`, likewise.
        visible: bool `[R, queries_max, keys_max]`, the causal mask of step-0 keys.
        steps: one entry a draft step.
        teacher_final: `[M, H]`, final states (before the norm) of the positions some step is taught by.
        teacher_argmax: `[M]`.
    """

    aux: Tensor
    next_ids: Tensor
    positions: Tensor
    query_rows: Tensor
    query_positions: Tensor
    key_slots: Tensor
    query_slots: Tensor
    visible: Tensor
    steps: tuple[Step, ...]
    teacher_final: Tensor
    teacher_argmax: Tensor

    @property
    def trained(self) -> int:
        """Trained positions, summed over the steps."""
        return sum(step.rows.numel() for step in self.steps)

    def tensors(self) -> Iterator[Tensor]:
        """All of them."""
        parts: tuple[Batch | Step, ...] = (self, *self.steps)
        for part in parts:
            yield from (value for field in fields(part) if isinstance(value := getattr(part, field.name), Tensor))


def trained_positions(loss_mask: Tensor, step: int) -> Tensor:
    """Indices p with `loss_mask[p + 2 + step]`, for one document."""
    return loss_mask[2 + step :].nonzero().flatten()


def _mover(device: torch.device | None) -> Callable[[Tensor], Tensor]:
    """How tensors get from here to `device`: to a GPU from pinned memory, so that nobody waits for the copy."""
    if device is None or device.type != "cuda":
        return lambda tensor: tensor.to(device)
    return lambda tensor: tensor.pin_memory().to(device, non_blocking=True)


def pack(
    documents: Sequence[Document],
    steps: int,
    device: torch.device | None = None,
    *,
    draftable: Tensor | None = None,
) -> Batch | None:
    """Make one batch; None where nothing in it is trained.

    A document's keys end at its last trained index: later ones can be seen by no query. All documents are worked on at
    once, end to end; one after the other they took longer than a GPU takes for a step. Whatever has a length that
    depends on the data is found here, on the CPU: found on a GPU, every such length would stop the queue of its work.

    Args:
        draftable: bool `[V]` on the CPU, the tokens of the draft vocabulary; None for all.
    """
    move = _mover(device)
    lengths = torch.tensor([len(document) for document in documents])
    document = torch.repeat_interleave(torch.arange(lengths.numel()), lengths)
    position = torch.arange(document.numel()) - (lengths.cumsum(0) - lengths)[document]
    left = lengths[document] - position

    def ahead(values: Tensor, distance: int) -> Tensor:
        """What stands so many tokens on, zero beyond the end of the document."""
        out = torch.zeros_like(values)
        out[:-distance] = values[distance:]
        return out.masked_fill_(left <= distance, 0)

    tokens = torch.cat([document.token_ids for document in documents]).long()
    mask = torch.cat([document.loss_mask for document in documents])
    trained = [ahead(mask, 2 + number) for number in range(steps)]
    query = torch.stack(trained).any(0)
    if not bool(query.any()):
        return None
    # Step i at p is taught at p + 1 + i, that is where the next token is trained; position 0 teaches nothing.
    taught = ahead(mask, 1) & (position > 0)
    keys = torch.zeros_like(lengths).scatter_reduce(0, document[query], position[query] + 1, "amax")
    key = position < keys[document]
    rank_of_query, rank_of_key, rank_of_taught = (flags.cumsum(0) - 1 for flags in (query, key, taught))
    # Documents that train nothing are left out, and do not count.
    number = (keys > 0).cumsum(0) - 1
    queries = torch.bincount(document[query], minlength=lengths.numel())
    keys_max, queries_max, count = int(keys.max()), int(queries.max()), int(number[-1]) + 1
    rank = rank_of_query[query] - (queries.cumsum(0) - queries)[document[query]]
    query_slots = number[document[query]] * queries_max + rank
    # A padding query sees key 0, so that its softmax is finite; nothing reads it.
    horizon = torch.zeros(count * queries_max, dtype=torch.int64)
    horizon[query_slots] = position[query]
    teachers = torch.bincount(document[taught], minlength=lengths.numel()).tolist()
    sources = torch.split(position[taught], teachers)

    argmax = torch.cat([document.argmax for document in documents])[taught].long()
    can_be_drafted = torch.ones_like(argmax, dtype=torch.bool) if draftable is None else draftable[argmax]

    def step(number: int, flags: Tensor) -> Step:
        teacher = rank_of_taught[flags.nonzero().flatten() + 1 + number]
        known = can_be_drafted[teacher].nonzero().flatten()
        return Step(move(ahead(tokens, 1 + number)[query]), move(rank_of_query[flags]), move(teacher), move(known))

    return Batch(
        aux=move(torch.cat([one.aux[:length] for one, length in zip(documents, keys.tolist(), strict=True)])),
        next_ids=move(ahead(tokens, 1)[key]),
        positions=move(position[key]),
        query_rows=move(rank_of_key[query]),
        query_positions=move(position[query]),
        key_slots=move(number[document[key]] * keys_max + position[key]),
        query_slots=move(query_slots),
        visible=move(torch.arange(keys_max) <= horizon.view(count, queries_max, 1)),
        steps=tuple(step(number, flags) for number, flags in enumerate(trained)),
        teacher_final=move(torch.cat([one.final[at] for one, at in zip(documents, sources, strict=True)])),
        teacher_argmax=move(argmax),
    )


def plan_epoch(lengths: Sequence[int], tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """Indices of the documents of every batch of one epoch: shuffled by seed and epoch, filled to `tokens`.

    The order depends on nothing else, so a resumed run sees the batches that the killed one would have seen.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(len(lengths), generator=generator).tolist()
    batches: list[list[int]] = []
    filled = tokens
    for index in order:
        if filled + lengths[index] > tokens:
            batches.append([])
            filled = 0
        batches[-1].append(index)
        filled += lengths[index]
    return batches


def batches_from(lengths: Sequence[int], tokens: int, seed: int, start: int) -> Iterator[tuple[int, list[int]]]:
    """Endless `(epoch, documents)` from batch number `start` on, counted over all epochs."""
    if not lengths:
        return
    epoch, number = 0, 0
    while True:
        for batch in plan_epoch(lengths, tokens, seed, epoch):
            if number >= start:
                yield epoch, batch
            number += 1
        epoch += 1
