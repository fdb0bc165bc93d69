"""What can a name in an engine's source stand for, as far as that is told without running it?"""

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from eagle3ops.wiring.supports.scopes import Scope


@dataclass(frozen=True, slots=True)
class Unknown:
    """Something that only running it would tell."""


@dataclass(frozen=True, slots=True)
class Missing:
    """There is no such name."""


@dataclass(frozen=True, slots=True)
class Outside:
    """Something of another package, by its dotted name."""

    name: str


@dataclass(frozen=True, slots=True)
class ModuleValue:
    """A module of the engine."""

    name: str


@dataclass(frozen=True, slots=True)
class ClassValue:
    """A class of the engine. Two are the same when one piece of source made both in the same scope."""

    module: str
    node: ast.ClassDef
    scope: "Scope"

    @property
    def name(self) -> str:
        """As written; a factory may rename it."""
        return self.node.name


@dataclass(frozen=True, slots=True)
class FunctionValue:
    """A function or method of the engine."""

    module: str
    node: ast.FunctionDef | ast.AsyncFunctionDef
    scope: "Scope"


@dataclass(frozen=True, slots=True)
class InstanceValue:
    """Something made by calling a class."""

    of: ClassValue


Value: TypeAlias = (
    "Unknown | Missing | Outside | ModuleValue | ClassValue | FunctionValue | InstanceValue | Table | tuple[Value, ...]"
    " | str | int | float | bytes | None"
)
UNKNOWN = Unknown()
MISSING = Missing()


@dataclass(frozen=True, slots=True)
class Table:
    """A dict whose keys are known, as pairs; `whole` is false when some entries could not be told."""

    pairs: tuple[tuple[Value, Value], ...]
    whole: bool = True

    def get(self, key: Value) -> Value:
        """The last entry of that key."""
        for known, value in reversed(self.pairs):
            if known == key and type(known) is type(key):
                return value
        return MISSING if self.whole else UNKNOWN


def certain(value: Value, depth: int = 3) -> bool:
    """Whether it is a constant through and through, fit to be compared."""
    if isinstance(value, tuple):
        return depth > 0 and all(certain(each, depth - 1) for each in value)
    return value is None or isinstance(value, str | int | float | bytes)
