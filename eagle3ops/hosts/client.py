"""How does a console ask an agent? Calls that wait for their answer, and streams that come in batches."""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

from eagle3ops import __version__
from eagle3ops.errors import Eagle3opsError, HostUnreachable
from eagle3ops.hosts.agent import protocol
from eagle3ops.hosts.agent.protocol import PROTOCOL, Hello, LineSplitter, ProtocolError
from eagle3ops.hosts.transport import AgentDidNotStart, Channel, ConnectionRefusedForGood, Transport

HELLO_WAIT_S = 30.0
"""How long an agent may take to speak; a host that is busy loads Python slowly."""

MAX_BANNER = 256 << 10
"""Bytes that login scripts may print in front of the hello."""

WINDOW = 16
"""Batches of a stream that may be under way to a consumer that does not take them."""

_NO_AGENT = ("no module named", "not found", "no such file", "invalid choice: 'agent'", "not recognized")
_CLEARLY_NO_AGENT = ("no module named eagle3ops", "no module named 'eagle3ops'", "invalid choice: 'agent'")

LARGE = 64 << 10
"""Bytes of requests under way behind which a ping may have to wait."""

MORE = 5
"""Batches taken before the agent is allowed as many again."""


class ConnectionLost(HostUnreachable):
    """The agent or the way to it ended while an answer was awaited. Nothing is known of what was asked for last."""


