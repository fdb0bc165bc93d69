"""Does SGLang support EAGLE-3 for an architecture?

It calls `model.set_eagle3_layers_to_capture(ids)` on the class that the registry names: a wrapper has to have the
method itself, whatever the language model inside can do.
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
from eagle3ops.wiring.supports.classes import Held, inside, is_super, self_chain
from eagle3ops.wiring.supports.registry import Entry
from eagle3ops.wiring.supports.values import ClassValue, FunctionValue

_SETTER = "set_eagle3_layers_to_capture"
_SHARE = "get_embed_and_head"
_LAYERS = "layers_to_capture"
_MARK = "_is_layer_to_capture"
"""What some decoders look at in place of `layers_to_capture`: a mark on each layer."""
_NOT_FORWARD = frozenset({"__init__", _SETTER, "set_dflash_layers_to_capture", "set_dspark_layers_to_capture"})
_DEEPEST = 8
_ATTRIBUTES = ("language_model", "model", "llm", "text_model", "thinker")
"""Where wrappers keep what they wrap."""


def answer(source: Source, entry: Entry) -> Support:
    """The verdict."""
    of = source.resolve(entry.architecture)
    notes = ["by its name it is a drafter, not a target"] if entry.drafts else []
    base = begin(source, entry, of, notes)
    if of is None:
        return base
    if source.classes.find(of, _SETTER) is None:
        order = source.classes.order(of)
        if not order.whole:
            why = f"bases that the source does not tell plainly: {', '.join(order.unclear) or 'a conflict among them'}"
            return replace(base, notes=(*notes, why))
        return replace(base, supported="no", notes=(*notes, *_missing(source, of)))
    path = _path(source, of, 0)
    if entry.drafts:
        path.wiring, path.notes = None, []
    elif lacks := _shared(source, of):
        path.wiring, path.notes = "broken", [*path.notes, *lacks]
    return replace(
        base,
        supported="yes",
        wiring=path.wiring,
        how=path.how,
        where=path.where,
        notes=(*notes, *path.notes),
    )


def _path(source: Source, of: ClassValue, depth: int) -> Path:
    """How the layers get to the decoder."""
    setter = source.classes.find(of, _SETTER)
    if setter is None or not isinstance(setter.value, FunctionValue) or depth > _DEEPEST:
        return Path("unknown", f"{_SETTER} is no plain method", None)
    where = source.classes.place(setter.owner, setter.value.node)
    own = "own method" if setter.owner == of else f"inherited from {setter.owner.name}"
    handed = delegations(setter.value, _SETTER)
    set_on = assignments(setter.value, _LAYERS)
    if handed:
        path = _delegated(source, of, setter.value, handed[0], bool(set_on), where, depth)
        if path is not None:
            if setter.owner != of:
                path.how = f"{own}: {path.how}"
            return path
    if set_on:
        holders = source.classes.chain(of, set_on[0]) if set_on[0] else Held((of,), True)
        inner = f" -> {_names(holders)}" if set_on[0] and holders.classes else ""
        how = f"{own}: sets the layers on {dotted(set_on[0])}{inner}"
        looked_at = (_LAYERS, _MARK) if has_word(setter.value.node, (_MARK,)) else (_LAYERS,)
        return _judge(source, of, holders, how, where, looked_at)
    return Path(
        "unknown", own, where, [f"how {setter.owner.name}.{_SETTER} reaches the decoder is told only when it runs"]
    )


def _delegated(
    source: Source,
    of: ClassValue,
    setter: FunctionValue,
    chain: tuple[str, ...],
    otherwise: bool,
    where: str,
    depth: int,
) -> Path | None:
    """None where the class that is asked lacks the method and the layers are then set in another way."""
    inner = source.classes.chain(of, chain)
    how = f"delegates to {'.'.join(chain)}" + (f" -> {_names(inner)}" if inner.classes else "")
    guard = _guard(setter, chain)
    if not inner.classes:
        return Path("unknown", how, where, [f"what {dotted(chain)} is depends on {inner.why}", *_silent(guard, chain)])
    lacking = [
        each
        for each in inner.classes
        if source.classes.find(each, _SETTER) is None and source.classes.order(each).whole
    ]
    if lacking and otherwise:
        return None
    path = Path("ok" if inner.whole else "unknown", how, where)
    for each in inner.classes:
        if each in lacking:
            if inner.whole and len(lacking) == len(inner.classes):
                path.wiring = "broken"
            path.notes.append(f"{source.told(each)} has no {_SETTER}: {_FATE[guard]}")
            continue
        after = _path(source, each, depth + 1)
        path.notes += [f"{each.name}: {after.how} ({after.where})", *after.notes]
        if path.wiring == "ok" or (after.wiring == "broken" and inner.whole):
            path.wiring = after.wiring
    if not lacking and not inner.whole:
        path.notes += [f"what else {dotted(chain)} may be depends on {inner.why or 'the config'}"]
    if not lacking:
        path.notes += _silent(guard, chain)
    return path


_FATE = {
    "none": "the server dies of an AttributeError once all weights are loaded",
    "error": "the wrapper refuses with an error that says so, once all weights are loaded",
    "silent": "`if hasattr` then does nothing without a word: the server starts and feeds the drafter no layers",
}


def _guard(setter: FunctionValue, chain: tuple[str, ...]) -> str:
    """What happens when the wrapped model lacks the method."""
    for node in inside(setter.node):
        if not isinstance(node, ast.If) or not has_word(node.test, ("hasattr", "getattr")):
            continue
        if not any(self_chain(each) == chain for each in ast.walk(node.test) if isinstance(each, ast.expr)):
            continue
        if any(isinstance(each, ast.Raise) for each in ast.walk(node)):
            return "error"
        called = any(
            isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr == _SETTER
            for statement in node.body
            for each in ast.walk(statement)
        )
        if called and not node.orelse:
            return "silent"
    return "none"


def _silent(guard: str, chain: tuple[str, ...]) -> list[str]:
    if guard != "silent":
        return []
    return [
        f"trap: it asks `if hasattr({dotted(chain)}, ...)` first and does nothing otherwise: with a language model "
        "that lacks the method no error tells"
    ]


def _judge(source: Source, of: ClassValue, holders: Held, how: str, where: str, looked_at: tuple[str, ...]) -> Path:
    """Whether what the layers are set on captures."""

    def faults(each: ClassValue) -> list[str]:
        if not source.classes.order(each).whole or source.mentions(each, looked_at, skip=_NOT_FORWARD):
            return []
        told = f"declared, but broken: {source.told(each)} never looks at {_LAYERS}: nothing is captured"
        return [told, _to_do_inside(each)]

    path = judge_holders(holders, how, where, faults)
    return replace(path, notes=[*path.notes, *_forward(source, of)]) if path.wiring == "ok" else path


def _forward(source: Source, of: ClassValue) -> list[str]:
    """A forward of its own that does not know of captured states."""
    for owner in source.classes.order(of).classes:
        forward = source.classes.own(owner, "forward")
        if not isinstance(forward, FunctionValue):
            continue
        if has_word(forward.node, ("aux_hidden", "capture_aux")):
            return []
        if any(isinstance(node, ast.Call) and is_super(node, "forward") for node in ast.walk(forward.node)):
            continue
        return [
            f"look at {owner.name}.forward ({source.classes.place(owner, forward.node)}): it never mentions aux hidden "
            "states, which the decoder hands out beside the others once layers are captured"
        ]
    return []


def _shared(source: Source, of: ClassValue) -> list[str]:
    """The other thing that is asked of a target: its embedding, which drafters share."""
    if source.classes.find(of, _SHARE) is not None or not source.classes.order(of).whole:
        return []
    return [
        f"declared, but broken: {source.told(of)} has no {_SHARE}, so the server dies of an AttributeError when the "
        "drafter takes over the target's embedding",
        f"to do: give {of.name} {_SHARE}(self) that returns the weights of its embedding and of its head",
    ]


def _missing(source: Source, of: ClassValue) -> list[str]:
    """What a class lacks, and what would have to be done."""
    tree = source.tree
    setup = tree.text(tree.folder / "srt/model_executor/model_runner_components/attention_backend_setup.py") or ""
    said = "a ValueError that says so" if _SETTER in setup else "an AttributeError"
    notes = [f"{source.told(of)} has no {_SETTER}: the server dies of {said}, once all weights are loaded"]
    for attribute in _ATTRIBUTES:
        inner = source.classes.held(of, attribute)
        able = [each for each in inner.classes if source.classes.find(each, _SETTER)]
        if able and not _is_decoder_only(source, of, able):
            notes.append(
                f"the outer class lacks it although the inner has it: self.{attribute} -> "
                f"{', '.join(source.told(each) for each in able)}"
            )
            notes.append(
                f"to do: give {of.name} `def {_SETTER}(self, layer_ids=None): "
                f"self.{attribute}.{_SETTER}(layer_ids)`"
                + ("" if source.classes.find(of, _SHARE) else f", and {_SHARE}(self) in the same way")
            )
            return notes
    decoders = [each for name in _ATTRIBUTES for each in source.classes.held(of, name).classes]
    capturing = [each for each in decoders if source.mentions(each, (_LAYERS,), skip=_NOT_FORWARD)]
    if capturing:
        notes.append(f"its decoder {source.told(capturing[0])} captures already")
        notes.append(
            f"to do: give {of.name} {_SETTER}(self, layer_ids=None) that sets capture_aux_hidden_states and the "
            f"decoder's {_LAYERS}, as LlamaForCausalLM does, and hand the captured states to the logits processor "
            "in forward"
        )
        return notes
    notes.append(
        f"to do: give {of.name} {_SETTER}(self, layer_ids=None) as LlamaForCausalLM has it"
        + (f"; and {_to_do_inside(decoders[0])[7:]}" if decoders else "")
    )
    return notes


def _is_decoder_only(source: Source, of: ClassValue, able: list[ClassValue]) -> bool:
    """Not a wrapped language model but a decoder, which may have a setter of the same name that takes indices."""
    return all(source.classes.held(each, "logits_processor").absent for each in able)


def _to_do_inside(decoder: ClassValue) -> str:
    return (
        f"to do: let the forward of {decoder.name} append hidden_states + residual before each layer whose index is in "
        f"self.{_LAYERS}, and return (hidden_states, aux_hidden_states) where there are any"
    )


def _names(held: Held) -> str:
    return " or ".join(each.name for each in held.classes[:4])
