"""A target small enough to be rebuilt in every test, with hidden states that a drafter can learn from."""

import torch

from eagle3ops.eagle3.drafter import Drafter, DrafterConfig
from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.eagle3.losses import full_argmax
from eagle3ops.eagle3.packing import Document
from eagle3ops.eagle3.target_head import TargetHead, TargetShape
from eagle3ops.features import FeatureRow

HIDDEN = 16
VOCAB = 40
DRAFT_VOCAB = 24
LAYERS = AuxLayers((1, 2, 3), 4)

SHAPE = TargetShape(
    model_type="llama",
    num_layers=4,
    hidden_size=HIDDEN,
    intermediate_size=24,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=4,
    vocab_size=VOCAB,
    rms_norm_eps=1e-5,
    rope_theta=1000.0,
    max_position_embeddings=128,
    bos_token_id=0,
    eos_token_id=1,
)


def make_head(dtype: torch.dtype = torch.float32) -> TargetHead:
    generator = torch.Generator().manual_seed(1)
    return TargetHead(
        SHAPE,
        torch.randn(VOCAB, HIDDEN, generator=generator).to(dtype),
        (1 + 0.1 * torch.randn(HIDDEN, generator=generator)).to(dtype),
        torch.randn(VOCAB, HIDDEN, generator=generator).to(dtype),
    )


def make_config() -> DrafterConfig:
    return make_head().drafter_config(DRAFT_VOCAB, LAYERS)


def make_drafter(dtype: torch.dtype = torch.float32, seed: int = 0) -> Drafter:
    """Random weights, no norm at its default of one, every third token outside the draft vocabulary."""
    torch.manual_seed(seed)
    drafter = Drafter(make_config())
    with torch.no_grad():
        for parameter in drafter.parameters():
            if parameter.ndim == 1:
                parameter.copy_(1 + 0.3 * torch.randn_like(parameter))
            else:
                parameter.normal_(std=0.4)
    ids = torch.tensor([i for i in range(VOCAB) if i % 3 or i > 30][:DRAFT_VOCAB])
    drafter.d2t.copy_(ids - torch.arange(DRAFT_VOCAB))
    drafter.t2d[ids] = True
    drafter = drafter.to(dtype)
    angle = torch.outer(torch.arange(128).double(), 1000.0 ** -(torch.arange(0, 4, 2).double() / 4)).repeat(1, 2)
    drafter.rope = torch.stack((angle.cos(), angle.sin())).to(dtype)
    return drafter


def make_row(name: str, mask: list[int], seed: int, dtype: torch.dtype = torch.float32) -> FeatureRow:
    """A row whose states are a fixed linear mark of its tokens plus noise, so that there is something to learn."""
    generator = torch.Generator().manual_seed(seed)
    length = len(mask)
    marks = torch.randn(VOCAB, 4 * HIDDEN, generator=torch.Generator().manual_seed(9))
    tokens = torch.randint(0, VOCAB, (1,), generator=generator)
    for _ in range(length - 1):
        step = 1 if torch.rand(1, generator=generator) < 0.8 else 5
        tokens = torch.cat((tokens, (tokens[-1:] * 3 + step) % VOCAB))
    states = marks[tokens] + 0.1 * torch.randn(length, 4 * HIDDEN, generator=generator)
    return FeatureRow(
        name,
        tokens.int(),
        torch.tensor(mask, dtype=torch.bool),
        states[:, : 3 * HIDDEN].contiguous().to(dtype),
        states[:, 3 * HIDDEN :].contiguous().to(dtype),
    )


def make_document(mask: list[int], seed: int, dtype: torch.dtype = torch.float32) -> Document:
    row = make_row("", mask, seed, dtype)
    argmax = full_argmax(make_head(dtype), row.final)
    return Document(row.token_ids, row.loss_mask, row.aux, row.final, argmax)
