"""With which characters does the launch room say how things stand? Each stands beside a word."""

from dataclasses import dataclass

from eagle3ops.screens.widgets.glyphs import ASCII, Glyphs


@dataclass(frozen=True, slots=True)
class Marks:
    """One set of characters."""

    good: str
    bad: str
    to_do: str
    changed: str
    folded: str
    unfolded: str
    arrow: str


_SIGNS = Marks(good="✓", bad="✗", to_do="●", changed="◆", folded="▸", unfolded="▾", arrow="→")
_ASCII = Marks(good="+", bad="x", to_do="*", changed="*", folded=">", unfolded="v", arrow="->")

NOTHING = "(nothing)"


def marks_of(glyphs: Glyphs) -> Marks:
    """The set that goes with a set of glyphs."""
    return _ASCII if glyphs == ASCII else _SIGNS
