"""What do the engine's tests run on? Tiny random targets and drafters, built in milliseconds."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from eagle3ops.eagle3.drafter import Drafter, DrafterConfig
from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.eagle3.target_head import TargetShape
from eagle3ops.engines.reference.drafting import SpecSettings, Speculator
from eagle3ops.engines.reference.engine import Engine
from eagle3ops.engines.reference.model import Target
from eagle3ops.engines.reference.requests import Event, Request, SamplingParams

VOCAB, DRAFT_VOCAB, HIDDEN, LAYERS = 48, 40, 32, 3

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": LAYERS, "hidden_size": HIDDEN,
    "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": VOCAB,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 512, "hidden_act": "silu",
    "eos_token_id": VOCAB - 1, "bos_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip


def tiny_tensors(seed: int = 0, depth_scale: float = 1.0) -> dict[str, Tensor]:
    """Random weights; `depth_scale` below 1 makes the next token depend mostly on the last one."""
    shape = TargetShape.from_config(CONFIG, "tiny")
    generator = torch.Generator().manual_seed(seed)
    shapes = Target.shapes(shape) | {"lm_head.weight": (VOCAB, HIDDEN)}
    tensors = {}
    for name, size in shapes.items():
        value = torch.randn(size, generator=generator)
        if len(size) == 1:
            value = 1 + 0.1 * value
        elif "layers" in name:
            value *= size[1] ** -0.5 * (depth_scale if "o_proj" in name or "down_proj" in name else 1.5)
        tensors[name] = value
    return tensors


def tiny_target(seed: int = 0, depth_scale: float = 1.0) -> Target:
    """A float32 target of 3 layers."""
    return Target(TargetShape.from_config(CONFIG, "tiny"), tiny_tensors(seed, depth_scale))


def write_tiny_model(folder: Path, seed: int = 0) -> Path:
    """The same target as a model folder, without a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(tiny_tensors(seed), folder / "model.safetensors")
    return folder


def tiny_drafter_config() -> DrafterConfig:
    """A drafter for the tiny target, reading boundaries 1, 2, 3."""
    return DrafterConfig(
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        vocab_size=VOCAB,
        draft_vocab_size=DRAFT_VOCAB,
        target_hidden_size=HIDDEN,
        aux_layers=AuxLayers((1, 2, 3), LAYERS),
        max_position_embeddings=512,
    )


def _map_vocabulary(drafter: Drafter) -> None:
    ids = torch.arange(VOCAB)[torch.arange(VOCAB) % 6 != 3][:DRAFT_VOCAB]
    drafter.d2t.copy_(ids - torch.arange(DRAFT_VOCAB))
    drafter.t2d[ids] = True


def random_drafter(seed: int = 1) -> Drafter:
    """A drafter that knows nothing."""
    torch.manual_seed(seed)
    drafter = Drafter(tiny_drafter_config()).eval()
    _map_vocabulary(drafter)
    return drafter


class MarkovDrafter(Drafter):
    """Predicts by the target's own head on the last token's embedding: often right for a target of small depth."""

    def __init__(self, target: Target) -> None:
        super().__init__(tiny_drafter_config())
        _map_vocabulary(self)
        self._target = target
        self._embeds = torch.empty(0)

    def project(self, embeds: Tensor, g: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As the drafter's, and remembers the embeddings."""
        self._embeds = embeds
        return super().project(embeds, g, positions)

    def finish(self, g: Tensor, attended: Tensor) -> Tensor:
        """The last embeddings in place of h, plus a trace of h that makes a broken cache show."""
        return self._embeds + 0.05 * super().finish(g, attended)

    def logits(self, h: Tensor) -> Tensor:
        """The target's head, on the draft vocabulary."""
        ids = self.target_ids(torch.arange(DRAFT_VOCAB, device=h.device))
        return F.linear(self._target.normed(h), self._target.head_weight[ids])


def prompts(count: int, seed: int = 3) -> list[list[int]]:
    """Random prompts of uneven lengths."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 20, (count,), generator=generator).tolist()
    return [torch.randint(0, VOCAB, (n,), generator=generator).tolist() for n in lengths]


def answer_all(
    target: Target,
    texts: list[list[int]],
    params: SamplingParams | list[SamplingParams],
    *,
    drafter: Drafter | None = None,
    settings: SpecSettings | None = None,
    stops: tuple[int, ...] = (VOCAB - 1,),
    max_running: int = 4,
    hidden: bool = False,
) -> list[Request]:
    """Every prompt through a fresh engine, submitted as one batch."""
    speculator = None if drafter is None else Speculator(drafter, target, settings or SpecSettings(), max_running)
    engine = Engine(target, speculator=speculator, stops=stops, max_running=max_running)
    each = params if isinstance(params, list) else [params] * len(texts)
    ends: list[Event] = []
    requests = [
        Request(str(k), text, one, ends.append, want_hidden=hidden)
        for k, (text, one) in enumerate(zip(texts, each, strict=True))
    ]
    engine.submit(requests)
    while engine.step():
        pass
    assert len(ends) == len(texts)
    return requests
