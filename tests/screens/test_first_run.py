"""What does a person find who has no run, no GPU and no host yet? In every room, what to do next."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from screen_text import until
from textual.widgets import Input

from eagle3ops.screens.app import ConsoleApp
from eagle3ops.screens.launch.room import Launch
from eagle3ops.screens.rooms import ROOMS
from eagle3ops.settings import resolve

NEXT = {
    "overview": ("0 opens Launch", "eagle3ops --job pipeline --root", "eagle3ops doctor"),
    "gpus": ("by CPU", "Host local"),
    "incidents": ("No incident:", "the machine."),
    "ledger": ("0 opens Launch",),
    "launch": ("demo.yaml", "enter Edit"),
}


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short name: where 60 columns are all there is, the words below a long one are scrolled away."""
    with tempfile.TemporaryDirectory(prefix="e") as folder:
        yield Path(folder)


@pytest.mark.parametrize("size", [(60, 20), (120, 36)])
async def test_every_room_says_what_to_do_next(short: Path, size: tuple[int, int]) -> None:
    app = ConsoleApp(str(short / "my runs"), resolved=resolve({"ascii": True}))
    async with app.run_test(size=size) as pilot:
        await until(pilot, "No runs in")
        for entry in ROOMS:
            await pilot.press(entry.key)
            text = await until(pilot, *NEXT.get(entry.name, ("There is no run yet.", "0 opens Launch")))
            assert text.isascii()
        # A path is quoted in what one is to type.
        await pilot.press("1")
        # However the path is broken into lines.
        assert "/myruns'" in "".join((await until(pilot, "enter Open")).split())
        await pilot.press("enter")
        await until(pilot, "enter Edit", "? Help")
        assert isinstance(pilot.app.screen, Launch)
        # What is typed into a field is not what `?` stands for elsewhere.
        await pilot.press("slash")
        await until(pilot, "F1 Help")
        await pilot.press("question_mark")
        assert pilot.app.screen.query_one("#words", Input).value == "?"
