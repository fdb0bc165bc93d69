"""Does vLLM support EAGLE-3 for an architecture?

Before it starts it asks `isinstance(model, SupportsEagle3)`, a protocol that is checked by the names of its members.
That a class passes does not say that the layers arrive: the protocol's own setter then asserts that the decoder inside
is an `EagleModelMixin`, and only the decoder's forward really captures.
"""

import ast
from dataclasses import replace

from eagle3ops.wiring.supports.answer import (
    Path,
    Source,
    Support,
    assignments,
    begin,
    delegations,
    dotted,
    has_word,
    judge_holders,
)
from eagle3ops.wiring.supports.classes import Held, inside, self_chain
from eagle3ops.wiring.supports.registry import Entry
from eagle3ops.wiring.supports.values import ClassValue, FunctionValue

_INTERFACES = "vllm.model_executor.models.interfaces"
_PROTOCOL = "SupportsEagle3"
_MIXIN = "EagleModelMixin"
_SETTER = "set_aux_hidden_state_layers"
_INNER_SETTER = "_set_aux_hidden_state_layers"
_DEFAULTS = "get_eagle3_default_aux_hidden_state_layers"
_OLD_DEFAULTS = "get_eagle3_aux_hidden_state_layers"
_CAPTURES = ("aux_hidden_state", "_maybe_add_hidden_state")
_NOT_FORWARD = frozenset({"__init__", _SETTER, _INNER_SETTER, _DEFAULTS, _OLD_DEFAULTS})
_DEEPEST = 8


def answer(source: Source, entry: Entry) -> Support:
    """The verdict."""
    of = source.resolve(entry.architecture)
    protocol = source.interpreter.member(_INTERFACES, _PROTOCOL)
    notes = ["the registry lists it as a drafter, not as a target"] if entry.drafts else []
    base = begin(source, entry, of, notes)
    if of is None:
        return base
    if not isinstance(protocol, ClassValue):
        there = source.interpreter.module(_INTERFACES) is not None
        why = f"{_INTERFACES} has no {_PROTOCOL}: " + ("vLLM before EAGLE-3" if there else "it cannot be read")
        return replace(base, supported="no" if there else "unknown", notes=(*notes, why))
    members = _members(source, protocol)
    order = source.classes.order(of)
    missing = [name for name in members if source.classes.find(of, name) is None]
    if missing and not order.whole:
        why = f"bases that the source does not tell plainly: {', '.join(order.unclear) or 'a conflict among them'}"
        return replace(base, notes=(*notes, why))
    if missing:
        return replace(base, supported="no", notes=(*notes, *_missing(source, of, missing, members)))
    path = _path(source, of, protocol, 0)
    if entry.drafts:
        path.wiring, path.notes = None, []
    if protocol not in order.classes:
        path.how = f"structural protocol: has its {len(members)} members without deriving from it; {path.how}"
    return replace(
        base,
        supported="yes",
        wiring=path.wiring,
        how=path.how,
        where=path.where,
        notes=(*notes, *path.notes, *_stale(source, of, members)),
    )


def _members(source: Source, protocol: ClassValue) -> tuple[str, ...]:
    """The names that `isinstance` looks for, as this version has them."""
    found: list[str] = []
    for owner in source.classes.order(protocol).classes:
        found += source.classes.members(owner).bound
        found += [
            node.target.id
            for node in owner.node.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        ]
    return tuple(sorted({name for name in found if not name.startswith("__")}))


def _path(source: Source, of: ClassValue, protocol: ClassValue, depth: int) -> Path:
    """How the layers get to the decoder."""
    setter = source.classes.find(of, _SETTER)
    if setter is None or not isinstance(setter.value, FunctionValue) or depth > _DEEPEST:
        return Path("unknown", f"{_SETTER} is no plain method", None)
    where = source.classes.place(setter.owner, setter.value.node)
    if setter.owner == protocol:
        return _by_default(source, of, setter.value, where)
    own = "own method" if setter.owner == of else f"inherited from {setter.owner.name}"
    handed = delegations(setter.value, _SETTER)
    if handed:
        return _delegated(source, of, protocol, handed[0], where, depth)
    set_on = [
        *assignments(setter.value, "aux_hidden_state_layers"),
        *delegations(setter.value, _INNER_SETTER),
    ]
    if set_on:
        holders = source.classes.chain(of, set_on[0])
        inner = _names(holders)
        how = f"{own}: sets the layers on {dotted(set_on[0])}" + (f" -> {inner}" if inner else "")
        return _judge(source, holders, how, where, mixin=False)
    if source.mentions(of, _CAPTURES, skip=_NOT_FORWARD, leave=_PROTOCOL):
        return Path("ok", f"{own}: captures with means of its own", where)
    return Path(
        "unknown", own, where, [f"how {setter.owner.name}.{_SETTER} reaches the decoder is told only when it runs"]
    )


