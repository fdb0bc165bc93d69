"""Is this pipeline file right, and what does it come to once every default is filled in?"""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from eagle3ops.errors import RequestError, SpecError
from eagle3ops.spec.base import AuxLayersSpec, StageSpec
from eagle3ops.spec.models import Pipeline, pipeline_model
from eagle3ops.spec.yamltree import KeyPath, Place, Tree, dotted, read_tree

_SECRET = re.compile(
    r"(.*[_-])?(password|passwd|secret|api_?key|access_?key|private_?key|credentials?)"
    r"|((hf|hub|auth|access|api|bearer|github|wandb)[_-]?)?token",
    re.IGNORECASE,
)

_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a map",
    "model_type": "a map",
    "model_attributes_type": "a map",
    "dataclass_type": "a map",
    "mapping_type": "a map",
}


def load_pipeline(path: Path, specs: Mapping[str, type[StageSpec]], overrides: Sequence[str] = ()) -> Pipeline:
    """Read a pipeline file, apply `--set` overrides, and check everything.

    Args:
        path: the YAML file.
        specs: the Spec of every stage, in the order in which stages run.
        overrides: `a.b=value`, the value being a YAML scalar or flow collection.

    Raises:
        SpecError: with file, line, column and key path of what is wrong.
    """
    try:
        if path.is_dir():
            raise SpecError(f"{path}: a folder; a pipeline file is wanted")
        text = path.read_bytes()
    except FileNotFoundError as error:
        raise SpecError(f"{path}: there is no such file") from error
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from error
    return parse_pipeline(text, str(path), specs, overrides)


def parse_pipeline(
    text: str | bytes, source: str, specs: Mapping[str, type[StageSpec]], overrides: Sequence[str] = ()
) -> Pipeline:
    """`load_pipeline` for a text that is in memory already; `source` names it in messages."""
    tree = _complete_tree(text, source, specs, overrides)
    model = pipeline_model(specs)
    try:
        checked = _checked(model, tree)
    except ValidationError as error:
        raise spec_error(error, tree, model) from error
    made = {name: getattr(checked.stages, name) for name in specs}
    return Pipeline.model_construct(
        **{name: getattr(checked, name) for name in Pipeline.model_fields} | {"stages": made}
    )


def find_problems(text: str | bytes, source: str, specs: Mapping[str, type[StageSpec]]) -> list[SpecError]:
    """Everything that `parse_pipeline` would refuse, the first reason first; one for each place."""
    try:
        tree = _complete_tree(text, source, specs)
    except SpecError as error:
        return [error]
    model = pipeline_model(specs)
    try:
        _checked(model, tree)
    except ValidationError as error:
        found: dict[KeyPath, SpecError] = {}
        for problem in _by_importance(error):
            told = _in_words(problem, tree, model)
            found.setdefault(told.path, told)
        return list(found.values())
    return []


def _complete_tree(
    text: str | bytes, source: str, specs: Mapping[str, type[StageSpec]], overrides: Sequence[str] = ()
) -> Tree:
    """The text as plain data, with every stage named."""
    tree = read_tree(text, source)
    if tree.data is None:
        raise SpecError(f"{source}: the file is empty", remedy="see assets/pipelines for a complete one")
    if not isinstance(tree.data, dict):
        raise SpecError(f"{tree.place(())}: expected a map of sections, got {describe(tree.data)}")
    for override in overrides:
        _apply(tree, override)
    _refuse_secrets(tree.data, (), tree)
    if tree.data.get("stages") is None:
        tree.data["stages"] = {}
    if isinstance(tree.data["stages"], dict):
        # A stage that is not named runs with its defaults.
        tree.data["stages"] = {name: {} for name in specs} | tree.data["stages"]
    return tree


def _checked(model: type[Pipeline], tree: Tree) -> Any:
    # By way of JSON, so that strictness lets lists be tuples and whole numbers be numbers, but nothing else.
    return model.model_validate_json(json.dumps(tree.data), strict=True)


def dump_pipeline(pipeline: Pipeline) -> str:
    """The resolved pipeline as YAML: complete, and the same text for the same pipeline."""
    data = pipeline.model_dump(mode="json", by_alias=True)
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)


