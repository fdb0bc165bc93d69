"""The EAGLE-3 drafter: one decoder layer over fused hidden states of the target (Li et al., 2025, arXiv 2503.01840).

Attention is left to the caller, because training (all steps of the training-time test at once) and decoding (a KV
cache and a tree) see different keys; everything else is one code path for both, so they cannot drift apart:

    g = drafter.fuse(aux)                            # once per verified token
    q, k, v = drafter.project(embeds, g, positions)  # caller attends
    h = drafter.finish(g, attended)                  # h is also the next step's g
    logits = drafter.logits(h)
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eagle3ops.eagle3.blocks import RMSNorm, rope_table, rotate
from eagle3ops.eagle3.layers import AuxLayers


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterConfig:
    """Sizes of a drafter, and which hidden states of the target it reads."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    target_hidden_size: int
    aux_layers: AuxLayers
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    max_position_embeddings: int = 8192
    bos_token_id: int | None = None
    eos_token_id: int | None = None

    @property
    def aux_size(self) -> int:
        """Width of the concatenated aux states, 3H for three layers."""
        return self.target_hidden_size * len(self.aux_layers.boundary)


class Attention(nn.Module):
    """Projections of the drafter's attention; q, k and v read embedding and hidden state side by side (2H)."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        wide = 2 * config.hidden_size
        kv = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(wide, config.num_attention_heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(wide, kv, bias=False)
        self.v_proj = nn.Linear(wide, kv, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * config.head_dim, config.hidden_size, bias=False)


class MLP(nn.Module):
    """SwiGLU (Shazeer, 2020)."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., H]` -> `[..., H]`."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class MidLayer(nn.Module):
    """The drafter's decoder layer; tensor names are those of the checkpoint that SGLang loads."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)


class Drafter(nn.Module):
    """`state_dict()` holds the tensors of the exported checkpoint; the embedding is the target's and not part of it."""

    d2t: Tensor
    t2d: Tensor
    rope: Tensor

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(config.aux_size, config.hidden_size, bias=False)
        self.midlayer = MidLayer(config)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
        self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool))
        self.register_buffer(
            "rope", rope_table(config.head_dim, config.max_position_embeddings, config.rope_theta), persistent=False
        )

    def fuse(self, aux: Tensor) -> Tensor:
        """Aux states of verified tokens `[..., 3H]` -> g `[..., H]`."""
        g: Tensor = self.fc(aux)
        return g

    def project(self, embeds: Tensor, g: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries `[..., heads, D]`, keys and values `[..., kv_heads, D]`, rotated to `positions` `[...]`.

        Args:
            embeds: the target's embedding of the token *after* the one that `g` belongs to, `[..., H]`.
            g: fused aux states, or the previous step's h, `[..., H]`; not normalised.
            positions: the position the token of `g` has in the text, plus the draft step.
        """
        layer = self.midlayer
        x = torch.cat((layer.input_layernorm(embeds), layer.hidden_norm(g)), dim=-1)
        attn = layer.self_attn
        q = attn.q_proj(x).unflatten(-1, (self.config.num_attention_heads, self.config.head_dim))
        k = attn.k_proj(x).unflatten(-1, (self.config.num_key_value_heads, self.config.head_dim))
        v = attn.v_proj(x).unflatten(-1, (self.config.num_key_value_heads, self.config.head_dim))
        return rotate(q, self.rope, positions), rotate(k, self.rope, positions), v

    def finish(self, g: Tensor, attended: Tensor) -> Tensor:
        """Rest of the layer: `attended` `[..., heads, D]` -> h `[..., H]`, before the output norm.

        The residual is the un-normalised g; h as returned is what the next draft step reads in place of g.
        """
        layer = self.midlayer
        h = g + layer.self_attn.o_proj(attended.flatten(-2))
        out: Tensor = h + layer.mlp(layer.post_attention_layernorm(h))
        return out

    def logits(self, h: Tensor) -> Tensor:
        """h `[..., H]` -> logits over the draft vocabulary `[..., draft_vocab]`."""
        out: Tensor = self.lm_head(self.norm(h))
        return out

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """Ids of the draft vocabulary -> ids of the target's (`d2t` holds offsets)."""
        return draft_ids + self.d2t[draft_ids]
