"""How does the console write to a terminal that may go away at any moment? Without ever waiting for it.

Textual writes from a thread, through a queue of 30. When the terminal has gone, a write fails, the thread ends, the
queue fills, and the console would wait for ever for room in it, on its way out too. Here what cannot be written is
dropped.
"""

from contextlib import suppress
from typing import IO, Any

from textual.driver import Driver

Stream = IO[str]


class Gone:
    """A stream whose reader may be gone: what it takes no more is dropped."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, or drop it."""
        with suppress(OSError, ValueError):
            return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, or drop what was not written."""
        with suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def forgiving(driver: type[Driver]) -> type[Driver]:
    """The same driver, for a terminal that may go away; of a driver that writes otherwise, itself."""
    if driver.__name__ != "LinuxDriver":
        return driver

    class TerminalDriver(driver):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self.__dict__["_file"] = Gone(self.__dict__["_file"])

    return TerminalDriver
