"""What does `stages.extract` say? Which hidden states are kept, in what pieces, and who computes them."""

from typing import Literal

from pydantic import Field, model_validator

from eagle3ops.features.format import Dtype
from eagle3ops.spec.base import AuxLayersSpec, StageSpec
from eagle3ops.spec.sizes import Size

Road = Literal["reference", "engine"]


class ExtractSpec(StageSpec):
    """Which hidden states are kept, and in what pieces."""

    aux_layers: AuxLayersSpec | None = None
    """Layers the drafter reads; the default is boundaries 2, n // 2 and n - 3."""
    rows_per_shard: int = Field(default=64, ge=1)
    """A shard is what a kill costs at most."""
    rows_per_batch: int = Field(default=16, ge=1)
    max_tokens: int = Field(default=2048, ge=8)
    """Longer rows are cut here."""
    dtype: Literal["bfloat16", "float32", "fp8"] = "bfloat16"
    """`fp8`: float8 e4m3 with a scale for every token and layer, about half of bfloat16; training reads bfloat16."""
    keep: Literal["all", "needed"] = "all"
    """`needed`: final states only where the target wrote the next token; nothing else of them is trained on."""
    through: Road | None = None
    """Who computes the states: the reference model in this process, or the pipeline's engine at the speed at which it
    reads prompts. Left out: the engine where it is SGLang and hands these layers over, else the reference model."""
    quota: Size | None = None
    """Most disk for hidden states, as `200 GiB`. Where they need more, train extracts them part by part."""
    place: Literal["disk", "memory"] = "disk"
    """`memory`: those of the training rows lie in shared memory, as much as `quota` says, while train reads them, and
    never on the disk."""

    @model_validator(mode="after")
    def _bounded(self) -> "ExtractSpec":
        if self.place == "memory" and self.quota is None:
            raise ValueError("place: memory needs a quota: how much memory the hidden states may take")
        return self


def stored_dtype(spec: ExtractSpec) -> Dtype:
    """As a shard calls it."""
    return "float8_e4m3fn" if spec.dtype == "fp8" else spec.dtype
