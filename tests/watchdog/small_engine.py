"""A process that answers like an engine, as far as probes ask: `python small_engine.py KIND FOLDER`.

It writes its port to FOLDER/port, and does what the words in FOLDER/mood say, if there are any: `hang` (no token
comes), `busy` (no token comes, but passes and queue move), `detokenizer` (passes move without a queue), `starting`,
`refuse`, `broken`. It writes down the questions in FOLDER/asked.
"""

import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

KIND, FOLDER = sys.argv[1], Path(sys.argv[2])
OWNER = {"sglang": "sglang", "vllm": "vllm", "reference": "eagle3ops"}.get(KIND, "somebody")
passes = 0


def mood() -> str:
    """What it is to do now."""
    try:
        return (FOLDER / "mood").read_text()
    except OSError:
        return ""


class Handler(BaseHTTPRequestHandler):
    """The routes."""

    def do_GET(self) -> None:
        global passes
        with (FOLDER / "asked").open("a") as file:
            file.write(f"{self.path}\n")
        if self.path == "/v1/models":
            return self.answer(200, {"data": [{"id": "small", "owned_by": OWNER}]})
        if self.path == "/health":
            return self.answer(503 if mood() == "starting" else 200, {})
        if self.path == "/metrics":
            passes += 10 if mood() in ("busy", "detokenizer") else 0
            queued = 3 if mood() == "busy" else 0
            text = f'sglang:cuda_graph_passes_total{{mode="x"}} {passes}\nsglang:num_queue_reqs {queued}\n'
            return self.answer(200, text)
        return self.answer(404, {})

    def do_POST(self) -> None:
        with (FOLDER / "asked").open("a") as file:
            file.write(f"{self.path}\n")
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        while mood() in ("hang", "busy", "detokenizer"):
            time.sleep(0.02)
        if mood() == "refuse":
            return self.answer(400, {"error": "it embeds, and generates nothing"})
        if mood() == "broken":
            return self.answer(500, {})
        return self.answer(200, {"text": "x", "output_ids": [1]})

    def answer(self, status: int, body: Any) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            return

    def log_message(self, *_: Any) -> None:
        """Nothing."""


class Server(ThreadingHTTPServer):
    """Many at once."""

    daemon_threads = True


server = Server(("127.0.0.1", 0), Handler)
(FOLDER / "port.new").write_text(str(server.server_address[1]))
(FOLDER / "port.new").rename(FOLDER / "port")
sys.stdout.write("The server is fired up and ready to roll!\n")
sys.stdout.flush()
parent = os.getppid()
threading.Thread(target=server.serve_forever, daemon=True).start()
while os.getppid() == parent:
    time.sleep(0.1)
