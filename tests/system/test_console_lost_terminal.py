"""Does a console end when its terminal is gone and no signal says so?"""

import os
import pty
import select
import subprocess
import sys
from pathlib import Path

from eagle3ops.screens.base import _plain_action


def test_a_terminal_that_is_gone_without_a_signal_ends_the_console(tmp_path: Path) -> None:
    near, far = pty.openpty()
    try:
        # Not its controlling terminal, so nobody sends SIGHUP: as with a shell that ignores it.
        process = subprocess.Popen(
            [sys.executable, "-m", "eagle3ops", "--root", str(tmp_path / "root")],
            stdin=far,
            stdout=far,
            stderr=far,
            env=os.environ | {"EAGLE3OPS_CONFIG": str(tmp_path), "TERM": "xterm-256color"},
            start_new_session=True,
        )
        os.close(far)
        seen = b""
        while b"No runs in" not in seen:
            assert select.select([near], [], [], 60)[0], seen[-2000:]
            seen += os.read(near, 65536)
    finally:
        os.close(near)
    assert process.wait(90) == 129


def test_actions_have_names_of_their_own() -> None:
    names = {action: _plain_action(action) for action in ("page(-0.5)", "page(0.5)", "page(1)", "move(-1, True)")}
    assert names == {
        "page(-0.5)": "page-minus-0.5",
        "page(0.5)": "page-0.5",
        "page(1)": "page-1",
        "move(-1, True)": "move-minus-1-true",
    }
    assert _plain_action("app.focus_next") == "focus-next"
    assert _plain_action("ask('search')") == "ask-search"