def _by_default(source: Source, of: ClassValue, setter: FunctionValue, where: str) -> Path:
    if all(isinstance(each, ast.Pass | ast.Expr) and not _calls(each) for each in setter.node.body):
        note = f"declared, but broken: {_PROTOCOL}.{_SETTER} does nothing in this version; {of.name} has to override it"
        return Path("broken", f"derives from {_PROTOCOL}", where, [note])
    chain = _to_language_model(source, of)
    parents = source.classes.chain(of, chain)
    holders: Held | None = None
    for parent in parents.classes:
        inner = source.classes.held(parent, "model")
        one = Held((parent,), True) if inner.absent else inner
        holders = one if holders is None else holders | one
    found = holders or Held(why=parents.why)
    if not parents.whole:
        found = Held(found.classes, False, found.why or parents.why)
    names = dotted((*chain, "model"))
    through = f" through {dotted(chain)} -> {_names(parents)}" if chain and parents.classes else ""
    how = f"derives from {_PROTOCOL}: its default sets the layers on {names}{through}"
    mixin = has_word(setter.node, (_MIXIN,))
    return _judge(source, found, how + (f" -> {_names(found)}" if found.classes else ""), where, mixin=mixin)


def _calls(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Call) for each in ast.walk(node))


def _delegated(
    source: Source, of: ClassValue, protocol: ClassValue, chain: tuple[str, ...], where: str, depth: int
) -> Path:
    inner = source.classes.chain(of, chain)
    how = f"delegates to {'.'.join(chain)}" + (f" -> {_names(inner)}" if inner.classes else "")
    if not inner.classes:
        return Path("unknown", how, where, [f"what {dotted(chain)} is depends on {inner.why}"])
    path = Path("ok" if inner.whole else "unknown", how, where)
    for each in inner.classes:
        if source.classes.find(each, _SETTER) is None:
            if source.classes.order(each).whole and inner.whole:
                path.wiring = "broken"
            path.notes.append(f"{source.told(each)} has no {_SETTER}: the server fails once all weights are loaded")
            continue
        after = _path(source, each, protocol, depth + 1)
        path.notes += [f"{each.name}: {after.how} ({after.where})", *after.notes]
        if path.wiring == "ok" or (after.wiring == "broken" and inner.whole):
            path.wiring = after.wiring
    return path


def _judge(source: Source, holders: Held, how: str, where: str, *, mixin: bool) -> Path:
    """Whether what the layers are set on captures."""

    def faults(each: ClassValue) -> list[str]:
        if not source.classes.order(each).whole:
            return []
        if mixin and source.classes.derives(each, _MIXIN) is None:
            told = (
                f"declared, but broken: {source.told(each)} is no {_MIXIN}, so the server dies of an AssertionError "
                "once all weights are loaded"
            )
        elif not source.mentions(each, _CAPTURES, skip=_NOT_FORWARD, leave=_MIXIN):
            told = f"declared, but broken: {source.told(each)} takes the layers and no method of it captures any"
        else:
            return []
        return [told, _to_do_inside(each)]

    return judge_holders(holders, how, where, faults)


def _to_language_model(source: Source, of: ClassValue) -> tuple[str, ...]:
    """Where the protocol looks for the decoder: `get_language_model()`, else `language_model`, else in the class."""
    getter = source.classes.find(of, "get_language_model")
    if getter is not None and isinstance(getter.value, FunctionValue):
        returned = [
            self_chain(node.value)
            for node in inside(getter.value.node)
            if isinstance(node, ast.Return) and node.value is not None
        ]
        plain = [chain for chain in returned if chain]
        return plain[-1] if plain else _marked(source, of)
    return () if source.classes.held(of, "language_model").absent else ("language_model",)


