"""Who wrote this checkpoint, and what do its config and its names mean?

sglang       LlamaForCausalLMEagle3, ids in eagle_config, read as SGLang reads them for this class of target
specforge    the same form; norm_output means that the norm stands before lm_head, as always, and nothing else
modelopt     the same form without t2d; ids are 0-based outputs of layers
vllm         the same architecture, ids at the top level: inputs of layers
speculators  nested transformer_layer_config, ids at the top level; norm_before_residual is on where it is not said
angelslim    Eagle3LlamaForCausalLM, aux_hidden_states_layer_ids: 0-based outputs of layers
eagle        LlamaForCausalLM with pytorch_model.bin; its layers are fixed
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.errors import RequestError
from eagle3ops.wiring.captured import captured
from eagle3ops.wiring.lint.case import IDS, SPECULATORS, SPECULATORS_OUTER, Family, Target
from eagle3ops.wiring.lint.checkpoint import Checkpoint, read_checkpoint
from eagle3ops.wiring.lint.parameters import LEGACY

FORMS = ("sglang", "specforge", "modelopt", "vllm", "speculators", "angelslim", "eagle")
ANGELSLIM_IDS = "aux_hidden_states_layer_ids"
_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_NOT_PASSED_ON = {
    IDS, ANGELSLIM_IDS, "eagle_config", "architectures", "speculators_config", "speculators_model_type",
    "speculators_version", "transformer_layer_config", "auto_map", "use_aux_norm", "num_aux_hidden_states", *_FLAGS,
}  # fmt: skip


class ConversionRefused(RequestError):
    """It cannot be said without guessing, or the other form has no words for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """A checkpoint without the words of the one who wrote it."""

    form: str
    family: Family
    """As its tensors tell."""
    layers: AuxLayers
    assumed: bool
    """No ids stand in the config, so the layers are the default of all trainers."""
    config: Mapping[str, Any]
    """Sizes, rope and the like, flat."""
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    feeds_normed: bool
    """The state after the final norm is what the next draft step reads."""
    names: Mapping[str, str]
    """Canonical name (`layers.0.mlp...`) -> name in the checkpoint."""


def detect(checkpoint: Checkpoint) -> str:
    """Whose form it is, as far as the config tells; SpecForge and ModelOpt write SGLang's."""
    config = checkpoint.config or {}
    names = config.get("architectures")
    architectures = {one for one in names if isinstance(one, str)} if isinstance(names, list) else set()
    if "transformer_layer_config" in config or architectures & SPECULATORS:
        return "speculators"
    if ANGELSLIM_IDS in config:
        return "angelslim"
    eagle = config.get("eagle_config")
    if isinstance(eagle, Mapping) and eagle.get(IDS):
        return "sglang"
    if config.get(IDS):
        return "vllm"
    return "eagle" if "LlamaForCausalLM" in architectures else "sglang"


def read(folder: Path, target: Target, form: str | None, sglang: str) -> tuple[Checkpoint, Meaning]:
    """Read a checkpoint.

    Args:
        folder: of it; its weights are safetensors (see `unpickle`).
        target: the model that it is for.
        form: one of `FORMS`; None finds out.
        sglang: version of SGLang by whose rules nested ids are read.

    Raises:
        ConversionRefused: it is damaged, or what it means cannot be said.
    """
    checkpoint = read_checkpoint(folder)
    if checkpoint.findings or checkpoint.config is None or checkpoint.tensors is None:
        told = "; ".join(f"{one.where}: {one.what}" for one in checkpoint.findings)
        raise ConversionRefused(f"{folder}: {told}", remedy="eagle3ops lint says more")
    form = form or detect(checkpoint)
    if form not in FORMS:
        raise ConversionRefused(f"no form {form!r}", remedy=f"one of {', '.join(FORMS)}")
    layers = target.size("num_hidden_layers")
    if layers is None:
        raise ConversionRefused(
            f"{target.folder}: its config says no num_hidden_layers", remedy="name the target's folder"
        )
    config = dict(checkpoint.config)
    inner = config.get("transformer_layer_config")
    flat = config
    if form == "speculators" and isinstance(inner, Mapping):
        outer = ("norm_before_residual", *SPECULATORS_OUTER)
        flat = {**inner, **{key: config[key] for key in outer if config.get(key) is not None}}
    eagle = config.get("eagle_config")
    switch = {**flat, **{k: v for k, v in (eagle if isinstance(eagle, Mapping) else {}).items() if k in _FLAGS}}
    names = _names(checkpoint)
    return checkpoint, Meaning(
        form=form,
        family=_family(names),
        layers=_layers(form, config, target, layers, sglang),
        assumed=form != "eagle" and not _heard(form, config),
        config={key: value for key, value in flat.items() if key not in _NOT_PASSED_ON},
        norm_before_residual=bool(switch.get("norm_before_residual", form == "speculators")),
        norm_before_fc=bool(switch.get("norm_before_fc")),
        fc_norm=bool(switch.get("fc_norm") or flat.get("use_aux_norm")),
        # SpecForge writes the same word for the norm before lm_head, and feeds the state before it.
        feeds_normed=bool(switch.get("norm_output")) and form != "specforge",
        names=names,
    )


