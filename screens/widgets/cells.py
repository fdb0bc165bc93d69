"""How do texts, sizes and rates become cells of a line?

A line is a list of parts, each a text with the name of a look; what the looks are is for the widget that paints them.
Few parts a line, as every change of look costs bytes on the way to the terminal.
"""

from rich.cells import cell_len, set_cell_size

from eagle3ops.screens.feeds.machine import STALE_S
from eagle3ops.screens.widgets.glyphs import Glyphs
from eagle3ops.words import human_bytes

Line = tuple[tuple[str, str], ...]
"""Texts with their looks: `plain`, `dim`, `head`, `good`, `warn`, `bad`, `history`, `stale`."""
ABSENT = "-"
WIDE = 130
"""From this width on there is room for more columns."""


def cell(text: str, width: int, glyphs: Glyphs, *, right: bool = False) -> str:
    """The text in exactly `width` cells, cut where it is longer."""
    length = cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + glyphs.more if width > 0 else ""
    return " " * (width - length) + text if right else text + " " * (width - length)


def amount(value: float | None, unit: str) -> str:
    """`97 %`; `-` for what is not known."""
    return ABSENT if value is None else f"{value:,.0f} {unit}"


def size(value: float | None) -> str:
    """`1.4 GiB`; `-` for what is not known."""
    return ABSENT if value is None else human_bytes(value)


def rate(value: float | None) -> str:
    """`1.4 GiB/s`; `-` for what is not known."""
    return ABSENT if value is None else f"{human_bytes(value)}/s"


def pair(one: float | None, other: float | None, suffix: str = "") -> str:
    """`12.3/141 GiB`: two sizes in the unit of the larger."""
    known = [value for value in (one, other) if value is not None]
    if not known:
        return ABSENT
    unit = human_bytes(max(known)).split()[1]
    scale = 1024 ** ("B", "KiB", "MiB", "GiB", "TiB", "PiB").index(unit)
    places = 0 if unit == "B" else 1
    figures = [None if value is None else value / scale for value in (one, other)]
    told = [ABSENT if value is None else f"{value:.{places if value < 1000 else 0}f}" for value in figures]
    return f"{told[0]}/{told[1]} {unit}{suffix}"


def aged(text: str, age: float) -> str:
    """`~` before what was read too long before the rest; the screen says what that means."""
    return f"~{text}" if age > STALE_S else text
