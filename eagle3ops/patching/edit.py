"""How does source look after a recipe's edits? By structure, with every comment and blank line of the rest kept."""

import ast
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import libcst as cst

from eagle3ops.errors import Eagle3opsError
from eagle3ops.patching.recipe import Edit


class PatchError(Eagle3opsError):
    """The edits do not fit this source."""


@dataclass(frozen=True, slots=True)
class Edited:
    """The source after the edits."""

    text: str
    fresh: int
    """Edits that changed something; the others had been made already."""


def apply_edits(text: str, edits: Sequence[Edit], where: str) -> Edited:
    """The source with all edits made.

    Raises:
        PatchError: an anchor is not there, or not once; what is to be added is there in another form; or the result
            is no Python.
    """
    try:
        module = cst.parse_module(text)
    except (cst.ParserSyntaxError, RecursionError) as error:
        raise PatchError(f"{where}: cannot be parsed: {str(error).splitlines()[0]}") from error
    fresh = 0
    for edit in edits:
        changed = _EDITS[edit.kind](module, edit, where)
        fresh += changed is not module
        module = changed
    try:
        compile(module.code, where, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise PatchError(f"{where}: would be no valid Python{f', line {line}' if line else ''}: {error}") from error
    return Edited(module.code, fresh)


def _import(module: cst.Module, edit: Edit, where: str) -> cst.Module:
    wanted = [_normal(line) for line in edit["code"].splitlines() if line.strip()]
    have = {_normal(module.code_for_node(one)) for one in module.body if isinstance(one, cst.SimpleStatementLine)}
    new = [line for line in edit["code"].splitlines() if line.strip() and _normal(line) not in have]
    if not new:
        return module
    assert wanted
    after = -1
    for at, one in enumerate(module.body):
        if isinstance(one, cst.SimpleStatementLine) and isinstance(one.body[0], cst.Import | cst.ImportFrom):
            after = at
        elif not _preamble(one, at):
            break
    added = [cst.parse_statement(line, module.config_for_parsing) for line in new]
    return module.with_changes(body=[*module.body[: after + 1], *added, *module.body[after + 1 :]])


def _preamble(node: cst.BaseStatement | cst.SimpleStatementLine, at: int) -> bool:
    """What may stand between imports: a docstring, at the top."""
    return at == 0 and isinstance(node, cst.SimpleStatementLine) and isinstance(node.body[0], cst.Expr)


class _Classes(cst.CSTTransformer):
    """Changes the one class of a name, at the top level."""

    def __init__(self, name: str, change: Callable[[cst.ClassDef], cst.ClassDef]) -> None:
        super().__init__()
        self.seen = 0
        self._name, self._change, self._depth = name, change, 0

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        self._depth += 1
        return False

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        return False

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:
        self._depth -= 1
        if original_node.name.value != self._name or self._depth:
            return updated_node
        self.seen += 1
        return self._change(updated_node)


def _in_class(module: cst.Module, edit: Edit, where: str, change: Callable[[cst.ClassDef], cst.ClassDef]) -> cst.Module:
    classes = _Classes(edit["class"], change)
    changed = module.visit(classes)
    if classes.seen != 1:
        raise PatchError(
            f"{where}: {edit.place}: class {edit['class']} stands there {classes.seen} times",
            remedy="the recipe does not fit this version of the engine",
        )
    return module if changed.deep_equals(module) else changed


def _base(module: cst.Module, edit: Edit, where: str) -> cst.Module:
    def change(node: cst.ClassDef) -> cst.ClassDef:
        if _normal(edit["base"]) in {_normal(module.code_for_node(one.value)) for one in node.bases}:
            return node
        last = [one.with_changes(comma=cst.MaybeSentinel.DEFAULT) if at == len(node.bases) - 1 else one
                for at, one in enumerate(node.bases)]  # fmt: skip
        return node.with_changes(
            bases=[*last, cst.Arg(cst.parse_expression(edit["base"]))],
            lpar=cst.MaybeSentinel.DEFAULT if not node.bases and not node.keywords else node.lpar,
            rpar=cst.MaybeSentinel.DEFAULT if not node.bases and not node.keywords else node.rpar,
        )

    return _in_class(module, edit, where, change)


def _method(module: cst.Module, edit: Edit, where: str) -> cst.Module:
    code = edit["code"]
    name = _function_name(code)

    def change(node: cst.ClassDef) -> cst.ClassDef:
        if not isinstance(node.body, cst.IndentedBlock):
            raise PatchError(f"{where}: {edit.place}: class {edit['class']} stands on one line")
        for one in node.body.body:
            if isinstance(one, cst.FunctionDef) and one.name.value == name:
                if _normal(module.code_for_node(one)) == _normal(code):
                    return node
                raise PatchError(
                    f"{where}: {edit.place}: {edit['class']}.{name} is there already, in another form",
                    remedy="the engine may have it by itself now: eagle3ops supports says so",
                )
        added = cst.parse_statement(code, module.config_for_parsing)
        if isinstance(added, cst.FunctionDef):
            added = added.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
        return node.with_changes(body=node.body.with_changes(body=[*node.body.body, added]))

    return _in_class(module, edit, where, change)


class _Statements(cst.CSTTransformer):
    """Changes the statements of one function that are the same as one given."""

    def __init__(self, module: cst.Module, edit: Edit) -> None:
        super().__init__()
        self.seen, self.scopes = 0, 0
        self._module, self._edit = module, edit
        self._stack: list[str] = []
        self._find = _normal(edit["find"])

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        self._stack.append(node.name.value)
        return True

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:
        self._stack.pop()
        return updated_node

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        self._stack.append(node.name.value)
        self.scopes += ".".join(self._stack) == self._edit["scope"]
        return True

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        self._stack.pop()
        return updated_node

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        if ".".join(self._stack) != self._edit["scope"]:
            return updated_node
        body: list[cst.BaseStatement] = []
        added = _parse_block(self._edit["code"], self._module)
        for before, after in zip(original_node.body, updated_node.body, strict=True):
            if _normal(self._module.code_for_node(before)) != self._find:
                body.append(after)
                continue
            self.seen += 1
            place = self._edit["where"]
            body += {"before": [*added, after], "after": [after, *added], "replace": added}[place]
        return updated_node.with_changes(body=body)


def _statement(module: cst.Module, edit: Edit, where: str) -> cst.Module:
    statements = _Statements(module, edit)
    if _made(module, edit):
        return module
    changed = module.visit(statements)
    if statements.scopes != 1:
        raise PatchError(
            f"{where}: {edit.place}: {edit['scope']} stands there {statements.scopes} times",
            remedy="the recipe does not fit this version of the engine",
        )
    if statements.seen != 1:
        line = edit["find"].strip().splitlines()[0]
        raise PatchError(
            f"{where}: {edit.place}: `{line}` stands in {edit['scope']} {statements.seen} times, not once",
            remedy="the recipe does not fit this version of the engine",
        )
    return changed


def _made(module: cst.Module, edit: Edit) -> bool:
    """Whether the code stands at its place already."""
    added = [_normal(one) for one in _pieces(edit["code"])]
    find = _normal(edit["find"])
    wanted = {"before": [*added, find], "after": [find, *added], "replace": added}[edit["where"]]
    for block in _blocks(module.code, edit["scope"]):
        dumps = [ast.dump(one) for one in block]
        if any(dumps[at : at + len(wanted)] == wanted for at in range(len(dumps) - len(wanted) + 1)):
            return True
    return False


def _blocks(code: str, scope: str) -> list[list[ast.stmt]]:
    """Every list of statements inside a function."""
    nodes: list[ast.AST] = [ast.parse(code)]
    for name in scope.split("."):
        nodes = [
            child
            for node in nodes
            for child in ast.walk(node)
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and child.name == name
        ]
    return [
        block
        for node in nodes
        for child in ast.walk(node)
        for block in (getattr(child, name, None) for name in ("body", "orelse", "finalbody"))
        if isinstance(block, list) and all(isinstance(one, ast.stmt) for one in block)
    ]


def _pieces(code: str) -> list[str]:
    function = ast.parse("async def _():\n" + textwrap.indent(code, "    ")).body[0]
    assert isinstance(function, ast.AsyncFunctionDef)
    return [ast.unparse(one) for one in function.body]


def _parse_block(code: str, module: cst.Module) -> list[cst.BaseStatement]:
    """Statements that may stand in a function."""
    wrapped = "async def _():\n" + textwrap.indent(code, module.default_indent)
    function = cst.parse_statement(wrapped, module.config_for_parsing)
    assert isinstance(function, cst.FunctionDef)
    assert isinstance(function.body, cst.IndentedBlock)
    return list(function.body.body)


def _function_name(code: str) -> str:
    function = ast.parse(code).body[0]
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    return function.name


def _normal(code: str) -> str:
    """The same for code that says the same, however it is laid out."""
    text = textwrap.dedent(code).strip("\n")
    try:
        function = ast.parse("async def _():\n" + textwrap.indent(text, "    ")).body[0]
        assert isinstance(function, ast.AsyncFunctionDef)
        return ast.dump(function.body[0]) if len(function.body) == 1 else str([ast.dump(one) for one in function.body])
    except (SyntaxError, ValueError):
        return text


_EDITS: dict[str, Callable[[cst.Module, Edit, str], cst.Module]] = {
    "import": _import,
    "base": _base,
    "method": _method,
    "statement": _statement,
}
