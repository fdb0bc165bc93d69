"""Which names does a stretch of source bind, and to what? Bindings are kept as written and looked into when asked."""

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from eagle3ops.wiring.supports.values import MISSING, UNKNOWN, Missing, Value


@dataclass(frozen=True, slots=True)
class Written:
    """`name = expression`."""

    expression: ast.expr


@dataclass(frozen=True, slots=True)
class Taken:
    """`from module import name`."""

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class Known:
    """A value that needs no further look."""

    value: Value


@dataclass(frozen=True, slots=True)
class Either:
    """One of two: which branch was taken is not known."""

    one: "Binding"
    other: "Binding"


Binding = Written | Taken | Known | Either


class Scope:
    """A module, a function or the body of a class, and what is around it."""

    __slots__ = ("_again", "_asked", "_looking", "above", "bound", "earlier", "module", "of_class", "stars")

    def __init__(self, module: str, above: "Scope | None" = None, *, of_class: bool = False) -> None:
        self.module = module
        self.above = above
        self.of_class = of_class
        """The body of a class, which its methods do not see."""
        self.bound: dict[str, Binding] = {}
        self.earlier: dict[str, Binding] = {}
        """What a name stood for before it was bound again, as in `X = wrap(X)` and `class X(X)`."""
        self.stars: list[str] = []
        self._asked: dict[str, Value] = {}
        self._looking: set[str] = set()
        self._again: set[str] = set()

    def own(self, name: str, look: Callable[[Binding, "Scope"], Value]) -> Value:
        """What a name bound in this very scope stands for."""
        if name not in self.bound:
            return MISSING
        if name not in self._asked:
            if name in self._looking:  # it is told by itself
                before = self.earlier.get(name)
                return UNKNOWN if before is None or name in self._again else self._before(name, before, look)
            self._looking.add(name)
            try:
                self._asked[name] = look(self.bound[name], self)
            finally:
                self._looking.discard(name)
        return self._asked[name]

    def _before(self, name: str, binding: Binding, look: Callable[[Binding, "Scope"], Value]) -> Value:
        self._again.add(name)
        try:
            return look(binding, self)
        finally:
            self._again.discard(name)

    def bind(self, name: str, binding: Binding) -> None:
        """From here on it stands for that."""
        if name in self.bound and self.bound[name] is not binding:
            self.earlier[name] = self.bound[name]
        self.bound[name] = binding
        self._asked.pop(name, None)


@dataclass(slots=True)
class Outcome:
    """How a stretch of statements ends."""

    returned: list[ast.expr | None] = field(default_factory=list)
    """Every expression that it may return, in order."""
    ends: bool = False
    """It surely returns or raises."""
    raised: bool = False
    """It surely raises."""


def merge(scope: Scope, before: dict[str, Binding], one: dict[str, Binding], other: dict[str, Binding]) -> None:
    """After a branch that may or may not have been taken."""
    for name in one.keys() | other.keys():
        first, second = one.get(name, before.get(name)), other.get(name, before.get(name))
        if first is None or second is None:
            scope.bind(name, first or second or Known(UNKNOWN))
        elif first is not second:
            scope.bind(name, Either(first, second))
        else:
            scope.bind(name, first)


def agreed(values: Iterable[Value]) -> Value:
    """The one value that all alternatives come to; those that are missing do not count."""
    found: Value = MISSING
    for value in values:
        if isinstance(value, Missing):
            continue
        if not isinstance(found, Missing) and found != value:
            return UNKNOWN
        found = value
    return found
