"""What does a class of an engine have: its own, inherited, and held in its attributes?"""

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from eagle3ops.wiring.supports.interpreter import Interpreter
from eagle3ops.wiring.supports.scopes import Scope
from eagle3ops.wiring.supports.values import (
    MISSING,
    ClassValue,
    FunctionValue,
    InstanceValue,
    Outside,
    Value,
)

_DEEPEST = 25
_MOST_CLASSES = 200
_PLACEHOLDERS = frozenset({"PPMissingLayer", "StageMissingLayer", "Identity"})
"""What stands in a pipeline stage for a part that lies in another."""
_FROM_REGISTRY = frozenset({"init_vllm_registered_model"})
"""Functions that make a model of a named architecture."""


Base = ClassValue | Outside


@dataclass(frozen=True, slots=True)
class Order:
    """The order in which classes are searched for an attribute."""

    classes: tuple[ClassValue, ...]
    all: tuple[Base, ...]
    """Those of other packages among them."""
    whole: bool
    """False when a base is not known, so that something may be inherited that is not seen."""
    unclear: tuple[str, ...] = ()
    """The bases that are not known, as written."""


@dataclass(frozen=True, slots=True)
class Found:
    """A member of a class."""

    owner: ClassValue
    value: Value


@dataclass(frozen=True, slots=True)
class Held:
    """What an attribute of an instance is an instance of."""

    classes: tuple[ClassValue, ...] = ()
    """More than one: which it is depends on something that is not told here."""
    whole: bool = False
    """Whether it can be nothing else."""
    why: str = ""
    """What it depends on, when not whole."""
    absent: bool = False
    """There is no such attribute, as far as constructors say."""

    def __or__(self, other: "Held") -> "Held":
        classes = tuple(dict.fromkeys((*self.classes, *other.classes)))
        return Held(classes, self.whole and other.whole, self.why or other.why)


