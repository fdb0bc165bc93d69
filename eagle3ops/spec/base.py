"""What is a section of a pipeline file made of? Strict, frozen models, and layer ids that carry their convention."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, field_validator
from pydantic_core import PydanticCustomError

LayerConvention = Literal["boundary", "hf_hidden_states", "layer_outputs"]
"""How a list of layer ids counts; the meanings are those of `eagle3ops.eagle3.layers.Convention`."""


class Section(BaseModel):
    """One mapping of a pipeline file: unknown keys are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), validate_default=True)


class StageSpec(Section):
    """The settings of one stage; every job derives its own `Spec` from this."""


class AuxLayersSpec(Section):
    """Layer ids together with the convention by which they count; a bare list is refused.

    Whether an id exists is checked by the stage that knows how many layers the target has.
    """

    convention: LayerConvention
    ids: tuple[int, ...]

    @field_validator("ids")
    @classmethod
    def _possible(cls, ids: tuple[int, ...], info: Any) -> tuple[int, ...]:
        if not ids:
            raise PydanticCustomError("layers_empty", "at least one layer id is needed")
        lowest = -1 if info.data.get("convention") == "layer_outputs" else 0
        for k in ids:
            if k < lowest:
                raise PydanticCustomError(
                    "layer_out_of_range",
                    "layer id {id} does not exist; the lowest by this convention is {lowest}",
                    {"id": k, "lowest": lowest},
                )
        if len(set(ids)) != len(ids):
            raise PydanticCustomError("layer_twice", "a layer id is named twice")
        return ids
