"""Which class does the registry of an engine map an architecture to?

vLLM has tables `{"Architecture": ("module", "Class")}`; SGLang imports every module of a folder and takes what its
`EntryClass` names.
"""

import ast
import difflib
import re
from dataclasses import dataclass

from eagle3ops.wiring.supports.interpreter import Interpreter
from eagle3ops.wiring.supports.scopes import Known
from eagle3ops.wiring.supports.tree import Tree, parse
from eagle3ops.wiring.supports.values import ClassValue, Table, Value

_SGLANG_MODELS = "sglang.srt.models"
_VLLM_MODELS = "vllm.model_executor.models"
_ENTRY = re.compile(r"^EntryClass\b[^\n=]*=", re.MULTILINE)
_CLASS = "^class {name}\\b"
_DRAFTER = re.compile(r"NextN|MTP|Eagle|Draft|DSpark|DFlash|Assistant")
_MOST_FILES = 5_000


@dataclass(frozen=True, slots=True)
class Entry:
    """What the registry says of one architecture."""

    architecture: str
    module: str
    name: str
    """Of the class in that module."""
    drafts: bool = False
    """It is listed as a drafter, not as a target."""


@dataclass(frozen=True, slots=True)
class Registry:
    """All of it."""

    entries: dict[str, Entry]
    gone: dict[str, str]
    """Architectures that this version names only to say why it has them no more."""

    def nearest(self, architecture: str) -> list[str]:
        """Names that may have been meant."""
        wanted = architecture[:200].lower()
        by_lower = {each.lower(): each for each in self.entries}
        close = difflib.get_close_matches(wanted, by_lower, n=3, cutoff=0.7)
        return [by_lower[each] for each in close]


def read_registry(interpreter: Interpreter) -> Registry:
    """The registry of a tree. A damaged one comes out empty."""
    return _vllm(interpreter) if interpreter.tree.engine == "vllm" else _sglang(interpreter)


def class_of(interpreter: Interpreter, entry: Entry) -> Value:
    """What the registry's name comes to: a class, unless the source does not tell."""
    return interpreter.member(entry.module, entry.name)


def _vllm(interpreter: Interpreter) -> Registry:
    module = f"{_VLLM_MODELS}.registry"
    scope = interpreter.module(module)
    if scope is None:
        return Registry({}, {})
    entries: dict[str, Entry] = {}
    gone: dict[str, str] = {}
    for table in scope.bound:
        value = interpreter.lookup(table, scope)
        if not isinstance(value, Table):
            continue
        for key, what in value.pairs:
            if not isinstance(key, str):
                continue
            if isinstance(what, str) and "SUPPORTED" in table:
                gone[key] = f"was in vLLM until {what}" if what[:1].isdigit() else f"has left vLLM for {what}"
            elif isinstance(what, tuple) and len(what) == 2 and all(isinstance(each, str) for each in what):
                place, name = str(what[0]), str(what[1])
                whole = place if place.startswith("vllm.") else f"{_VLLM_MODELS}.{place}"
                drafts = "SPECULATIVE" in table or (key in entries and entries[key].drafts)
                entries[key] = Entry(key, whole, name, drafts)
    return Registry(entries, {key: why for key, why in gone.items() if key not in entries})


def _sglang(interpreter: Interpreter) -> Registry:
    tree = interpreter.tree
    folder = tree.folder / "srt" / "models"
    entries: dict[str, Entry] = {}
    try:
        files = sorted(each for each in folder.iterdir() if each.suffix == ".py" and each.stem.isidentifier())
    except OSError:
        files = []
    for file in files[:_MOST_FILES]:
        if file.stem in ("__init__", "registry"):
            continue
        module = f"{_SGLANG_MODELS}.{file.stem}"
        for architecture, name in _entry_classes(interpreter, tree, module, tree.text(file) or ""):
            drafts = _DRAFTER.search(architecture) is not None
            entries.setdefault(architecture, Entry(architecture, module, name, drafts))
    return Registry(entries, {})


def _entry_classes(interpreter: Interpreter, tree: Tree, module: str, text: str) -> list[tuple[str, str]]:
    """(architecture, name in the module): from the one statement where that is enough, else from the whole file."""
    starts = [each.start() for each in _ENTRY.finditer(text)]
    if not starts:
        return []
    names = _listed(text[starts[-1] :]) if len(starts) == 1 else None
    if names is not None and all(re.search(_CLASS.format(name=name), text, re.MULTILINE) for name in names):
        return [(name, name) for name in names]
    scope = interpreter.module(module)
    if scope is None:
        return []
    value = interpreter.lookup("EntryClass", scope)
    found: list[tuple[str, str]] = []
    for at, each in enumerate(value if isinstance(value, tuple) else (value,)):
        if isinstance(each, ClassValue):
            local = next((name for name in scope.bound if interpreter.lookup(name, scope) == each), None)
            if local is None:
                local = f"EntryClass[{at}]"
                scope.bind(local, Known(each))
            found.append((each.name, local))
    return found


def _listed(text: str) -> list[str] | None:
    """The plain names of `EntryClass = [A, B]`, which starts the text; None when it is anything else."""
    lines = text.split("\n")
    for end in range(1, min(len(lines), 60) + 1):
        statement = parse("\n".join(lines[:end]))
        if isinstance(statement, ast.Module):
            break
    else:
        return None
    if len(statement.body) != 1 or not isinstance(statement.body[0], ast.Assign | ast.AnnAssign):
        return None
    value = statement.body[0].value
    elements = value.elts if isinstance(value, ast.List) else [value]
    return [each.id for each in elements if isinstance(each, ast.Name)] if _all_names(elements) else None


def _all_names(elements: list[ast.expr | None] | list[ast.expr]) -> bool:
    return all(isinstance(each, ast.Name) for each in elements)
