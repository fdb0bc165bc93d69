"""A program that speaks to its page as a console does: what it is told it says again; `deaf` it never leaves."""

import json
import os
import signal
import sys
import time
from typing import Any


def say(kind: bytes, payload: bytes) -> None:
    os.write(1, kind + len(payload).to_bytes(4, "big") + payload)


def read(count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = os.read(0, count - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def main() -> None:
    if "broken" in sys.argv:
        sys.stderr.write("it is broken\n")
        raise SystemExit(1)
    os.write(1, b"__GANGLION__\n")
    facts: dict[str, Any] = {
        "pid": os.getpid(),
        "argv": sys.argv[1:],
        "size": [os.environ["COLUMNS"], os.environ["ROWS"]],
    }
    facts["tmux"], facts["term"] = os.environ.get("TMUX"), os.environ.get("TERM")
    say(b"D", json.dumps(facts).encode())
    if "deaf" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(1)
    try:
        while True:
            kind, length = read(1), int.from_bytes(read(4), "big")
            payload = read(length)
            if kind == b"M" and json.loads(payload)["type"] == "quit":
                break
            say(b"D", payload)
    except EOFError:
        pass
    say(b"M", b'{"type": "exit"}')


main()
