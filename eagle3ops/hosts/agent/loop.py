"""How does a host answer a console? Requests on standard input, answers and streams on standard output, no memory.

The agent holds nothing that is not on disk: it may be killed at any moment, and another one goes on where it was.
It ends with its standard input, and leaves runs alone.
"""

import asyncio
import fcntl
import os
import platform
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from subprocess import Popen
from typing import Any

from eagle3ops import __version__, locations
from eagle3ops.errors import Eagle3opsError, RequestError
from eagle3ops.hosts.agent import protocol
from eagle3ops.hosts.agent.logs import LineIndexes
from eagle3ops.hosts.agent.operation import Batch, End, Operation, Raw, Surroundings
from eagle3ops.hosts.agent.protocol import PROTOCOL, Hello, LineSplitter, ProtocolError, Request
from eagle3ops.hosts.agent.workers import Workers
from eagle3ops.runs.processes import boot_id

MAX_OPEN = 256
"""Requests that may be open at once, streams included."""

MAX_UNSENT = 32 << 20
"""Bytes of answers that wait for whoever asked to take them; beyond, no other is worked out until some are taken."""

READ_BYTES = 256 << 10
PIPE_BYTES = 1 << 20
CONTROL = ("stop", "more")
"""Ops about another request; the agent itself carries them out."""

LEAVE_S = 10.0
"""How long requests that are being carried out may still take when standard input has ended."""


def main(operations: Mapping[str, Operation], root: str | None = None) -> int:
    """Serve until standard input ends; does not return, so that a thread stuck in a file system cannot hold it up."""
    source, sink = _take_over_stdio()
    try:
        asyncio.run(Agent(source, sink, operations, root).serve())
        code = 0
    except Eagle3opsError as error:
        sys.stderr.write(f"eagle3ops: {error}\n")
        code = int(error.exit_code)
    except Exception:  # noqa: BLE001  (the boundary: threads that wait for input would keep the process for ever)
        traceback.print_exc()
        code = 1
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code)


def _prepare() -> None:
    """Import what most who open an agent ask for first; it would have waited for them anyway."""
    import_module("eagle3ops.runs.ledger")


