"""How does a large file get to a host or back, over a connection that may end at any moment?

In chunks, several under way at once. What has arrived stays; the next attempt proves that it is the beginning of the
right file and goes on behind it. A file takes its place only whole, with its checksum verified where it arrived.
"""

import asyncio
import base64
import os
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from eagle3ops.errors import Eagle3opsError, Refused, RequestError
from eagle3ops.hosts.agent.ops_files import (
    already_in_place,
    explain,
    part_of,
    put_in_place,
    refuse_overwriting,
    sha256_of,
)

CHUNK = 1 << 20
IN_FLIGHT = 8
"""Chunks that are under way at once: as many bytes as a long line holds, and memory for twice that."""

Progress = Callable[[int, int], None]
"""Told the bytes that have arrived, and all of them."""

Answer = Coroutine[Any, Any, dict[str, Any]]


class Caller(Protocol):
    """Whoever answers ops: an `AgentClient`, or a link that connects again."""

    async def call(self, op: str, /, **args: Any) -> dict[str, Any]:
        """As `AgentClient.call`."""


@dataclass(frozen=True, slots=True)
class Transferred:
    """A file that has arrived."""

    path: str
    """Where it is."""
    size: int
    """Bytes."""
    sha256: str
    resumed_at: int
    """Bytes that had arrived in earlier attempts; all of them when nothing was left to do."""


async def put(
    caller: Caller,
    local: Path,
    remote: str,
    progress: Progress | None = None,
    *,
    overwrite: bool = False,
    mode: int | None = None,
    chunk: int = CHUNK,
    in_flight: int = IN_FLIGHT,
) -> Transferred:
    """Copy a file to the host; called again after a failure, it goes on where that one stopped.

    Args:
        caller: the host.
        local: the file here.
        remote: its place there: absolute, with `~`, or below the root. Folders are made.
        progress: called with the bytes that have arrived and the size.
        overwrite: replace another file that stands there.
        mode: permission bits of the file there; by default what its umask leaves of 0o666.
        chunk: bytes of one request.
        in_flight: requests under way at once.

    Raises:
        HostUnreachable: the connection ended; try again.
        Refused: there is no space for it.
        RequestError: another file stands there, or the file here cannot be read.
        Eagle3opsError: what arrived is not what was sent, because it changed meanwhile.
    """
    fd = await asyncio.to_thread(_open_here, local)
    try:
        size, sha256 = os.fstat(fd).st_size, await asyncio.to_thread(sha256_of, fd)
        where = {"path": remote, "sha256": sha256}
        begun = await caller.call("file.begin", **where, size=size, overwrite=overwrite)
        offset = int(begun["offset"])
        if not begun["done"]:
            if offset and begun["prefix_sha256"] != await asyncio.to_thread(sha256_of, fd, offset):
                begun = await caller.call("file.begin", **where, size=size, overwrite=overwrite, restart=True)
                offset = int(begun["offset"])

            async def send(start: int, length: int) -> Answer:
                content = await asyncio.to_thread(os.pread, fd, length, start)
                if len(content) != length:
                    raise Eagle3opsError(f"{local}: became shorter while it was read", remedy="try again")
                data = base64.b64encode(content).decode("ascii")
                return caller.call("file.write", **where, offset=start, data=data)

            async def note(start: int, length: int, answer: dict[str, Any]) -> int:
                return int(answer["size"]) if answer["gap"] else start + length

            await _pipelined(send, note, offset, size, chunk, in_flight, progress)
            more = {} if mode is None else {"mode": mode}
            await caller.call("file.commit", **where, size=size, overwrite=overwrite, **more)
        elif progress is not None:
            progress(size, size)
        return Transferred(str(begun["path"]), size, sha256, offset)
    finally:
        os.close(fd)


