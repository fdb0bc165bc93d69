"""How does the console come up fast? The agent of this machine starts while Textual is still being imported.

Nothing here imports Textual before that; the agent is a process of its own and gets the other core.
"""

import asyncio
import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from eagle3ops.hosts.local import LocalTransport

LOCAL = "local"


def main(root: str | None, host: str, given: Mapping[str, Any]) -> int:
    """Open the console on a host; returns the exit code: 0, 1 after a crash, 143 or 129 after a signal.

    Args:
        root: folder of runs and stage outputs; None is the host's usual one.
        host: `local`, a name of hosts.yaml, or `ssh://user@host:port`.
        given: the settings that stand on the command line.

    Raises:
        RequestError: there is no such host, or a setting is wrong.
    """
    if "TEXTUAL_DRIVER" not in os.environ:
        # A shell that exports its size would fix the console's: no change of the terminal's would count any more.
        for name in ("COLUMNS", "LINES"):
            os.environ.pop(name, None)
    return asyncio.run(_main(root, host, given))


async def _main(root: str | None, host: str, given: Mapping[str, Any]) -> int:
    early = LocalTransport() if host == LOCAL else None
    if early is not None:
        await early.open_early()
    try:
        from eagle3ops.settings import resolve

        app = import_module("eagle3ops.screens.app").ConsoleApp(root, host, resolve(given), transport=early)
        await app.run_async()
    finally:
        if early is not None:
            await early.close_early()
    app.tell_crash()
    return app.return_code or 0
