"""Which tensors does an engine hand to a drafter, whose config names these layer ids?

The same numbers mean other tensors in another engine, another version of it, and another class of targets. What is
known stands in `assets/aux_layers.toml`, each rule with its source; what is not known is refused, never guessed.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import Any, Literal

from packaging.version import InvalidVersion, Version

from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.errors import RequestError

KeyAt = Literal["nested", "top"]
"""Where a drafter's config holds its ids: in `eagle_config`, or at the top level."""
KEY = "eagle_aux_hidden_state_layer_ids"
MOST_LAYERS = 100_000
_PLACES = {"nested": f"eagle_config.{KEY}", "top": f"{KEY} at the top level"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How one engine counts, in the versions that were read, for some classes of targets."""

    engine: str
    versions: tuple[str, ...]
    classes: frozenset[str]
    ids: str
    default: str
    embedding: dict[str, str]
    """What becomes of capture index 0, by version; `*` stands for any."""
    last: dict[str, str]
    beyond: dict[str, str]
    twice: dict[str, str]
    keys: tuple[str, ...]
    ordered: bool
    source: str

    def meets(self, version: Version | None) -> bool:
        """Whether it holds for a version: one that was read, or one between two that were read and agree."""
        if self.versions == ("*",):
            return True
        if version is None:
            return False
        read = sorted(Version(each) for each in self.versions)
        return read[0].release <= version.release <= read[-1].release

    def read_in(self, version: Version | None) -> bool:
        """Whether exactly this version was read."""
        return self.versions == ("*",) or (
            version is not None and any(Version(each).release == version.release for each in self.versions)
        )


def _of(fates: dict[str, str], version: Version | None) -> str:
    """What becomes of an index in a version; between two that were read and differ, whether it is captured at all."""
    if "*" in fates:
        return fates["*"]
    exact = version and next((v for k, v in fates.items() if Version(k).release == version.release), None)
    return exact or ("unknown" if {"captured", "unknown"} & set(fates.values()) else "lost")


@dataclass(frozen=True, slots=True)
class Captured:
    """What an engine will really capture."""

    boundary: tuple[int, ...]
    """In the order in which they are concatenated."""
    num_layers: int
    notes: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """By every numbering; null where one has no number for that tensor."""
        last = self.num_layers
        return {
            "boundary": list(self.boundary),
            "hf_hidden_states": [None if k == last else k for k in self.boundary],
            "layer_outputs": [k - 1 for k in self.boundary],
            "notes": list(self.notes),
        }


@cache
def rules() -> tuple[Rule, ...]:
    """All that is known."""
    text = resources.files("eagle3ops.assets").joinpath("aux_layers.toml").read_text(encoding="utf-8")
    return tuple(_rule(each) for each in tomllib.loads(text)["rule"])


def _rule(data: dict[str, Any]) -> Rule:
    def fates(name: str, otherwise: str) -> dict[str, str]:
        told = data.get(name, otherwise)
        return told if isinstance(told, dict) else {"*": told}

    return Rule(
        engine=data["engine"],
        versions=tuple(data["versions"]),
        classes=frozenset(data["classes"]),
        ids=data["ids"],
        default=data.get("default", "thirds"),
        embedding=fates("embedding", "unknown"),
        last=fates("last", "unknown"),
        beyond=fates("beyond", "dropped"),
        twice=fates("twice", "dropped"),
        keys=tuple(data["keys"]),
        ordered=data.get("ordered", False),
        source=data["source"],
    )


def find_rule(engine: str, version: str | None, model_class: str) -> tuple[Rule, Version | None]:
    """The rule that holds.

    Raises:
        RequestError: the engine, its version, or the class of the target is not known.
    """
    of_engine = [rule for rule in rules() if rule.engine == engine.lower()]
    if not of_engine:
        known = ", ".join(sorted({rule.engine for rule in rules()}))
        raise RequestError(f"how {engine!r} counts layers is not known", remedy=f"known: {known}")
    parsed = _version(engine, version)
    read = sorted({each for rule in of_engine for each in rule.versions}, key=lambda each: each.split("."))
    if parsed is None and read != ["*"]:
        raise RequestError(
            f"how {engine} counts layers depends on its version",
            remedy=f"say --engine-version; known: {', '.join(read)}",
        )
    of_class = [rule for rule in of_engine if model_class in rule.classes] or [
        rule for rule in of_engine if "*" in rule.classes
    ]
    if not of_class:
        raise RequestError(
            f"how {engine} {version or ''} counts the layers of {model_class!r} is not known".replace("  ", " "),
            remedy=f"eagle3ops supports says whether it has EAGLE-3 for this class; if so, measure the wiring: "
            f"eagle3ops verify.{_near(model_class, of_engine)}",
        )
    found = [rule for rule in of_class if rule.meets(parsed)]
    if len(found) != 1:
        where = "; ".join(f"{' and '.join(rule.versions)}: {rule.ids}" for rule in of_class)
        raise RequestError(
            f"how {engine} {version} counts the layers of {model_class} is not known; what was read is {where}",
            remedy="use a version that was read, or measure the wiring: eagle3ops verify",
        )
    return found[0], parsed


def _near(model_class: str, of_engine: list[Rule]) -> str:
    known = sorted({one for rule in of_engine for one in rule.classes})
    near = get_close_matches(model_class, known, 5, 0.6)
    return f" Known names like it: {', '.join(near)}" if near else ""


def _version(engine: str, text: str | None) -> Version | None:
    if text is None:
        return None
    try:
        return Version(text)
    except InvalidVersion as error:
        raise RequestError(f"{text!r} is no version of {engine}", remedy="such as 0.5.14") from error


def captured(
    engine: str,
    version: str | None,
    model_class: str,
    num_layers: int,
    ids: Sequence[int] | None = None,
    key_at: KeyAt | None = None,
    runner: Literal["v1", "v2"] | None = None,
) -> Captured:
    """What an engine captures for a drafter.

    Args:
        engine: `sglang`, `vllm`, `reference`, or a trainer.
        version: of the engine.
        model_class: of the target, as the engine's registry names it.
        num_layers: of the target.
        ids: as the drafter's config writes them; None when it writes none.
        key_at: where the config holds them; None means where that engine reads them.
        runner: of vLLM; None is either, where that makes no difference.

    Raises:
        RequestError: what holds is not known, or the numbers make no sense.
    """
    if not 1 <= num_layers <= MOST_LAYERS:
        raise RequestError(f"a target of {num_layers} layers", remedy=f"between 1 and {MOST_LAYERS}")
    rule, parsed = find_rule(engine, version, model_class)
    notes: list[str] = []
    if not rule.read_in(parsed):
        notes.append(f"{engine} {version} itself was not read; {' and '.join(rule.versions)} were, and count alike")
    heard = _heard(rule, ids, key_at, runner, notes)
    indices = _default(rule, num_layers, notes) if heard is None else _indices(rule, heard, num_layers, notes)
    boundary = _kept(rule, parsed, indices, num_layers, notes)
    if rule.engine == "vllm":
        notes.append(
            "whether vLLM has EAGLE-3 for this class at all, eagle3ops supports tells: without it does not start"
        )
    if not boundary:
        notes.append("error: nothing is captured, so there is nothing to feed the drafter with")
    notes.append(f"source: {rule.source}")
    return Captured(tuple(boundary), num_layers, tuple(notes))


def _heard(
    rule: Rule, ids: Sequence[int] | None, key_at: KeyAt | None, runner: str | None, notes: list[str]
) -> list[int] | None:
    """The ids that the engine takes notice of; None when it falls back to its default."""
    if ids is None:
        return None
    place = key_at or (rule.keys[0] if rule.keys else "nested")
    if place not in rule.keys:
        where = f"it reads {_PLACES[rule.keys[0]]}" if rule.keys else "its layers are fixed"
        notes.append(f"{_PLACES[place]} is ignored without a word: {where}")
        return None
    if rule.engine == "vllm":
        if not ids:
            notes.append("an empty list counts as none")
            return None
        if place == "nested":
            if runner == "v2":
                notes.append("vLLM's V2 model runner ignores eagle_config without a word: it reads the top level only")
                return None
            notes.append(
                "only vLLM's V1 model runner reads eagle_config; V2 ignores it without a word and takes its default "
                "(--runner v2 shows it). At the top level both read the ids"
            )
    return list(ids)


def _default(rule: Rule, num_layers: int, notes: list[str]) -> list[int]:
    if rule.engine == "reference":
        raise RequestError(
            "the reference engine has no default: a drafter's config has to name its layers",
            remedy=f"write {_PLACES['nested']}: 0-based layer outputs",
        )
    shift = 1 if rule.default == "thirds_plus_one" else 0
    found = [2 + shift, num_layers // 2 + shift, num_layers - 3 + shift]
    notes.append("no ids are read, so the engine takes its default: 2, n // 2, n - 3" + (", each plus 1" * shift))
    return found


def _indices(rule: Rule, ids: list[int], num_layers: int, notes: list[str]) -> list[int]:
    if rule.ids == "plus_one_if_first_1":
        if ids and ids[0] == 1:
            notes.append("the first id is 1, so 1 is added to each: taken for outputs of layers")
            return [each + 1 for each in ids]
        notes.append("the first id is not 1, so the ids are taken as they are: inputs of layers")
        return ids
    if rule.ids == "plus_one_unless_last":
        if ids and max(ids) == num_layers:
            notes.append(f"the highest id is {num_layers}, so the ids are taken as they are: inputs of layers")
            return ids
        return [each + 1 for each in ids]
    return ids if rule.ids == "as_written" else [each + 1 for each in ids]


def _kept(rule: Rule, version: Version | None, indices: list[int], num_layers: int, notes: list[str]) -> list[int]:
    """The boundaries among the capture indices that come out, in the order in which they do."""
    if rule.ids == "nowhere":
        notes.append("error: the decoder never looks where the ids are set, which makes the engine fail")
    kept: list[int] = []
    for index in [] if rule.ids == "nowhere" else indices if rule.ordered else sorted(indices):
        if index in kept:
            fails = _of(rule.twice, version) == "fails"
            named = f"{AuxLayers.describe(index, num_layers)} is named twice and captured once"
            notes.append(f"error: {named}, which makes the engine fail" if fails else named)
            continue
        what = "captured"
        if not 0 <= index <= num_layers:
            what = _of(rule.beyond, version)
        elif index == 0:
            what = _of(rule.embedding, version)
        elif index == num_layers:
            what = _of(rule.last, version)
        name = (
            AuxLayers.describe(index, num_layers)
            if 0 <= index <= num_layers
            else f"capture index {index}, which a target of {num_layers} layers does not have,"
        )
        if what == "captured":
            kept.append(index)
        elif what == "dropped":
            notes.append(f"{name} is dropped without a word")
        elif what == "fails":
            notes.append(f"error: {name} makes the engine fail")
        elif what == "lost":
            notes.append(
                f"error: {name} is dropped without a word or makes the engine fail, which depends on the version"
            )
        else:
            kept.append(index)
            notes.append(f"{name}: whether it is captured was never seen here; measure it")
    if not rule.ordered and kept != [each for each in indices if each in kept]:
        notes.append("captured in ascending order, whatever the order in the config")
    if len(kept) != len(indices):
        notes.append(
            f"{len(kept)} of {len(indices)} tensors come out: a drafter whose fc reads {len(indices)} cannot be fed"
        )
    if num_layers in kept:
        notes.append(
            f"boundary {num_layers} is taken before the final norm; hidden_states[{num_layers}] of Hugging Face is "
            "taken after it, so it has no number there"
        )
    return kept