def _take_over_stdio() -> tuple[int, int]:
    """Keep the two ends of the conversation, and let nothing else reach them: what prints goes to standard error."""
    source, sink = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    for pipe in (source, sink):
        # Fewer turns for large answers; refused for what is no pipe, and beyond the user's allowance.
        with suppress(OSError, AttributeError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return source, sink


@dataclass(slots=True)
class _Open:
    """A request that has no final answer yet."""

    task: asyncio.Task[None]
    credit: asyncio.Semaphore | None
    """Batches that a stream may still send; None when nobody counts."""
    stopped: bool = False


@dataclass(slots=True)
class _Queue:
    """Requests that are carried out one after the other."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    length: int = 0


class Agent:
    """One conversation."""

    def __init__(self, source: int, sink: int, operations: Mapping[str, Operation], root: str | None) -> None:
        self.root = root
        self._operations = operations
        self._names = (*operations, *CONTROL)
        self._source, self._sink = source, sink
        self._workers = Workers(before=self._room)
        # One thread each, because reading and writing block for as long as the other side wishes.
        self._reader = ThreadPoolExecutor(1, "read")
        self._writer = ThreadPoolExecutor(1, "write")
        self._writing = asyncio.Lock()
        self._unsent = 0
        self._taken = asyncio.Event()
        """Set when an answer was taken."""
        self._over = asyncio.Event()
        self._open: dict[int | str, _Open] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._order: dict[tuple[str, ...], _Queue] = {}
        self._indexes = LineIndexes()
        self._children: list[Popen[bytes]] = []

    async def serve(self) -> None:
        """Until standard input ends, or standard output, or a signal says so."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._over.set)
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        await self._send(self._hello().line())
        self._workers.submit(_prepare)
        reading = asyncio.create_task(self._read())
        over = asyncio.create_task(self._over.wait())
        # An agent that does not read any more, and lives, would be worse than one that has ended.
        await asyncio.wait({reading, over}, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        if reading.done():
            reading.result()
        reading.cancel()

    def _hello(self) -> Hello:
        return Hello(
            protocol=PROTOCOL,
            version=__version__,
            python=platform.python_version(),
            host=socket.gethostname(),
            boot=boot_id(),
            pid=os.getpid(),
            time=round(time.time(), 3),
            root=str(locations.root(self.root)),
            ops=self._names,
        )

    def _reap(self) -> None:
        """Take the exit codes of supervisors that have ended; a thread may add one meanwhile."""
        for child in list(self._children):
            if child.poll() is not None:
                self._children.remove(child)

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        splitter = LineSplitter()
        while chunk := await loop.run_in_executor(self._reader, _read_some, self._source):
            for line in splitter.feed(chunk):
                await self._take(line)
        if splitter.rest().strip():
            await self._take(splitter.rest())
        await self._finish()
        self._over.set()

    async def _finish(self) -> None:
        """Input has ended: answer what was asked for, end the streams."""
        streams = {request.task for request in self._open.values() if request.credit is not _CALL}
        for task in streams:
            task.cancel()
        # Also those that are not open any more: their answer may still be on its way.
        if rest := self._tasks - streams:
            await asyncio.wait(rest, timeout=LEAVE_S)

    async def _take(self, line: bytes) -> None:
        """Begin to carry out one line; what is wrong with it is answered."""
        if not line.strip():
            return
        message_id: int | str | None = None
        try:
            request = protocol.parse_request(protocol.decode(line))
            message_id = request.message_id
            if request.op in ("stop", "more"):
                # A task that is ended before it has begun would answer nothing.
                await asyncio.sleep(0)
                answer = self._control(request)
                if message_id is not None:
                    await self._send(protocol.encode({"id": message_id, "ok": answer}))
                return
            self._start(request)
        except ProtocolError as error:
            await self._send(protocol.encode(protocol.error_message(error.message_id, error)))
        except Eagle3opsError as error:
            await self._send(protocol.encode(protocol.error_message(message_id, error)))
        except Exception as error:  # noqa: BLE001  (the boundary: what is wrong with one line must not end the others)
            await self._send(protocol.encode(protocol.error_message(message_id, _defect("a request", error))))

    def _control(self, request: Request) -> dict[str, Any]:
        """End a stream, or let it send more batches. A stream that has ended meanwhile is none to complain about."""
        target, count = request.args.get("id"), request.args.get("n", 1)
        if isinstance(target, bool) or not isinstance(target, int | str):
            raise RequestError(f"{request.op} names the id of a stream")
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= protocol.MAX_WINDOW:
            raise RequestError(f"{request.op}: n is a whole number from 1 to {protocol.MAX_WINDOW}")
        found = self._open.get(target)
        if found is None or found.credit is _CALL:
            return {"open": False}
        if request.op == "stop":
            found.stopped = True
            found.task.cancel()
        elif found.credit is not None:
            for _ in range(count):
                found.credit.release()
        return {"open": True}

    def _start(self, request: Request) -> None:
        assert request.message_id is not None
        if request.message_id in self._open:
            raise RequestError(f"the id {request.message_id!a} is in use", remedy="give every request an id of its own")
        if len(self._open) >= MAX_OPEN:
            raise RequestError(f"{MAX_OPEN} requests are open", remedy="wait for answers, or stop streams")
        found = self._operations.get(request.op)
        if found is None:
            raise RequestError(
                f"this agent (eagle3ops {__version__}) has no op {request.op[:60]!a}",
                remedy=f"its ops: {', '.join(self._names)}",
            )
        args = dict(request.args)
        root = _root(request, args.pop("root", None), self.root)
        checked = found.check(args)
        here = Surroundings(root, self._workers.run, self._indexes, self._children)
        credit: asyncio.Semaphore | None = _CALL
        work: Coroutine[Any, Any, None]
        if found.stream:
            credit = None if request.window is None else asyncio.Semaphore(request.window)
            work = self._stream(request, found, here, checked, credit)
        else:
            work = self._call(request, found, here, checked)
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._open[request.message_id] = _Open(task, credit)

    async def _call(self, request: Request, found: Operation, here: Surroundings, args: dict[str, Any]) -> None:
        async def work() -> bytes:
            if found.at_once:
                return protocol.encode({"id": request.message_id, "ok": found.call(here, **args)})
            line = await self._workers.run(
                lambda: protocol.encode({"id": request.message_id, "ok": found.call(here, **args)})
            )
            # One that was started here may have ended before it was on the list.
            self._reap()
            if len(line) > protocol.MAX_LINE:
                raise RequestError(
                    f"{request.op}: the answer has {len(line)} bytes, more than the {protocol.MAX_LINE} of a line",
                    remedy="ask for less at once",
                )
            return line

        if found.in_order is None:
            await self._answer(request, work())
            return
        key = (str(here.root), found.in_order, str(args.get(found.in_order)))
        queue = self._order.setdefault(key, _Queue())
        queue.length += 1
        try:
            # The lock serves in the order of the requests, because their tasks begin in that order.
            async with queue.lock:
                await self._answer(request, work())
        finally:
            queue.length -= 1
            if queue.length == 0:
                del self._order[key]

    async def _stream(
        self,
        request: Request,
        found: Operation,
        here: Surroundings,
        args: dict[str, Any],
        credit: asyncio.Semaphore | None,
    ) -> None:
        assert request.message_id is not None
        message_id = request.message_id

        async def work() -> bytes:
            answer: dict[str, Any] = {}
            batches = found.call(here, **args)
            try:
                async for batch in batches:
                    if isinstance(batch, End):
                        answer = dict(batch.answer)
                        break
                    if credit is not None:
                        await credit.acquire()
                    await self._send(_items(message_id, batch))
            finally:
                await batches.aclose()
            return protocol.encode({"id": message_id, "ok": answer})

        await self._answer(request, work())

    async def _answer(self, request: Request, work: Coroutine[Any, Any, bytes]) -> None:
        """Send the final answer of a request, whatever becomes of it."""
        assert request.message_id is not None
        try:
            line = await work
        except asyncio.CancelledError:
            entry = self._open.get(request.message_id)
            if entry is None or not entry.stopped:
                raise
            line = protocol.encode({"id": request.message_id, "ok": {"stopped": True}})
        except Eagle3opsError as error:
            line = protocol.encode(protocol.error_message(request.message_id, error))
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            explained = Eagle3opsError(f"{request.op}: {where}{error.strerror or error}")
            line = protocol.encode(protocol.error_message(request.message_id, explained))
        except Exception as error:  # noqa: BLE001  (the boundary: one request that fails must not end the others)
            line = protocol.encode(protocol.error_message(request.message_id, _defect(request.op, error)))
        del self._open[request.message_id]
        await self._send(line)

    async def _room(self) -> None:
        """Wait while too much waits to be taken: whoever asks and does not listen must not fill the memory."""
        while self._unsent > MAX_UNSENT and not self._over.is_set():
            self._taken.clear()
            await self._taken.wait()

    async def _send(self, line: bytes) -> None:
        """Write a line, whole, and wait until it is written: a stream is never ahead of its reader."""
        self._unsent += len(line)
        try:
            async with self._writing:
                if self._over.is_set():
                    return
                try:
                    await asyncio.get_running_loop().run_in_executor(self._writer, _write_all, self._sink, line)
                except OSError:
                    # Nobody is there any more.
                    self._over.set()
        finally:
            self._unsent -= len(line)
            self._taken.set()


_CALL = asyncio.Semaphore(0)
"""Marks a request that is no stream."""


def _defect(what: str, error: Exception) -> Eagle3opsError:
    """What nobody thought of, for whoever asked; the traceback goes to standard error."""
    traceback.print_exc()
    return Eagle3opsError(
        f"{what}: {type(error).__name__}: {error}",
        remedy="this is a defect of eagle3ops; the traceback is in what the agent wrote on standard error",
    )


def _root(request: Request, given: object, usual: str | None) -> Path:
    """The folder of runs that a request is about."""
    if given is not None and not (isinstance(given, str) and given and "\0" not in given):
        raise RequestError(f"{request.op}: root is the path of a folder")
    try:
        found = locations.root(given or usual)
        os.fsencode(found)
    except (RuntimeError, UnicodeEncodeError) as error:
        raise RequestError(f"{request.op}: root {given!a}: {error}") from error
    return found


def _items(message_id: int | str, batch: Batch) -> bytes:
    if isinstance(batch, Raw):
        return protocol.encode_items(message_id, batch.lines)
    return protocol.encode({"id": message_id, "items": batch})


def _read_some(fd: int) -> bytes:
    while True:
        try:
            return os.read(fd, READ_BYTES)
        except BlockingIOError:
            # Handed to us so by whoever started us.
            select.select([fd], [], [])
        except OSError:
            return b""


def _write_all(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(fd, left) :]
        except BlockingIOError:
            select.select([], [fd], [])
