"""What does an expression in an engine's source come to, as far as that is told without running it?"""

import ast
from abc import ABC, abstractmethod
from collections.abc import Mapping

from eagle3ops.wiring.supports.platforms import Platform, ask
from eagle3ops.wiring.supports.scopes import Scope, agreed
from eagle3ops.wiring.supports.tree import Tree
from eagle3ops.wiring.supports.values import (
    UNKNOWN,
    ClassValue,
    FunctionValue,
    InstanceValue,
    Missing,
    ModuleValue,
    Outside,
    Table,
    Value,
    certain,
)

_MOST_ENTRIES = 20_000
_DEEPEST = 40
_MOST_STEPS = 100_000
"""Expressions looked at for one question; some 200 are usual."""


class Expressions(ABC):
    """Evaluation; names are looked up by who derives from this."""

    def __init__(self, tree: Tree, platform: Platform) -> None:
        self.tree = tree
        self.platform = platform
        self._nested = 0
        self.steps = 0
        """Expressions looked at; whoever asks a new question sets it to 0."""

    @abstractmethod
    def member(self, module: str, name: str) -> Value:
        """What `module.name` is."""

    @abstractmethod
    def lookup(self, name: str, scope: Scope) -> Value:
        """What a name stands for where it is used."""

    @abstractmethod
    def call(self, function: FunctionValue, arguments: tuple[Value, ...], named: Mapping[str, Value]) -> Value:
        """What a function returns."""

    def absolute(self, here: str, module: str, level: int) -> str | None:
        """The module that `from ..module import` means in `here`; None beyond the top."""
        if level == 0:
            return module
        parts = here.split(".")
        up = level - 1 if self.tree.is_package(here) else level
        if up >= len(parts):
            return None
        base = parts[: len(parts) - up]
        return ".".join([*base, module] if module else base)

    def truth(self, test: ast.expr, scope: Scope) -> bool | None:
        """Whether a condition holds; None when that is not told."""
        value = self.evaluate(test, scope)
        if isinstance(value, Table):
            return bool(value.pairs) if value.whole else None
        return bool(value) if certain(value) else None

    def evaluate(self, expression: ast.expr, scope: Scope) -> Value:
        """The value."""
        self._nested += 1
        self.steps += 1
        try:
            if self._nested > _DEEPEST or self.steps > _MOST_STEPS:
                return UNKNOWN
            return self._evaluate(expression, scope)
        finally:
            self._nested -= 1

    def _evaluate(self, expression: ast.expr, scope: Scope) -> Value:
        match expression:
            case ast.Constant(value=str() | int() | float() | bytes() | None as value):
                return value
            case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
                return False
            case ast.Name():
                return self.lookup(expression.id, scope)
            case ast.Attribute():
                return self.attribute(self.evaluate(expression.value, scope), expression.attr)
            case ast.Tuple() | ast.List() | ast.Set():
                return self._several(expression.elts, scope)
            case ast.Dict():
                return self._table(expression, scope)
            case ast.Subscript():
                return self._item(expression, scope)
            case ast.Call():
                return self._called(expression, scope)
            case ast.BoolOp():
                return self._both(expression, scope)
            case ast.UnaryOp(op=ast.Not()):
                truth = self.truth(expression.operand, scope)
                return UNKNOWN if truth is None else not truth
            case ast.Compare():
                return self._compare(expression, scope)
            case ast.IfExp():
                taken = self.truth(expression.test, scope)
                if taken is None:
                    return agreed((self.evaluate(expression.body, scope), self.evaluate(expression.orelse, scope)))
                return self.evaluate(expression.body if taken else expression.orelse, scope)
            case ast.BinOp(op=ast.Add()):
                left, right = self.evaluate(expression.left, scope), self.evaluate(expression.right, scope)
                if isinstance(left, tuple) and isinstance(right, tuple):
                    return (*left, *right)[:_MOST_ENTRIES]
                if isinstance(left, str) and isinstance(right, str):
                    return (left + right)[:10_000]
                return UNKNOWN
            case ast.JoinedStr():
                return self._joined(expression, scope)
            case ast.NamedExpr():
                return self.evaluate(expression.value, scope)
        return UNKNOWN

    def attribute(self, value: Value, name: str) -> Value:
        """`value.name`."""
        if isinstance(value, ModuleValue):
            found = self.member(value.name, name)
            return UNKNOWN if isinstance(found, Missing) else found
        if isinstance(value, Outside):
            return Outside(f"{value.name}.{name}"[:500])
        return UNKNOWN

    def _several(self, elements: list[ast.expr], scope: Scope) -> Value:
        found: list[Value] = []
        for each in elements[:_MOST_ENTRIES]:
            if isinstance(each, ast.Starred):
                inner = self.evaluate(each.value, scope)
                if isinstance(inner, tuple):
                    found += inner
                else:
                    found.append(UNKNOWN)
            else:
                found.append(self.evaluate(each, scope))
            if len(found) > _MOST_ENTRIES:
                return UNKNOWN
        return tuple(found)

    def _table(self, expression: ast.Dict, scope: Scope) -> Value:
        pairs: list[tuple[Value, Value]] = []
        whole = True
        for key, value in zip(expression.keys, expression.values, strict=False):
            if key is not None:
                pairs.append((self.evaluate(key, scope), self.evaluate(value, scope)))
                continue
            inner = self.evaluate(value, scope)
            if isinstance(inner, Table):
                pairs += inner.pairs
                whole = whole and inner.whole
            else:
                whole = False
            if len(pairs) > _MOST_ENTRIES:
                return UNKNOWN
        return Table(tuple(pairs), whole)

    def _item(self, expression: ast.Subscript, scope: Scope) -> Value:
        value = self.evaluate(expression.value, scope)
        if isinstance(value, ClassValue | Outside):  # Base[T] is Base
            return value
        key = self.evaluate(expression.slice, scope)
        if isinstance(value, Table):
            return value.get(key)
        if isinstance(value, tuple) and isinstance(key, int) and -len(value) <= key < len(value):
            return value[key]
        return UNKNOWN

    def _called(self, expression: ast.Call, scope: Scope) -> Value:
        answer = ask(expression, self.platform)
        if answer is not None:
            return answer
        function = self.evaluate(expression.func, scope)
        arguments = self._several(expression.args, scope)
        values = arguments if isinstance(arguments, tuple) else ()
        if isinstance(function, FunctionValue):
            named = {each.arg: self.evaluate(each.value, scope) for each in expression.keywords if each.arg is not None}
            found = self.call(function, values, named)
            return UNKNOWN if isinstance(found, Missing) else found
        if isinstance(function, ClassValue):
            return InstanceValue(function)
        if isinstance(function, Outside):
            return self._outside(function.name, values, scope)
        return UNKNOWN

    def _outside(self, name: str, values: tuple[Value, ...], scope: Scope) -> Value:
        """The few functions of others that say which module or class is meant."""
        if name == "builtins.getattr" and len(values) >= 2 and isinstance(values[1], str):
            return self.attribute(values[0], values[1])
        if name == "importlib.import_module" and values and isinstance(values[0], str):
            dots = len(values[0]) - len(values[0].lstrip("."))
            package = values[1] if len(values) > 1 and isinstance(values[1], str) else scope.module
            whole = self.absolute(package, values[0][dots:], dots) if dots else values[0]
            if whole is not None and whole.split(".")[0] == self.tree.engine:
                return ModuleValue(whole)
        if name in ("typing.cast", "typing_extensions.cast") and len(values) == 2:
            return values[1]
        if name in ("builtins.tuple", "builtins.list", "builtins.frozenset", "builtins.set") and len(values) == 1:
            return values[0]
        return UNKNOWN

    def _both(self, expression: ast.BoolOp, scope: Scope) -> Value:
        stops = isinstance(expression.op, ast.Or)
        known = True
        for each in expression.values:
            truth = self.truth(each, scope)
            if truth is stops:
                return stops
            known = known and truth is not None
        return (not stops) if known else UNKNOWN

    def _compare(self, expression: ast.Compare, scope: Scope) -> Value:
        if len(expression.ops) != 1:
            return UNKNOWN
        left = self.evaluate(expression.left, scope)
        right = self.evaluate(expression.comparators[0], scope)
        if isinstance(right, Table):
            right = tuple(key for key, _ in right.pairs) if right.whole else UNKNOWN
        same = isinstance(expression.ops[0], ast.Is)
        if (same or isinstance(expression.ops[0], ast.IsNot)) and right is None and _something(left):
            return not same
        if not certain(left) or not certain(right):
            return UNKNOWN
        match expression.ops[0]:
            case ast.Eq() | ast.Is():
                return left == right
            case ast.NotEq() | ast.IsNot():
                return left != right
            case ast.In() if isinstance(right, tuple):
                return left in right
            case ast.NotIn() if isinstance(right, tuple):
                return left not in right
        return UNKNOWN

    def _joined(self, expression: ast.JoinedStr, scope: Scope) -> Value:
        parts: list[str] = []
        for each in expression.values:
            value = self.evaluate(each.value if isinstance(each, ast.FormattedValue) else each, scope)
            if not isinstance(value, str):
                return UNKNOWN
            parts.append(value)
        return "".join(parts)[:10_000]


def _something(value: Value) -> bool:
    """Whether it is surely not None."""
    return isinstance(value, ClassValue | FunctionValue | InstanceValue | ModuleValue | Table | tuple)
