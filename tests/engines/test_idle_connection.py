"""Does a client that was busy for a while get through to a server that closes idle connections?"""

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from eagle3ops.engines.client import EngineClient


class Impatient(BaseHTTPRequestHandler):
    """Keeps a connection, and closes it when nothing comes for 3 s; uvicorn does after 5."""

    protocol_version = "HTTP/1.1"
    timeout = 3
    connections: list[int]

    def do_GET(self) -> None:
        self._answer(b"{}")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(b'{"usage": {"prompt_tokens": 3}}')

    def _answer(self, body: bytes) -> None:
        self.connections.append(self.client_address[1])
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    Impatient.connections = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Impatient) as found:
        thread = threading.Thread(target=found.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{found.server_address[1]}"
        found.shutdown()


async def test_a_client_that_was_busy_gets_through(server: str) -> None:
    async with EngineClient(server) as client:
        await client.server_info()
        await client.server_info()
        # As while it reads a large answer: nothing else runs meanwhile, so nobody sees the connection being closed.
        time.sleep(4)  # noqa: ASYNC251
        assert (await client.chat([{"role": "user", "content": "x"}]))["usage"] == {"prompt_tokens": 3}
    first, second, third = Impatient.connections
    assert first == second
    assert third != first
