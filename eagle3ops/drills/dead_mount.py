"""How does a process get into an uninterruptible sleep (state D)? A file system that stops answering, as a dead NFS.

It is spoken over /dev/fuse, in a mount namespace of its own that nobody else sees and that vanishes with its processes.
Where that is not permitted: `vfork`, whose caller sleeps uninterruptibly until the child has ended or become another
program.
"""

import ctypes
import errno
import mmap
import os
import signal
import stat
import struct
from collections.abc import Callable
from pathlib import Path

_CLONE_NEWNS = 0x20000
_MS_NOSUID_NODEV = 2 | 4
_MS_REC_PRIVATE = 0x4000 | 1 << 18
_LIBC = ctypes.CDLL(None, use_errno=True)

_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _INIT, _INTERRUPT, _BATCH_FORGET = 1, 2, 3, 14, 15, 26, 36, 42
"""Numbers of requests, from linux/fuse.h."""
_FILE_BYTES = 1 << 20
_ASYNC_READ = 1
"""Reads go out without waiting, so that the reader waits for the page, uninterruptibly, and not for the request."""


def private_mounts() -> str | None:
    """Give this process mounts of its own, which end with it; says why that is not permitted, or None."""
    if _LIBC.unshare(_CLONE_NEWNS) or _LIBC.mount(b"none", b"/", None, _MS_REC_PRIVATE, None):
        return f"mounts of its own are not permitted: {os.strerror(ctypes.get_errno())}"
    return None


def mount(source: str, point: Path, kind: str, options: str) -> str | None:
    """Mount; says why it is not permitted, or None."""
    words = [word.encode() for word in (source, str(point), kind, options)]
    if _LIBC.mount(words[0], words[1], words[2], _MS_NOSUID_NODEV, words[3]):
        return f"{kind} cannot be mounted: {os.strerror(ctypes.get_errno())}"
    return None


Child = Callable[[Callable[[], object]], int]
Told = Callable[[int, str], None]


def touch(folder: Path, child: Child, told: Told) -> None:
    """Have a process in state D. Returns never.

    Args:
        folder: where to mount.
        child: starts a process.
        told: is told the process that hangs, and how it was done.
    """
    point = folder / "mount"
    point.mkdir()
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError:
        by_vfork(child, told)
        return
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    if private_mounts() is not None or mount("eagle3ops-drill", point, "fuse", options) is not None:
        by_vfork(child, told)
        return

    def reader() -> None:
        os.close(device)
        fd = os.open(point / "model.safetensors", os.O_RDONLY)
        view = mmap.mmap(fd, _FILE_BYTES, prot=mmap.PROT_READ)
        view[0]  # The fault that is never served.

    pid = child(reader)
    while True:
        request = os.read(device, 1 << 20)
        _, code, unique, node = struct.unpack_from("<IIQQ", request)
        if code == _READ:
            told(pid, "fuse")
        elif code not in (_FORGET, _INTERRUPT, _BATCH_FORGET):
            body = _reply(code, node)
            problem = 0 if body is not None else -errno.ENOSYS
            body = body or b""
            os.write(device, struct.pack("<IiQ", 16 + len(body), problem, unique) + body)


def _reply(code: int, node: int) -> bytes | None:
    """The file system: a folder with one file."""
    if code == _INIT:
        return struct.pack("<IIIIHHIIHHI28x", 7, 31, 1 << 17, _ASYNC_READ, 12, 9, 1 << 17, 1, 32, 0, 0)
    if code == _LOOKUP:
        return struct.pack("<QQQQII", 2, 0, 3600, 3600, 0, 0) + _attributes(2)
    if code == _GETATTR:
        return struct.pack("<QII", 3600, 0, 0) + _attributes(node)
    if code == _OPEN:
        return struct.pack("<QII", 1, 0, 0)
    return None


def _attributes(node: int) -> bytes:
    folder = node == 1
    mode = (stat.S_IFDIR | 0o755) if folder else (stat.S_IFREG | 0o444)
    size = 0 if folder else _FILE_BYTES
    return struct.pack(
        "<6Q10I",
        node,
        size,
        size // 512,
        0,
        0,
        0,
        0,
        0,
        0,
        mode,
        2 if folder else 1,
        os.getuid(),
        os.getgid(),
        0,
        4096,
        0,
    )


def by_vfork(child: Child, told: Told) -> None:
    """The same by `vfork`, which needs no right at all. Returns never."""

    def parent() -> None:
        # The child of a vfork runs on our memory and our stack while we sleep. It never gives them back, so that it is
        # no matter what it does to them. PyDLL: the interpreter's lock stays taken.
        if ctypes.PyDLL(None).vfork() == 0:
            _LIBC.prctl(1, signal.SIGKILL, 0, 0, 0)
            while True:
                signal.pause()

    pid = child(parent)
    told(pid, "vfork")
    while True:
        signal.pause()
