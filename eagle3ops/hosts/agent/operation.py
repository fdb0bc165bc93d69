"""What is an op of the agent? A typed function; its annotations say which arguments a request may carry."""

import inspect
import math
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any, ParamSpec, Protocol, TypeVar, get_args, get_origin

from eagle3ops import __version__
from eagle3ops.errors import RequestError
from eagle3ops.hosts.agent.logs import LineIndexes

P = ParamSpec("P")
T = TypeVar("T")


class InThread(Protocol):
    """Runs what waits for a disk in a thread, so that other requests go on meanwhile."""

    def __call__(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        """What the function returns."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an op works with besides its arguments."""

    root: Path
    """The folder of runs that the request names, or the agent's own."""
    in_thread: InThread
    indexes: LineIndexes
    children: list[Popen[bytes]]
    """Supervisors that this agent started; it reaps them, and does nothing else about them."""


@dataclass(frozen=True, slots=True)
class Raw:
    """Items that are JSON text already."""

    lines: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class End:
    """The last thing that a stream yields: its answer."""

    answer: Mapping[str, Any]


Batch = list[Any] | Raw | End


@dataclass(frozen=True, slots=True)
class Argument:
    """What a request may give under one name."""

    name: str
    kinds: tuple[type, ...]
    required: bool


@dataclass(frozen=True, slots=True)
class Operation:
    """One op: a plain function that may block, or an asynchronous generator of batches."""

    name: str
    call: Callable[..., Any]
    stream: bool
    arguments: Mapping[str, Argument]
    in_order: str | None = None
    """Requests with the same value of this argument are carried out in the order in which they came."""
    at_once: bool = False
    """It waits for no disk, and so for no other request either."""

    def check(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments, as the function takes them.

        Raises:
            RequestError: one is missing, unknown or of another type.
        """
        for name in args:
            if name not in self.arguments:
                known = ", ".join(self.arguments) or "none"
                raise RequestError(
                    f"{self.name} has no argument {name[:60]!a} in eagle3ops {__version__}",
                    remedy=f"its arguments: {known}",
                )
        checked = {}
        for name, argument in self.arguments.items():
            if name in args and (args[name] is not None or type(None) in argument.kinds or argument.required):
                checked[name] = self._value(argument, args[name])
            elif argument.required:
                raise RequestError(f"{self.name} needs the argument {name!r}")
        return checked

    def _value(self, argument: Argument, value: Any) -> Any:
        kinds = argument.kinds
        if float in kinds and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53:
            return float(value)
        if type(value) not in kinds:
            wanted = " or ".join(_WORDS[kind] for kind in kinds)
            raise RequestError(f"{self.name}: {argument.name} is {wanted}, not {_WORDS.get(type(value), 'that')}")
        if isinstance(value, int) and abs(value) >= 2**63:
            raise RequestError(f"{self.name}: {argument.name} is beyond all bounds")
        if isinstance(value, float) and not math.isfinite(value):
            raise RequestError(f"{self.name}: {argument.name} is not a number")
        if isinstance(value, str) and ("\0" in value or not _encodable(value)):
            raise RequestError(f"{self.name}: {argument.name} holds a character that no name or file has (NUL)")
        return value


_WORDS: dict[type, str] = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
    list: "a list",
    dict: "an object",
}


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def operation(
    name: str, call: Callable[..., Mapping[str, Any]], *, in_order: str | None = None, at_once: bool = False
) -> Operation:
    """An op with one answer: `call(surroundings, **arguments)`."""
    return Operation(name, call, False, _arguments(call), in_order, at_once)


def stream(name: str, call: Callable[..., AsyncIterator[Batch]]) -> Operation:
    """An op that answers in batches: `call(surroundings, **arguments)`."""
    return Operation(name, call, True, _arguments(call))


def _arguments(call: Callable[..., Any]) -> dict[str, Argument]:
    found = {}
    for parameter in inspect.signature(call).parameters.values():
        if parameter.kind is not parameter.KEYWORD_ONLY:
            continue
        annotation = parameter.annotation
        kinds = get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
        # A list may be annotated with what is in it; that is for the op to check.
        kinds = tuple(get_origin(kind) or kind for kind in kinds)
        found[parameter.name] = Argument(parameter.name, kinds, parameter.default is parameter.empty)
    return found
