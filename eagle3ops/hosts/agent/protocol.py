"""What do a console and an agent say to each other? One JSON object a line, in both directions.

The agent speaks first (`Hello`). A request is `{"id": 7, "op": "runs.list", "args": {...}}`; its answer is
`{"id": 7, "ok": {...}}` or `{"id": 7, "error": {"what", "remedy", "exit_code"}}`. A stream answers any number of
`{"id": 7, "items": [...]}` before that. docs/agent-protocol.md is the reference.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3ops.errors import (
    Eagle3opsError,
    HostUnreachable,
    Interrupted,
    Refused,
    RequestError,
    VerdictFailed,
    WatchdogStopped,
)

PROTOCOL = 1
"""Raised when an old console could misunderstand a new agent, or the other way round; not for a new op."""

MAX_LINE = 32 << 20
"""Bytes of the longest line that is read; a longer one is thrown away and named."""

MARK = b'{"agent":"eagle3ops"'
"""How a hello begins, and what a console looks for behind the banners of login scripts."""

MAX_NESTING = 200
"""Levels of lists and objects that are sent; every JSON library reads so many."""

MAX_WINDOW = 1024
"""Batches of one stream that may be under way."""

_WINDOWS = range(1, MAX_WINDOW + 1)
_SILENT = ("stop", "more")

_ERRORS: dict[int, type[Eagle3opsError]] = {
    kind.exit_code: kind
    for kind in (Eagle3opsError, RequestError, VerdictFailed, WatchdogStopped, HostUnreachable, Refused, Interrupted)
}


class ProtocolError(RequestError):
    """A line is not a message; `message_id` is the id it carried, where it carried one."""

    def __init__(self, what: str, *, remedy: str | None = None, message_id: int | str | None = None) -> None:
        super().__init__(what, remedy=remedy)
        self.message_id = message_id


class LineSplitter:
    """Cuts a flow of bytes into lines, whatever pieces it arrives in; holds at most `limit` bytes."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self.limit = limit
        self._held: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The lines that `chunk` completes, without their newlines; of an overlong one only the first bytes.

        An overlong line comes back cut to `limit + 1` bytes, which `decode` refuses by name.
        """
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            self._hold(chunk[start:end])
            line = b"".join(self._held)
            self._held, self._size = [], 0
            yield line
            start = end + 1
        self._hold(chunk[start:])

    def rest(self) -> bytes:
        """What has arrived of the line that is not complete yet."""
        return b"".join(self._held)

    def _hold(self, piece: bytes) -> None:
        room = self.limit + 1 - self._size
        if room <= 0 or not piece:
            return
        kept = piece[:room]
        self._held.append(kept)
        self._size += len(kept)


def encode(message: Mapping[str, Any]) -> bytes:
    """A message as its line, newline included. What JSON has no form for becomes a string (paths, NaN)."""
    try:
        text = json.dumps(message, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=str)
        return text.encode() + b"\n"
    except (ValueError, TypeError):
        # NaN, a key that is no string, or half a surrogate pair that some file held as an escape.
        text = json.dumps(_plain(message), separators=(",", ":"), allow_nan=False)
        return text.encode("ascii") + b"\n"


def encode_items(message_id: int | str, items: Sequence[bytes]) -> bytes:
    """An `items` message of values that are JSON text already; they are not parsed and written again."""
    return b'{"id":' + json.dumps(message_id).encode() + b',"items":[' + b",".join(items) + b"]}\n"


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)


def decode(line: bytes, *, limit: int = MAX_LINE) -> dict[str, Any]:
    """The object that a line holds.

    Raises:
        ProtocolError: it holds none; says why and shows how the line begins.
    """
    if len(line) > limit:
        raise ProtocolError(f"a line is longer than {limit} bytes; it begins {shown(line)}")
    try:
        data = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a line is not UTF-8 at byte {error.start}; it begins {shown(line)}") from error
    except RecursionError as error:
        raise ProtocolError(f"a line is nested too deeply; it begins {shown(line)}") from error
    except ValueError as error:
        raise ProtocolError(f"a line is not JSON: {error}; it begins {shown(line)}") from error
    if not isinstance(data, dict):
        raise ProtocolError(f"a line is not a JSON object; it begins {shown(line)}")
    return data


def shown(line: bytes, length: int = 60) -> str:
    """How a line begins, with everything that could steer a terminal written as an escape."""
    text = line[:length].decode("utf-8", errors="backslashreplace")
    return ascii(text) + ("..." if len(line) > length else "")


@dataclass(frozen=True, slots=True)
class Request:
    """One request."""

    message_id: int | str | None
    """None only for `stop` and `more`, which then have no answer."""
    op: str
    args: Mapping[str, Any]
    window: int | None
    """Batches of a stream that may be under way; None for as many as the connection takes."""


def parse_request(message: Mapping[str, Any]) -> Request:
    """Read a request.

    Raises:
        ProtocolError: it is none; says what is wrong with it.
    """
    message_id = message.get("id")
    if isinstance(message_id, bool) or not (message_id is None or isinstance(message_id, int | str)):
        raise ProtocolError(f"the id of a request is a number or a string, not {type(message_id).__name__}")
    op = message.get("op")
    if not isinstance(op, str) or not op:
        raise ProtocolError("a request names its op: a string", message_id=message_id)
    if message_id is None and op not in _SILENT:
        raise ProtocolError(f"a request carries an id, so that its answer can be told apart: {shown(op.encode())}")
    args = message.get("args")
    if args is None:
        args = {}
    if not isinstance(args, dict):
        raise ProtocolError(f"args is an object, not {type(args).__name__}", message_id=message_id)
    window = message.get("window")
    if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window not in _WINDOWS):
        raise ProtocolError(f"window is a whole number from 1 to {MAX_WINDOW}", message_id=message_id)
    unknown = sorted(message.keys() - {"id", "op", "args", "window"})
    if unknown:
        raise ProtocolError(
            f"a request has id, op, args and window, not {shown(unknown[0].encode(errors='replace'))}",
            message_id=message_id,
        )
    return Request(message_id, op, args, window)


def error_message(message_id: int | str | None, error: Eagle3opsError) -> dict[str, Any]:
    """The answer that tells a failure."""
    body = {"what": error.what, "remedy": error.remedy, "exit_code": int(error.exit_code)}
    return {"id": message_id, "error": body}


def error_from(body: object) -> Eagle3opsError:
    """The failure that an answer tells, as the class that its exit code stands for."""
    if not isinstance(body, Mapping):
        return Eagle3opsError("the agent told of a failure in a form that is not understood")
    what, remedy, code = body.get("what"), body.get("remedy"), body.get("exit_code")
    kind = _ERRORS.get(code, Eagle3opsError) if isinstance(code, int) else Eagle3opsError
    return kind(str(what), remedy=remedy if isinstance(remedy, str) else None)


@dataclass(frozen=True, slots=True)
class Hello:
    """What an agent says of itself before anything else."""

    protocol: int
    version: str
    """Of eagle3ops there."""
    python: str
    host: str
    """The host's own name."""
    boot: str
    """The kernel's id of this boot; empty where it has none."""
    pid: int
    time: float
    """Seconds since 1970 by the host's clock, when this was written."""
    root: str
    """The folder of runs that an op uses when it names none."""
    ops: tuple[str, ...]

    def line(self) -> bytes:
        """As it is sent."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return encode({"agent": "eagle3ops"} | fields)


def parse_hello(line: bytes) -> Hello | None:
    """The hello in a line, whatever a login script wrote in front of it on the same line; None when there is none."""
    start = line.find(MARK)
    if start < 0:
        return None
    try:
        data = decode(line[start:])
    except ProtocolError:
        return None
    protocol = data.get("protocol")
    if isinstance(protocol, bool) or not isinstance(protocol, int):
        return None
    pid, time, ops = data.get("pid"), data.get("time"), data.get("ops")
    return Hello(
        protocol=protocol,
        version=str(data.get("version", "?")),
        python=str(data.get("python", "?")),
        host=str(data.get("host", "?")),
        boot=str(data.get("boot", "")),
        pid=pid if isinstance(pid, int) else 0,
        time=float(time) if isinstance(time, int | float) and abs(time) < 1e15 else 0.0,
        root=str(data.get("root", "")),
        ops=tuple(str(op) for op in ops) if isinstance(ops, list) else (),
    )