class Classes:
    """Questions about classes."""

    def __init__(self, interpreter: Interpreter, named: Callable[[str], ClassValue | None]) -> None:
        """Args: interpreter; named: the class that the registry maps an architecture to."""
        self.interpreter = interpreter
        self._named = named
        self._orders: dict[ClassValue, Order] = {}
        self._members: dict[ClassValue, Scope] = {}

    def order(self, of: ClassValue) -> Order:
        """The method resolution order (C3), over the classes of the engine."""
        return self._order(of, 0)

    def _order(self, of: ClassValue, depth: int) -> Order:
        if of in self._orders:
            return self._orders[of]
        bases: list[Base] = []
        unclear: list[str] = []
        for base in of.node.bases:
            value = self.interpreter.evaluate(base, of.scope)
            if value == of:  # class X(X): the X from before
                value = self.interpreter.earlier(of.name, of.scope)
            if isinstance(value, Outside) or (isinstance(value, ClassValue) and value != of and depth < _DEEPEST):
                if value not in bases:
                    bases.append(value)
            else:
                unclear.append(ast.unparse(base)[:100])
        orders = [self._order(base, depth + 1) for base in bases if isinstance(base, ClassValue)]
        chain = self._chain(bases, depth)
        whole = not unclear and all(each.whole for each in orders)
        if chain is None:  # Python would refuse such bases
            chain = list(dict.fromkeys(one for each in orders for one in each.all))
            whole = False
        every = (of, *(each for each in chain if each != of))[:_MOST_CLASSES]
        found = Order(
            tuple(each for each in every if isinstance(each, ClassValue)),
            every,
            whole,
            (*unclear, *(name for each in orders for name in each.unclear))[:10],
        )
        self._orders[of] = found
        return found

    def _chain(self, bases: list[Base], depth: int) -> list[Base] | None:
        """C3 over the bases; those of others count as classes without bases."""
        sequences: list[list[Base]] = [
            list(self._order(each, depth + 1).all) if isinstance(each, ClassValue) else [each] for each in bases
        ]
        return _merge([*sequences, bases[:]]) if bases else []

    def members(self, of: ClassValue) -> Scope:
        """What the body of a class binds."""
        if of not in self._members:
            scope = Scope(of.module, of.scope, of_class=True)
            self.interpreter.run(of.node.body, scope)
            self._members[of] = scope
        return self._members[of]

    def own(self, of: ClassValue, name: str) -> Value:
        """A member of this very class."""
        scope = self.members(of)
        return self.interpreter.lookup(name, scope) if name in scope.bound else MISSING

    def find(self, of: ClassValue, name: str) -> Found | None:
        """A member, its own or inherited."""
        for owner in self.order(of).classes:
            if name in self.members(owner).bound:
                return Found(owner, self.own(owner, name))
        return None

    def derives(self, of: ClassValue, name: str) -> ClassValue | None:
        """The class of that name among those that it derives from."""
        return next((each for each in self.order(of).classes if each.name == name), None)

    def place(self, of: ClassValue, node: ast.AST | None = None) -> str:
        """`file:line`."""
        return self.interpreter.tree.place(of.module, node or of.node)

    def held(self, of: ClassValue, attribute: str, depth: int = 0) -> Held:
        """What `self.attribute` is an instance of, as the constructors say."""
        if depth > _DEEPEST:
            return Held(why="too deep")
        given: dict[str, Value] = {}
        order = self.order(of).classes
        at = 0
        while at < len(order):
            owner = order[at]
            at += 1
            init = self.own(owner, "__init__")
            written = self._written(owner, attribute, init)
            if written:
                return self._any(written, of, given, depth)
            direct = self.own(owner, attribute)
            if isinstance(direct, FunctionValue) and _is_property(direct.node):
                return self._returned(direct, of, depth)
            if not isinstance(init, FunctionValue):
                continue
            up = _super_init(init.node)
            if up is None:
                return Held(why=f"{owner.name} never sets self.{attribute}", absent=True)
            frame = self._frame(init, given)
            past = _named_super(up)
            if past is not None and any(each.name == past for each in order):
                at = max(at, next(i for i, each in enumerate(order) if each.name == past) + 1)
            after = next((one for each in order[at:] if (one := self.own(each, "__init__")) is not MISSING), MISSING)
            given = self._given(up, frame, after)
        return Held(why=f"no constructor sets self.{attribute}", absent=self.order(of).whole)

    def _written(self, owner: ClassValue, attribute: str, init: Value) -> list[tuple[FunctionValue, ast.expr]]:
        """Where a class sets it: in its constructor, else in another method."""
        if isinstance(init, FunctionValue):
            found = [(init, value) for value in _sets(init.node, attribute)]
            if found:
                return found
        others: list[tuple[FunctionValue, ast.expr]] = []
        for node in owner.node.body:
            if isinstance(node, ast.FunctionDef) and node.name != "__init__":
                method = FunctionValue(owner.module, node, self.members(owner))
                others += [(method, value) for value in _sets(node, attribute)]
        return others

    def _any(
        self, written: list[tuple[FunctionValue, ast.expr]], of: ClassValue, given: Mapping[str, Value], depth: int
    ) -> Held:
        found: Held | None = None
        for method, expression in written:
            if isinstance(expression, ast.Constant) and expression.value is None:
                continue
            one = self.instance(expression, self._frame(method, given), of, depth + 1)
            found = one if found is None else found | one
        if found is None:
            return Held(why="it is None")
        real = tuple(each for each in found.classes if each.name not in _PLACEHOLDERS)
        return Held(real or found.classes, found.whole, found.why)

    def _frame(self, method: FunctionValue, given: Mapping[str, Value]) -> Scope:
        frame = self.interpreter.frame(method, (), given)
        self.interpreter.run(method.node.body, frame)
        return frame

    def instance(self, expression: ast.expr, scope: Scope, of: ClassValue, depth: int) -> Held:
        """What an expression in a method of `of` is an instance of."""
        if depth > _DEEPEST:
            return Held(why="too deep")
        if isinstance(expression, ast.IfExp):
            return self.instance(expression.body, scope, of, depth + 1) | self.instance(
                expression.orelse, scope, of, depth + 1
            )
        if isinstance(expression, ast.Call):
            special = self._made(expression, scope, of, depth)
            if special is not None:
                return special
        chain = self_chain(expression)
        if chain:
            return self.chain(of, chain, depth + 1)
        value = self.interpreter.evaluate(expression, scope)
        if isinstance(value, InstanceValue):
            return Held((value.of,), True)
        if isinstance(expression, ast.Name):
            written = scope.bound.get(expression.id)
            inner = getattr(written, "expression", None)
            if isinstance(inner, ast.expr) and inner is not expression:
                return self.instance(inner, scope, of, depth + 1)
        return Held(why=f"`{ast.unparse(expression)[:80]}` is told only when it runs")

    def chain(self, of: ClassValue, names: tuple[str, ...], depth: int = 0) -> Held:
        """What `self.a.b` is an instance of."""
        now = Held((of,), True)
        for name in names:
            after: Held | None = None
            for each in now.classes:
                one = self.held(each, name, depth + 1)
                after = one if after is None else after | one
            if after is None:
                return now
            now = Held(after.classes, after.whole and now.whole, after.why or now.why)
        return now

    def _made(self, call: ast.Call, scope: Scope, of: ClassValue, depth: int) -> Held | None:
        function = call.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if name in _FROM_REGISTRY:
            return self._from_registry(call, scope)
        if name == "cast" and len(call.args) == 2:
            return self.instance(call.args[1], scope, of, depth + 1)
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "self":
            member = self.find(of, function.attr)
            if member is None:
                return None
            if isinstance(member.value, FunctionValue):
                return self._returned(member.value, of, depth, self._given(call, scope, member.value))
            if isinstance(member.value, ClassValue):
                return Held((member.value,), True)
            return None
        if isinstance(function, ast.Name):
            value = self.interpreter.lookup(function.id, scope)
            if isinstance(value, FunctionValue) and value.node.name not in _FROM_REGISTRY:
                return self._returned(value, of, depth, self._given(call, scope, value))
        return None

    def _given(self, call: ast.Call, scope: Scope, called: Value) -> dict[str, Value]:
        """The arguments by the names that the function called has for them."""
        names: list[str] = []
        if isinstance(called, FunctionValue):
            taken = called.node.args
            names = [each.arg for each in (*taken.posonlyargs, *taken.args)]
            names = names[1:] if names[:1] == ["self"] else names
        given = {each.arg: each.value for each in call.keywords if each.arg is not None}
        for name, value in zip(names, call.args, strict=False):
            if isinstance(value, ast.Starred):
                break
            given.setdefault(name, value)
        return {name: self.interpreter.evaluate(value, scope) for name, value in given.items()}

    def _from_registry(self, call: ast.Call, scope: Scope) -> Held:
        given = next((each.value for each in call.keywords if each.arg == "architectures"), None)
        names = self.interpreter.evaluate(given, scope) if given is not None else None
        if isinstance(names, tuple) and names and isinstance(names[0], str):
            found = self._named(names[0])
            if found is not None:
                return Held((found,), True)
        config = next((ast.unparse(each.value)[:80] for each in call.keywords if each.arg == "hf_config"), "the config")
        return Held(why=f"the architecture that {config} of the checkpoint names")

    def _returned(
        self, function: FunctionValue, of: ClassValue, depth: int, given: Mapping[str, Value] | None = None
    ) -> Held:
        if depth > _DEEPEST:
            return Held(why="too deep")
        frame = self._frame(function, given or {})
        found: Held | None = None
        for node in inside(function.node):
            if isinstance(node, ast.Return) and node.value is not None:
                one = self.instance(node.value, frame, of, depth + 1)
                found = one if found is None else found | one
        return found or Held(why=f"{function.node.name}() is told only when it runs")


