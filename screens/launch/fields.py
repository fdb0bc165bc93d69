"""Which fields does a form for pipeline files have? As the JSON Schema of the host says, whatever its version."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from eagle3ops.screens.launch.yaml_text import render
from eagle3ops.words import plain

Path = tuple[str, ...]

MOST_FIELDS = 1000
_DEEPEST = 6
_PIPELINE = "pipeline"


@dataclass(frozen=True, slots=True)
class Field:
    """One setting."""

    path: Path
    kind: str
    """`flag`, `choice`, `whole`, `number`, `text`, or `yaml` for what is written as a line of YAML."""
    label: str
    """Its path within the section."""
    words: str = ""
    """What it does."""
    takes: str = ""
    """What may be written, in words: type and bounds."""
    choices: tuple[str, ...] = ()
    default: Any = None
    has_default: bool = False
    required: bool = False
    nullable: bool = False
    fixed: bool = False
    """Only one value is possible."""


@dataclass(frozen=True, slots=True)
class Section:
    """Fields that belong together: the pipeline itself, target, engine, one stage."""

    path: Path
    name: str
    words: str
    fields: tuple[Field, ...]
    stage: bool = False


def sections(schema: object) -> list[Section]:
    """The sections of a form, in the order of the schema. What cannot be understood is a line of YAML, or left out."""
    if not isinstance(schema, Mapping):
        return []
    reader = _Reader(schema)
    own: list[Field] = []
    found: list[Section] = []
    for name, part, required in reader.properties(schema):
        inner = reader.resolved(part)
        if name == "stages":
            found += [
                reader.section(("stages", stage), stage, below, stage=True)
                for stage, below, _ in reader.properties(inner)
            ]
        elif isinstance(inner.get("properties"), Mapping):
            found.append(reader.section((name,), name, part))
        else:
            own += reader.fields((name,), part, required, (name,), 0)
    shown = tuple(field for field in own if not field.fixed)
    return [Section((), _PIPELINE, "Name, seed and what else is said of the whole.", shown), *found]


class _Reader:
    """Reads one schema; counts fields, so that a strange one does not fill the memory."""

    def __init__(self, schema: Mapping[Any, Any]) -> None:
        known = schema.get("$defs")
        self._parts: Mapping[Any, Any] = known if isinstance(known, Mapping) else {}
        self._left = MOST_FIELDS

    def properties(self, part: Mapping[Any, Any]) -> Iterator[tuple[str, Mapping[Any, Any], bool]]:
        """Name, schema and whether it is required, of each property."""
        known, wanted = part.get("properties"), part.get("required")
        for name, below in known.items() if isinstance(known, Mapping) else ():
            if self._left <= 0:
                return
            self._left -= 1
            if isinstance(name, str) and isinstance(below, Mapping):
                yield name, below, isinstance(wanted, list) and name in wanted

    def resolved(self, part: Mapping[Any, Any]) -> Mapping[Any, Any]:
        """The part that a reference leads to; words and default that stand beside the reference count first."""
        at = part
        for _ in range(_DEEPEST):
            name = at.get("$ref")
            if not isinstance(name, str):
                break
            there = self._parts.get(name.rpartition("/")[2])
            if not isinstance(there, Mapping):
                break
            at = {**there, **{key: value for key, value in at.items() if key != "$ref"}}
        return at

    def section(self, path: Path, name: str, part: Mapping[Any, Any], *, stage: bool = False) -> Section:
        """One section with its fields, and those of the sections in it."""
        inner = self.resolved(part)
        fields = [
            field
            for key, below, required in self.properties(inner)
            for field in self.fields((*path, key), below, required, (key,), 0, inner.get("default"))
        ]
        return Section(path, plain(name), _words(inner), tuple(fields), stage)

    def fields(
        self, path: Path, part: Mapping[Any, Any], required: bool, label: Path, depth: int, around: object = None
    ) -> Iterator[Field]:
        """The field that a property is, or those in it.

        Args:
            around: the default of what encloses it, which counts before its own.
        """
        inner = self.resolved(part)
        default, has_default = inner.get("default"), "default" in inner
        if isinstance(around, Mapping) and path[-1] in around:
            default, has_default = around[path[-1]], True
        if isinstance(inner.get("properties"), Mapping) and depth < _DEEPEST:
            for key, below, needed in self.properties(inner):
                yield from self.fields((*path, key), below, needed, (*label, key), depth + 1, default)
            return
        kinds, nullable = self._alternatives(inner)
        first = kinds[0] if kinds else {}
        kind, choices, takes = self._kind(kinds)
        yield Field(
            path=path,
            kind=kind,
            label=plain(".".join(label)),
            words=_words(inner) or _words(first),
            takes=takes + (", or nothing" if nullable else ""),
            choices=choices,
            default=default if has_default else None,
            has_default=has_default,
            required=required and not has_default,
            nullable=nullable,
            fixed="const" in first,
        )

    def _alternatives(self, inner: Mapping[Any, Any]) -> tuple[list[Mapping[Any, Any]], bool]:
        """What a value may be, besides nothing at all; and whether it may be nothing."""
        several = inner.get("anyOf")
        if not isinstance(several, list):
            return [inner], inner.get("type") == "null"
        kinds = [self.resolved(one) for one in several if isinstance(one, Mapping)]
        return [one for one in kinds if one.get("type") != "null"], any(one.get("type") == "null" for one in kinds)

    def _kind(self, kinds: list[Mapping[Any, Any]]) -> tuple[str, tuple[str, ...], str]:
        if len(kinds) != 1:
            # Such as a size: a whole number of bytes or text with a unit.
            told = " or ".join(filter(None, (self._told(one) for one in kinds)))
            return "yaml", (), told or "a line of YAML"
        only = kinds[0]
        told = self._told(only)
        choices = only.get("enum")
        if isinstance(choices, list) and choices and all(isinstance(one, str) for one in choices):
            return "choice", tuple(choices), told
        named = {"boolean": "flag", "integer": "whole", "number": "number", "string": "text"}
        kind = only.get("type")
        return named.get(kind, "yaml") if isinstance(kind, str) else "yaml", (), told

    def _told(self, part: Mapping[Any, Any]) -> str:
        """What may be written, in words."""
        choices = part.get("enum")
        if isinstance(choices, list):
            return "one of " + ", ".join(plain(one) for one in choices[:20])
        if "const" in part:
            return f"only {plain(render(part['const']))}"
        kind = part.get("type")
        if kind == "array":
            items = part.get("items")
            below = self.resolved(items) if isinstance(items, Mapping) else {}
            inside = {"integer": "whole numbers", "number": "numbers", "string": "words", "object": "maps"}
            of = inside.get(str(below.get("type")), "values")
            return f"a list of {of}{_keys(below)}, such as [1, 2]" if of != "maps" else f"a list of maps{_keys(below)}"
        if kind == "object":
            return f"a map{_keys(part)}"
        named = {"integer": "a whole number", "number": "a number", "string": "text", "boolean": "true or false"}
        return named.get(str(kind), "a line of YAML") + _bounds(part) + _example(part)


def _keys(part: Mapping[Any, Any]) -> str:
    known = part.get("properties")
    if not isinstance(known, Mapping) or not known:
        return ""
    return " of " + ", ".join(plain(name) for name in list(known)[:12])


def _bounds(part: Mapping[Any, Any]) -> str:
    """` from 1 to 16`, ` above 0`, ` of at most 64 characters`."""
    told = []
    for key, word in (
        ("minimum", "from"),
        ("exclusiveMinimum", "above"),
        ("maximum", "to"),
        ("exclusiveMaximum", "below"),
    ):
        bound = part.get(key)
        if isinstance(bound, int | float) and not isinstance(bound, bool) and math.isfinite(bound):
            told.append(f"{word} {bound:,}" if isinstance(bound, int) else f"{word} {bound:g}")
    longest = part.get("maxLength")
    if isinstance(longest, int) and not isinstance(longest, bool):
        told.append(f"of at most {longest} characters")
    return "".join(f" {word}" for word in told)


def _example(part: Mapping[Any, Any]) -> str:
    some = part.get("examples")
    return f" such as {plain(some[0])}" if isinstance(some, list) and some and isinstance(some[0], str) else ""


def _words(part: Mapping[Any, Any]) -> str:
    words = part.get("description")
    return " ".join(plain(words).split()) if isinstance(words, str) else ""
