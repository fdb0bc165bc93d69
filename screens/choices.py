"""Which actions, keys and themes are there to choose from, and is what the settings name among them?"""

import difflib
import inspect
import pkgutil
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from textual.binding import Binding, BindingsMap
from textual.dom import DOMNode
from textual.keys import KEY_TO_UNICODE_NAME, Keys
from textual.theme import BUILTIN_THEMES

from eagle3ops import screens
from eagle3ops.errors import RequestError
from eagle3ops.settings import Resolved
from eagle3ops.words import plain

_MODIFIERS = ("ctrl", "shift", "alt", "meta", "super", "hyper")
_NAMED_KEYS = sorted({key.value for key in Keys if "+" not in key.value and "<" not in key.value} | {"space"})


@dataclass(frozen=True, slots=True)
class Action:
    """Something that a key stands for."""

    name: str
    """As a keymap names it, such as `runs.cancel`."""
    label: str
    what: str
    """What it does, in a sentence."""
    keys: tuple[str, ...]
    """Without a keymap."""
    where: str
    """Name of the screen."""
    destructive: bool


def _classes(base: type[DOMNode]) -> Iterator[type[DOMNode]]:
    for child in base.__subclasses__():
        if child.__module__.startswith(f"{screens.__name__}."):
            yield child
        yield from _classes(child)


def own_classes() -> list[type[DOMNode]]:
    """The app, the screens and the widgets of the console."""
    for module in pkgutil.walk_packages(screens.__path__, f"{screens.__name__}."):
        import_module(module.name)
    return list(dict.fromkeys(_classes(DOMNode)))


@cache
def actions() -> dict[str, Action]:
    """Every action of every screen, by its name. Imports all of them, the first time."""
    found: dict[str, Action] = {}
    for kind in own_classes():
        own = kind.__dict__.get("BINDINGS", ())
        for binding in (bound for bindings in BindingsMap(own).key_to_bindings.values() for bound in bindings):
            if binding.id is None:
                continue
            keys = (*(found[binding.id].keys if binding.id in found else ()), binding.key)
            found[binding.id] = Action(
                binding.id,
                binding.description,
                meaning(kind, binding),
                keys,
                where(kind),
                binding.action in getattr(kind, "DESTRUCTIVE", ()),
            )
    return found


def where(kind: type[object]) -> str:
    """What a person calls the place: PLACE of a screen, else the name of its class; `everywhere` for the app."""
    if any(base.__name__ == "App" for base in kind.__mro__):
        return "everywhere"
    return str(getattr(kind, "PLACE", "") or kind.__name__)


def meaning(kind: type[object], binding: Binding) -> str:
    """What a binding does: its tooltip, else the first sentence that its action says of itself."""
    if binding.tooltip:
        return binding.tooltip
    scope, _, name = binding.action.partition("(")[0].rpartition(".")
    owner: type[object] = kind
    if scope == "app":
        owner = import_module("eagle3ops.screens.app").ConsoleApp
    elif scope == "screen":
        owner = import_module("eagle3ops.screens.base").ConsoleScreen
    told = inspect.getdoc(getattr(owner, f"action_{name}", None)) or binding.description
    told = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", told.partition("\n\n")[0].replace("\n", " "))
    return told.partition(". ")[0].rstrip(".")


def themes() -> list[str]:
    """Names of the themes."""
    return sorted(BUILTIN_THEMES)


def check(resolved: Resolved) -> None:
    """Refuse a theme, an action or a key that does not exist.

    Raises:
        RequestError: says where it stands and what comes near.
    """
    settings = resolved.settings
    if settings.theme is not None:
        _require(resolved.origin("theme"), "theme", settings.theme, themes())
    if not settings.keymap:
        return
    known = actions()
    for action, keys in settings.keymap.items():
        origin = resolved.origin(f"keymap.{action}")
        _require(origin, "action", action, list(known))
        listed = keys_of(keys)
        if not listed:
            raise RequestError(f"{origin}: keymap.{action}: no key", remedy="leave the line out to keep its own key")
        for key in listed:
            _require_key(origin, action, key)


def keys_of(keys: str | tuple[str, ...]) -> list[str]:
    """The keys of an entry of the keymap: `x,f2` or a list. A comma itself is written `comma`."""
    listed = keys.split(",") if isinstance(keys, str) else [part for key in keys for part in key.split(",")]
    return [key.strip() for key in listed if key.strip()]


def keymap(resolved: Resolved) -> dict[str, str]:
    """The keymap as Textual takes it."""
    return {action: ",".join(keys_of(keys)) for action, keys in resolved.settings.keymap.items()}


def displaced(mapped: dict[str, str]) -> list[tuple[str, str, str]]:
    """Keys that the keymap takes from an action of the same place: key, who lost it, who has it now."""
    known = actions()
    taken = [(key, known[name]) for name, keys in mapped.items() if name in known for key in keys.split(",")]
    return [
        (key, loser.name, winner.name)
        for key, winner in taken
        for loser in known.values()
        if loser.name not in mapped
        and loser.where == winner.where
        and key in [part for keys in loser.keys for part in keys.split(",")]
    ]


def in_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of the settings with the themes and actions that exist."""
    properties = schema["properties"]
    entry = properties["keymap"].pop("additionalProperties")
    properties["keymap"] |= {
        "properties": {action.name: entry | {"description": action.what} for action in actions().values()},
        "additionalProperties": False,
    }
    properties["theme"]["anyOf"] = [{"enum": themes()}, {"type": "null"}]
    return schema


def _require(origin: str, what: str, name: str, known: list[str]) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are: {', '.join(known)}"
        raise RequestError(f"{plain(origin)}: there is no {what} {plain(name)[:80]!r}", remedy=hint)


def _require_key(origin: str, action: str, key: str) -> None:
    *modifiers, last = key.split("+") if key != "+" else ["+"]
    wrong = next((modifier for modifier in modifiers if modifier not in _MODIFIERS), None)
    if wrong is not None:
        raise RequestError(
            f"{origin}: keymap.{action}: {plain(key)[:80]!r}: there is no modifier {plain(wrong)[:80]!r}",
            remedy=f"there are: {', '.join(_MODIFIERS)}",
        )
    if len(last) == 1 and last.isprintable() and last not in ", ":
        return
    if last in _NAMED_KEYS or last in KEY_TO_UNICODE_NAME or last in KEY_TO_UNICODE_NAME.values():
        return
    try:
        unicodedata.lookup(last.replace("_", " "))
    except KeyError:
        near = difflib.get_close_matches(last, _NAMED_KEYS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "write it like x, ctrl+x, f2, pageup or question_mark"
        raise RequestError(f"{origin}: keymap.{action}: there is no key {plain(last)[:80]!r}", remedy=hint) from None
