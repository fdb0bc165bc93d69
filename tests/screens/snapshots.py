"""Is on the screen what was there before? Text, and the style of every cell, kept in files that a person can read.

`pytest --snapshot-update` writes them anew; look at what changed (`git diff`) before you commit it. They belong to one
version of Textual; with another one the comparison is left out, with the reason.
"""

import difflib
from pathlib import Path

import pytest
import textual
from rich.style import Style
from textual.app import App
from textual.pilot import Pilot

FOLDER = Path(__file__).with_name("snapshots")
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&*+-/:;<=>?@^~"
_QUIET_S, _LOOKS = 0.12, 4
"""What has not changed for so long stays: rooms look for news four times a second."""


class Snapshots:
    """Compares screens with files, or writes the files."""

    def __init__(self, folder: Path, aside: Path, *, update: bool) -> None:
        self._folder, self._aside, self._update = folder, aside, update

    async def match(self, pilot: "Pilot[int]", name: str) -> None:
        """Wait until the screen is still, and compare it with the snapshot of that name."""
        found = await settled(pilot)
        file = self._folder / f"{name}.txt"
        if self._update:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(found, encoding="utf-8")
            return
        if not file.is_file():
            raise AssertionError(f"there is no snapshot {file}; make it: pytest --snapshot-update")
        wanted = file.read_text(encoding="utf-8")
        made_with, here = wanted.split(",")[0], found.split(",")[0]
        if made_with != here:
            pytest.skip(f"the snapshot was made with {made_with}, and this is {here}")
        if found == wanted:
            return
        picture, text = self._aside / f"{name}.svg", self._aside / f"{name}.txt"
        picture.write_text(pilot.app.export_screenshot(), encoding="utf-8")
        text.write_text(found, encoding="utf-8")
        lines = difflib.unified_diff(wanted.splitlines(), found.splitlines(), "snapshot", "screen", lineterm="", n=1)
        raise AssertionError(
            "\n".join([f"{name} looks different; picture: {picture}, text: {text}", *lines])
            + "\nWhere that is right: pytest --snapshot-update"
        )


async def settled(pilot: "Pilot[int]") -> str:
    """The screen, once it no longer changes."""
    before, same = "", 0
    for _ in range(200):
        await pilot.pause(_QUIET_S)
        now = described(pilot.app)
        same = same + 1 if now == before else 0
        if same == _LOOKS:
            return now
        before = now
    raise AssertionError(f"the screen does not come to rest:\n{before}")


def described(app: "App[int]") -> str:
    """The screen as text: what is written, then a letter for the style of each cell, then what the letters mean."""
    letters: dict[str, str] = {}
    written, styled = [], []
    for strip in app.screen._compositor.render_strips():
        written.append(strip.text.rstrip())
        row = ""
        for segment in strip:
            named = _bare(segment.style or Style())
            letter = letters.setdefault(named, _LETTERS[len(letters) % len(_LETTERS)])
            row += letter * segment.cell_length
        styled.append(row)
    width, height = app.size
    head = f"textual {textual.__version__}, {width}x{height}, {type(app.screen).__name__}"
    legend = [f"{letter}  {named}" for named, letter in letters.items()]
    return "\n".join([head, "", *written, "", *styled, "", *legend, ""])


def _bare(style: Style) -> str:
    """Colours and attributes, without what is behind them (links, handlers)."""
    words = [name for name in ("bold", "dim", "italic", "underline", "reverse", "strike") if getattr(style, name)]
    if style.color is not None:
        words.append(style.color.name)
    if style.bgcolor is not None:
        words.append(f"on {style.bgcolor.name}")
    return " ".join(words) or "plain"
