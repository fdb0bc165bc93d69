"""The renewal walk counts what a server counts."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eagle3ops.eagle3.checkpoint import load_drafter
from eagle3ops.eagle3.drafter import Drafter
from eagle3ops.eagle3.packing import Document
from eagle3ops.eagle3.renewal import Renewal, answer_spans, count_correct, predict_rows, walk
from eagle3ops.eagle3.target_head import TargetHead
from eagle3ops.features import FeatureRow


def test_accept_length_counts_the_bonus_token() -> None:
    recorded = Renewal((4013, 2558, 1547, 6105))  # verify steps of a real engine, 3 drafts, 200 answers
    assert recorded.accept_length == pytest.approx(2.684, abs=0.002)
    assert recorded.per_position()[0] == pytest.approx(1 - 4013 / 14223)


def test_the_walk_jumps_over_what_was_accepted() -> None:
    # Answer tokens 4..11; drafting starts at p = 3, and correct[p] drafts equal tokens p + 2, p + 3, ...
    correct = [9, 9, 9, 2, 9, 9, 0, 3, 9, 9, 9, 9]
    assert list(walk(correct, 4, 12)) == [2, 0, 3]
    assert list(walk([0] * 12, 4, 6)) == [0]
    assert list(walk([3] * 12, 4, 6)) == [1], "no more can be accepted than the answer holds"
    assert list(walk([3] * 12, 4, 5)) == []


def test_every_answer_of_a_conversation_is_walked() -> None:
    assert answer_spans(torch.tensor([0, 1, 1, 0, 0, 1], dtype=torch.bool)) == [(1, 3), (5, 6)]


@torch.no_grad()
def draft_one_by_one(drafter: Drafter, head: TargetHead, document: Document, p: int, steps: int) -> list[int]:
    """The greedy chain after the prefix 0..p, recomputed in full for every draft by dense attention."""
    ids = document.token_ids.long()
    states = [drafter.fuse(document.aux[i]) for i in range(p + 1)]
    reads = [int(ids[i + 1]) for i in range(p + 1)]
    out: list[int] = []
    for _ in range(steps):
        positions = torch.arange(len(states))
        q, k, v = drafter.project(head.embed(torch.tensor(reads)), torch.stack(states), positions)
        k, v = (t.repeat_interleave(2, 1) for t in (k, v))
        weights = (torch.einsum("hd,khd->hk", q[-1], k) / 2.0).softmax(-1)
        hidden = drafter.finish(states[-1], torch.einsum("hk,khd->hd", weights, v))
        out.append(int(drafter.target_ids(drafter.logits(hidden).argmax())))
        states.append(hidden)
        reads.append(out[-1])
    return out


def test_the_chain_is_the_drafters_own(
    drafter_of: Callable[..., Drafter], document_of: Callable[..., Document], head: TargetHead
) -> None:
    drafter, steps = drafter_of(), 3
    documents = [document_of([0] * 3 + [1] * 10, 1), document_of([0, 0, 1, 1, 0, 0, 1, 1, 1, 1, 1], 2)]
    planted = []
    for number, document in enumerate(documents):
        # Plant text that the drafter drafts rightly for a while: accept 0 to 3 drafts, at several places.
        ids = document.token_ids.clone()
        for p, right in ((2, 2), (6, 3)) if number else ((3, 3), (8, 1)):
            view = Document(ids, document.loss_mask, document.aux, document.final, document.argmax)
            chain = draft_one_by_one(drafter, head, view, p, steps)
            for i in range(min(right, len(ids) - p - 2)):
                ids[p + 2 + i] = chain[i]
        planted.append(Document(ids, document.loss_mask, document.aux, document.final, document.argmax))
    counts = count_correct(drafter, planted, head.embed, steps)
    assert max(max(count) for count in counts) >= 2
    for document, count in zip(planted, counts, strict=True):
        for p in range(len(document) - 2):
            if not document.loss_mask[p + 2]:
                continue
            chain = draft_one_by_one(drafter, head, document, p, steps)
            text = [*document.token_ids[p + 2 : p + 2 + steps].tolist(), -1]
            same = [a == b for a, b in zip(chain, text, strict=False)] + [False]
            assert count[p] == same.index(False)


def test_several_chain_lengths_at_once_are_as_each_alone(
    drafter_of: Callable[..., Drafter], row_of: Callable[..., FeatureRow], head: TargetHead
) -> None:
    rows = [row_of(str(i), [0] * 3 + [1] * (6 + i), i) for i in range(5)]
    found = predict_rows(drafter_of(), rows, head.embed, (1, 3))
    assert found == {
        **predict_rows(drafter_of(), rows, head.embed, (1,)),
        **predict_rows(drafter_of(), rows, head.embed, (3,)),
    }
    assert found[1].verify_steps >= found[3].verify_steps > 0
    assert predict_rows(drafter_of(), [row_of("x", [0] * 9, 1)], head.embed, (3,))[3].verify_steps == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.recordings
def test_the_recorded_drafter_is_predicted_as_a_real_engine_served_it(recordings: Path) -> None:
    folder = os.environ.get("EAGLE3OPS_SMOLLM2")
    if folder is None:
        pytest.skip("EAGLE3OPS_SMOLLM2 does not name a folder with SmolLM2-135M-Instruct")
    from eagle3ops.engines.reference.model import Target

    target = Target.load(Path(folder), dtype=torch.float32, device="cpu")
    drafter = load_drafter(recordings / "gpu" / "drafter", 30)
    with gzip.open(recordings / "gpu" / "answers.jsonl.gz", "rt") as lines:
        rows = [row for line in lines if (row := json.loads(line))["split"] == "eval"][:64]
    want = [*drafter.config.aux_layers.boundary, 30]
    features = []
    for row in rows:
        ids = torch.tensor(row["input_ids"] + row["output_ids"])
        states = target.boundaries(ids[None], torch.tensor([len(ids)]), want)[:, 0]
        mask = torch.arange(len(ids)) >= len(row["input_ids"])
        aux: Tensor = states[:3].transpose(0, 1).flatten(1)
        features.append(FeatureRow(str(row.get("id")), ids, mask, aux, states[3]))
    found = predict_rows(drafter, features, target.embed, (3,))[3]
    assert found.accept_length == pytest.approx(2.684, rel=0.015)  # served by SGLang over 200 prompts
