"""Does an installed engine support EAGLE-3 for a target at all? Read from its source: nothing is imported or loaded."""

from collections.abc import Callable

from eagle3ops.errors import RequestError
from eagle3ops.wiring.supports import sglang, vllm
from eagle3ops.wiring.supports.answer import Source, Support
from eagle3ops.wiring.supports.classes import Classes
from eagle3ops.wiring.supports.interpreter import Interpreter
from eagle3ops.wiring.supports.platforms import PLATFORMS, Platform
from eagle3ops.wiring.supports.registry import Entry, class_of, read_registry
from eagle3ops.wiring.supports.tree import ENGINES, find_tree
from eagle3ops.wiring.supports.values import ClassValue

_ANSWERS: dict[str, Callable[[Source, Entry], Support]] = {"vllm": vllm.answer, "sglang": sglang.answer}


def open_source(engine: str, path: str | None = None, platform: Platform = "cuda") -> Source:
    """The source of an engine, for questions.

    Args:
        engine: `vllm` or `sglang`.
        path: the folder that holds the package, the package, or a virtual environment; None: the one beside here.
        platform: whose branches are followed.

    Raises:
        RequestError: no such engine, no such place, or its registry cannot be read.
    """
    tree = find_tree(engine, path)
    interpreter = Interpreter(tree, platform)
    try:
        registry = read_registry(interpreter)
    except RecursionError as error:
        raise RequestError(f"the registry of {tree.folder} is too deeply nested to be read") from error
    if not registry.entries:
        why = "; ".join(list(tree.damaged.values())[:3]) or "no table of architectures in it"
        raise RequestError(f"the registry of {tree.folder} cannot be read: {why}", remedy="install the engine anew")

    def named(architecture: str) -> ClassValue | None:
        entry = registry.entries.get(architecture)
        found = class_of(interpreter, entry) if entry else None
        return found if isinstance(found, ClassValue) else None

    return Source(tree, interpreter, registry, Classes(interpreter, named))


def supports(source: Source, architecture: str) -> Support:
    """Whether the engine supports EAGLE-3 for an architecture.

    Raises:
        RequestError: the registry has no such architecture.
    """
    entry = source.registry.entries.get(architecture)
    if entry is None:
        raise _no_such(source, architecture)
    source.interpreter.steps = 0
    try:
        return _ANSWERS[source.tree.engine](source, entry)
    except RecursionError:
        return Support(
            engine=source.tree.engine,
            version=source.tree.version,
            architecture=architecture,
            supported="unknown",
            class_name=entry.name,
            notes=("its source is too deeply nested to be read",),
        )


def supports_all(source: Source) -> list[Support]:
    """Of every architecture of the registry, in its order."""
    return [supports(source, each) for each in source.registry.entries]


def _no_such(source: Source, architecture: str) -> RequestError:
    engine = source.tree.engine
    gone = source.registry.gone.get(architecture)
    if gone:
        return RequestError(f"{architecture} {gone}", remedy="use that, or another engine")
    near = source.registry.nearest(architecture)
    hint = f"did you mean {', '.join(near)}? " if near else ""
    return RequestError(
        f"{engine} {source.tree.version or ''} has no architecture {architecture[:200]!r}".replace("  ", " "),
        remedy=f"{hint}`architectures` in the target's config.json names it; --all lists those of the registry. "
        "An engine may serve others through Transformers: ask for TransformersForCausalLM",
    )


__all__ = ["ENGINES", "PLATFORMS", "Platform", "Source", "Support", "open_source", "supports", "supports_all"]