def _family(names: Mapping[str, str]) -> Family:
    if any("kv_a_proj_with_mqa" in name for name in names):
        return "latent"
    return "qwen3" if any(name.endswith("self_attn.q_norm.weight") for name in names) else "llama"


def _layers(form: str, config: Mapping[str, Any], target: Target, layers: int, sglang: str) -> AuxLayers:
    eagle = config.get("eagle_config")
    nested = _ids(eagle.get(IDS) if isinstance(eagle, Mapping) else None, f"eagle_config.{IDS}")
    top = _ids(config.get(IDS), IDS)
    try:
        if form == "angelslim":
            ids = _ids(config.get(ANGELSLIM_IDS), ANGELSLIM_IDS)
            found = AuxLayers.from_ids(ids, "layer_outputs", layers) if ids else AuxLayers.default(layers)
            if top and list(found.boundary) != top:
                raise ConversionRefused(
                    f"{ANGELSLIM_IDS} and {IDS} name different tensors: {ids} as outputs of layers, {top} as inputs",
                    remedy="take out the one that is wrong",
                )
            return found
        if form == "eagle":
            return AuxLayers.default(layers)
        if form in ("vllm", "speculators"):
            return AuxLayers.from_ids(top, "boundary", layers) if top else AuxLayers.default(layers)
        if form in ("specforge", "modelopt"):
            return AuxLayers.from_ids(nested, "layer_outputs", layers) if nested else AuxLayers.default(layers)
        told = captured("sglang", sglang, target.architecture, layers, nested or None)
        if nested and len(told.boundary) != len(nested):
            raise ConversionRefused(f"SGLang does not capture all of {nested}: {'; '.join(told.notes[:-1])}")
        if top and list(told.boundary) != top:
            raise ConversionRefused(
                f"eagle_config and the top level name different tensors: boundaries {list(told.boundary)} and {top}",
                remedy="take out the one that is wrong, or say --from",
            )
        return AuxLayers(told.boundary, layers)
    except ValueError as error:
        raise ConversionRefused(str(error), remedy="are the ids those of this target?") from error


def _heard(form: str, config: Mapping[str, Any]) -> object:
    """What the config says about layers, at the place where this form says it."""
    eagle = config.get("eagle_config")
    if form in ("angelslim", "vllm", "speculators"):
        return config.get(ANGELSLIM_IDS if form == "angelslim" else IDS)
    return isinstance(eagle, Mapping) and eagle.get(IDS)


def _ids(value: object, where: str) -> list[int]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(type(one) is int for one in value):
        raise ConversionRefused(f"config.json: {where} is no list of layer numbers")
    return value


def _names(checkpoint: Checkpoint) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in checkpoint.tensors or {}:
        real = name if name.startswith("lm_head") else name.removeprefix("model.")
        for legacy, new in LEGACY.items():
            real = real.replace(legacy, new)
        if real in found:
            raise ConversionRefused(f"{found[real]} and {name} are the same parameter", remedy="keep one of them")
        found[real] = name
    return found