async def get(
    caller: Caller,
    remote: str,
    local: Path,
    progress: Progress | None = None,
    *,
    overwrite: bool = False,
    chunk: int = CHUNK,
    in_flight: int = IN_FLIGHT,
) -> Transferred:
    """Copy a file from the host; as `put`, the other way round.

    Raises:
        HostUnreachable: the connection ended; try again.
        Refused: there is no space for it here.
        RequestError: there is no such file, or another one stands here.
        Eagle3opsError: it was changed while it was read; or the file system here fails.
    """
    found = await caller.call("file.stat", path=remote, sha256=True)
    if not found["exists"] or found["kind"] != "file":
        raise RequestError(f"{found['path']}: {'not a file' if found['exists'] else 'there is no such file'}")
    size, sha256 = int(found["size"]), str(found["sha256"])
    try:
        part = part_of(local, sha256)
        if await asyncio.to_thread(already_in_place, local, size, sha256):
            part.unlink(missing_ok=True)
            return Transferred(str(local), size, sha256, size)
        refuse_overwriting(local, overwrite)
        fd = await asyncio.to_thread(_open_part, part, size)
    except OSError as error:
        raise explain(error, local) from error
    try:
        offset = await _trusted_prefix(caller, remote, fd)

        async def fetch(start: int, length: int) -> Answer:
            return caller.call("file.read", path=remote, offset=start, max_bytes=length)

        async def keep(start: int, length: int, answer: dict[str, Any]) -> int:
            data = base64.b64decode(answer["data"])
            if len(data) != length:
                raise Eagle3opsError(f"{found['path']}: became shorter while it was read", remedy="try again")
            await asyncio.to_thread(_write_at, fd, data, start)
            return start + length

        await _pipelined(fetch, keep, offset, size, chunk, in_flight, progress)
        await asyncio.to_thread(_finish, fd, part, local, sha256, overwrite)
    except OSError as error:
        raise explain(error, local) from error
    finally:
        os.close(fd)
    return Transferred(str(local), size, sha256, offset)


async def _trusted_prefix(caller: Caller, remote: str, fd: int) -> int:
    """How much of what is here is the beginning of the file there; the rest is cut off."""
    have = os.fstat(fd).st_size
    if have:
        here = await asyncio.to_thread(sha256_of, fd, have)
        there = await caller.call("file.stat", path=remote, prefix=have)
        if there.get("prefix_sha256") != here:
            os.ftruncate(fd, 0)
            have = 0
    return have


async def _pipelined(
    ask: Callable[[int, int], Awaitable[Answer]],
    land: Callable[[int, int, dict[str, Any]], Awaitable[int]],
    offset: int,
    size: int,
    chunk: int,
    in_flight: int,
    progress: Progress | None,
) -> None:
    """Ask for all chunks, several at once, and take the answers in order, so that what is there has no holes.

    `ask` and `land` are told where a chunk begins and its length. `ask` prepares a request, in order, because a chunk
    that overtakes another is thrown away. `land` says up to where everything is there now: less than that chunk's end
    when an earlier one was lost, and then it goes on there.
    """
    pending: deque[tuple[int, int, asyncio.Task[dict[str, Any]]]] = deque()
    position = offset
    if progress is not None:
        progress(offset, size)
    try:
        while position < size or pending:
            while position < size and len(pending) < in_flight:
                length = min(chunk, size - position)
                pending.append((position, length, asyncio.create_task(await ask(position, length))))
                position += length
            start, length, task = pending.popleft()
            reached = await land(start, length, await task)
            if reached < start + length:
                await _drain(pending)
                position = reached
            if progress is not None:
                progress(reached, size)
    finally:
        for _, _, task in pending:
            task.cancel()
        await _drain(pending)


async def _drain(pending: "deque[tuple[int, int, asyncio.Task[dict[str, Any]]]]") -> None:
    """Wait for what is under way, whatever becomes of it."""
    await asyncio.gather(*(task for _, _, task in pending), return_exceptions=True)
    pending.clear()


def _open_here(local: Path) -> int:
    try:
        if not local.is_file():
            raise RequestError(f"{local}: {'not a file' if local.exists() else 'there is no such file'}")
        return os.open(local, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise explain(error, local) from error


def _open_part(part: Path, size: int) -> int:
    import shutil

    part.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    have = min(os.fstat(fd).st_size, size)
    os.ftruncate(fd, have)
    free = shutil.disk_usage(part.parent).free
    if size - have > free:
        os.close(fd)
        raise Refused(f"{part.parent}: {size - have} bytes are to be written, {free} are free here")
    return fd


def _write_at(fd: int, data: bytes, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)


def _finish(fd: int, part: Path, local: Path, sha256: str, overwrite: bool) -> None:
    if sha256_of(fd) != sha256:
        with suppress(OSError):
            part.unlink()
        raise Eagle3opsError(
            f"{local}: what arrived is not what was to be sent (its sha256 is another one); it was thrown away",
            remedy="was the file there changed while it was read? try again",
        )
    os.fsync(fd)
    put_in_place(part, local, overwrite)
