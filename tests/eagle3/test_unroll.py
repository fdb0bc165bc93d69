"""The packed, masked training-time test equals drafting one document, one token at a time, with a growing cache."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from eagle3ops.eagle3 import ttt
from eagle3ops.eagle3.drafter import Drafter
from eagle3ops.eagle3.losses import full_argmax, soft_cross_entropy, unrolled_loss
from eagle3ops.eagle3.packing import Document, pack, trained_positions
from eagle3ops.eagle3.target_head import TargetHead
from eagle3ops.eagle3.ttt import unroll

MASKS = (
    [0] * 4 + [1] * 9,
    [0] * 3 + [1] * 3 + [0] * 4 + [1] * 5,
    [0, 1, 1, 1, 1, 1],
    [0] * 9 + [1],
)
STEPS = 4


def attend_one(query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """One query `[heads, D]` over a list of cached keys `[kv, D]`, head by head."""
    group = query.shape[0] // keys[0].shape[0]
    out = []
    for head in range(query.shape[0]):
        scores = torch.stack([query[head] @ key[head // group] for key in keys]) / query.shape[1] ** 0.5
        weights = scores.softmax(0)
        out.append(sum(w * value[head // group] for w, value in zip(weights, values, strict=True)))
    return torch.stack(out)


@torch.no_grad()
def decode_from(drafter: Drafter, head: TargetHead, document: Document, p: int, steps: int) -> list[Tensor]:
    """Logits of `steps` draft steps after the verified prefix 0..p, as a server computes them."""
    keys, values = [], []
    ids = torch.cat((document.token_ids.long(), torch.zeros(steps, dtype=torch.int64)))
    hidden = query = torch.empty(0)
    for index in range(p + 1):
        hidden = drafter.fuse(document.aux[index])
        query, key, value = drafter.project(head.embed(ids[index + 1]), hidden, torch.tensor(index))
        keys.append(key)
        values.append(value)
    hidden = drafter.finish(hidden, attend_one(query, keys, values))
    logits = [drafter.logits(hidden)]
    for step in range(1, steps):
        query, key, value = drafter.project(head.embed(ids[p + 1 + step]), hidden, torch.tensor(p + step))
        keys.append(key)
        values.append(value)
        hidden = drafter.finish(hidden, attend_one(query, keys, values))
        logits.append(drafter.logits(hidden))
    return logits


@pytest.mark.parametrize("scores_max", [ttt.SCORES_MAX, 100])
def test_unroll_equals_sequential_decoding(
    drafter_of: Callable[..., Drafter],
    document_of: Callable[..., Document],
    head: TargetHead,
    monkeypatch: pytest.MonkeyPatch,
    scores_max: int,
) -> None:
    monkeypatch.setattr(ttt, "SCORES_MAX", scores_max)
    drafter = drafter_of()
    documents = [document_of(mask, seed) for seed, mask in enumerate(MASKS)]
    batch = pack(documents, STEPS)
    assert batch is not None
    with torch.no_grad():
        states = unroll(drafter, batch, head.embed, steps=STEPS)
        logits = [drafter.logits(state) for state in states]
    row = 0
    for document in documents:
        wanted = torch.cat([trained_positions(document.loss_mask, i) for i in range(STEPS)]).unique()  # type: ignore[no-untyped-call]
        for p in wanted.tolist():
            for step, reference in enumerate(decode_from(drafter, head, document, p, STEPS)):
                torch.testing.assert_close(logits[step][row], reference, atol=1e-4, rtol=1e-4)
            row += 1
    assert row == batch.query_rows.numel()


def test_a_document_does_not_see_its_neighbours(
    drafter_of: Callable[..., Drafter], document_of: Callable[..., Document], head: TargetHead
) -> None:
    drafter, document = drafter_of(), document_of(MASKS[0], 0)
    alone, between = pack([document], 2), pack([document_of(MASKS[1], 5), document, document_of(MASKS[2], 6)], 2)
    assert alone is not None
    assert between is not None
    with torch.no_grad():
        one = unroll(drafter, alone, head.embed, steps=2)[1]
        many = unroll(drafter, between, head.embed, steps=2)[1]
    first = int(pack([document_of(MASKS[1], 5)], 2).query_rows.numel())  # type: ignore[union-attr]
    torch.testing.assert_close(many[first : first + len(one)], one, atol=1e-5, rtol=1e-5)


def test_the_mask_is_about_the_predicted_token() -> None:
    mask = torch.tensor([0, 0, 0, 1, 1, 1, 0], dtype=torch.bool)
    assert trained_positions(mask, 0).tolist() == [1, 2, 3]
    assert trained_positions(mask, 2).tolist() == [0, 1]


def test_steps_are_taught_by_the_position_before_the_predicted_token(document_of: Callable[..., Document]) -> None:
    document = document_of([0, 0, 0, 1, 1, 1, 1], 0)
    batch = pack([document], 3)
    assert batch is not None
    for number, step in enumerate(batch.steps):
        for row, teacher in zip(step.rows.tolist(), step.teacher.tolist(), strict=True):
            p = int(batch.query_positions[row])
            assert document.loss_mask[p + 2 + number]
            assert torch.equal(batch.teacher_final[teacher], document.final[p + 1 + number])
            assert int(step.next_ids[row]) == int(document.token_ids[p + 1 + number])


# --- loss and gradients against a dense float64 reference that shares no code with the product ---


def dense_loss(
    weights: dict[str, Tensor], document: Document, head: TargetHead, ids: Tensor, steps: int, decay: float
) -> tuple[list[Tensor], list[int]]:
    """Sum and count of the loss of every step over one document, by full `[T, T]` matrices."""

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight

    def turn(x: Tensor, positions: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        angle = positions[:, None] * 1000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    length = len(document)
    text = torch.cat((document.token_ids.long(), torch.zeros(steps + 1, dtype=torch.int64)))
    hidden = document.aux @ weights["fc.weight"].T
    normed = norm(document.final, head.norm_weight)
    full = normed @ head.lm_head_weight.T
    best = full.argmax(-1)
    teacher = full[:, ids].softmax(-1)
    keys: list[Tensor] = []
    values: list[Tensor] = []
    sums, counts = [], []
    layer = {k.removeprefix("midlayer."): v for k, v in weights.items() if k.startswith("midlayer.")}
    for step in range(steps):
        embeds = head.embed_weight[text[1 + step : 1 + step + length]]
        x = torch.cat((norm(embeds, layer["input_layernorm.weight"]), norm(hidden, layer["hidden_norm.weight"])), -1)
        positions = torch.arange(length, dtype=torch.float64) + step
        query = turn((x @ layer["self_attn.q_proj.weight"].T).view(length, 4, 4), positions)
        key = turn((x @ layer["self_attn.k_proj.weight"].T).view(length, 2, 4), positions)
        value = (x @ layer["self_attn.v_proj.weight"].T).view(length, 2, 4)
        keys.append(key.repeat_interleave(2, 1))
        values.append(value.repeat_interleave(2, 1))
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        visible = torch.cat([causal] + [torch.eye(length, dtype=torch.bool)] * step, 1)
        scores = torch.einsum("qhd,khd->hqk", query, torch.cat(keys)) / 2.0
        attended = torch.einsum(
            "hqk,khd->qhd", scores.masked_fill(~visible, float("-inf")).softmax(-1), torch.cat(values)
        )
        hidden = hidden + attended.flatten(1) @ layer["self_attn.o_proj.weight"].T
        y = norm(hidden, layer["post_attention_layernorm.weight"])
        gate = y @ layer["mlp.gate_proj.weight"].T
        up = y @ layer["mlp.up_proj.weight"].T
        hidden = hidden + (gate * gate.sigmoid() * up) @ layer["mlp.down_proj.weight"].T
        logs = (norm(hidden, weights["norm.weight"]) @ weights["lm_head.weight"].T).log_softmax(-1)
        total, count = torch.zeros((), dtype=torch.float64), 0
        for p in range(length - 2 - step):
            source = p + 1 + step
            if document.loss_mask[source + 1] and best[source] in ids:
                total = total - (teacher[source] * logs[p]).sum()
                count += 1
        sums.append(total)
        counts.append(count)
    return sums, counts


def test_loss_and_gradients_equal_a_dense_float64_reference(
    drafter_of: Callable[..., Drafter], document_of: Callable[..., Document], head_of: Callable[..., TargetHead]
) -> None:
    head = head_of(torch.float64)
    drafter = drafter_of(torch.float64)
    documents = [document_of(mask, seed, torch.float64) for seed, mask in enumerate(MASKS)]
    batch = pack(documents, 3, draftable=drafter.t2d)
    assert batch is not None
    ids = drafter.target_ids(torch.arange(drafter.config.draft_vocab_size))
    states = unroll(drafter, batch, head.embed, steps=3)
    loss, found = unrolled_loss(drafter, batch, states, head, head.lm_head_weight[ids], 0.8)
    sums = found.rows()
    loss.backward()  # type: ignore[no-untyped-call]

    weights = {name: p.detach().clone().requires_grad_() for name, p in drafter.named_parameters()}
    parts = [dense_loss(weights, document, head, ids, 3, 0.8) for document in documents]
    reference = torch.zeros((), dtype=torch.float64)
    for step in range(3):
        count = sum(part[1][step] for part in parts)
        assert 0 < count == sums[step]["loss_rows"]
        assert count < sums[step]["rows"], "the test must hold teacher tokens outside the draft vocabulary"
        reference = reference + 0.8**step * sum(part[0][step] for part in parts) / count
    reference.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(loss.detach(), reference.detach(), atol=1e-9, rtol=1e-9)
    for name, parameter in drafter.named_parameters():
        assert parameter.grad is not None
        assert weights[name].grad is not None
        torch.testing.assert_close(parameter.grad, weights[name].grad, atol=1e-9, rtol=1e-6, msg=name)


def test_metrics_count_tokens_outside_the_draft_vocabulary_as_wrong(
    drafter_of: Callable[..., Drafter], document_of: Callable[..., Document], head: TargetHead
) -> None:
    drafter = drafter_of()
    document = document_of(MASKS[0], 0)
    batch = pack([document], 3, draftable=drafter.t2d)
    assert batch is not None
    ids = drafter.target_ids(torch.arange(drafter.config.draft_vocab_size))
    states = unroll(drafter, batch, head.embed, steps=3)
    _, found = unrolled_loss(drafter, batch, states, head, head.lm_head_weight[ids], 0.8)
    sums = found.rows()
    whole = [True] * batch.query_rows.numel()
    for number, step in enumerate(batch.steps):
        right = {}
        for row, teacher in zip(step.rows.tolist(), step.teacher.tolist(), strict=True):
            pick = ids[drafter.logits(states[number][row]).argmax()]
            right[row] = bool(pick == batch.teacher_argmax[teacher])
        before = [w and row in right for row, w in enumerate(whole)]
        whole = [b and right[row] for row, b in enumerate(before)]
        assert sums[number]["correct"] == sum(right.values())
        assert sums[number]["condition_rows"] == sum(before)
        assert sums[number]["prefix_correct"] == sum(whole)
        assert sums[number]["rows"] == len(right)


def test_the_loss_times_a_factor_has_the_gradient_times_it_and_gives_it_once() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 7, generator=generator, dtype=torch.float64).requires_grad_()
    teacher = torch.randn(3, 7, generator=generator, dtype=torch.float64).softmax(-1)
    source, weight = torch.tensor([0, 2, 1, 1, 0]), torch.rand(5, generator=generator, dtype=torch.float64)
    wanted = -(teacher[source] * logits.log_softmax(-1)).sum(-1) @ weight
    found, _ = soft_cross_entropy(logits, teacher, source, weight)
    (expected,) = torch.autograd.grad(3 * wanted, logits)
    (gradient,) = torch.autograd.grad(3 * found, logits, retain_graph=True)
    torch.testing.assert_close(gradient, expected)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(found, logits)


def test_full_argmax_is_the_argmax(head: TargetHead) -> None:
    final = torch.randn(50, head.shape.hidden_size)
    assert torch.equal(full_argmax(head, final, chunk=7), head.logits(final).argmax(-1))
