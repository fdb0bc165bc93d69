"""Does the drafter turn positions as it was trained, and as its target does, and how far do they reach?

What engines make of a config, read in transformers 5.8 (which both engines load configs with: `rope_scaling` replaces
`rope_parameters`, the top-level `rope_theta` and `partial_rotary_factor` fill in what lacks there), SGLang 0.5.14 and
0.5.23 (`layers/rotary_embedding/factory.py`, `models/llama.py`, `kimi_k25_eagle3.py`) and vLLM 0.32.0
(`layers/rotary_embedding`, `models/llama.py`, `deepseek_v2.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3ops.wiring.lint.case import AUTHOR, Case, real, whole

SCALED = {
    "linear": ("factor",), "dynamic": (), "yarn": ("factor",),
    "deepseek_yarn": ("factor", "original_max_position_embeddings"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"), "longrope": (), "su": (), "proportional": (),
}  # fmt: skip
"""Types that scale positions, with the numbers that each cannot do without."""
TYPES = {"default": (), "mrope": (), **SCALED}
ORIGINAL = "original_max_position_embeddings"
STRETCHED = frozenset({"yarn", "deepseek_yarn", "llama3", "longrope"})
"""Types that are nothing without the length before they stretched it."""
LISTS = ("short_factor", "long_factor", "mrope_section")
SAME = {"su": "longrope", "mrope": "default", "deepseek_yarn": "yarn"}
"""Names for one thing; with a compressed cache yarn is always DeepSeek's."""
_DEFAULTS = {
    "yarn": {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.0},
    "llama3": {}, "linear": {}, "dynamic": {}, "longrope": {}, "proportional": {}, "default": {},
}  # fmt: skip
_NUMBERS = (
    "factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
    "attention_factor", "alpha", ORIGINAL,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding, as an engine reads it."""

    kind: str
    theta: float | None
    share: float
    """Of each head that is turned."""
    numbers: Mapping[str, float]
    """What scales it, with the defaults filled in."""
    lists: Mapping[str, tuple[float, ...]]

    @property
    def scaled(self) -> str:
        """The scaling in words."""
        if self.kind == "default":
            return "not scaled"
        told = ", ".join(f"{name} {value:g}" for name, value in self.numbers.items() if name in ("factor", ORIGINAL))
        return self.kind + (f" ({told})" if told else "")


def inner_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """`rope_scaling` where there is one, else `rope_parameters`; of one a type of layer that of full attention."""
    for key in ("rope_scaling", "rope_parameters"):
        told = config.get(key)
        if isinstance(told, Mapping) and told:
            full = told.get("full_attention")
            return full if isinstance(full, Mapping) else told
    return {}


def read_rope(config: Mapping[str, Any]) -> Rope:
    """What a config comes to; what makes no sense counts as not said."""
    inner = inner_of(config)
    kind = _kind(inner)
    name = SAME.get(str(kind), str(kind))
    numbers = dict(_DEFAULTS.get(name, {})) if name != "default" else {}
    if name != "default":
        numbers |= {key: value for key in _NUMBERS if (value := real(inner.get(key))) is not None}
        outer, reach = real(config.get(ORIGINAL)), real(config.get("max_position_embeddings"))
        if name in STRETCHED and (original := outer or numbers.get(ORIGINAL) or reach) is not None:
            numbers[ORIGINAL] = original
    inside = real(inner.get("rope_theta"))
    share = real(config.get("partial_rotary_factor")) or real(inner.get("partial_rotary_factor")) or 1.0
    lists = {key: told for key in LISTS if (told := _numbers(inner.get(key)))}
    return Rope(name, inside if inside is not None else real(config.get("rope_theta")), share, numbers, lists)


def _kind(inner: Mapping[str, Any]) -> object:
    return inner.get("rope_type", inner.get("type", "default"))


def _numbers(value: object) -> tuple[float, ...]:
    found = [real(one) for one in value] if isinstance(value, list) else []
    return tuple(one for one in found if one is not None) if None not in found else ()


def rope(case: Case) -> None:
    """Does the engine read what stands there, and is it what the target has?"""
    if _broken(case):
        return
    own, theirs = read_rope(case.config), read_rope(case.target.config)
    _not_read(case, own)
    if own.theta is None:
        case.warn(
            "rope-missing",
            "config.json: rope_theta",
            "is missing",
            "engines take 10000",
            "write the number it was trained with",
        )
    elif theirs.theta is not None and own.theta != theirs.theta:
        case.warn(
            "rope-differs",
            "config.json: rope_theta",
            f"is {own.theta:g}; of the target it is {theirs.theta:g}",
            "right only where it was trained so",
            AUTHOR,
        )
    if case.target.latent is (case.family == "latent"):
        # Plain attention and a compressed cache turn other parts of a head: there is nothing to compare.
        _scaling(case, own, theirs)


def _broken(case: Case) -> bool:
    """Whether an engine cannot build it, or nobody can say what is meant."""
    config = case.config
    told = {key: config[key] for key in ("rope_scaling", "rope_parameters") if config.get(key)}
    where = f"config.json: {next(iter(told), 'rope_parameters')}"
    if any(isinstance(one, Mapping) and any(isinstance(v, Mapping) for v in one.values()) for one in told.values()):
        case.error(
            "rope-nested",
            where,
            "holds one rope for each type of layer",
            "a drafter's class has one type of layer, and takes none of them",
            "write the one it was trained with, flat",
        )
        return True
    inner = inner_of(config)
    odd = next((one for one in told.values() if not isinstance(one, Mapping)), None)
    kind = _kind(inner) if odd is None else odd
    if odd is not None or not isinstance(kind, str) or kind not in TYPES:
        case.error(
            "rope-unknown",
            where,
            f"is of the unknown type {kind!r}",
            "engines refuse it",
            "write the type it was trained with",
        )
        return True
    lacks = [name for name in TYPES[kind] if real(inner.get(name)) is None]
    if kind in ("longrope", "su"):
        lacks += [name for name in ("short_factor", "long_factor") if not _numbers(inner.get(name))]
    if kind == "dynamic" and real(inner.get("factor")) is None and real(inner.get("alpha")) is None:
        lacks.append("factor")
    if lacks:
        case.error(
            "rope-incomplete",
            where,
            f"is of type {kind} and says no {', '.join(lacks)}",
            "vLLM fails, and SGLang takes 1 for a factor",
            "write the numbers it was trained with",
        )
        return True
    return _twice(case, told, inner)


def _twice(case: Case, told: Mapping[str, Any], inner: Mapping[str, Any]) -> bool:
    """Whether two places say different things."""
    config = case.config
    one, other = real(config.get("rope_theta")), real(inner.get("rope_theta"))
    if one is not None and other is not None and one != other:
        case.error(
            "rope-twice",
            "config.json: rope_theta",
            f"is {one:g}, and {other:g} in rope_parameters",
            "which one holds depends on the version of transformers",
            "write the same number in both",
        )
        return True
    kinds = {name: inner[name] for name in ("rope_type", "type") if name in inner}
    # mrope was the old name for default with sections, and transformers writes both.
    if len({SAME.get(str(kind), str(kind)) for kind in kinds.values()}) > 1:
        case.error(
            "rope-twice",
            f"config.json: {next(iter(told))}",
            f"is of rope_type {kinds['rope_type']!r} and of type {kinds['type']!r}",
            "engines take rope_type, and older ones type",
            "write rope_type alone",
        )
        return True
    if len(told) == 2:
        scaled, parameters = (read_rope({**config, key: None}) for key in ("rope_parameters", "rope_scaling"))
        if (scaled.kind, scaled.numbers, scaled.lists) != (parameters.kind, parameters.numbers, parameters.lists):
            case.error(
                "rope-twice",
                "config.json: rope_scaling",
                f"says {scaled.scaled}, and rope_parameters {parameters.scaled}",
                "transformers 5 takes rope_scaling, and drops the other without a word",
                "keep rope_parameters alone, with what it was trained with",
            )
            return True
    return False


def _not_read(case: Case, own: Rope) -> None:
    """What stands there, and this engine does not heed."""
    config, inner = case.config, inner_of(case.config)
    if case.engine == "reference" and (own.kind != "default" or own.share != 1.0 or "mrope_section" in own.lists):
        case.error(
            "rope-unsupported",
            "config.json: rope_parameters",
            f"is {own.scaled}, and turns {own.share:.0%} of a head",
            "the reference engine turns whole heads, and scales nothing",
            "serve it with another engine",
        )
        return
    if own.kind in STRETCHED and not _length_said(config):
        case.warn(
            "rope-original-missing",
            f"config.json: {ORIGINAL}",
            f"is missing, with a rope of type {own.kind}",
            "engines take max_position_embeddings for it: right only where that was not stretched",
            "write the length before it was stretched",
        )
    inside, outside = real(inner.get("partial_rotary_factor")), real(config.get("partial_rotary_factor"))
    if case.engine == "sglang" and case.family == "llama" and inside not in (None, 1.0) and outside is None:
        case.error(
            "rope-share-not-read",
            "config.json: rope_parameters.partial_rotary_factor",
            f"is {inside:g}",
            f"{case.name} reads it at the top level only, and turns whole heads",
            f'write "partial_rotary_factor": {inside:g} at the top level as well',
        )
    if case.family == "latent" and own.kind not in ("default", "yarn"):
        case.error(
            "rope-type-taken",
            "config.json: rope_parameters",
            f"is of type {own.kind}",
            f"{case.name} takes every scaling of a drafter with a compressed cache (MLA) for DeepSeek's yarn",
            "train it with yarn, or without scaling",
        )
    if case.engine == "sglang" and case.family == "llama" and own.kind == "yarn" and "attention_factor" in own.numbers:
        case.warn(
            "rope-not-read",
            "config.json: rope_parameters.attention_factor",
            f"is {own.numbers['attention_factor']:g}",
            f"{case.name} reads attn_factor, which multiplies what it computes from the factor, and not this",
            "leave it out where it is what yarn computes anyway; otherwise serve it with vLLM",
        )


def _length_said(config: Mapping[str, Any]) -> bool:
    return any(real(one.get(ORIGINAL)) is not None for one in (config, inner_of(config)))


def _scaling(case: Case, own: Rope, theirs: Rope) -> None:
    """The target's scaling, or another one?"""
    where = f"config.json: {'rope_scaling' if case.config.get('rope_scaling') else 'rope_parameters'}"
    if "mrope_section" in theirs.lists and "mrope_section" not in own.lists:
        case.warn(
            "rope-sections-missing",
            where,
            f"no mrope_section; of the target it is {list(theirs.lists['mrope_section'])}",
            f"{case.name} turns the drafter by one position where the target has three: the same for text, another "
            "for pictures",
            "right for text alone; otherwise train it with the target's sections",
        )
    differ = []
    if own.kind != theirs.kind:
        differ.append(f"is {own.scaled}; the target is {theirs.scaled}")
    else:
        # Of a length that is not said, it is told already that it is not.
        names = sorted(
            (own.numbers.keys() | theirs.numbers.keys()) - (set() if _length_said(case.config) else {ORIGINAL})
        )
        differ += [
            f"{name} is {_told(own.numbers.get(name))}; of the target it is {_told(theirs.numbers.get(name))}"
            for name in names
            if own.numbers.get(name) != theirs.numbers.get(name)
        ]
        differ += [
            f"{name} is another than the target's"
            for name in LISTS
            if name in own.lists and name in theirs.lists and own.lists[name] != theirs.lists[name]
        ]
    if own.share != theirs.share:
        differ.append(f"turns {own.share:.0%} of a head; the target turns {theirs.share:.0%}")
    if differ:
        case.warn(
            "rope-scaling-differs",
            where,
            "; ".join(differ)[:400],
            "right only where it was trained so; a trainer that leaves the target's scaling out serves short contexts "
            "well and long ones badly",
            AUTHOR,
        )


def _told(value: float | None) -> str:
    return "not said" if value is None else f"{value:g}"


def context(case: Case) -> None:
    """How many positions the drafter has, against the target, and the size of what norms divide by."""
    config = case.config
    reach, needed = whole(config.get("max_position_embeddings")), case.target.size("max_position_embeddings")
    if reach is None:
        case.warn(
            "context-missing",
            "config.json: max_position_embeddings",
            _absent(config, "max_position_embeddings"),
            "transformers takes 2048",
            "write the length it was trained for",
        )
    elif needed is not None and reach < needed:
        case.warn(
            "context-shorter",
            "config.json: max_position_embeddings",
            f"is {reach}; of the target it is {needed}",
            "beyond it acceptance falls, and serving may be slower than without speculation"
            + (": SGLang 0.5.14 refuses to start" if case.engine == "sglang" else ""),
            "train it longer, or serve shorter contexts"
            + (" (SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 starts all the same)" if case.engine == "sglang" else ""),
        )
    if real(config.get("rms_norm_eps")) is None:
        case.warn(
            "eps-missing",
            "config.json: rms_norm_eps",
            _absent(config, "rms_norm_eps"),
            "transformers takes 1e-6",
            "write the number it was trained with",
        )


def _absent(config: Mapping[str, Any], name: str) -> str:
    return "is missing" if config.get(name) is None else f"is {config[name]!r}, which is no such number"[:200]
