"""What is to be changed in an engine's source? A recipe: edits that name structure, never line numbers.

A recipe is a TOML file in `assets/patches`, or one of the user's own:

    name, title, why     what it is for
    engine, package      whose source; the package's folder below site-packages
    versions             of the engine in which it was tried
    instead              a plugin or registry hook that makes the change unnecessary, if there is one
    [[file]] path        below site-packages, with [[file.edit]]:
        kind = "import"     code: an import statement, added if it is not there
        kind = "base"       class, base: a base class added at the end
        kind = "method"     class, code: a method added at the end of a class
        kind = "statement"  scope ("Class.method"), find: one statement as code; where: before, after or replace; code
"""

import ast
import re
import textwrap
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any

from eagle3ops.errors import RequestError

KINDS = {
    "import": ("code",),
    "base": ("class", "base"),
    "method": ("class", "code"),
    "statement": ("scope", "find", "where", "code"),
}
"""Kind of an edit, and the keys that it has."""
PLACES = ("before", "after", "replace")
MOST_BYTES = 1 << 20
_BASE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class RecipeError(RequestError):
    """A recipe is wrong."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One change to one file."""

    kind: str
    place: str
    """Where it stands in the recipe, for messages: `file 1, edit 2`."""
    values: Mapping[str, str]

    def __getitem__(self, key: str) -> str:
        return self.values[key]


