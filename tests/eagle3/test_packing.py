"""A packed batch against what it says it holds, worked out token by token."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.eagle3.packing import Document, pack

WIDTH = 2


def made(masks: list[list[bool]]) -> list[Document]:
    """Documents in which every number is found once."""
    documents, first = [], 1
    for mask in masks:
        ids = torch.arange(first, first + len(mask))
        first += len(mask)
        states = ids.float()[:, None].expand(-1, WIDTH)
        documents.append(Document(ids.int(), torch.tensor(mask), states, states + 0.5, (ids + 1000).int()))
    return documents


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=9), min_size=1, max_size=5), st.integers(1, 4))
def test_a_batch_holds_what_it_says(masks: list[list[bool]], steps: int) -> None:
    documents = made(masks)
    draftable = torch.arange(2000) % 3 != 0
    batch = pack(documents, steps, draftable=draftable)
    # (document, index) in the order of the batch.
    trained = [
        [(d, p) for d, mask in enumerate(masks) for p in range(len(mask) - 2 - step) if mask[p + 2 + step]]
        for step in range(steps)
    ]
    queries = sorted({place for step in trained for place in step})
    if not queries:
        assert batch is None
        return
    assert batch is not None
    ends = dict(queries)
    kept = sorted(ends)
    keys = [(d, p) for d in kept for p in range(ends[d] + 1)]
    token = {(d, p): int(documents[d].token_ids[p]) for d, mask in enumerate(masks) for p in range(len(mask))}
    assert batch.aux.tolist() == [[float(token[place])] * WIDTH for place in keys]
    assert batch.next_ids.tolist() == [token[d, p + 1] for d, p in keys]
    assert batch.positions.tolist() == [p for _, p in keys]
    assert batch.query_rows.tolist() == [keys.index(place) for place in queries]
    assert batch.query_positions.tolist() == [p for _, p in queries]

    keys_max = 1 + max(p for _, p in keys)
    ranks = [sum(other == d for other, _ in queries[:row]) for row, (d, _) in enumerate(queries)]
    assert batch.key_slots.tolist() == [kept.index(d) * keys_max + p for d, p in keys]
    assert batch.query_slots.tolist() == [
        kept.index(d) * (1 + max(ranks)) + rank for (d, _), rank in zip(queries, ranks, strict=True)
    ]
    seen = batch.visible.flatten(0, 1)
    for slot, (_, p) in zip(batch.query_slots.tolist(), queries, strict=True):
        assert seen[slot].tolist() == [key <= p for key in range(keys_max)]
    assert bool(batch.visible[..., 0].all()), "a query that stands for none still sees something"

    taught = {(d, p + 1 + step) for step, places in enumerate(trained) for d, p in places}
    teachers = sorted(taught)
    assert batch.teacher_final.tolist() == [[token[place] + 0.5] * WIDTH for place in teachers]
    assert batch.teacher_argmax.tolist() == [token[place] + 1000 for place in teachers]
    for number, (step, places) in enumerate(zip(batch.steps, trained, strict=True)):
        assert step.next_ids.tolist() == [token.get((d, p + 1 + number), 0) for d, p in queries]
        assert step.rows.tolist() == [queries.index(place) for place in places]
        assert step.teacher.tolist() == [teachers.index((d, p + 1 + number)) for d, p in places]
        taught_tokens = [token[d, p + 1 + number] + 1000 for d, p in places]
        assert step.known.tolist() == [index for index, taught in enumerate(taught_tokens) if taught % 3]
    assert batch.trained == sum(map(len, trained))
