"""What does a browser get from `eagle3ops web`? A page, what it is made of, and a line to a console of its own."""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

import textual_serve
from aiohttp import WSMsgType, web
from textual_serve.download_manager import DownloadManager

from eagle3ops.errors import RequestError
from eagle3ops.web import guard
from eagle3ops.web.session import BadMessage, Session, size

MOST_CONSOLES = 12
"""Open at once; each is a process of some 60 MB with a connection of its own to the host."""
MESSAGE_BYTES = 1 << 20
"""The longest thing that a page may say at once: what is pasted."""
HEARTBEAT_S = 15.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STATIC = Path(textual_serve.__file__).parent / "static"
TITLE = "eagle3ops"

Say = Callable[[str], None]


class WebConsole:
    """A server that starts `argv` once for each page that is opened."""

    def __init__(self, argv: Sequence[str], *, title: str = TITLE, say: Say, key: str | None = None) -> None:
        self.key = key or guard.new_key()
        self._argv = list(argv)
        self._title = title
        self._say = say
        self._page = Template((files("eagle3ops.assets") / "web.html").read_text(encoding="utf-8"))
        self._downloads = DownloadManager()
        self._sockets: set[web.WebSocketResponse] = set()
        self._sessions: set[Session] = set()

    def application(self) -> web.Application:
        """The routes; all but a download, whose name is a key of its own, lie below the key."""
        app = web.Application()
        app.router.add_get("/{key}/", self._index)
        app.router.add_get("/{key}/ws", self._socket)
        app.router.add_get("/{key}/static/{path:.+}", self._static)
        app.router.add_get("/download/{file}", self._download)
        app.router.add_route("*", "/{rest:.*}", self._nothing)
        app.on_shutdown.append(self._hang_up)
        return app

    async def run(self, listener: socket.socket, told: Callable[[str], None]) -> int:
        """Serve until a signal comes; returns its number. `told` gets the address once it answers."""
        loop, stopped = asyncio.get_running_loop(), asyncio.Future[int]()
        for number in SIGNALS:
            loop.add_signal_handler(number, _settle, stopped, number)
        # The log of requests would hold the key.
        runner = web.AppRunner(self.application(), access_log=None, shutdown_timeout=2.0)
        await runner.setup()
        try:
            await web.SockSite(runner, listener).start()
            told(self.address(listener))
            return await stopped
        finally:
            await runner.cleanup()

    def address(self, listener: socket.socket) -> str:
        """What to open."""
        name, port = listener.getsockname()[:2]
        return f"http://{f'[{name}]' if ':' in name else name}:{port}/{self.key}/"

    def _checked(self, request: web.Request, purpose: guard.Purpose) -> None:
        why = guard.refusal(request.headers, purpose)
        if why is not None:
            self._say(f"refused: {why}")
            raise web.HTTPForbidden(text=f"eagle3ops: refused: {why}\n")
        given = request.match_info.get("key")
        if given is not None and not guard.right_key(given, self.key):
            text = "eagle3ops: this address is not, or no longer, right. Open the one that `eagle3ops web` printed.\n"
            raise web.HTTPForbidden(text=text)

    async def _nothing(self, request: web.Request) -> web.StreamResponse:
        self._checked(request, "page")
        raise web.HTTPForbidden(text="eagle3ops: open the address that `eagle3ops web` printed.\n")

    async def _index(self, request: web.Request) -> web.StreamResponse:
        self._checked(request, "page")
        nonce = secrets.token_urlsafe(16)
        try:
            font_size = min(max(int(request.query.get("fontsize", "15")), 6), 40)
        except ValueError:
            font_size = 15
        text = self._page.substitute(
            title=_escaped(self._title),
            nonce=nonce,
            socket=f"ws://{_escaped(request.host)}/{self.key}/ws",
            font_size=font_size,
        )
        return web.Response(text=text, content_type="text/html", headers=guard.headers(nonce, request.host))

    async def _static(self, request: web.Request) -> web.StreamResponse:
        self._checked(request, "part")
        wanted = STATIC / request.match_info["path"]
        if not wanted.resolve().is_relative_to(STATIC.resolve()) or not wanted.is_file():
            raise web.HTTPNotFound
        return web.FileResponse(wanted, headers=guard.headers("none", request.host) | {"Cache-Control": "no-cache"})

    async def _download(self, request: web.Request) -> web.StreamResponse:
        self._checked(request, "download")
        key = request.match_info["file"]
        try:
            meta = await self._downloads.get_download_metadata(key)
        except KeyError as error:
            raise web.HTTPNotFound from error
        response = web.StreamResponse(headers=guard.headers("none", request.host))
        response.content_type = "application/octet-stream"
        name = "".join(one for one in meta.file_name if one.isalnum() or one in "-_. ") or "file"
        response.headers["Content-Disposition"] = f'attachment; filename="{name.encode("ascii", "replace").decode()}"'
        await response.prepare(request)
        async for chunk in self._downloads.download(key):
            await response.write(chunk)
        await response.write_eof()
        return response

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        self._checked(request, "socket")
        if len(self._sockets) >= MOST_CONSOLES:
            self._say(f"refused: {MOST_CONSOLES} consoles are open already; close one")
            raise web.HTTPServiceUnavailable(text=f"{MOST_CONSOLES} consoles are open already; close one\n")
        try:
            width, height = size(request.query.get("width", 80), request.query.get("height", 24))
        except ValueError as error:
            raise web.HTTPBadRequest(text=f"{error}\n") from error
        line = web.WebSocketResponse(heartbeat=HEARTBEAT_S, max_msg_size=MESSAGE_BYTES)
        self._sockets.add(line)
        try:
            await line.prepare(request)
            await self._converse(line, width, height)
        finally:
            self._sockets.discard(line)
        return line

    async def _converse(self, line: web.WebSocketResponse, width: int, height: int) -> None:
        session = Session(
            self._argv,
            write_bytes=line.send_bytes,
            write_str=line.send_str,
            close=_closing(line),
            downloads=self._downloads,
        )
        self._sessions.add(session)
        self._say(f"a page was opened; consoles: {len(self._sessions)}")
        try:
            await session.start(width, height)
            async for message in line:
                if message.type is WSMsgType.TEXT:
                    await session.take(message.data)
        except BadMessage as error:
            self._say(f"a page was closed that said what none of ours says: {error}")
        except OSError as error:
            self._say(f"no console could be started: {error}")
        finally:
            # Shielded: a server that leaves must not leave a console behind.
            await asyncio.shield(asyncio.create_task(session.stop()))
            self._sessions.discard(session)
            self._say(f"a page was closed; consoles: {len(self._sessions)}")
            await line.close()

    async def _hang_up(self, _: web.Application) -> None:
        """Close every page, and wait until its console has ended."""
        for line in list(self._sockets):
            with contextlib.suppress(OSError, RuntimeError):
                await line.close(code=1001, message=b"the server ends")
        await asyncio.gather(*(session.stop() for session in list(self._sessions)), return_exceptions=True)


