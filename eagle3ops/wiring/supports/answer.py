"""What is said of one architecture, and what every engine's verdict needs for it."""

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from eagle3ops.wiring.supports.classes import Classes, Held, inside, self_chain
from eagle3ops.wiring.supports.interpreter import Interpreter
from eagle3ops.wiring.supports.registry import Entry, Registry, class_of
from eagle3ops.wiring.supports.tree import Tree
from eagle3ops.wiring.supports.values import ClassValue, FunctionValue

Verdict = Literal["yes", "no", "unknown"]
Wiring = Literal["ok", "broken", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """Whether an engine supports EAGLE-3 for an architecture."""

    engine: str
    version: str | None
    architecture: str
    supported: Verdict
    """What the engine's own check says when it starts: `isinstance` in vLLM, `hasattr` in SGLang."""
    wiring: Wiring | None = None
    """Whether what the check lets through reaches a decoder that captures; None where it lets nothing through, and
    for drafters, which are fed rather than tapped."""
    class_name: str | None = None
    file: str | None = None
    how: str | None = None
    where: str | None = None
    """`file:line` of the method that takes the layers, or of the class where it has none."""
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "engine": self.engine,
            "version": self.version,
            "architecture": self.architecture,
            "class": self.class_name,
            "file": self.file,
            "supported": self.supported,
            "wiring": self.wiring,
            "how": self.how,
            "where": self.where,
            "notes": list(self.notes),
        }


@dataclass(slots=True)
class Path:
    """How the layers get from a class to its decoder."""

    wiring: Wiring | None
    how: str
    where: str | None
    notes: list[str] = field(default_factory=list)


def judge_holders(holders: Held, how: str, where: str, faults: Callable[[ClassValue], list[str]]) -> Path:
    """Whether what the layers are set on captures; `faults` tells of one class what is broken, or nothing."""
    if not holders.classes:
        return Path("unknown", how, where, [f"the decoder depends on {holders.why}"])
    broken = [told for each in holders.classes if (told := faults(each))]
    notes = [note for told in broken for note in told]
    if len(broken) == len(holders.classes) and holders.whole:
        return Path("broken", how, where, notes)
    if broken or not holders.whole:
        return Path("unknown", how, where, [*notes, f"which decoder it is depends on {holders.why or 'the config'}"])
    return Path("ok", how, where, notes)


@dataclass(frozen=True, slots=True)
class Source:
    """One engine's source, opened for questions."""

    tree: Tree
    interpreter: Interpreter
    registry: Registry
    classes: Classes

    def resolve(self, architecture: str) -> ClassValue | None:
        """The class of an architecture, where the source tells it."""
        entry = self.registry.entries.get(architecture)
        found = class_of(self.interpreter, entry) if entry else None
        return found if isinstance(found, ClassValue) else None

    def told(self, of: ClassValue) -> str:
        """`Class (file:line)`."""
        return f"{of.name} ({self.classes.place(of)})"

    def damage(self, entry: Entry) -> list[str]:
        """Why nothing is known of the class of an entry."""
        damaged = self.tree.damaged
        found = [damaged[entry.module]] if entry.module in damaged else list(damaged.values())[:5]
        return found or [f"{entry.module} does not say plainly what {entry.name} is"]

    def mentions(self, of: ClassValue, words: tuple[str, ...], *, skip: frozenset[str], leave: str = "") -> bool:
        """Whether a method of a class, its own or inherited, has one of the words in a name.

        Args:
            of: the class.
            words: parts of names.
            skip: methods that do not count.
            leave: a base class that does not count.
        """
        for owner in self.classes.order(of).classes:
            if owner.name == leave:
                continue
            for node in owner.node.body:
                if isinstance(node, ast.FunctionDef) and node.name not in skip and has_word(node, words):
                    return True
        return False


def begin(source: Source, entry: Entry, of: ClassValue | None, notes: list[str]) -> Support:
    """An answer before anything but the class is known, and the reason where not even that is."""
    file = source.tree.file_of(of.module) if of else None
    return Support(
        engine=source.tree.engine,
        version=source.tree.version,
        architecture=entry.architecture,
        supported="unknown",
        class_name=of.name if of else entry.name,
        file=source.tree.shown(file) if file else None,
        where=source.classes.place(of) if of else None,
        notes=(*notes, *([] if of else source.damage(entry))),
    )


def has_word(node: ast.AST, words: tuple[str, ...]) -> bool:
    """Whether a piece of source has one of the words in a name or in a short string."""
    for each in ast.walk(node):
        text = (
            each.id
            if isinstance(each, ast.Name)
            else each.attr
            if isinstance(each, ast.Attribute)
            else each.arg
            if isinstance(each, ast.arg | ast.keyword)
            else each.value
            if isinstance(each, ast.Constant) and isinstance(each.value, str) and len(each.value) < 80
            else None
        )
        if text and any(word in text for word in words):
            return True
    return False


def delegations(method: FunctionValue, name: str) -> list[tuple[str, ...]]:
    """The `self.a.b` whose method `name` a method calls."""
    found = [
        self_chain(node.func.value)
        for node in inside(method.node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name
    ]
    return list(dict.fromkeys(chain for chain in found if chain))


def assignments(method: FunctionValue, name: str) -> list[tuple[str, ...]]:
    """The `self.a.b` whose attribute `name` a method sets; () is self."""
    found: list[tuple[str, ...]] = []
    for node in inside(method.node):
        if isinstance(node, ast.Assign):
            chains = [self_chain(target) for target in node.targets]
            found += [chain[:-1] for chain in chains if chain and chain[-1] == name]
    return list(dict.fromkeys(found))


def dotted(chain: tuple[str, ...]) -> str:
    """`self.a.b`."""
    return ".".join(("self", *chain))
