"""What does a YAML text say, and where does it say it? Plain data, with line and column of every key and value.

Scalars follow the YAML 1.2 core schema: `2e-4` is a number, `no` and `12:30` are text, there are no dates. Bytes and
expanded nodes are limited, so that a file of nested aliases is refused instead of filling the memory.
"""

import re
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from eagle3ops.errors import SpecError

MAX_BYTES = 1 << 20
MAX_NODES = 20_000
MAX_DEPTH = 32

KeyPath: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a text, counted from 1; line 0 stands for the source as a whole."""

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source


@dataclass(slots=True)
class Tree:
    """Plain data and the places of what it is made of."""

    data: Any
    source: str
    keys: dict[KeyPath, Place] = field(default_factory=dict)
    values: dict[KeyPath, Place] = field(default_factory=dict)

    def place(self, path: KeyPath, *, of_key: bool = False) -> Place:
        """Where `path` stands: of the value, or of its key; of the nearest enclosing one where it is absent."""
        for length in range(len(path), -1, -1):
            start = path[:length]
            first, second = (self.keys, self.values) if of_key else (self.values, self.keys)
            found = first.get(start) or second.get(start)
            if found is not None:
                return found
        return Place(self.source)


class _Core(yaml.SafeLoader):
    """The safe loader with the resolvers of YAML 1.2."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012  (PyYAML's own class attribute)


_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


def scalar(text: str) -> Any:
    """The value of a plain scalar by the YAML 1.2 core schema."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text) and len(text) <= 40:
        base = {"0o": 8, "0x": 16}.get(text[:2], 10)
        return int(text, base)
    if _FLOAT.fullmatch(text):
        return float(re.sub(r"\.(?=[inIN])", "", text))
    return text


def read_tree(text: str | bytes, source: str) -> Tree:
    """Parse one YAML document.

    Args:
        text: the document; bytes must be UTF-8.
        source: named in messages, as a rule the file.

    Raises:
        SpecError: not YAML, not UTF-8, too large, a duplicate key, a tag, several documents.
    """
    if len(text) > MAX_BYTES:
        raise SpecError(f"{source}: larger than {MAX_BYTES} bytes; a pipeline file is a few kilobytes")
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise SpecError(f"{source}: not UTF-8 text (byte {error.start})") from error
    try:
        loader = _Core(text)
    except yaml.reader.ReaderError as error:
        raise SpecError(f"{source}: character #x{_code(error):04x} is not allowed in YAML") from error
    try:
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, text, source) from error
    except yaml.YAMLError as error:
        raise SpecError(f"{source}: not YAML: {error}") from error
    except RecursionError as error:
        raise SpecError(f"{source}: nested too deeply; a pipeline file has at most {MAX_DEPTH} levels") from error
    finally:
        loader.dispose()
    tree = Tree(None, source)
    if node is not None:
        tree.data = _Builder(tree).build(node, (), 0)
    return tree


def _code(error: yaml.reader.ReaderError) -> int:
    character = error.character
    return ord(character) if isinstance(character, str) else int(character)


def _syntax_error(error: yaml.MarkedYAMLError, text: str, source: str) -> SpecError:
    mark = error.problem_mark or error.context_mark
    place = Place(source, mark.line + 1, mark.column + 1) if mark else Place(source)
    lines = text.splitlines()
    line = lines[mark.line] if mark and mark.line < len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return SpecError(f"{place}: a tab in the indentation; YAML allows spaces only", remedy="replace it by spaces")
    if error.problem and "\\t" in error.problem:
        return SpecError(f"{place}: a tab where YAML allows spaces only", remedy="replace it by spaces")
    context = f" {error.context}" if error.context else ""
    return SpecError(f"{place}: not YAML: {error.problem or 'syntax error'}{context}")


class _Builder:
    """Turns the node graph into plain data and notes the places on the way."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.count = 0

    def build(self, node: Node, path: KeyPath, depth: int) -> Any:
        place = Place(self.tree.source, node.start_mark.line + 1, node.start_mark.column + 1)
        self.tree.values[path] = place
        self.count += 1
        if self.count > MAX_NODES:
            raise SpecError(f"{place}: more than {MAX_NODES} values once its aliases are written out; refused")
        if depth > MAX_DEPTH:
            raise SpecError(f"{place}: nested more than {MAX_DEPTH} levels deep (does an alias contain itself?)")
        if isinstance(node, MappingNode):
            return self._mapping(node, path, depth)
        if isinstance(node, SequenceNode):
            _refuse_tag(node, "tag:yaml.org,2002:seq", place)
            return [self.build(item, (*path, number), depth + 1) for number, item in enumerate(node.value)]
        assert isinstance(node, ScalarNode)
        if node.style is None and node.tag == "tag:yaml.org,2002:str":
            return scalar(node.value)
        _refuse_tag(node, "tag:yaml.org,2002:str", place)
        return node.value

    def _mapping(self, node: MappingNode, path: KeyPath, depth: int) -> dict[str, Any]:
        place = self.tree.values[path]
        _refuse_tag(node, "tag:yaml.org,2002:map", place)
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            at = Place(self.tree.source, key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            if not isinstance(key_node, ScalarNode):
                raise SpecError(f"{at}: a key must be a word")
            key = str(key_node.value)
            if key == "<<":
                raise SpecError(f"{at}: merge keys (<<) are not supported", remedy="write the values out")
            if key in data:
                first = self.tree.keys[(*path, key)]
                raise SpecError(
                    f"{at}: {dotted((*path, key))}: the key stands there twice, first on line {first.line}",
                    remedy="keep one of them",
                )
            self.tree.keys[(*path, key)] = at
            data[key] = self.build(value_node, (*path, key), depth + 1)
        return data


def _refuse_tag(node: Node, expected: str, place: Place) -> None:
    if node.tag != expected:
        raise SpecError(f"{place}: tags such as {node.tag} are not allowed", remedy="remove the tag")


def dotted(path: KeyPath) -> str:
    """`stages.train.ids[2]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text
