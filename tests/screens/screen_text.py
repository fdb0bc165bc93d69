"""What stands on the screen, for tests that wait for it."""

from textual.app import App
from textual.pilot import Pilot
from textual.widgets._toast import Toast


async def until(pilot: "Pilot[int]", *words: str) -> str:
    """Wait until all the words are on the screen; returns its text."""
    text = ""
    for _ in range(600):
        await pilot.pause(0.05)
        if pilot.app._exception is not None:
            raise pilot.app._exception
        text = shown(pilot.app)
        if all(word in text for word in words):
            return text
    raise AssertionError(f"{[word for word in words if word not in text]} did not appear in:\n{text}")


def shown(app: App[int]) -> str:
    """The text of the screen, line by line, and after it that of its notices unbroken.

    Where a notice breaks its lines depends on the length of paths and numbers in it.
    """
    lines = [line.text for line in app.screen._compositor.render_strips()]
    return "\n".join([*lines, *(toast._notification.message for toast in app.screen.query(Toast))])
