"""How is one value of a YAML text changed, so that everything else in it stays as a person wrote it?

Every change is read back; where the text came to mean anything but what was wanted, the whole is written anew.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from eagle3ops.errors import SpecError
from eagle3ops.spec.yamltree import read_tree, scalar

Path = tuple[str, ...]

_PLAIN = re.compile(r"[A-Za-z_/<][A-Za-z0-9_/.+<>@%=~-]*( [A-Za-z0-9_/.+<>@%=~-]+)*\Z")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z")
STEP = 2
"""Blanks by which a map is indented."""


def render(value: Any) -> str:
    """A value as YAML on one line, such that reading it gives the value again."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if math.isnan(value):
            return ".nan"
        return repr(value) if math.isfinite(value) else ".inf" if value > 0 else "-.inf"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)}: {render(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(render, value)) + "]"
    text = str(value)
    if _PLAIN.match(text) and scalar(text) == text:
        return text
    return _quoted(text)


def _key(key: object) -> str:
    text = str(key)
    return text if _KEY.match(text) else _quoted(text)


def _quoted(text: str) -> str:
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character.isprintable() and character != "\ufeff":
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def write(data: Mapping[str, Any]) -> str:
    """A whole document: maps in lines of their own, everything else on one line each."""
    return "".join(f"{line}\n" for line in _block(data, 0)) or "{}\n"


def _block(data: Mapping[str, Any], indent: int) -> list[str]:
    lines = []
    for key, value in data.items():
        start = " " * indent + _key(key) + ":"
        if isinstance(value, Mapping) and value:
            lines += [start, *_block(value, indent + STEP)]
        else:
            lines.append(f"{start} {render(value)}")
    return lines


def same(one: Any, other: Any) -> bool:
    """Equal, and of one type: 1 is neither true nor 1.0."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return type(one) is type(other) and bool(one == other)


def _alike(one: Any, other: Any) -> bool:
    """As `same`, in whatever order keys stand."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return set(one) == set(other) and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    return same(one, other)


def look_up(data: Any, path: Path) -> tuple[bool, Any]:
    """Whether something stands at `path`, and what."""
    at = data
    for key in path:
        if not isinstance(at, Mapping) or key not in at:
            return False, None
        at = at[key]
    return True, at


def with_value(data: Any, path: Path, value: Any) -> dict[str, Any]:
    """The data with another value at `path`; whatever stands in the way of that gives way."""
    made = dict(data) if isinstance(data, Mapping) else {}
    made[path[0]] = value if len(path) == 1 else with_value(made.get(path[0]), path[1:], value)
    return made


def without(data: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The data without what stands at `path`, and without maps that have nothing left in them."""
    made = dict(data)
    if len(path) == 1:
        made.pop(path[0], None)
    elif isinstance(made.get(path[0]), Mapping) and look_up(data, path)[0]:
        below = without(made[path[0]], path[1:])
        made[path[0]] = below
        if not below:
            del made[path[0]]
    return made


def set_value(text: str, path: Path, value: Any) -> str:
    """The text with `value` at `path`.

    Raises:
        SpecError: the text is not YAML.
    """
    before = read_tree(text, "text").data
    wanted = with_value(before, path, value)
    return _checked(_replaced(text, path, value), wanted)


def remove(text: str, path: Path) -> str:
    """The text without what stands at `path`.

    Raises:
        SpecError: the text is not YAML.
    """
    before = read_tree(text, "text").data
    if not look_up(before, path)[0]:
        return text
    wanted = without(before, path)
    while len(path) > 1 and not look_up(wanted, path[:-1])[0]:
        path = path[:-1]
    return _checked(_cut(text, path), wanted)


def _checked(text: str | None, wanted: Mapping[str, Any]) -> str:
    if text is not None:
        try:
            if _alike(read_tree(text, "text").data, wanted):
                return text
        except SpecError:
            # The change did not fit in; it is made the other way.
            pass
    return write(wanted)


def _compose(text: str) -> Node | None:
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return None


def _way(root: Node | None, path: Path) -> list[tuple[MappingNode, Node, Node]]:
    """Map, key and value of each step of `path`, as far as it leads."""
    steps: list[tuple[MappingNode, Node, Node]] = []
    at = root
    for key in path:
        if not isinstance(at, MappingNode):
            break
        found = next(((k, v) for k, v in at.value if isinstance(k, ScalarNode) and k.value == key), None)
        if found is None:
            break
        steps.append((at, *found))
        at = found[1]
    return steps


def _end(node: Node) -> int:
    """Where a node ends; a block's own mark stands only at what follows it."""
    if isinstance(node, MappingNode | SequenceNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(node, MappingNode) else last)
    return int(node.end_mark.index)


def _replaced(text: str, path: Path, value: Any) -> str | None:
    root = _compose(text)
    steps = _way(root, path)
    if len(steps) == len(path):
        return _put_behind_key(text, steps[-1], " " + render(value))
    rest = path[len(steps) :]
    parent = steps[-1][2] if steps else root
    nested: Any = value
    for key in reversed(rest[1:]):
        nested = {key: nested}
    if isinstance(parent, MappingNode) and parent.value:
        return _added(text, parent, rest[0], nested)
    if not steps:
        return None
    # A map with nothing in it, or something that is no map.
    column = int(steps[-1][1].start_mark.column) + STEP
    if steps[-1][0].flow_style:
        return _put_behind_key(text, steps[-1], " " + render({rest[0]: nested}))
    return _put_behind_key(text, steps[-1], "\n" + "\n".join(_block({rest[0]: nested}, column)))


def _put_behind_key(text: str, step: tuple[MappingNode, Node, Node], piece: str) -> str | None:
    _, key, value = step
    colon = text.find(":", key.end_mark.index)
    if colon < 0:
        return None
    end = max(colon + 1, _end(value))
    tail = text[end:]
    if end and text[end - 1] == "\n":
        # A text over several lines ends with its line break.
        tail = "\n" + tail
    return text[: colon + 1] + piece + tail


def _added(text: str, parent: MappingNode, key: str, value: Any) -> str | None:
    last = _end(parent.value[-1][1])
    if parent.flow_style:
        return f"{text[:last]}, {_key(key)}: {render(value)}{text[last:]}"
    line_end = text.find("\n", last)
    at = len(text) if line_end < 0 else line_end
    if last and text[last - 1] == "\n":
        at = last - 1
    piece = "\n".join(_block({key: value}, int(parent.value[0][0].start_mark.column)))
    return f"{text[:at]}\n{piece}{text[at:]}"


def _cut(text: str, path: Path) -> str | None:
    steps = _way(_compose(text), path)
    if len(steps) != len(path):
        return None
    parent, key, value = steps[-1]
    number = next(at for at, (name, _) in enumerate(parent.value) if name is key)
    begin, end = int(key.start_mark.index), _end(value)
    if parent.flow_style:
        if number + 1 < len(parent.value):
            end = int(parent.value[number + 1][0].start_mark.index)
        elif number:
            begin = _end(parent.value[number - 1][1])
        return text[:begin] + text[end:]
    begin = text.rfind("\n", 0, begin) + 1
    if end and text[end - 1] != "\n":
        line_end = text.find("\n", end)
        end = len(text) if line_end < 0 else line_end + 1
    return text[:begin] + text[end:]