@dataclass(frozen=True, slots=True)
class FileEdits:
    """All changes to one file."""

    path: PurePosixPath
    """Below site-packages."""
    edits: tuple[Edit, ...]

    @property
    def module(self) -> str:
        """Its name for `import`."""
        return ".".join(self.path.with_suffix("").parts).removesuffix(".__init__")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A change, whole."""

    name: str
    title: str
    why: str
    engine: str
    package: str
    versions: tuple[str, ...]
    instead: str
    files: tuple[FileEdits, ...]


def parse_recipe(text: str, source: str) -> Recipe:
    """Read a recipe, and prove that every piece of code in it is Python.

    Raises:
        RecipeError: it is wrong, with file, place, line and what is expected.
    """
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise RecipeError(f"{source}: {error}", remedy="a recipe is a TOML file") from error
    name = _text(data, "name", source)
    if not _NAME.fullmatch(name):
        raise RecipeError(f"{source}: name {name!r}", remedy="small letters, digits, dots and dashes")
    files = data.get("file")
    if not isinstance(files, list) or not files:
        raise RecipeError(f"{source}: no [[file]]", remedy="name the files that it changes")
    versions = data.get("versions", [])
    if not isinstance(versions, list) or not all(isinstance(one, str) for one in versions):
        raise RecipeError(f"{source}: versions is no list of texts", remedy='such as versions = ["0.5.14"]')
    unknown = set(data) - {"name", "title", "why", "engine", "package", "versions", "instead", "file"}
    if unknown:
        raise RecipeError(f"{source}: unknown key {sorted(unknown)[0]!r}", remedy="see a recipe that ships")
    package = _text(data, "package", source)
    read = tuple(_file(each, f"{source}: file {at}", package) for at, each in enumerate(files, 1))
    if len({each.path for each in read}) != len(read):
        raise RecipeError(f"{source}: a file stands in it twice", remedy="put all edits of a file together")
    return Recipe(
        name=name,
        title=_text(data, "title", source),
        why=_text(data, "why", source),
        engine=_text(data, "engine", source),
        package=package,
        versions=tuple(versions),
        instead=_text(data, "instead", source, otherwise=""),
        files=read,
    )


def _file(data: object, where: str, package: str) -> FileEdits:
    if not isinstance(data, Mapping):
        raise RecipeError(f"{where}: is no table")
    path = PurePosixPath(_text(data, "path", where))
    if path.is_absolute() or ".." in path.parts or path.suffix != ".py" or path.parts[0] != package:
        raise RecipeError(f"{where}: path {str(path)!r}", remedy=f"a .py file below {package}/")
    edits = data.get("edit")
    if not isinstance(edits, list) or not edits:
        raise RecipeError(f"{where}: no [[file.edit]]")
    return FileEdits(path, tuple(_edit(each, f"{where}, edit {at}") for at, each in enumerate(edits, 1)))


def _edit(data: object, where: str) -> Edit:
    if not isinstance(data, Mapping):
        raise RecipeError(f"{where}: is no table")
    kind = _text(data, "kind", where)
    if kind not in KINDS:
        raise RecipeError(f"{where}: kind {kind!r}", remedy=f"one of {', '.join(KINDS)}")
    values = {key: _text(data, key, where) for key in KINDS[kind]}
    if extra := set(data) - {"kind", *KINDS[kind]}:
        raise RecipeError(f"{where}: unknown key {sorted(extra)[0]!r}", remedy=f"{kind} has {', '.join(KINDS[kind])}")
    for key in ("code", "find"):
        if key in values:
            values[key] = textwrap.dedent(values[key]).strip("\n") + "\n"
            _require(kind, key, values[key], where)
    if kind == "statement" and values["where"] not in PLACES:
        raise RecipeError(f"{where}: where is {values['where']!r}", remedy=f"one of {', '.join(PLACES)}")
    if kind == "base" and not _BASE.fullmatch(values["base"]):
        raise RecipeError(f"{where}: base {values['base']!r} is no name of a class")
    return Edit(kind, where, values)


def _require(kind: str, key: str, code: str, where: str) -> None:
    """The code has to be Python, of the kind that stands there."""
    # A statement may return, await or yield: it stands in a function.
    wrapped = code if kind == "import" else "async def _():\n" + textwrap.indent(code, "    ")
    shift = 0 if kind == "import" else 1
    try:
        body = ast.parse(wrapped).body
    except SyntaxError as error:
        line = (error.lineno or 1) - shift
        shown = (code.splitlines() or [""])[min(max(line, 1), len(code.splitlines()) or 1) - 1].strip()
        raise RecipeError(
            f"{where}: {key} is no valid Python: line {line}: {error.msg}: {shown[:200]}",
            remedy="nothing was changed; mend the recipe",
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise RecipeError(f"{where}: {key} is no valid Python: {error}") from error
    if kind != "import":
        first = body[0]
        assert isinstance(first, ast.AsyncFunctionDef)
        body = first.body
    if kind == "import" and not all(isinstance(one, ast.Import | ast.ImportFrom) for one in body):
        raise RecipeError(f"{where}: code is no import statement")
    if kind == "method" and not (len(body) == 1 and isinstance(body[0], ast.FunctionDef | ast.AsyncFunctionDef)):
        raise RecipeError(f"{where}: code is not one method")
    if key == "find" and len(body) != 1:
        raise RecipeError(f"{where}: find is {len(body)} statements", remedy="name exactly one")


def _text(data: Mapping[str, Any], key: str, where: str, otherwise: str | None = None) -> str:
    value = data.get(key, otherwise)
    if not isinstance(value, str) or (otherwise is None and not value.strip()):
        raise RecipeError(
            f"{where}: {key} is {'missing' if value is None else f'{value!r}'[:100]}", remedy="a text is needed"
        )
    return value


def shipped() -> dict[str, Recipe]:
    """The recipes that come with eagle3ops, by name."""
    found = {}
    for each in resources.files("eagle3ops.assets.patches").iterdir():
        if each.name.endswith(".toml"):
            recipe = parse_recipe(each.read_text(encoding="utf-8"), each.name)
            found[recipe.name] = recipe
    return dict(sorted(found.items()))


def find_recipe(name: str) -> Recipe:
    """A shipped recipe by name, or one in a file.

    Raises:
        RequestError: there is none.
    """
    known = shipped()
    if name in known:
        return known[name]
    path = Path(name)
    if path.suffix != ".toml":
        raise RequestError(f"no recipe {name!r}", remedy=f"known: {', '.join(known)}; or name a .toml file")
    try:
        if path.stat().st_size > MOST_BYTES:
            raise RequestError(f"{path}: far too large to be a recipe")
        return parse_recipe(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path}: cannot be read: {error}") from error
