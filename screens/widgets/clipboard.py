"""How does text get from the console to the person's clipboard? Through the terminal, through tmux, or in a file."""

import asyncio
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

OSC_52_BYTES = 70_000
"""Terminals drop longer sequences, and do not say so: 100,000 bytes of base64 is what most take."""

TMUX_WAIT_S = 3.0
_CANNOT = ("dumb", "linux", "vt100", "vt220")


async def copy(text: str, send: Callable[[str], None], environment: Mapping[str, str] = os.environ) -> str:
    """Copy, and return in words where to.

    Args:
        text: what to copy.
        send: writes the OSC 52 sequence of a text to the terminal.
        environment: says which terminal that is.
    """
    small = len(text.encode()) <= OSC_52_BYTES
    if "TMUX" in environment:
        # By default tmux takes no OSC 52 from what runs in it, and does not say so.
        allowed, said = await _tmux("show-options", "-gv", "set-clipboard")
        if allowed and said.strip() == "on" and small:
            send(text)
            return "to the clipboard, through tmux (OSC 52)"
        if (await _tmux("load-buffer", "-w", "-", given=text))[0]:
            return "to the tmux buffer (prefix ] pastes it)"
    elif small and "STY" not in environment and environment.get("TERM", "dumb") not in _CANNOT:
        send(text)
        return "to the clipboard of the terminal (OSC 52)"
    return f"to the file {await asyncio.to_thread(_write, text)}"


def _write(text: str) -> Path:
    handle, name = tempfile.mkstemp(prefix="eagle3ops-copied-", suffix=".txt")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    return Path(name)


async def _tmux(*arguments: str, given: str = "") -> tuple[bool, str]:
    """Whether tmux did it, and what it said."""
    try:
        process = await asyncio.create_subprocess_exec(
            *("tmux", *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return False, ""
    try:
        async with asyncio.timeout(TMUX_WAIT_S):
            said, _ = await process.communicate(given.encode())
    except TimeoutError:
        process.kill()
        await process.wait()
        return False, ""
    return process.returncode == 0, said.decode(errors="replace")
