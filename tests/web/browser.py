"""A real browser without a window, driven by its own protocol (CDP); no driver has to be installed."""

import asyncio
import base64
import itertools
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientWebSocketResponse, WSMsgType

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--password-store=basic",
    "--remote-debugging-port=0",
    "about:blank",
)
WAIT_S = 40.0


class Tab:
    """One tab: where it goes, what is typed into it, what it loads, says and shows."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self.requests: list[str] = []
        self.said: list[str] = []
        """What the page wrote to its console, and what went wrong in it."""
        self._socket = socket
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            if message.type is not WSMsgType.TEXT:
                break
            told = message.json()
            if "id" in told:
                self._waiting.pop(told["id"]).set_result(told)
            elif told["method"] == "Network.requestWillBeSent":
                self.requests.append(told["params"]["request"]["url"])
            elif told["method"] == "Network.webSocketCreated":
                self.requests.append(told["params"]["url"])
            elif told["method"] in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
                self.said.append(str(told["params"]))

    async def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        number = next(self._ids)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": arguments})
        told = await asyncio.wait_for(answer, WAIT_S)
        assert "error" not in told, told
        found: dict[str, Any] = told["result"]
        return found

    async def evaluate(self, code: str) -> Any:
        told = await self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    async def key(self, key: str, code: int | None = None) -> None:
        """Press a key as a person does."""
        text = key if len(key) == 1 else ""
        facts = {"key": key, "windowsVirtualKeyCode": code or ord(key.upper())}
        await self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **facts)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **facts)

    async def until(self, code: str, what: Callable[[Any], bool] = bool) -> Any:
        """Wait until an expression is as wanted."""
        value = None
        for _ in range(int(WAIT_S * 10)):
            value = await self.evaluate(code)
            if what(value):
                return value
            await asyncio.sleep(0.1)
        raise AssertionError(f"{code} is still {value!r}; the page said {self.said}")

    async def picture(self) -> bytes:
        """What the tab shows, as PNG."""
        told = await self.call("Page.captureScreenshot", format="png")
        return base64.b64decode(told["data"])


@asynccontextmanager
async def tab(folder: Path, width: int = 1280, height: int = 720) -> AsyncIterator[Tab]:
    """A browser with a profile of its own in `folder`, and a tab in it."""
    assert CHROMIUM is not None
    process = await asyncio.create_subprocess_exec(
        CHROMIUM,
        *_FLAGS[:-1],
        f"--user-data-dir={folder}",
        f"--window-size={width},{height}",
        _FLAGS[-1],
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
        env=os.environ | {"HOME": str(folder)},
    )
    try:
        announced = folder / "DevToolsActivePort"
        for _ in range(int(WAIT_S * 20)):
            if announced.is_file() and announced.read_text().count("\n"):
                break
            await asyncio.sleep(0.05)
        port = announced.read_text().splitlines()[0]
        async with ClientSession() as http:
            async with http.get(f"http://127.0.0.1:{port}/json/list") as answer:
                target = next(one for one in await answer.json() if one["type"] == "page")
            async with http.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                opened = Tab(socket)
                for domain in ("Page", "Network", "Log", "Runtime"):
                    await opened.call(f"{domain}.enable")
                yield opened
            await opened._reading
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
