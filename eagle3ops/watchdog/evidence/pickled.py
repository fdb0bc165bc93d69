"""How is a pickle read that may have been written by anybody? By a machine that knows plain data and nothing else.

Python's own unpickler calls what the file names, and even one that refuses every name can be made to use all memory by
a number in the file. So the file's instructions are carried out here: those that build dictionaries, lists, tuples,
texts, numbers, truth values and None; any other is refused by its name.
"""

import io
import pickletools
import time
from typing import Any, cast

from eagle3ops.errors import Eagle3opsError

MOST_STEPS = 8_000_000
_MARK = object()

_NUMBERS = frozenset({"BININT", "BININT1", "BININT2", "LONG1", "LONG4", "INT", "LONG", "BINFLOAT", "FLOAT"})
_TEXTS = frozenset({"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE"})
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_SKIPPED = frozenset({"PROTO", "FRAME"})
_SMALL_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_NAMING = frozenset({"GLOBAL", "INST", "STACK_GLOBAL"})
_LARGEST = 1 << 128


class PickleRefused(Eagle3opsError):
    """The file is no pickle of plain data."""


def load_plain(data: bytes, *, limit_s: float = 20.0) -> Any:
    """What a pickle of plain data holds.

    Args:
        data: the whole file.
        limit_s: seconds after which it is given up.

    Raises:
        PickleRefused: it names something to call, is damaged or too large.
    """
    deadline = time.monotonic() + limit_s
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    try:
        for step, (opcode, value, place) in enumerate(pickletools.genops(io.BytesIO(data))):
            if step > MOST_STEPS or (step % 4096 == 0 and time.monotonic() > deadline):
                raise PickleRefused(f"a pickle with more than {step} instructions")
            name, argument = opcode.name, cast(Any, value)
            if name in _NUMBERS or name in _TEXTS:
                if isinstance(argument, int) and not -_LARGEST < argument < _LARGEST:
                    raise PickleRefused(f"a number without measure at byte {place}")
                stack.append(argument)
            elif name in ("BINGET", "LONG_BINGET", "GET"):
                stack.append(memo[argument])
            elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
                memo[argument] = _top(stack)
            elif name == "MEMOIZE":
                memo[len(memo)] = _top(stack)
            elif name == "STOP":
                return _top(stack)
            elif name not in _SKIPPED:
                _build(name, argument, stack)
    except PickleRefused:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, EOFError, RecursionError) as error:
        raise PickleRefused(f"not a whole pickle: {str(error)[:200]}") from error
    raise PickleRefused("not a whole pickle: it has no end")


def shown(value: Any) -> str:
    """A text, a number or None for people, anything else as `?`: lists that share their parts would fill all memory."""
    return str(value) if value is None or isinstance(value, str | int | float) else "?"


def _build(name: str, argument: Any, stack: list[Any]) -> None:
    if name == "MARK":
        stack.append(_MARK)
    elif name == "EMPTY_DICT":
        stack.append({})
    elif name == "EMPTY_LIST":
        stack.append([])
    elif name == "EMPTY_TUPLE":
        stack.append(())
    elif name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
    elif name in _SMALL_TUPLES:
        count = _SMALL_TUPLES[name]
        parts = [_pop(stack) for _ in range(count)][::-1]
        stack.append(tuple(parts))
    elif name == "TUPLE":
        stack.append(tuple(_since_mark(stack)))
    elif name == "LIST":
        stack.append(_since_mark(stack))
    elif name == "DICT":
        stack.append(_pairs(_since_mark(stack)))
    elif name == "APPEND":
        value = _pop(stack)
        _of(stack, list).append(value)
    elif name == "APPENDS":
        values = _since_mark(stack)
        _of(stack, list).extend(values)
    elif name == "SETITEM":
        value, key = _pop(stack), _pop(stack)
        _of(stack, dict).update(_pairs([key, value]))
    elif name == "SETITEMS":
        values = _since_mark(stack)
        _of(stack, dict).update(_pairs(values))
    else:
        what = f" ({_named(name, argument, stack)})" if name in _NAMING else ""
        raise PickleRefused(f"a pickle that holds more than plain data: instruction {name}{what}")


def _named(name: str, argument: Any, stack: list[Any]) -> str:
    words = stack[-2:] if name == "STACK_GLOBAL" else str(argument).split(" ")
    return ".".join(shown(word)[:100] for word in words)


def _top(stack: list[Any]) -> Any:
    if not stack or stack[-1] is _MARK:
        raise ValueError("nothing there")
    return stack[-1]


def _pop(stack: list[Any]) -> Any:
    value = _top(stack)
    stack.pop()
    return value


def _of(stack: list[Any], kind: type) -> Any:
    value = _top(stack)
    if not isinstance(value, kind):
        raise ValueError(f"{type(value).__name__} instead of {kind.__name__}")
    return value


def _since_mark(stack: list[Any]) -> list[Any]:
    values: list[Any] = []
    while stack:
        value = stack.pop()
        if value is _MARK:
            return values[::-1]
        values.append(value)
    raise ValueError("no mark")


def _pairs(values: list[Any]) -> dict[Any, Any]:
    if len(values) % 2:
        raise ValueError("a key without a value")
    keys = values[::2]
    if not all(isinstance(key, str | int | float | bool | None) for key in keys):
        # A tuple of tuples that share their parts would take for ever to hash.
        raise ValueError("a key that is no plain value")
    return dict(zip(keys, values[1::2], strict=True))
