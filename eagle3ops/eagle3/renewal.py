"""What accept length will a server measure with this drafter?

A server drafts, accepts k drafts, adds the target's own token and starts again k + 1 tokens later, so hard passages
are visited more often than easy ones. Averaging over all positions overlooks that and promises too much (7 % at 3
steps, 25 % at 7); walking over held-out answers the way a server does met what a real engine served within 1 %.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3ops.eagle3.drafter import Drafter
from eagle3ops.eagle3.packing import Document, pack, trained_positions
from eagle3ops.eagle3.training_data import Row
from eagle3ops.eagle3.ttt import unroll


@dataclass(frozen=True, slots=True)
class Renewal:
    """Predicted accept statistics.

    Attributes:
        histogram: verify steps by number of correct drafts, index 0..steps.
    """

    histogram: tuple[int, ...]

    @property
    def verify_steps(self) -> int:
        """How many times the target would run."""
        return sum(self.histogram)

    @property
    def accept_length(self) -> float:
        """Tokens per verify step, the target's own (bonus) token included; 1.0 means that drafting gains nothing."""
        correct = sum(k * n for k, n in enumerate(self.histogram))
        return 1.0 + correct / max(1, self.verify_steps)

    def per_position(self) -> list[float]:
        """Share of the verify steps whose draft i and all before it were right, for each draft i."""
        total = max(1, self.verify_steps)
        return [sum(self.histogram[i:]) / total for i in range(1, len(self.histogram))]


def answer_spans(loss_mask: Tensor) -> list[tuple[int, int]]:
    """Runs `[start, end)` of True, for one document."""
    edges = torch.cat((loss_mask.new_zeros(1), loss_mask, loss_mask.new_zeros(1))).int().diff().nonzero().flatten()
    pairs = edges.tolist()
    return list(zip(pairs[::2], pairs[1::2], strict=True))


def walk(correct: list[int], start: int, end: int) -> Iterator[int]:
    """Correct drafts of each verify step over the answer `[start, end)`.

    Args:
        correct: for each index p, how many drafts made there equal the text from token p + 2 on.
    """
    # The first answer token comes from the prefill; drafting starts from the state before it.
    p = max(0, start - 1)
    while p + 2 < end:
        taken = min(correct[p], end - p - 2)
        yield taken
        p += taken + 1


@torch.no_grad()
def count_correct(
    drafter: Drafter, documents: list[Document], embed: Callable[[Tensor], Tensor], steps: int
) -> list[list[int]]:
    """For every index p of every document, how many greedy drafts from there equal the text.

    The drafter reads its own tokens and its own h, as in serving; all starting points are drafted at once.
    """
    device = drafter.fc.weight.device
    batch = pack(documents, 1, device)
    counts = [[0] * len(document) for document in documents]
    if batch is None:
        return counts
    picked: list[Tensor] = []

    def pick(hidden: Tensor) -> Tensor:
        ids = drafter.target_ids(drafter.logits(hidden).argmax(-1))
        picked.append(ids)
        return ids

    pick(unroll(drafter, batch, embed, steps=steps, pick=pick)[-1])
    drafts = torch.stack(picked, 1).cpu()
    rows = [trained_positions(document.loss_mask, 0) for document in documents]
    parts = torch.split(drafts, [row.numel() for row in rows])
    for count, document, p, draft in zip(counts, documents, rows, parts, strict=True):
        text = torch.cat((document.token_ids.long(), torch.full((steps,), -1)))
        truth = torch.stack([text[p + 2 + i] for i in range(steps)], 1)
        lengths = (draft == truth).long().cumprod(1).sum(1)
        for index, length in zip(p.tolist(), lengths.tolist(), strict=True):
            count[index] = length
    return counts


def predict_rows(
    drafter: Drafter, rows: Sequence[Row], embed: Callable[[Tensor], Tensor], steps: Sequence[int]
) -> dict[int, Renewal]:
    """Walk over held-out answers as a server would, for several chain lengths at once.

    A chain of k drafts is the beginning of a longer one, so the longest is drafted once and cut.

    Args:
        rows: held-out rows with their hidden states; rows without an answer count for nothing.
        embed: the target's embedding.
        steps: drafts per verify step, each at least 1.
    """
    dtype, longest = drafter.fc.weight.dtype, max(steps)
    histograms = {count: [0] * (count + 1) for count in steps}
    for row in rows:
        if not bool(row.loss_mask[2:].any()):
            continue
        teacher = torch.zeros(row.token_ids.numel(), dtype=torch.int32)  # not read by drafting
        document = Document(row.token_ids, row.loss_mask, row.aux.to(dtype), row.final.to(dtype), teacher)
        (correct,) = count_correct(drafter, [document], embed, longest)
        for start, end in answer_spans(row.loss_mask):
            for count, histogram in histograms.items():
                for taken in walk([min(k, count) for k in correct], start, end):
                    histogram[taken] += 1
    return {count: Renewal(tuple(histogram)) for count, histogram in histograms.items()}
