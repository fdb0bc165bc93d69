"""With which characters are bars, histories and trees drawn?"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One set of characters, each one cell wide."""

    levels: str
    """Of a history line, lowest first."""
    full: str
    """The filled part of a bar."""
    empty: str
    """The rest of a bar."""
    branch: str
    """Before a child that has younger siblings."""
    last: str
    """Before the last child."""
    through: str
    """Beside the descendants of a child that has younger siblings."""
    more: str
    """Where a text was cut."""
    degree: str
    """Before C."""
    follow: str
    """What goes on at the end of a log."""
    paused: str
    """What stays where it is."""
    cause: str
    """Before why something is looked at."""
    dots: str
    """The empty cell of braille dots; empty where curves are drawn with letters."""
    arrow: str = ">"
    """From one stage to the next."""
    corners: str = "++++"
    """Of a box: top left, top right, bottom left, bottom right."""
    side: str = "|"
    """Of a box, upright."""
    flat: str = "-"
    """Of a box, level."""


BLOCKS = Glyphs(
    levels="▁▂▃▄▅▆▇█",
    full="█",
    empty="░",
    branch="├ ",
    last="└ ",
    through="│ ",
    more="…",
    degree="°",
    follow="▶",
    paused="■",
    cause="→",
    dots="\u2800",
    arrow="→",
    corners="╭╮╰╯",
    side="│",
    flat="─",
)
ASCII = Glyphs(
    levels="_.-:=+*#",
    full="#",
    empty=".",
    branch="|-",
    last="`-",
    through="| ",
    more=">",
    degree=" ",
    follow=">",
    paused="=",
    cause="->",
    dots="",
)


def glyphs_of(app: object) -> Glyphs:
    """The set that an app was told to use."""
    found = getattr(app, "glyphs", BLOCKS)
    return found if isinstance(found, Glyphs) else BLOCKS


def history_line(values: "list[float | None]", top: float, glyphs: Glyphs) -> str:
    """One character a value, scaled from 0 to `top`; what is absent is a blank, what is 0 is not."""
    steps = len(glyphs.levels)
    return "".join(
        " " if value is None else glyphs.levels[min(steps - 1, max(0, int(value / top * steps)))] if top > 0 else " "
        for value in values
    )


def bar(share: float | None, width: int, glyphs: Glyphs) -> str:
    """A bar of `width` cells; blank when the share is not known."""
    if share is None:
        return " " * width
    filled = round(min(1.0, max(0.0, share)) * width)
    return glyphs.full * filled + glyphs.empty * (width - filled)
