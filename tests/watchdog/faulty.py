"""Processes that hang in one way each: `python faulty.py deadlock|pipe|flock|wait-flock|sleep|listen|baton PATH...`."""

import fcntl
import os
import socket
import sys
import threading
import time


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def all_reduce() -> None:
    """Named like the collective in which the ranks of a job wait."""
    time.sleep(1e6)


class FileBaton:
    """As torch waits while another process builds an extension."""

    def wait(self, path: str) -> None:
        while os.path.exists(path):
            time.sleep(0.1)


def deadlock() -> None:
    first, second = threading.Lock(), threading.Lock()
    ready = threading.Barrier(2)

    def other() -> None:
        with second:
            ready.wait()
            first.acquire()

    threading.Thread(target=other, daemon=True).start()
    with first:
        ready.wait()
        say("ready")
        second.acquire()


def main(what: str, *arguments: str) -> None:
    if what == "deadlock":
        deadlock()
        return
    if what == "pipe":
        # Nobody reads: the pipe is full after 64 KiB.
        sys.stderr.write("ready\n")
        sys.stderr.flush()
        while True:
            os.write(1, b"x" * 4096)
    if what == "flock":
        handle = os.open(arguments[0], os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX)
    if what == "inherited-flock":
        # The one that took it ends; its child, which does not know of it, keeps it.
        handle = os.open(arguments[0], os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fork():
            os._exit(0)
        say(f"ready {os.getpid()}")
    if what == "wait-flock":
        handle = os.open(arguments[0], os.O_RDWR | os.O_CREAT, 0o600)
        say("ready")
        fcntl.flock(handle, fcntl.LOCK_EX)
    if what == "baton":
        os.open(arguments[0], os.O_CREAT | os.O_EXCL)
    if what == "listen":
        _server = socket.create_server(("127.0.0.1", 0))
        say("ready")
        time.sleep(1e6)
    say("ready")
    if what == "wait-baton":
        FileBaton().wait(arguments[0])
    if what == "all_reduce":
        all_reduce()
    time.sleep(1e6)


if __name__ == "__main__":
    main(*sys.argv[1:])