def describe(value: Any) -> str:
    """Name what was found, for a message."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a map"
    if isinstance(value, list):
        return "a list"
    text = repr(value) if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _apply(tree: Tree, override: str) -> None:
    """Put the value of `a.b=value` into the tree."""
    source = f"--set {override}"
    name, equals, text = override.partition("=")
    keys = name.strip().split(".")
    if not equals or not all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", key) for key in keys):
        raise SpecError(f"{source}: expected KEY=VALUE", remedy="for example --set stages.train.lr=2e-4")
    value = read_tree(text, source)
    at = tree.data
    for depth, key in enumerate(keys[:-1]):
        below = at.get(key)
        if below is None:
            below = at[key] = {}
            tree.keys[tuple(keys[: depth + 1])] = Place(source)
        if not isinstance(below, dict):
            raise SpecError(f"{source}: {dotted(tuple(keys[: depth + 1]))} is {describe(below)}, not a map")
        at = below
    path: KeyPath = tuple(keys)
    for places in (tree.keys, tree.values):
        for known in [known for known in places if known[: len(path)] == path]:
            del places[known]
    at[keys[-1]] = value.data
    tree.keys[path] = tree.values[path] = Place(source)


def _refuse_secrets(data: Any, path: KeyPath, tree: Tree) -> None:
    if isinstance(data, dict):
        for key, value in data.items():
            if _SECRET.fullmatch(key):
                raise SpecError(
                    f"{tree.place((*path, key), of_key=True)}: {dotted((*path, key))}: secrets do not belong in a "
                    "pipeline file, which is copied into every run's folder",
                    remedy="set an environment variable instead, such as HF_TOKEN",
                ).under((*path, key))
            _refuse_secrets(value, (*path, key), tree)
    elif isinstance(data, list):
        for number, item in enumerate(data):
            _refuse_secrets(item, (*path, number), tree)


def spec_error(error: ValidationError, tree: Tree, model: type[BaseModel]) -> SpecError:
    """Put the first problem into words that say where, what was expected and what was found."""
    problems = _by_importance(error)
    more = f" ({len(problems) - 1} more to mend)" if len(problems) > 1 else ""
    return _in_words(problems[0], tree, model, more)


def _by_importance(error: ValidationError) -> list[Any]:
    # A misspelt key also leaves a required one missing: name the cause, not the consequence.
    return sorted(error.errors(include_url=False), key=lambda problem: problem["type"] != "extra_forbidden")


def _in_words(problem: Any, tree: Tree, model: type[BaseModel], more: str = "") -> SpecError:
    path: KeyPath = _known_part(tree.data, tuple(problem["loc"]))
    kind = str(problem["type"])
    if kind == "extra_forbidden":
        return _unknown_key(path, tree, model).under(path)
    if kind == "missing":
        return _missing(tuple(problem["loc"]), path, tree, more).under(tuple(problem["loc"]))
    if tuple(problem["loc"])[-1:] == ("[key]",):
        return _unknown_name(path, tree, str(problem.get("ctx", {}).get("expected", ""))).under(path)
    at = f"{tree.place(path)}: {dotted(path) or 'the file'}"
    if kind == "model_type" and _section(model, path) is AuxLayersSpec:
        return SpecError(
            f"{at}: layer ids without their convention; the same numbers name different layers elsewhere{more}",
            remedy="write {convention: boundary, ids: [2, 15, 27]}; other conventions: hf_hidden_states, layer_outputs",
        ).under(path)
    found = _at(tree.data, path)
    expected = _EXPECTED.get(kind)
    remedy = None
    if kind == "literal_error":
        expected = str(problem["ctx"]["expected"])
        words = re.findall(r"'([^']*)'", expected)
        near = difflib.get_close_matches(str(found), words, n=1)
        remedy = f"did you mean {near[0]!r}?" if near else None
    if expected is not None:
        return SpecError(f"{at}: expected {expected}, got {describe(found)}{more}", remedy=remedy).under(path)
    message = str(problem["msg"])
    message = message[0].lower() + message[1:]
    # What is wrong within a map or a list is said already; that it is one says nothing.
    got = "" if kind == "value_error" and isinstance(found, dict | list) else f", got {describe(found)}"
    return SpecError(f"{at}: {message.removeprefix('value error, ')}{got}{more}").under(path)


def _missing(wanted: KeyPath, path: KeyPath, tree: Tree, more: str) -> SpecError:
    missing = dotted(wanted)
    remedy = None
    if missing == "schema":
        remedy = "add the line: schema: 1"
    elif missing.endswith(".convention"):
        remedy = "add convention: boundary, hf_hidden_states or layer_outputs; the same ids mean different layers"
    return SpecError(f"{tree.place(path)}: {missing}: missing{more}", remedy=remedy)


def _unknown_key(path: KeyPath, tree: Tree, model: type[BaseModel]) -> SpecError:
    section = _section(model, path[:-1])
    known = sorted((field.alias or name) for name, field in section.model_fields.items()) if section else []
    near = difflib.get_close_matches(str(path[-1]), known, n=1, cutoff=0.5)
    remedy = f"did you mean {near[0]!r}?" if near else None
    if remedy is None and known:
        remedy = f"known here: {', '.join(known)}"
    return SpecError(f"{tree.place(path, of_key=True)}: {dotted(path)}: unknown key", remedy=remedy)


def _unknown_name(path: KeyPath, tree: Tree, expected: str) -> SpecError:
    """A key of a map whose keys are names out of a list."""
    known = re.findall(r"'([^']*)'", expected)
    near = difflib.get_close_matches(str(path[-1]), known, n=1, cutoff=0.5)
    remedy = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}"
    return SpecError(f"{tree.place(path, of_key=True)}: {dotted(path)}: unknown key", remedy=remedy)


def _section(model: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    """The model that `path` leads to, through optional and nested fields."""
    at: type[BaseModel] | None = model
    for key in path:
        if at is None or isinstance(key, int):
            return None
        fields = {(field.alias or name): field for name, field in at.model_fields.items()}
        at = _model_in(fields[key].annotation) if key in fields else None
    return at


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for part in getattr(annotation, "__args__", ()):
        found = _model_in(part)
        if found is not None:
            return found
    return None


def _known_part(data: Any, path: tuple[int | str, ...]) -> KeyPath:
    """`path` without what pydantic adds to it for unions, and no further than the data goes.

    Only the last part may name what is not there: a key that is missing.
    """
    kept: list[int | str] = []
    at = data
    for key in path:
        try:
            at = at[key]
        except (KeyError, IndexError, TypeError):
            continue
        kept.append(key)
    return tuple(kept)


def _at(data: Any, path: KeyPath) -> Any:
    for key in path:
        data = data[key]
    return data


def require_known_names(names: Sequence[str], known: Sequence[str], what: str) -> None:
    """Refuse a name that is not in `known`, offering the nearest.

    Raises:
        RequestError: there is no such name.
    """
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            remedy = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise RequestError(f"there is no {what} {name!r}", remedy=remedy)