def _marked(source: Source, of: ClassValue) -> tuple[str, ...]:
    """The attribute that a constructor sets within `with self._mark_language_model(...)`."""
    for owner in source.classes.order(of).classes:
        init = source.classes.own(owner, "__init__")
        if not isinstance(init, FunctionValue):
            continue
        for node in inside(init.node):
            if not isinstance(node, ast.With) or "_mark_language_model" not in ast.unparse(node.items[0].context_expr):
                continue
            for statement in ast.walk(node):
                targets = (
                    statement.targets
                    if isinstance(statement, ast.Assign)
                    else [statement.target]
                    if isinstance(statement, ast.AnnAssign)
                    else []
                )
                chains = [chain for chain in map(self_chain, targets) if chain]
                if chains:
                    return chains[0]
        break
    return ("language_model",)


def _missing(source: Source, of: ClassValue, missing: list[str], members: tuple[str, ...]) -> list[str]:
    """What a class lacks, and what would have to be done."""
    notes = [
        f'{source.told(of)} does not derive from {_PROTOCOL}: vLLM refuses EAGLE-3 with "Model does not support EAGLE3 '
        'interface", once all weights are loaded'
    ]
    if len(missing) < len(members) and _SETTER not in missing:
        notes.append(f"it has {_SETTER} but lacks {', '.join(missing)}")
    chain = _to_language_model(source, of)
    inner = source.classes.chain(of, chain) if chain else Held()
    able = [each for each in inner.classes if all(source.classes.find(each, name) for name in members)]
    if able:
        notes.append(
            f"the outer class lacks it although the inner has it: {dotted(chain)} -> "
            f"{', '.join(source.told(each) for each in able)}"
        )
    to_do = f"to do: let {of.name} derive from {_PROTOCOL} (import it from {_INTERFACES})"
    if able and inner.whole and len(able) == len(inner.classes):
        notes.append(
            f"{to_do}; the default setter then finds the decoder inside {dotted(chain)}, which captures already"
        )
        return [*notes, *_stale(source, of, members)]
    notes.append(to_do)
    decoders = _decoders(source, inner.classes or (of,))
    if decoders:
        notes += [
            f"its decoder {source.told(each)} captures already" if _is_able(source, each) else _to_do_inside(each)
            for each in decoders
        ]
    else:
        notes.append(f"its decoder depends on {inner.why or 'more than the source tells'}")
    return [*notes, *_stale(source, of, members)]


def _decoders(source: Source, parents: tuple[ClassValue, ...]) -> list[ClassValue]:
    found: list[ClassValue] = []
    for parent in parents:
        inner = source.classes.held(parent, "model")
        found += inner.classes
    return list(dict.fromkeys(found))


def _is_able(source: Source, decoder: ClassValue) -> bool:
    return source.classes.derives(decoder, _MIXIN) is not None and source.mentions(
        decoder, _CAPTURES, skip=_NOT_FORWARD, leave=_MIXIN
    )


def _to_do_inside(decoder: ClassValue) -> str:
    return (
        f"to do: let {decoder.name} derive from {_MIXIN}; in its forward call self._maybe_add_hidden_state(aux, index, "
        "hidden_states, residual) before the first and after every layer, and return (hidden_states, aux) where there "
        "are any"
    )


def _stale(source: Source, of: ClassValue, members: tuple[str, ...]) -> list[str]:
    """A method of a name that this version no longer calls."""
    if _OLD_DEFAULTS in members or _DEFAULTS not in members:
        return []
    old = source.classes.find(of, _OLD_DEFAULTS)
    if old is None or not isinstance(old.value, FunctionValue):
        return []
    return [
        f"stale: {_OLD_DEFAULTS} ({source.classes.place(old.owner, old.value.node)}) is never called by this version, "
        f"which calls {_DEFAULTS}: default layers under the old name are ignored without a word"
    ]


def _names(held: Held) -> str:
    return " or ".join(each.name for each in held.classes[:4])
