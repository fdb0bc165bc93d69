"""What does `eagle3ops web` do? Serve the console to a browser on this machine, until it is told to end."""

import asyncio
import contextlib
import os
import sys
from argparse import Namespace
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from eagle3ops import settings
from eagle3ops.commands.config import given
from eagle3ops.commands.output import write, write_json
from eagle3ops.errors import RequestError
from eagle3ops.hosts.registry import LOCAL, find_host
from eagle3ops.words import plain

USUAL_PORT = 7333


def argv(root: str | None, host: str | None, options: Mapping[str, Any]) -> list[str]:
    """The command line of the console that each page gets."""
    words = [sys.executable, "-m", "eagle3ops"]
    if root is not None:
        words += ["--root", root]
    if host is not None:
        words += ["--host", host]
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(option if value else option.replace("--", "--no-", 1))
        else:
            words += [option, str(value)]
    return words


def web(args: Namespace, root: str | None, host: str | None, *, json: bool) -> int:
    """`eagle3ops web`; returns 128 and the number of the signal that ended it.

    Raises:
        RequestError: not on loopback, the port is taken, there is no such host, a setting is wrong, or textual-serve is
            not installed.
    """
    if find_spec("textual_serve") is None:
        raise RequestError("the web console needs textual-serve", remedy="pip install 'eagle3ops[web]'")
    if host not in (None, LOCAL):
        find_host(host or "")
    options = given(args)
    settings.resolve(options)
    from eagle3ops.web.server import WebConsole, listen

    listener = listen(args.listen, args.port, USUAL_PORT)
    title = "eagle3ops" if host in (None, LOCAL) else f"eagle3ops {host}"
    console = WebConsole(argv(root, host, options), title=title, say=_say)

    def told(address: str) -> None:
        port = listener.getsockname()[1]
        if json:
            write_json({"url": address, "port": port, "pid": os.getpid()})
        else:
            write(address)
        _say("open it in a browser on this machine; whoever has the address can use the console")
        _say(f"from another machine: ssh -L {port}:localhost:{port} {_this_machine()}, then open it there")
        _say("Ctrl-C ends it and its consoles; runs go on")

    async def serve() -> int:
        # Standard output is data: what a console's process said last goes to people.
        address = asyncio.get_running_loop().create_future()
        number = asyncio.create_task(console.run(listener, address.set_result))
        await asyncio.wait([number, address], return_when=asyncio.FIRST_COMPLETED)
        if address.done():
            told(address.result())
        with contextlib.redirect_stdout(sys.stderr):
            return await number

    return 128 + asyncio.run(serve())


def _this_machine() -> str:
    import socket

    return plain(socket.gethostname())


def _say(text: str) -> None:
    sys.stderr.write(f"eagle3ops web: {plain(text)}\n")
    sys.stderr.flush()
