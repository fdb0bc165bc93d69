"""Which rows, positions and teacher states does one training batch hold?

Documents lie end to end in a packed `[T, ...]` layout, so no linear layer ever sees padding. Index p of a document is
trained at draft step i exactly where the *predicted* token, p + 2 + i, was written by the target:

    g = fc(aux[p]);  step i reads the embedding of token p + 1 + i and predicts token p + 2 + i;
    its teacher is the target's distribution at position p + 1 + i.

Indices that are trained at no step need keys and values only; the others are the batch's *query rows*.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
    """

    next_ids: Tensor
    rows: Tensor
    teacher: Tensor


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


def trained_positions(loss_mask: Tensor, step: int) -> Tensor:
    """Indices p with `loss_mask[p + 2 + step]`, for one document."""
    return loss_mask[2 + step :].nonzero().flatten()


def pack(documents: Sequence[Document], steps: int, device: torch.device | None = None) -> Batch | None:
    """Make one batch; None where nothing in it is trained.

    A document's keys end at its last trained index: later ones can be seen by no query.
    """
    aux, next_ids, positions, final, argmax = [], [], [], [], []
    query_rows, key_documents, query_documents, query_ranks = [], [], [], []
    step_ids: list[list[Tensor]] = [[] for _ in range(steps)]
    step_rows: list[list[Tensor]] = [[] for _ in range(steps)]
    step_teacher: list[list[Tensor]] = [[] for _ in range(steps)]
    keys = queries = taught = count = 0
    for document in documents:
        trained = [trained_positions(document.loss_mask, step) for step in range(steps)]
        rows = torch.unique(torch.cat(trained))
        if not rows.numel():
            continue
        length = int(rows[-1]) + 1
        tokens = document.token_ids.long()
        padded = torch.cat((tokens, tokens.new_zeros(steps)))
        # The last trained index of step i is taught at length of document - 2 at most.
        sources = torch.unique(torch.cat([p + 1 + step for step, p in enumerate(trained)]))
        for step, p in enumerate(trained):
            step_ids[step].append(padded[rows + 1 + step])
            step_rows[step].append(torch.searchsorted(rows, p) + queries)
            step_teacher[step].append(torch.searchsorted(sources, p + 1 + step) + taught)
        aux.append(document.aux[:length])
        next_ids.append(tokens[1 : length + 1])
        positions.append(torch.arange(length))
        final.append(document.final[sources])
        argmax.append(document.argmax[sources].long())
        query_rows.append(rows + keys)
        key_documents.append(torch.full((length,), count))
        query_documents.append(torch.full((rows.numel(),), count))
        query_ranks.append(torch.arange(rows.numel()))
        keys, queries, taught, count = keys + length, queries + rows.numel(), taught + sources.numel(), count + 1
    if not count:
        return None
    flat_positions, rows_all = torch.cat(positions), torch.cat(query_rows)
    keys_max = int(flat_positions.max()) + 1
    ranks = torch.cat(query_ranks)
    queries_max = int(ranks.max()) + 1
    query_slots = torch.cat(query_documents) * queries_max + ranks
    # A padding query sees key 0, so that its softmax is finite; nothing reads it.
    horizon = torch.zeros(count * queries_max, dtype=torch.int64)
    horizon[query_slots] = flat_positions[rows_all]
    visible = torch.arange(keys_max) <= horizon.view(count, queries_max, 1)

    def move(tensor: Tensor) -> Tensor:
        return tensor.to(device) if device is not None else tensor

    return Batch(
        aux=move(torch.cat(aux)),
        next_ids=move(torch.cat(next_ids)),
        positions=move(flat_positions),
        query_rows=move(rows_all),
        query_positions=move(flat_positions[rows_all]),
        key_slots=move(torch.cat(key_documents) * keys_max + flat_positions),
        query_slots=move(query_slots),
        visible=move(visible),
        steps=tuple(
            Step(move(torch.cat(ids)), move(torch.cat(rows)), move(torch.cat(teacher)))
            for ids, rows, teacher in zip(step_ids, step_rows, step_teacher, strict=True)
        ),
        teacher_final=move(torch.cat(final)),
        teacher_argmax=move(torch.cat(argmax)),
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
