"""The whole of it: `eagle3ops web`, a real browser, and the real console in it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, tab

TEXT = "[...document.querySelectorAll('.xterm-rows > div')].map(row => row.textContent).join('\\n')"


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[subprocess.Popen[str], str]]:
    for name in ("CONFIG", "STATE"):
        monkeypatch.setenv(f"EAGLE3OPS_{name}", str(tmp_path / name.lower()))
    argv = [sys.executable, "-m", "eagle3ops", "web", "--port", "0", "--json", "--read-only"]
    process = subprocess.Popen(
        [*argv, "--root", str(tmp_path / "my runs; exit")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(5)]
    yield process, json.loads("".join(lines))["url"]
    process.kill()
    process.communicate()


def children(pid: int) -> list[int]:
    told = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(one) for one in told.split()]


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
async def test_the_console_in_a_browser(served: tuple[subprocess.Popen[str], str], tmp_path: Path) -> None:
    process, address = served
    async with tab(tmp_path / "profile") as page:
        # A terminal that draws letters into the page, not onto a canvas, can be read.
        await page.call("Page.addScriptToEvaluateOnNewDocument", source=NO_CANVAS)
        await page.call("Page.navigate", url=address)
        await page.until(TEXT, lambda text: "No runs in" in (text or "") and "my runs; exit" in text)
        shown = await page.evaluate(TEXT)
        assert "read-only" in shown
        consoles = children(process.pid)
        assert len(consoles) == 1
        await asyncio.sleep(0.3)
        await page.key("?")
        await page.until(TEXT, lambda text: "search: a key" in text)
        await page.key("Escape", 27)
        await page.until(TEXT, lambda text: "search: a key" not in text)
        if "EAGLE3OPS_PICTURE" in os.environ:
            await asyncio.to_thread(Path(os.environ["EAGLE3OPS_PICTURE"]).write_bytes, await page.picture())
        places = {one.split("/")[2] for one in page.requests if not one.startswith(("data:", "about:"))}
        assert places == {address.split("/")[2]}, "nothing is loaded from elsewhere"
        assert not [one for one in page.said if "Content Security Policy" in one or "exceptionDetails" in one]
        await page.key("q")
        await page.until("document.body.classList.contains('-closed')")
        assert await page.evaluate("document.activeElement.id") == "again"
        for _ in range(100):
            if not children(process.pid):
                break
            await asyncio.sleep(0.05)
        assert children(process.pid) == []
        await page.evaluate("document.getElementById('again').click()")
        await page.until(TEXT, lambda text: "No runs in" in (text or ""))
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 20) == 128 + signal.SIGTERM
        with pytest.raises(ProcessLookupError):
            os.kill(consoles[0], 0)


NO_CANVAS = """
HTMLCanvasElement.prototype.getContext = function () { return null; };
"""
