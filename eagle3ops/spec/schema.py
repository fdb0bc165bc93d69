"""What may stand in a pipeline file, as a JSON Schema for editors and forms?"""

import ast
import inspect
import itertools
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from eagle3ops.spec.base import StageSpec
from eagle3ops.spec.models import pipeline_model


def json_schema(specs: Mapping[str, type[StageSpec]]) -> dict[str, Any]:
    """The JSON Schema of pipeline files; each setting with what stands below it in the source as its description."""
    model = pipeline_model(specs)
    schema = model.model_json_schema(by_alias=True)
    parts = schema.get("$defs", {}) | {model.__name__: schema}
    for kind in _models(model, set()):
        properties = parts.get(kind.__name__, {}).get("properties", {})
        words = _words_below_fields(kind)
        for name, field in kind.model_fields.items():
            known = properties.get(field.alias or name)
            if name in words and isinstance(known, dict):
                known.setdefault("description", words[name])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema | {"title": "eagle3ops pipeline"}


def _models(annotation: Any, seen: set[type[BaseModel]]) -> Iterator[type[BaseModel]]:
    """The models that an annotation is made of, each once."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if annotation in seen:
            return
        seen.add(annotation)
        yield annotation
        for field in annotation.model_fields.values():
            yield from _models(field.annotation, seen)
    for part in getattr(annotation, "__args__", ()):
        yield from _models(part, seen)


def _words_below_fields(model: type[BaseModel]) -> dict[str, str]:
    """The text below each field of a class and of those it is derived from, on one line."""
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if not issubclass(kind, BaseModel) or kind is BaseModel:
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
        except (OSError, TypeError, SyntaxError):
            # Made while the program runs, or its source is not here.
            continue
        body = tree.body[0].body if tree.body and isinstance(tree.body[0], ast.ClassDef) else []
        for field, below in itertools.pairwise(body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
                and isinstance(below.value.value, str)
            ):
                found[field.target.id] = " ".join(below.value.value.split())
    return found
