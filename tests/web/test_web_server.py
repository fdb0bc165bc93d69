"""Does the web console answer its own page only, and does no console outlive its page?"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, ClientWebSocketResponse, WSMsgType, WSServerHandshakeError
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.commands import web as command
from eagle3ops.errors import RequestError
from eagle3ops.web import guard, session
from eagle3ops.web.server import MOST_CONSOLES, WebConsole, listen

STAND_IN = str(Path(__file__).with_name("stand_in.py"))
NASTY = "a b'\"$(touch /tmp/never) ; & *"


class Desk:
    """A server of stand-ins, and a client that is no browser."""

    def __init__(self, console: WebConsole, server: TestServer, http: ClientSession, said: list[str]) -> None:
        self.console, self.server, self.http, self.said = console, server, http, said
        self.base = f"http://127.0.0.1:{server.port}"
        self.page = f"{self.base}/{console.key}/"

    def socket(self, query: str = "?width=100&height=30", **headers: str) -> Any:
        asked = {"Origin": self.base} | headers
        return self.http.ws_connect(f"{self.page}ws{query}", headers={k: v for k, v in asked.items() if v})

    async def status(self, path: str, **headers: str) -> int:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http.get(path, headers=named) as answer:
            await answer.read()
            return answer.status


@contextlib.asynccontextmanager
async def desk(*words: str) -> AsyncIterator[Desk]:
    said: list[str] = []
    console = WebConsole([sys.executable, STAND_IN, *words], say=said.append)
    server = TestServer(console.application(), host="127.0.0.1")
    async with server, ClientSession() as http:
        yield Desk(console, server, http, said)


async def facts(socket: ClientWebSocketResponse) -> Mapping[str, Any]:
    message = await socket.receive(timeout=20)
    assert message.type is WSMsgType.BINARY, message
    found: dict[str, Any] = json.loads(message.data)
    return found


async def gone(pid: int) -> bool:
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        await asyncio.sleep(0.05)
    return False


async def test_a_page_gets_a_console_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMUX", "/tmp/tmux-0/default,1,0")
    async with desk(NASTY) as here:
        async with here.http.get(here.page) as answer:
            text, policy = await answer.text(), answer.headers["Content-Security-Policy"]
        assert f"ws://127.0.0.1:{here.server.port}/{here.console.key}/ws" in text
        assert "default-src 'none'" in policy
        assert "http://" not in text.replace("http://www.w3.org", ""), "nothing is loaded from elsewhere"
        assert "https://" not in text
        for part in ("js/textual.js", "css/xterm.css", "fonts/RobotoMono-VariableFont_wght.ttf"):
            assert await here.status(f"{here.page}static/{part}", Sec_Fetch_Site="same-origin") == 200
        assert await here.status(f"{here.page}static/..%2fserver.py") == 404
        async with here.socket() as one, here.socket("?width=99999&height=-3") as other:
            first, second = await facts(one), await facts(other)
            assert first["pid"] != second["pid"]
            assert first["argv"] == [NASTY], "no shell has read it"
            assert (first["size"], second["size"]) == (["100", "30"], ["1000", "4"])
            assert (first["tmux"], first["term"]) == (None, "xterm-256color")
            await one.send_json(["stdin", "q\u00e4"])
            assert (await one.receive(timeout=20)).data == "q\u00e4".encode()
            await one.send_json(["ping", "7"])
            assert (await one.receive_json(timeout=20)) == ["pong", "7"]
            await one.send_json(["resize", {"width": 90, "height": 20}])
            assert json.loads((await one.receive(timeout=20)).data)["width"] == 90
        assert await gone(first["pid"])
        assert await gone(second["pid"])


async def test_only_the_right_page_is_answered() -> None:
    async with desk() as here:
        assert await here.status(here.page) == 200
        assert await here.status(here.base) == 403
        assert await here.status(f"{here.base}/{'x' * 43}/") == 403
        assert await here.status(f"{here.base}/%ff/") == 403
        assert await here.status(here.page, Host="evil.example") == 403, "its name points here (DNS rebinding)"
        assert await here.status(here.page, Host=f"localhost:{here.server.port}") == 200
        assert await here.status(here.page, Host="[::1]:9000") == 200, "behind ssh -L"
        assert await here.status(here.page, Sec_Fetch_Dest="iframe") == 403
        assert await here.status(f"{here.page}static/js/textual.js", Sec_Fetch_Site="cross-site") == 403
        for headers in (
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Origin": ""},
            {"Origin": "http://127.0.0.1:1"},
            {"Host": "evil.example", "Origin": "http://evil.example"},
            {"Sec-Fetch-Site": "cross-site"},
        ):
            with pytest.raises(WSServerHandshakeError) as refused:
                await here.socket(**headers)
            assert refused.value.status == 403, headers
        assert any("evil.example" in words for words in here.said)
        assert await here.status(f"{here.base}/download/{'0' * 32}") == 404


@pytest.mark.parametrize(
    "message",
    ["", "{", "[]", '["stdin"]', '["stdin", 7]', '["resize", {"width": 1e999, "height": null}]', '["x", 1]'],
)
async def test_what_no_page_says_ends_the_console(message: str) -> None:
    async with desk() as here, here.socket() as socket:
        pid = (await facts(socket))["pid"]
        await socket.send_str(message)
        assert (await socket.receive(timeout=20)).type in (WSMsgType.CLOSE, WSMsgType.CLOSED)
        assert await gone(pid)


async def test_a_console_that_does_not_leave_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "LEAVE_S", 0.3)
    async with desk("deaf") as here:
        async with here.socket() as socket:
            pid = (await facts(socket))["pid"]
        assert await gone(pid)
        async with here.socket() as socket:
            pid = (await facts(socket))["pid"]
            await here.server.close()
            assert await gone(pid), "nor when the server leaves"


async def test_a_console_that_ends_or_never_starts_closes_its_page() -> None:
    async with desk() as here, here.socket() as socket:
        os.kill((await facts(socket))["pid"], signal.SIGKILL)
        assert (await socket.receive(timeout=20)).type is WSMsgType.CLOSE
    async with desk("broken") as here, here.socket() as socket:
        assert (await socket.receive(timeout=20)).type is WSMsgType.CLOSE


async def test_there_is_an_end_to_the_consoles() -> None:
    async with desk() as here:
        here.console._sockets.update(object() for _ in range(MOST_CONSOLES))  # type: ignore[misc]
        with pytest.raises(WSServerHandshakeError) as refused:
            await here.socket()
        assert refused.value.status == 503
        here.console._sockets.clear()


@given(st.dictionaries(st.sampled_from(["Host", "Origin", "Sec-Fetch-Site", "Sec-Fetch-Dest"]), st.text(max_size=40)))
def test_no_header_breaks_the_guard(headers: dict[str, str]) -> None:
    why = guard.refusal(headers, "socket")
    if why is None:
        assert headers["Origin"] == f"http://{headers['Host']}"
    else:
        assert why.isascii(), "what a header says is quoted"


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.nip.io", False),
        ("", False),
    ],
)
def test_loopback(name: str, right: bool) -> None:
    assert guard.is_loopback(name) is right


def test_only_loopback_is_listened_on_and_the_way_in_is_told() -> None:
    with pytest.raises(RequestError, match="loopback only") as refused:
        listen("0.0.0.0", None, 7333)
    assert "ssh -L 7333:localhost:7333" in str(refused.value)
    with listen("127.0.0.1", 0, 7333) as first:
        taken = first.getsockname()[1]
        with pytest.raises(RequestError, match="--port 0"):
            listen("localhost", taken, 7333)
        with listen("127.0.0.1", None, taken) as second:
            assert second.getsockname()[1] != taken, "the next that is free"


def test_the_command_line_of_a_console() -> None:
    options = {"read_only": True, "ascii": False, "theme": "nord", "refresh": 2.0}
    assert command.argv(NASTY, "gpu", options)[3:] == [
        *("--root", NASTY, "--host", "gpu"),
        *("--read-only", "--no-ascii", "--theme", "nord", "--refresh", "2.0"),
    ]
