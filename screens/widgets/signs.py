"""With which characters are verdicts, folds and tokens marked?"""

from dataclasses import dataclass

from eagle3ops.screens.widgets.glyphs import ASCII, Glyphs


@dataclass(frozen=True, slots=True)
class Signs:
    """One set of characters, each one cell wide where nothing else is said."""

    yes: str
    no: str
    said: str
    """What a side says of itself, and nobody has measured."""
    arrow: str
    top: str
    """The first row of a column of layers; two cells."""
    fold: str
    """Rows that are left out; two cells."""
    newline: str
    tab: str
    space: str
    """A blank where blanks are shown."""
    missed: str
    """Before a token that the drafter cannot propose."""
    edge: str
    """Between tokens where their edges are shown."""
    bytes: tuple[str, str]
    """Around bytes that are no character."""
    control: str
    """In place of a control character."""


PICTURED = Signs("✓", "✗", "●", "→", "┌ ", "┆ ", "↵", "⇥", "·", "×", "│", ("‹", "›"), "␦")
PLAIN = Signs("v", "x", "o", ">", ",-", ": ", "$", ">", ".", "!", "|", ("<", ">"), "?")


def signs_of(glyphs: Glyphs) -> Signs:
    """The set that goes with a set of glyphs."""
    return PLAIN if glyphs == ASCII else PICTURED