def _settle(future: asyncio.Future[int], value: int) -> None:
    if not future.done():
        future.set_result(value)


def _closing(line: web.WebSocketResponse) -> Callable[[], Awaitable[None]]:
    async def close() -> None:
        with contextlib.suppress(OSError, RuntimeError):
            await line.close()

    return close


def _escaped(text: str) -> str:
    from html import escape

    return escape(text, quote=True)


def listen(address: str, port: int | None, usual: int, tries: int = 20) -> socket.socket:
    """A socket on loopback; without a port the usual one, or one of the next where that is taken.

    Raises:
        RequestError: not loopback, or taken.
    """
    if not guard.is_loopback(address):
        here = os.environ.get("SSH_CONNECTION", "").split()[2:3] or ["this-machine"]
        wanted = port or usual
        raise RequestError(
            f"--listen {address}: the web console answers on this machine's loopback only: what it serves can end "
            "runs, and it neither encrypts nor asks for a password",
            remedy=f"from another machine: ssh -L {wanted}:localhost:{wanted} {here[0]}, then open the printed address "
            "there",
        )
    name = "127.0.0.1" if address.lower() == "localhost" else address.strip("[]")
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    failure: OSError | None = None
    for candidate in [port] if port is not None else range(usual, usual + tries):
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((name, candidate))
            listener.listen(64)
        except OSError as error:
            listener.close()
            failure = error
        else:
            return listener
    assert failure is not None
    raise RequestError(
        f"{address}:{port or usual}: {failure.strerror or failure}", remedy="another port: eagle3ops web --port 0"
    )
