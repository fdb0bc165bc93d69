"""Ops about files: a copy to or from the host that may break off anywhere and goes on where it broke off.

A file is written to `NAME.part-<first 16 digits of its sha256>` beside its place, and takes its place once size and
checksum are right. So the name under which it will be used never holds a part of it, and whoever tries again with the
same content finds what is there already.
"""

import base64
import binascii
import contextlib
import errno
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eagle3ops.errors import Eagle3opsError, Refused, RequestError
from eagle3ops.hosts.agent.operation import Surroundings, operation

MAX_CHUNK = 8 << 20
"""Bytes of one `file.read` or `file.write`."""

MARGIN = 1 << 20
"""Bytes that must stay free beside a file that is to be written."""

_SHA256 = re.compile(r"[0-9a-f]{64}")


def locate(here: Surroundings, path: str) -> Path:
    """A path of a request: absolute, from the home folder with `~`, or below the root."""
    if not path:
        raise RequestError("the path is empty")
    try:
        return here.root / Path(path).expanduser()
    except RuntimeError as error:
        raise RequestError(f"{path}: there is no such user") from error


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Errors of the file system in words that name the path."""
    try:
        yield
    except OSError as error:
        raise explain(error, path) from error


def explain(error: OSError, path: Path) -> Eagle3opsError:
    """What an error of the file system means, and what to do."""
    remedies = {
        errno.ENOSPC: "free some space there, then try again: it goes on where it stopped",
        errno.EDQUOT: "the quota is used up: free some space there, then try again",
        errno.EACCES: "choose another place, or change the permissions",
        errno.EPERM: "choose another place, or change the permissions",
        errno.EROFS: "the file system is read-only: choose another place",
        errno.ENOENT: None,
        errno.ENAMETOOLONG: "choose a shorter name",
    }
    kind = RequestError if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST) else Eagle3opsError
    return kind(f"{path}: {os.strerror(error.errno or 0)}", remedy=remedies.get(error.errno or 0))


@contextlib.contextmanager
def _open_file(path: Path) -> Iterator[int]:
    """A plain file for reading."""
    with _explained(path):
        # Not blocking: a FIFO would wait for a writer.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise RequestError(f"{path}: not a file")
            yield fd
        finally:
            os.close(fd)


def sha256_of(fd: int, length: int | None = None) -> str:
    """Checksum of the first `length` bytes of an open file, by default of all of it."""
    digest, offset = hashlib.sha256(), 0
    while length is None or offset < length:
        piece = os.pread(fd, 1 << 20 if length is None else min(1 << 20, length - offset), offset)
        if not piece:
            break
        digest.update(piece)
        offset += len(piece)
    return digest.hexdigest()


def stat_file(here: Surroundings, *, path: str, sha256: bool = False, prefix: int | None = None) -> dict[str, Any]:
    """What is at a path; with `sha256` its checksum, with `prefix` also that of its first so many bytes."""
    place = locate(here, path)
    try:
        status = place.stat()
    except (FileNotFoundError, NotADirectoryError):
        return {"path": str(place), "exists": False}
    except OSError as error:
        raise explain(error, place) from error
    kind = "file" if stat.S_ISREG(status.st_mode) else "folder" if stat.S_ISDIR(status.st_mode) else "other"
    found: dict[str, Any] = {
        "path": str(place),
        "exists": True,
        "kind": kind,
        "size": status.st_size,
        "modified": status.st_mtime,
        "mode": stat.S_IMODE(status.st_mode),
    }
    if sha256 or prefix is not None:
        with _open_file(place) as fd:
            if sha256:
                found["sha256"] = sha256_of(fd)
            if prefix is not None:
                found["prefix_sha256"] = sha256_of(fd, prefix)
    return found


def read(here: Surroundings, *, path: str, offset: int, max_bytes: int = 1 << 20) -> dict[str, Any]:
    """Some bytes, in base64; fewer than asked for only at the end of the file."""
    if offset < 0 or not 1 <= max_bytes <= MAX_CHUNK:
        raise RequestError(f"file.read: offset is not negative, and max_bytes is between 1 and {MAX_CHUNK}")
    place = locate(here, path)
    with _open_file(place) as fd:
        pieces, at = [], offset
        while at < offset + max_bytes and (piece := os.pread(fd, offset + max_bytes - at, at)):
            pieces.append(piece)
            at += len(piece)
        data = b"".join(pieces)
        size = os.fstat(fd).st_size
    return {"offset": offset, "data": base64.b64encode(data).decode("ascii"), "size": size, "end": at >= size}


def part_of(place: Path, sha256: str) -> Path:
    """Where a file with this checksum is gathered until it is whole."""
    if not _SHA256.fullmatch(sha256):
        raise RequestError("sha256 is the 64 lower-case hex digits of a checksum")
    return place.with_name(f"{place.name}.part-{sha256[:16]}")


def already_in_place(place: Path, size: int, sha256: str) -> bool:
    """Does the finished file stand there already?"""
    try:
        status = place.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISREG(status.st_mode) or status.st_size != size:
        return False
    with _open_file(place) as fd:
        return sha256_of(fd) == sha256


def refuse_overwriting(place: Path, overwrite: bool) -> None:
    if place.is_dir():
        raise RequestError(f"{place}: a folder stands there", remedy="name the file, not the folder")
    if place.exists() and not overwrite:
        raise RequestError(f"{place}: another file stands there", remedy="say that it is to be replaced (overwrite)")


def begin(
    here: Surroundings, *, path: str, size: int, sha256: str, overwrite: bool = False, restart: bool = False
) -> dict[str, Any]:
    """Prepare to write a file: how much of it is here already, and the checksum of that much.

    `done`: the whole file stands there already. `restart` throws away what is here.
    """
    if size < 0:
        raise RequestError("file.begin: size is not negative")
    place = locate(here, path)
    part = part_of(place, sha256)
    with _explained(place):
        if already_in_place(place, size, sha256):
            part.unlink(missing_ok=True)
            return {"path": str(place), "done": True, "offset": size, "prefix_sha256": sha256}
        refuse_overwriting(place, overwrite)
        place.parent.mkdir(parents=True, exist_ok=True)
    with _explained(part):
        fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            if restart:
                os.ftruncate(fd, 0)
            here_already = min(os.fstat(fd).st_size, size)
            os.ftruncate(fd, here_already)
            free = shutil.disk_usage(part.parent).free
            if size - here_already + MARGIN > free:
                raise Refused(
                    f"{place}: {size - here_already} bytes are to be written, {free} are free there",
                    remedy="free some space there, or choose another place",
                )
            prefix = sha256_of(fd, here_already)
        finally:
            os.close(fd)
    return {"path": str(place), "done": False, "offset": here_already, "prefix_sha256": prefix}


def write(here: Surroundings, *, path: str, sha256: str, offset: int, data: str) -> dict[str, Any]:
    """Write some bytes (base64). `gap` says that they would not join on to what is here: `size` bytes; none is written.

    The same bytes may be written again.
    """
    place = locate(here, path)
    part = part_of(place, sha256)
    content = _from_base64(data)
    if offset < 0 or len(content) > MAX_CHUNK:
        raise RequestError(f"file.write: offset is not negative, and at most {MAX_CHUNK} bytes are written at once")
    with _explained(place):
        try:
            fd = os.open(part, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError as error:
            raise RequestError(f"{part}: was not begun", remedy="file.begin comes first") from error
        try:
            size = os.fstat(fd).st_size
            if offset > size:
                return {"gap": True, "size": size}
            done = 0
            while done < len(content):
                done += os.pwrite(fd, content[done:], offset + done)
            return {"gap": False, "size": max(size, offset + len(content))}
        finally:
            os.close(fd)


def _from_base64(data: str) -> bytes:
    try:
        content = base64.b64decode(data)
    except (binascii.Error, ValueError) as error:
        raise RequestError(f"file.write: data is not base64: {error}") from error
    # The strict decoder costs five times as much; what the other one passes over is missing here.
    if len(data) % 4 or len(content) != len(data) // 4 * 3 - data[-2:].count("="):
        raise RequestError("file.write: data is not base64: it holds other characters")
    return content


def commit(
    here: Surroundings, *, path: str, size: int, sha256: str, overwrite: bool = False, mode: int | None = None
) -> dict[str, Any]:
    """Check what was written, flush it to disk and put it in its place; a repeat finds it there."""
    place = locate(here, path)
    part = part_of(place, sha256)
    if mode is not None and not 0 <= mode <= 0o777:
        raise RequestError("file.commit: mode is between 0 and 0o777")
    with _explained(place):
        if not part.exists():
            if already_in_place(place, size, sha256):
                return {"path": str(place), "size": size, "sha256": sha256}
            raise RequestError(f"{part}: was not begun", remedy="file.begin comes first")
        refuse_overwriting(place, overwrite)
        fd = os.open(part, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            found, wanted = os.fstat(fd).st_size, size
            if found != wanted:
                raise RequestError(f"{part}: has {found} bytes, not {wanted}", remedy="write the rest, then commit")
            if sha256_of(fd) != sha256:
                part.unlink()
                raise Eagle3opsError(
                    f"{place}: what arrived is not what was to be sent (its sha256 is another one); it was thrown away",
                    remedy="send it again; if the file was changed meanwhile, when it is finished",
                )
            if mode is not None:
                os.fchmod(fd, mode)
            os.fsync(fd)
        finally:
            os.close(fd)
        put_in_place(part, place, overwrite)
    return {"path": str(place), "size": size, "sha256": sha256}


def put_in_place(part: Path, place: Path, overwrite: bool) -> None:
    from eagle3ops.runs.files import sync_folder

    if overwrite:
        part.replace(place)
    else:
        try:
            # Unlike a rename, a link never replaces what another writer has just put there.
            os.link(part, place)
            part.unlink()
        except FileExistsError:
            refuse_overwriting(place, overwrite)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS):
                raise
            part.replace(place)
    sync_folder(place.parent)


OPERATIONS = (
    operation("file.stat", stat_file),
    operation("file.read", read),
    operation("file.begin", begin, in_order="path"),
    operation("file.write", write, in_order="path"),
    operation("file.commit", commit, in_order="path"),
)
