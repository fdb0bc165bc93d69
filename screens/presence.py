"""Is anybody still there? The terminal that a console was opened in, or the web page, may go without a word."""

import os
import select
import signal
import sys
import threading
import time

LOOK_S = 5.0
"""Between looks."""
_THE_PAGES = ("TEXTUAL_DRIVER", "TEXTUAL_FPS", "TEXTUAL_COLOR_SYSTEM", "COLUMNS", "ROWS")
"""What textual-serve says to a console, and to nobody else."""


def anybody(*, web: bool) -> bool:
    """Whether the terminal is still there; for a web page, whether its server still holds the other end."""
    if not web:
        return os.isatty(0)
    if sys.platform == "win32":
        return True
    poll = select.poll()
    try:
        poll.register(0, select.POLLIN)
        return not any(happened & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, happened in poll.poll(0))
    except OSError:
        return False


def leave_when_gone(*, web: bool) -> None:
    """End the process some seconds after nobody is there any more.

    A thread, because the event loop may be stuck by then in a write that nobody takes.
    """
    threading.Thread(target=_leave, args=(web,), name="presence", daemon=True).start()


def _leave(web: bool) -> None:
    while anybody(web=web):
        time.sleep(LOOK_S)
    time.sleep(2 * LOOK_S)
    os._exit(128 + signal.SIGHUP)


def forget_the_page() -> None:
    """Once the page's console has begun, what it was told of its page is not for the processes that it starts."""
    for name in _THE_PAGES:
        os.environ.pop(name, None)
