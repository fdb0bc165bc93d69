"""Which tensors of the target does a drafter read? Aux layers by boundary, never as bare numbers.

A target of n layers has n + 1 *boundaries*: 0 is the embedding's output, k the output of layer k - 1 (and the input
of layer k), n the output of the last layer before the final norm. Engines and trainers number the same tensors
differently; `AuxLayers` is built from, and rendered to, each numbering by name.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from eagle3ops.errors import RequestError
from eagle3ops.spec.base import AuxLayersSpec

Convention = Literal["boundary", "hf_hidden_states", "layer_outputs"]
"""How a list of ids counts.

boundary          0 = embedding, k = input of layer k (EAGLE, speculators, vLLM).
hf_hidden_states  index into Hugging Face's `hidden_states`; equal to boundary below n, but entry n is post-norm and
                  therefore not a boundary.
layer_outputs     0-based layer whose output is read; -1 = embedding (SpecForge, ModelOpt, TorchSpec, and the
                  `eagle_config` that SGLang reads for Llama-like targets).
"""

CONVENTIONS: tuple[Convention, ...] = get_args(Convention)


@dataclass(frozen=True, slots=True)
class AuxLayers:
    """Boundary ids of a target's hidden states, in the order in which they are concatenated."""

    boundary: tuple[int, ...]
    num_layers: int

    def __post_init__(self) -> None:
        if not self.boundary:
            raise ValueError("aux layers: at least one id is needed")
        for k in self.boundary:
            if not 0 <= k <= self.num_layers:
                raise ValueError(
                    f"aux layers: boundary {k} does not exist in a target of {self.num_layers} layers "
                    f"(0 = embedding ... {self.num_layers} = final state before the norm)"
                )
        if len(set(self.boundary)) != len(self.boundary):
            raise ValueError(f"aux layers: {list(self.boundary)} names a boundary twice")

    @classmethod
    def default(cls, num_layers: int) -> "AuxLayers":
        """The three boundaries every peer defaults to: 2, n // 2, n - 3 (EAGLE-3, section 3.1)."""
        if num_layers < 6:
            # Shorter targets exist only as test models; spread what there is.
            picks = sorted({1, max(1, num_layers // 2), num_layers - 1})
            return cls(tuple(picks), num_layers)
        return cls((2, num_layers // 2, num_layers - 3), num_layers)

    @classmethod
    def from_ids(cls, ids: Sequence[int], convention: Convention, num_layers: int) -> "AuxLayers":
        """Build from a list of ids that counts by `convention`.

        Raises:
            ValueError: an id does not exist, or names a tensor that is not a boundary.
        """
        if convention == "layer_outputs":
            return cls(tuple(k + 1 for k in ids), num_layers)
        if convention == "hf_hidden_states" and num_layers in ids:
            raise ValueError(
                f"aux layers: hidden_states[{num_layers}] of Hugging Face is taken after the final norm "
                "and is not a boundary"
            )
        if convention not in CONVENTIONS:
            raise ValueError(f"aux layers: unknown convention {convention!r}; known: {', '.join(CONVENTIONS)}")
        return cls(tuple(ids), num_layers)

    def ids(self, convention: Convention) -> list[int]:
        """Render to the numbers that `convention` uses for the same tensors."""
        if convention == "layer_outputs":
            return [k - 1 for k in self.boundary]
        if convention == "hf_hidden_states" and self.num_layers in self.boundary:
            raise ValueError(
                f"aux layers: boundary {self.num_layers} (final state before the norm) has no index in "
                "Hugging Face's hidden_states"
            )
        return list(self.boundary)

    @staticmethod
    def describe(boundary: int, num_layers: int) -> str:
        """Name one boundary in words: `boundary 2 (output of layer 1)`."""
        if boundary == 0:
            return "boundary 0 (embedding)"
        if boundary == num_layers:
            return f"boundary {boundary} (final state before the norm)"
        return f"boundary {boundary} (output of layer {boundary - 1})"

    def __str__(self) -> str:
        return "boundaries " + ", ".join(str(k) for k in self.boundary)


def resolve_layers(spec: AuxLayersSpec, num_layers: int, key: str) -> AuxLayers:
    """The layers that a pipeline file asks for, of a target whose size is known.

    Args:
        spec: ids with their convention.
        num_layers: of the target.
        key: where the ids stand in the pipeline file, for the message.

    Raises:
        RequestError: an id does not exist in this target.
    """
    try:
        return AuxLayers.from_ids(spec.ids, spec.convention, num_layers)
    except ValueError as error:
        raise RequestError(f"{key}: {error}", remedy=f"the target has {num_layers} layers; choose ids in it") from error
