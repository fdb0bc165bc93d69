"""What does a server look like that is none? The addresses of SGLang's that a probe asks, in front of a worker process.

The standard library is all it needs. A request waits for the worker as long as that takes, as with the real one.
"""

import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Server:
    """Answers on a free port of this machine.

    Args:
        channel: to the worker: a byte there, a byte back for each token.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._turn = threading.Lock()
        self._here = 0
        self._passes = 0
        self._deaf = threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def start(self) -> None:
        """Answer, in threads."""
        # An hour between two looks whether to shut down: an idle server does not wake up.
        threading.Thread(target=self._http.serve_forever, args=(3600.0,), daemon=True).start()

    def deafen(self) -> None:
        """From now on nothing is answered any more."""
        self._deaf.set()

    def generate(self, tokens: int = 1, *, every_s: float = 0.0) -> None:
        """Tokens from the worker, one request at a time; whoever comes meanwhile queues."""
        self._here += 1
        try:
            with self._turn:
                for _ in range(tokens):
                    self._channel.sendall(b"1")
                    if not self._channel.recv(1):
                        # The worker is gone. The one who waits for it is not told, as in the real ones.
                        threading.Event().wait()
                    self._passes += 1
                    time.sleep(every_s)
        except OSError:
            threading.Event().wait()
        finally:
            self._here -= 1

    def _answer(self, path: str) -> tuple[str, str]:
        """Kind and text of an answer."""
        queued = max(0, self._here - 1)
        if path == "/metrics":
            lines = (
                f"sglang:num_running_reqs {self._here - queued}",
                f"sglang:num_queue_reqs {queued}",
                f"sglang:num_used_tokens {self._here * 10}",
                f"sglang:cuda_graph_passes_total {self._passes}",
                f"sglang:generation_tokens_total {self._passes}",
            )
            return "text/plain", "\n".join(lines) + "\n"
        if path == "/get_load":
            return _json([{"dp_rank": 0, "num_reqs": self._here, "num_waiting_reqs": queued, "num_tokens": 0}])
        if path in ("/generate", "/health_generate"):
            self.generate()
            return _json({"text": "a", "output_ids": [1], "meta_info": {"completion_tokens": 1, "prompt_tokens": 1}})
        if path in ("/v1/completions", "/v1/chat/completions"):
            self.generate()
            return _json({"choices": [{"text": "a", "message": {"content": "a"}}]})
        if path == "/v1/models":
            return _json({"object": "list", "data": [{"id": "toy", "object": "model", "owned_by": "sglang"}]})
        if path in ("/model_info", "/get_model_info"):
            return _json({"model_path": "toy", "is_generation": True})
        if path in ("/server_info", "/get_server_info"):
            return _json({"model_path": "toy", "version": "0.5.14"})
        return "text/plain", ""

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if server._deaf.is_set():
                    threading.Event().wait()
                kind, text = server._answer(self.path.partition("?")[0])
                body = text.encode()
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                self.rfile.read(min(2**20, int(self.headers.get("Content-Length") or 0)))
                self.do_GET()

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing: an idle server is silent."""

        return Handler


def _json(value: object) -> tuple[str, str]:
    return "application/json", json.dumps(value)
