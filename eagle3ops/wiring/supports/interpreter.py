"""What does a name in a module of an engine stand for, on a given platform?

Not a Python: it follows imports, aliases, branches on the platform, `TYPE_CHECKING`, lazy module attributes (PEP 562)
and functions that make a class out of a class. Whatever else decides is `UNKNOWN`. It runs nothing, and every chain of
looks is bounded.
"""

import ast
from collections.abc import Mapping

from eagle3ops.wiring.supports.expressions import Expressions
from eagle3ops.wiring.supports.platforms import Platform
from eagle3ops.wiring.supports.scopes import Binding, Either, Known, Outcome, Scope, Taken, Written, agreed, merge
from eagle3ops.wiring.supports.tree import Tree
from eagle3ops.wiring.supports.values import (
    MISSING,
    UNKNOWN,
    ClassValue,
    FunctionValue,
    Missing,
    ModuleValue,
    Outside,
    Unknown,
    Value,
)

_DEEPEST = 60
"""Looks within looks, such as a name imported from a module that imports it from another."""
_Body = list[ast.stmt]


class Interpreter(Expressions):
    """The names of one tree on one platform."""

    def __init__(self, tree: Tree, platform: Platform) -> None:
        super().__init__(tree, platform)
        self._modules: dict[str, Scope | None] = {}
        self._depth = 0

    def module(self, name: str) -> Scope | None:
        """The names of a module; None when the tree has none such."""
        if name not in self._modules:
            self._modules[name] = None  # while it is being read
            parsed = self.tree.parse(name)
            if parsed is not None:
                scope = Scope(name)
                self._modules[name] = scope
                self.run(parsed.body, scope)
        return self._modules[name]

    def member(self, module: str, name: str) -> Value:
        """What `module.name` is."""
        self._depth += 1
        try:
            return UNKNOWN if self._depth > _DEEPEST else self._member(module, name)
        finally:
            self._depth -= 1

    def _member(self, module: str, name: str) -> Value:
        if module.split(".")[0] != self.tree.engine:
            return Outside(f"{module}.{name}")
        scope = self.module(module)
        if scope is not None:
            found = scope.own(name, self._look)
            if not isinstance(found, Missing):
                return found
        below = f"{module}.{name}"
        if self.tree.file_of(below) is not None:
            return ModuleValue(below)
        if scope is None:
            # a folder without __init__.py is a package too; a module that is not there may be built at installation
            return MISSING if self.tree.is_package(module) else UNKNOWN
        for star in scope.stars:
            found = self.member(star, name)
            if not isinstance(found, Missing | Unknown | Outside):
                return found
        lazy = scope.own("__getattr__", self._look)
        if isinstance(lazy, FunctionValue):
            return self.call(lazy, (name,), {})
        return MISSING

    def lookup(self, name: str, scope: Scope) -> Value:
        """What a name stands for where it is used."""
        at: Scope | None = scope
        while at is not None:
            found = at.own(name, self._look)
            if not isinstance(found, Missing):
                return found
            if at.above is None:
                for star in at.stars:
                    found = self.member(star, name)
                    if not isinstance(found, Missing | Unknown | Outside):
                        return found
            at = at.above
        return Outside(f"builtins.{name}")

    def earlier(self, name: str, scope: Scope) -> Value:
        """What a name stood for before it was bound again; outside when it did not."""
        return self._look(scope.earlier[name], scope) if name in scope.earlier else Outside(name)

    def _look(self, binding: Binding, scope: Scope) -> Value:
        if isinstance(binding, Known):
            return binding.value
        if isinstance(binding, Taken):
            return self.member(binding.module, binding.name)
        if isinstance(binding, Either):
            return agreed((self._look(binding.one, scope), self._look(binding.other, scope)))
        return self.evaluate(binding.expression, scope)

    def call(self, function: FunctionValue, arguments: tuple[Value, ...], named: Mapping[str, Value]) -> Value:
        """What a function of the engine returns: the last of what it may, as an early return is for special cases."""
        self._depth += 1
        try:
            if self._depth > _DEEPEST:
                return UNKNOWN
            scope = self.frame(function, arguments, named)
            outcome = self.run(function.node.body, scope)
            if outcome.raised and not outcome.returned:
                return MISSING
            for expression in reversed(outcome.returned):
                return None if expression is None else self.evaluate(expression, scope)
            return UNKNOWN
        finally:
            self._depth -= 1

    def frame(self, function: FunctionValue, arguments: tuple[Value, ...], named: Mapping[str, Value]) -> Scope:
        """The scope of a call, with its parameters bound."""
        around = function.scope
        scope = Scope(function.module, around.above if around.of_class else around)
        spec = function.node.args
        positional = [*spec.posonlyargs, *spec.args]
        for parameter in (*positional, *spec.kwonlyargs):
            scope.bind(parameter.arg, Known(UNKNOWN))
        for parameter, default in zip(reversed(positional), reversed(spec.defaults), strict=False):
            scope.bind(parameter.arg, Known(self.evaluate(default, function.scope)))
        for parameter, maybe in zip(spec.kwonlyargs, spec.kw_defaults, strict=False):
            if maybe is not None:
                scope.bind(parameter.arg, Known(self.evaluate(maybe, function.scope)))
        for parameter, value in zip(positional, arguments, strict=False):
            scope.bind(parameter.arg, Known(value))
        for name, value in named.items():
            if name in scope.bound:
                scope.bind(name, Known(value))
        return scope

    def run(self, body: _Body, scope: Scope) -> Outcome:
        """Bind what statements bind."""
        whole = Outcome()
        for statement in body:
            self._statement(statement, scope, whole)
            if whole.ends:
                break
        return whole

    def _statement(self, statement: ast.stmt, scope: Scope, whole: Outcome) -> None:
        match statement:
            case ast.ClassDef():
                scope.bind(statement.name, Known(ClassValue(scope.module, statement, scope)))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                scope.bind(statement.name, Known(FunctionValue(scope.module, statement, scope)))
            case ast.Import() | ast.ImportFrom():
                self._import(statement, scope)
            case ast.Assign():
                for target in statement.targets:
                    _assign(target, statement.value, scope)
            case ast.AnnAssign(value=ast.expr() as value):
                _assign(statement.target, value, scope)
            case ast.If():
                self._branch(statement, scope, whole)
            case ast.Try() | ast.TryStar():
                self._try(statement, scope, whole)
            case ast.With() | ast.AsyncWith() | ast.For() | ast.AsyncFor() | ast.While():
                _join(whole, self.run(statement.body, scope), sure=isinstance(statement, ast.With | ast.AsyncWith))
            case ast.Return():
                whole.returned.append(statement.value)
                whole.ends = True
            case ast.Raise():
                whole.ends = whole.raised = True
            case _:
                pass

    def _branch(self, statement: ast.If, scope: Scope, whole: Outcome) -> None:
        taken = self.truth(statement.test, scope)
        if taken is not None:
            _join(whole, self.run(statement.body if taken else statement.orelse, scope), sure=True)
            return
        before = dict(scope.bound)
        one = self.run(statement.body, scope)
        after = _changes(before, scope.bound)
        self._restore(scope, before)
        other = self.run(statement.orelse, scope)
        otherwise = _changes(before, scope.bound)
        self._restore(scope, before)
        if one.ends or other.ends:  # what follows follows the branch that goes on
            merge(scope, before, {} if one.ends else after, {} if other.ends else otherwise)
            for name, binding in (otherwise if one.ends else after).items():
                scope.bind(name, binding)
        else:
            merge(scope, before, after, otherwise)
        whole.returned += one.returned + other.returned
        whole.ends = one.ends and other.ends
        whole.raised = one.raised and other.raised

    def _try(self, statement: ast.Try | ast.TryStar, scope: Scope, whole: Outcome) -> None:
        outcome = self.run([*statement.body, *statement.orelse], scope)
        for handler in statement.handlers:  # what an import that failed would have bound instead
            aside = Scope(scope.module, scope)
            self.run(handler.body, aside)
            for name, binding in aside.bound.items():
                if name not in scope.bound:
                    scope.bind(name, binding)
        _join(whole, outcome, sure=True)
        if not whole.ends:
            _join(whole, self.run(statement.finalbody, scope), sure=True)

    @staticmethod
    def _restore(scope: Scope, before: dict[str, Binding]) -> None:
        for name in list(scope.bound):
            if scope.bound[name] is not before.get(name):
                if name in before:
                    scope.bind(name, before[name])
                else:
                    del scope.bound[name]

    def _import(self, statement: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                whole = alias.name if alias.asname else alias.name.split(".")[0]
                inside = whole.split(".")[0] == self.tree.engine
                scope.bind(alias.asname or whole, Known(ModuleValue(whole) if inside else Outside(whole)))
            return
        module = self.absolute(scope.module, statement.module or "", statement.level)
        for alias in statement.names:
            if module is None:
                scope.bind(alias.asname or alias.name, Known(UNKNOWN))
            elif alias.name == "*":
                scope.stars.append(module)
            else:
                scope.bind(alias.asname or alias.name, Taken(module, alias.name))


def _assign(target: ast.expr, value: ast.expr, scope: Scope) -> None:
    if isinstance(target, ast.Name):
        scope.bind(target.id, Written(value))
    elif isinstance(target, ast.Tuple | ast.List):
        pairs = value.elts if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts) else None
        for at, each in enumerate(target.elts):
            if pairs is not None:
                _assign(each, pairs[at], scope)
            elif isinstance(each, ast.Name):
                scope.bind(each.id, Known(UNKNOWN))


def _changes(before: dict[str, Binding], after: dict[str, Binding]) -> dict[str, Binding]:
    return {name: binding for name, binding in after.items() if before.get(name) is not binding}


def _join(whole: Outcome, part: Outcome, *, sure: bool) -> None:
    whole.returned += part.returned
    if sure:
        whole.ends = whole.ends or part.ends
        whole.raised = whole.raised or part.raised
