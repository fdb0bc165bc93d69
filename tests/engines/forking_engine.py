"""An engine that keeps its workers badly: one in a session of its own, one that is nobody's child any more.

`FOLDER [CODE | --http PORT]`. They write their numbers into `FOLDER/pids` and do not obey SIGTERM. The engine itself
does; it ends with CODE once they are there (a negative one is a signal), or answers at a port, or waits.
"""

import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path


def work(folder: Path) -> None:
    """Be a worker that outlives its engine."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with (folder / "pids").open("a") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(300)
    os._exit(0)


def serve(port: int) -> None:
    """Be as healthy as can be."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

    HTTPServer(("127.0.0.1", port), Answer).serve_forever()


def main(folder: Path, code: int | None, port: int | None) -> None:
    """Start the workers, and wait."""
    (folder / "keeper").write_text(str(os.getppid()))
    if os.fork() == 0:
        os.setsid()
        work(folder)
    if (middle := os.fork()) == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            os.environ.clear()
            work(folder)
        os._exit(0)
    os.waitpid(middle, 0)
    with (folder / "pids").open("a") as file:
        file.write(f"{os.getpid()}\n")
    while len((folder / "pids").read_text().splitlines()) < 3:
        time.sleep(0.01)
    (folder / "up").touch()
    if port is not None:
        serve(port)
    if code is None:
        time.sleep(300)
    elif code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    told = sys.argv[2:]
    served = int(told[1]) if told[:1] == ["--http"] else None
    main(Path(sys.argv[1]), int(told[0]) if told and served is None else None, served)
