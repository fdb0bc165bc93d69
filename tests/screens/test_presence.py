"""Does a console notice that its terminal, or its web page, is gone?"""

import contextlib
import os
import pty

import pytest

from eagle3ops.screens import presence


@pytest.mark.parametrize("web", [True, False])
def test_somebody_who_leaves_is_missed(web: bool) -> None:
    there, here = os.pipe() if web else pty.openpty()[::-1]
    kept = os.dup(0)
    try:
        os.dup2(there, 0)
        assert presence.anybody(web=web)
        if web:
            os.write(here, b"what was said last")
            os.close(here)
            assert not presence.anybody(web=True), "also while something is left to read"
        else:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 0)
            os.close(null)
            assert not presence.anybody(web=False)
            os.close(here)
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(there)


def test_what_a_page_says_is_not_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEXTUAL_DRIVER", "textual.drivers.web_driver:WebDriver")
    monkeypatch.setenv("COLUMNS", "120")
    presence.forget_the_page()
    assert not {"TEXTUAL_DRIVER", "COLUMNS"} & set(os.environ)


def test_what_a_gone_terminal_takes_no_more_is_dropped() -> None:
    from textual.drivers._writer_thread import WriterThread

    from eagle3ops.screens.terminal import Gone

    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w", buffering=1) as stream:
        writer = WriterThread(Gone(stream))  # type: ignore[arg-type]
        writer.start()
        for _ in range(100):
            writer.write("a line that nobody reads\n")
        writer.stop()
        assert not writer.is_alive()
        # What is still in its buffer would fail once more when it is closed.
        with contextlib.suppress(BrokenPipeError):
            stream.close()
