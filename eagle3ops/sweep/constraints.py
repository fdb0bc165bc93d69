"""Does a point satisfy `draft_tokens <= 2 * steps + 8`? Comparisons of axes, read as Python and never run as it."""

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from eagle3ops.errors import RequestError

MOST_CHARACTERS = 200

_ARITHMETIC: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: dict[type[ast.AST], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
}
_REMEDY = "compare steps, topk, draft_tokens, concurrency or an engine axis: < <= > >= == != in, and, or, not"


@dataclass(frozen=True, slots=True)
class Constraint:
    """One condition that every point has to satisfy."""

    text: str
    tree: ast.expr

    @property
    def names(self) -> set[str]:
        """The axes that it is about."""
        return {node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)}

    def holds(self, values: Mapping[str, int | str]) -> bool:
        """Whether a point with these values satisfies it.

        Raises:
            RequestError: it compares what cannot be compared, or divides by zero.
        """
        try:
            return bool(_value(self.tree, values))
        except (TypeError, ZeroDivisionError, KeyError, ValueError, OverflowError) as error:
            raise RequestError(f"the constraint {self.text!r} makes no sense: {error}", remedy=_REMEDY) from error


def parse(text: str) -> Constraint:
    """Read a constraint.

    Raises:
        RequestError: it is none.
    """
    if len(text) > MOST_CHARACTERS:
        raise RequestError(f"a constraint of {len(text)} characters", remedy=f"at most {MOST_CHARACTERS}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise RequestError(f"the constraint {text!r} cannot be read: {error}", remedy=_REMEDY) from error
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED):
            raise RequestError(f"the constraint {text!r} holds {type(node).__name__}", remedy=_REMEDY)
        if isinstance(node, ast.Constant) and type(node.value) not in (int, str, bool):
            raise RequestError(f"the constraint {text!r} holds {node.value!r}", remedy=_REMEDY)
    return Constraint(text.strip(), tree)


_ALLOWED = (
    ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.Compare, ast.BinOp, ast.Name, ast.Load,
    ast.Constant, ast.Tuple, ast.List, *_ARITHMETIC, *_COMPARISONS,
)  # fmt: skip


def _value(node: ast.expr, values: Mapping[str, int | str]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return values[node.id]
    if isinstance(node, ast.Tuple | ast.List):
        return [_value(one, values) for one in node.elts]
    if isinstance(node, ast.UnaryOp):
        inner = _value(node.operand, values)
        return not inner if isinstance(node.op, ast.Not) else -_number(inner)
    if isinstance(node, ast.BoolOp):
        parts = (bool(_value(one, values)) for one in node.values)
        return all(parts) if isinstance(node.op, ast.And) else any(parts)
    if isinstance(node, ast.BinOp):
        # Only numbers: a text times a number may be as large as memory.
        return _ARITHMETIC[type(node.op)](_number(_value(node.left, values)), _number(_value(node.right, values)))
    assert isinstance(node, ast.Compare)
    left = _value(node.left, values)
    for comparison, following in zip(node.ops, node.comparators, strict=True):
        right = _value(following, values)
        if not _COMPARISONS[type(comparison)](left, right):
            return False
        left = right
    return True


def _number(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is no number")
    return value