class AgentClient:
    """One agent, as long as its connection lasts. Not reconnected: that is the link's part."""

    def __init__(
        self, transport: Transport, channel: Channel, hello: Hello, splitter: LineSplitter, banner: str
    ) -> None:
        self.hello = hello
        self.banner = banner
        """What was printed in front of the hello."""
        self.closed = asyncio.Event()
        self.name = transport.name
        self._channel = channel
        self._splitter = splitter
        self._ids = itertools.count(1)
        self._calls: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._sizes: dict[int, int] = {}
        """Bytes of every request whose answer is awaited."""
        self._streams: dict[int, Stream] = {}
        self._writing = asyncio.Lock()
        self._failure: Eagle3opsError | None = None
        self._asides: set[asyncio.Task[None]] = set()
        self._reading: asyncio.Task[None] | None = None
        self._heard = time.monotonic()

    @classmethod
    async def connect(cls, transport: Transport) -> "AgentClient":
        """Start an agent and wait for its hello, whatever banners are printed before it.

        Raises:
            HostUnreachable: not now.
            ConnectionRefusedForGood: never, as things are: no agent there, or one with another protocol.
        """
        channel = await transport.open()
        try:
            hello, banner, splitter, lines = await _await_hello(transport.name, channel)
            _require_protocol(transport.name, hello)
        except BaseException:
            await channel.close()
            raise
        client = cls(transport, channel, hello, splitter, banner)
        client._reading = asyncio.create_task(client._read(lines), name=f"agent of {transport.name}")
        return client

    async def __aenter__(self) -> "AgentClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def call(self, op: str, /, **args: Any) -> dict[str, Any]:
        """Ask for something and wait for the answer.

        Raises:
            Eagle3opsError: what the agent says, as the class that it has there.
            ConnectionLost: it ended; the request may or may not have been carried out.
            ConnectionRefusedForGood: the agent is too old or too new to know `op`.
        """
        self._require(op)
        message_id = next(self._ids)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._calls[message_id] = answer
        try:
            await self._send({"id": message_id, "op": op, "args": args})
            return await answer
        finally:
            del self._calls[message_id]
            self._sizes.pop(message_id, None)
            if answer.done() and not answer.cancelled():
                # Also when writing failed first: an exception that nobody asks for would be reported as lost.
                answer.exception()

    def stream(self, op: str, /, **args: Any) -> "Stream":
        """Ask for a stream; iterate over its batches. `result` is its answer, once it has ended.

        Raises (while iterating): as `call`.
        """
        self._require(op)
        return Stream(self, next(self._ids), op, args)

    @property
    def silence(self) -> float:
        """Seconds since the last bytes arrived."""
        return time.monotonic() - self._heard

    @property
    def sending(self) -> bool:
        """Something large is on its way to the agent, which takes it slowly or not at all."""
        return self._writing.locked() or sum(self._sizes.values()) > LARGE

    async def close(self) -> None:
        """End the connection, and the agent with it; runs go on."""
        self._fail(ConnectionLost(f"{self.name}: the connection was closed"))
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        for task in list(self._asides):
            task.cancel()
        await self._channel.close()

    def _require(self, op: str) -> None:
        if self._failure is not None:
            raise self._failure
        if op not in self.hello.ops:
            raise ConnectionRefusedForGood(
                f"{self.name}: the eagle3ops there ({self.hello.version}) cannot do {op!r}, "
                f"which this one ({__version__}) asks for",
                remedy=_install(self.name),
            )

    async def _send(self, message: Mapping[str, Any]) -> None:
        line = protocol.encode(message)
        if len(line) > protocol.MAX_LINE:
            raise ProtocolError(f"{message.get('op')}: a request of {len(line)} bytes is too long to be sent")
        async with self._writing:
            if self._failure is not None:
                raise self._failure
            message_id = message.get("id")
            if message_id in self._calls:
                self._sizes[message_id] = len(line)
            try:
                await self._channel.write(line)
            except OSError as error:
                self._fail(self._lost(str(error)))
                assert self._failure is not None
                raise self._failure from error

    def _aside(self, message: Mapping[str, Any]) -> None:
        """Send what nobody waits for."""

        async def send() -> None:
            with suppress(Eagle3opsError):
                await self._send(message)

        if self._failure is None:
            task = asyncio.create_task(send())
            self._asides.add(task)
            task.add_done_callback(self._asides.discard)

    async def _read(self, lines: "list[bytes]") -> None:
        failure: Eagle3opsError
        try:
            for line in lines:
                self._dispatch(line)
            while chunk := await self._channel.read():
                self._heard = time.monotonic()
                for line in self._splitter.feed(chunk):
                    self._dispatch(line)
            failure = self._lost("")
        except ProtocolError as error:
            failure = ConnectionLost(f"{self.name}: what the agent said is not understood: {error.what}")
        except OSError as error:
            failure = self._lost(str(error))
        self._fail(failure)

    def _dispatch(self, line: bytes) -> None:
        if not line.strip():
            return
        message = protocol.decode(line)
        message_id = message.get("id")
        if message_id is None:
            raise ProtocolError(protocol.error_from(message.get("error")).what)
        if not isinstance(message_id, int):
            raise ProtocolError(f"an answer carries an id that was never given: {protocol.shown(line)}")
        stream, answer = self._streams.get(message_id), self._calls.get(message_id)
        if stream is not None:
            stream._take(message)
        elif answer is not None and not answer.done():
            if "error" in message:
                answer.set_exception(protocol.error_from(message["error"]))
            else:
                found = message.get("ok")
                answer.set_result(found if isinstance(found, dict) else {})

    def _lost(self, why: str) -> ConnectionLost:
        words = self._channel.last_words().strip() or why
        return ConnectionLost(f"{self.name}: the connection to the agent ended{': ' + words if words else ''}")

    def _fail(self, failure: Eagle3opsError) -> None:
        """The connection is gone: everybody who waits is told."""
        if self._failure is not None:
            return
        self._failure = failure
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(failure)
        for stream in list(self._streams.values()):
            stream._end(failure)
        self.closed.set()


