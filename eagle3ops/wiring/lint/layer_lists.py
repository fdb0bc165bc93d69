"""Which lists of layer ids does a drafter's config hold, which tensors does each name, and which does an engine read?

Read in SGLang 0.5.14 (srt/model_executor/model_runner.py:459-472) and 0.5.23 (model_runner_components/
spec_aux_hidden_state.py:185-196): `eagle_config.eagle_aux_hidden_state_layer_ids` and nothing else. In vLLM 0.32.0 its
V1 model runner (v1/worker/gpu_model_runner.py:5268-5283) reads the top level, then `dflash_config.target_layer_ids`,
which an `eagle_config` with anything in it overrules. V2 (v1/worker/gpu/spec_decode/eagle/eagle3_utils.py:106-133)
reads the top level, then every list below but that one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from eagle3ops.errors import RequestError
from eagle3ops.wiring.captured import captured, rules
from eagle3ops.wiring.lint.case import IDS

Counts = Literal["outputs", "inputs"]
NESTED, TOP = f"eagle_config.{IDS}", IDS
PLACES: Mapping[str, Counts] = {
    NESTED: "outputs",
    TOP: "inputs",
    f"transformer_layer_config.{IDS}": "inputs",
    "dflash_config.target_layer_ids": "outputs",
    "dspark_target_layer_ids": "outputs",
    "target_layer_ids": "outputs",
    "dflash_config.layer_ids": "inputs",
    "eagle_config.layer_ids": "inputs",
    "eagle_config.target_layer_ids": "outputs",
    "aux_hidden_states_layer_ids": "outputs",
    "aux_hidden_state_layer_ids": "inputs",
}
"""Where ids may stand, and how those who write them there count. The last two are AngelSlim's, and that of speculators
for DFlash."""
_V1 = (TOP, f"transformer_layer_config.{IDS}", "dflash_config.target_layer_ids")
_V2 = (
    TOP, f"transformer_layer_config.{IDS}", "dflash_config.target_layer_ids", "dspark_target_layer_ids",
    "target_layer_ids", "dflash_config.layer_ids", "eagle_config.layer_ids",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Listed:
    """A list of ids."""

    where: str
    """Its key in config.json."""
    ids: tuple[int, ...]
    meant: frozenset[tuple[int, ...]]
    """The boundaries that it may name, in ascending order: more than one where versions of SGLang differ."""

    @property
    def inputs(self) -> list[int]:
        """As vLLM counts; what stands in `eagle_config` it takes as it is."""
        plus = PLACES[self.where] == "outputs" and self.where != NESTED
        return [k + 1 for k in self.ids] if plus else list(self.ids)

    @property
    def boundaries(self) -> str:
        """What it may name, for people."""
        return " or ".join(str(list(each)) for each in sorted(self.meant))

    def __str__(self) -> str:
        """What it says, for people."""
        return f"{self.where} {list(self.ids)} names {self.boundaries}"


def lists_of(config: Mapping[str, Any], architecture: str, layers: int) -> dict[str, Listed]:
    """Every list that holds ids, by its key.

    Args:
        config: as it stands in the file.
        architecture: of the target, by which SGLang counts.
        layers: of the target.
    """
    found: dict[str, Listed] = {}
    for where, counts in PLACES.items():
        ids = _at(config, where)
        if isinstance(ids, list) and ids and all(type(k) is int for k in ids):
            meant = {tuple(sorted(k + (counts == "outputs") for k in ids))}
            if where == NESTED:
                meant |= _by_sglang(architecture, layers, ids)
            found[where] = Listed(where, tuple(ids), frozenset(meant))
    return found


def _at(config: Mapping[str, Any], where: str) -> Any:
    outer, dot, inner = where.partition(".")
    value = config.get(outer)
    if not dot:
        return value
    return value.get(inner) if isinstance(value, Mapping) else None


def _by_sglang(architecture: str, layers: int, ids: Sequence[int]) -> set[tuple[int, ...]]:
    """What the versions of SGLang that were read make of nested ids, where they make something of all of them."""
    found: set[tuple[int, ...]] = set()
    for version in {each for rule in rules() if rule.engine == "sglang" for each in rule.versions}:
        try:
            boundary = captured("sglang", version, architecture, layers, ids).boundary
        except RequestError:
            continue
        if len(boundary) == len(ids):
            found.add(tuple(sorted(boundary)))
    return found


def heard(engine: str, lists: Mapping[str, Listed], *, eagle_config: bool) -> dict[str, Listed | None]:
    """The list that an engine reads, by its model runners; None where it takes its default.

    Args:
        engine: `sglang`, `vllm` or `reference`.
        lists: from `lists_of`.
        eagle_config: the config has an object of that name, with something in it.
    """
    if engine != "vllm":
        return {"": lists.get(NESTED)}
    one = next((lists[where] for where in _V1 if where in lists), None)
    if eagle_config and (one is None or one.where == "dflash_config.target_layer_ids"):
        one = lists.get(NESTED)
    return {"V1": one, "V2": next((lists[where] for where in _V2 if where in lists), None)}