def _merge(sequences: list[list[Base]]) -> list[Base] | None:
    """C3; None when there is no such order."""
    found: list[Base] = []
    while any(sequences):
        sequences = [each for each in sequences if each]
        for each in sequences:
            head = each[0]
            if not any(head in other[1:] for other in sequences):
                break
        else:
            return None
        found.append(head)
        for each in sequences:
            if each and each[0] == head:
                del each[0]
    return found


def inside(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions and classes within it."""
    todo: list[ast.AST] = list(ast.iter_child_nodes(function))
    while todo:
        node = todo.pop(0)
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            todo[:0] = ast.iter_child_nodes(node)


def _sets(function: ast.AST, attribute: str) -> list[ast.expr]:
    """The expressions that a method sets `self.attribute` to."""
    found: list[ast.expr] = []
    for node in inside(function):
        if isinstance(node, ast.Assign):
            targets: list[ast.expr] = node.targets
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        else:
            continue
        value = node.value
        if value is not None and any(self_chain(each) == (attribute,) for each in targets):
            found.append(value)
    return found


def self_chain(expression: ast.expr) -> tuple[str, ...]:
    """`self.a.b` -> (a, b); anything else -> ()."""
    names: list[str] = []
    while isinstance(expression, ast.Attribute):
        names.append(expression.attr)
        expression = expression.value
    return tuple(reversed(names)) if isinstance(expression, ast.Name) and expression.id == "self" else ()


def is_super(call: ast.Call, method: str) -> bool:
    """Whether it is `super().method(...)`."""
    function = call.func
    return (
        isinstance(function, ast.Attribute)
        and function.attr == method
        and isinstance(function.value, ast.Call)
        and isinstance(function.value.func, ast.Name)
        and function.value.func.id == "super"
    )


def _super_init(function: ast.AST) -> ast.Call | None:
    return next((node for node in inside(function) if isinstance(node, ast.Call) and is_super(node, "__init__")), None)


def _named_super(call: ast.Call) -> str | None:
    """`super(A, self).__init__()` -> A."""
    inner = call.func.value if isinstance(call.func, ast.Attribute) else None
    if isinstance(inner, ast.Call) and inner.args and isinstance(inner.args[0], ast.Name):
        return inner.args[0].id
    return None


def _is_property(function: ast.AST) -> bool:
    decorators = getattr(function, "decorator_list", [])
    return any(isinstance(each, ast.Name) and each.id in ("property", "cached_property") for each in decorators)