class Stream(AsyncIterator[list[Any]]):
    """The batches of one stream. Leave it with `aclose`, or by `async with`, when it has not ended by itself.

    The agent sends no more than `WINDOW` batches ahead, so a consumer that is slow costs neither memory nor the answers
    of others.
    """

    def __init__(self, client: AgentClient, message_id: int, op: str, args: Mapping[str, Any]) -> None:
        self.result: dict[str, Any] | None = None
        self._client = client
        self._id = message_id
        self._request = {"id": message_id, "op": op, "args": args, "window": WINDOW}
        self._begun = False
        self._batches: deque[list[Any]] = deque()
        self._arrived = asyncio.Event()
        self._over = False
        self._failure: Eagle3opsError | None = None
        self._taken = 0

    async def __aenter__(self) -> "Stream":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> list[Any]:
        if not self._begun:
            self._begun = True
            self._client._streams[self._id] = self
            try:
                await self._client._send(self._request)
            except BaseException:
                # It may have been sent all the same.
                await self.aclose()
                raise
        while True:
            if self._batches:
                self._taken += 1
                if self._taken % MORE == 0 and not self._over:
                    self._client._aside({"op": "more", "args": {"id": self._id, "n": MORE}})
                return self._batches.popleft()
            if self._over:
                if self._failure is not None:
                    raise self._failure
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()

    async def aclose(self) -> None:
        """Leave the stream; the agent stops sending."""
        if self._begun and not self._over:
            self._client._aside({"op": "stop", "args": {"id": self._id}})
        self._begun = True
        self._end(None)
        self._batches.clear()

    def _take(self, message: Mapping[str, Any]) -> None:
        items = message.get("items")
        if isinstance(items, list):
            self._batches.append(items)
            self._arrived.set()
        elif "error" in message:
            self._end(protocol.error_from(message["error"]))
        else:
            answer = message.get("ok")
            self.result = answer if isinstance(answer, dict) else {}
            self._end(None)

    def _end(self, failure: Eagle3opsError | None) -> None:
        if not self._over:
            self._over, self._failure = True, failure
            self._client._streams.pop(self._id, None)
        self._arrived.set()


async def _await_hello(name: str, channel: Channel) -> tuple[Hello, str, LineSplitter, list[bytes]]:
    """The hello, what was printed before it, and what of the conversation has arrived behind it."""
    splitter, printed, size = LineSplitter(), bytearray(), 0
    try:
        async with asyncio.timeout(HELLO_WAIT_S):
            while chunk := await channel.read():
                size += len(chunk)
                lines = list(splitter.feed(chunk))
                for number, line in enumerate(lines):
                    hello = protocol.parse_hello(line)
                    if hello is not None:
                        printed += line[: line.find(protocol.MARK)]
                        return hello, _words(printed), splitter, lines[number + 1 :]
                    printed += line + b"\n"
                if size > MAX_BANNER:
                    raise ConnectionRefusedForGood(
                        f"{name}: no agent among the first {size} bytes that were printed there: {_words(printed)}",
                        remedy="what the login scripts print must end; see what does: ssh HOST true",
                    )
    except TimeoutError as error:
        said = _words(printed + splitter.rest()) or channel.last_words().strip()
        raise HostUnreachable(
            f"{name}: no agent has spoken within {HELLO_WAIT_S:.0f} s"
            + (f"; what was printed: {said}" if said else ""),
            remedy="does a login script there wait for something?" if said else None,
        ) from error
    except OSError as error:
        raise HostUnreachable(f"{name}: the connection ended before the agent spoke: {error}") from error
    said = "; ".join(part for part in (_words(printed + splitter.rest()), channel.last_words().strip()) if part)
    what = f"{name}: no agent has spoken" + (f": {said}" if said else "; the connection ended at once")
    if any(words in said.lower() for words in _CLEARLY_NO_AGENT):
        raise ConnectionRefusedForGood(what, remedy=_install(name))
    if any(words in said.lower() for words in _NO_AGENT):
        raise AgentDidNotStart(what, remedy=_install(name))
    raise HostUnreachable(what)


def _require_protocol(name: str, hello: Hello) -> None:
    if hello.protocol != PROTOCOL:
        older = "older" if hello.protocol < PROTOCOL else "newer"
        raise ConnectionRefusedForGood(
            f"{name}: the eagle3ops there ({hello.version}) speaks protocol {hello.protocol}, "
            f"this one ({__version__}) speaks {PROTOCOL}: the one there is {older}",
            remedy=_install(name) if older == "older" else "update eagle3ops here, or: " + _install(name),
        )


def skew(name: str, hello: Hello) -> str | None:
    """That the versions here and there differ, though they understand each other; None when they do not differ."""
    if hello.version == __version__:
        return None
    return (
        f"eagle3ops {hello.version} there, {__version__} here: they understand each other, but runs there are those of "
        f"{hello.version}, and what one of the two cannot do is refused; {_install(name)}"
    )


def _install(name: str) -> str:
    if name == "local":
        return "install eagle3ops into the Python that runs it"
    return f"install this version there: eagle3ops hosts install {name}"


def _words(printed: bytes | bytearray) -> str:
    """The end of what was printed, for a message."""
    return bytes(printed).decode("utf-8", errors="replace").strip()[-400:]
