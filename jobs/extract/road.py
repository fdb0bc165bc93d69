"""Which layers' states are kept, and who computes them: the reference model here, or the pipeline's engine?"""

from typing import TYPE_CHECKING

from eagle3ops.errors import RequestError
from eagle3ops.jobs.extract.spec import ExtractSpec, Road
from eagle3ops.runs.context import Context
from eagle3ops.runs.job import PlanContext
from eagle3ops.spec.models import EngineSpec
from eagle3ops.targets import read_target_info

if TYPE_CHECKING:
    from eagle3ops.eagle3.layers import AuxLayers


def kept_layers(ctx: Context, spec: ExtractSpec) -> "AuxLayers":
    """The layers whose states are kept."""
    from eagle3ops.eagle3.layers import AuxLayers, resolve_layers

    count = read_target_info(ctx.inputs["fetch"]).num_layers
    if spec.aux_layers is None:
        return AuxLayers.default(count)
    return resolve_layers(spec.aux_layers, count, "stages.extract.aux_layers")


def choose_road(spec: ExtractSpec, engine: EngineSpec, layers: "AuxLayers | None") -> tuple[Road, str]:
    """Who computes the states, and why.

    Args:
        layers: None as long as the target's size is not known.

    Raises:
        RequestError: the engine was asked for by name and cannot.
    """
    if spec.through == "reference":
        return "reference", "states from the reference model, as stages.extract.through says"
    reason = None
    if engine.name == "reference" and spec.through is None:
        return "reference", "states from the reference model"
    if engine.name != "sglang":
        reason = f"engine {engine.name} does not hand over hidden states"
    elif layers is not None and not hands_over(layers):
        reason = f"SGLang hands over boundaries 1 to {layers.num_layers - 1} only, these are {layers}"
    if reason is None:
        return "engine", "states from SGLang, through shared memory, while it reads the rows"
    if spec.through == "engine":
        raise RequestError(f"stages.extract.through: engine: {reason}", remedy="leave it out, or say reference")
    return "reference", f"states from the reference model: {reason}"


def road_of(ctx: PlanContext, spec: ExtractSpec) -> tuple[Road, str]:
    """`choose_road` for a plan; the target may not be here yet."""
    from eagle3ops.eagle3.layers import AuxLayers, resolve_layers

    config = ctx.target_config()
    count = None if config is None else config.get("num_hidden_layers")
    layers = None
    if isinstance(count, int):
        given = spec.aux_layers
        layers = (
            AuxLayers.default(count) if given is None else resolve_layers(given, count, "stages.extract.aux_layers")
        )
    return choose_road(spec, ctx.pipeline.engine, layers)


def hands_over(layers: "AuxLayers") -> bool:
    """Whether SGLang does: it takes boundaries at the entry of a layer, the first left out."""
    return all(0 < k < layers.num_layers for k in layers.boundary)
