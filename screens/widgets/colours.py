"""What may reach a terminal: text only, and where need be no colours, or only ASCII? Every line passes here."""

from functools import lru_cache

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter

_DRAWN = {
    **dict.fromkeys("─┄┅╌╍╴╶╸╺▔▁▂▃", "-"),
    # The pane that has the keys is told from the others by this alone.
    **dict.fromkeys("━═", "="),
    **dict.fromkeys("│┃║┆┇╎╏╵╷╹╻▏▕▌▐▎▍▊▋▉", "|"),
    **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯┏┓┗┛┣┫┳┻╋╔╗╚╝╠╣╦╩╬", "+"),
    **dict.fromkeys("●⏺◆■◼", "*"),
    **dict.fromkeys("○◌◇□⭘", "o"),
    **dict.fromkeys("·•∙⋅", "."),
    **dict.fromkeys("▲△▴↑▀", "^"),
    **dict.fromkeys("▼▽▾↓", "v"),
    **dict.fromkeys("◀◁◂←‹«", "<"),
    **dict.fromkeys("▶▷▸→›»❯", ">"),
    **dict.fromkeys("‘’′", "'"),
    **dict.fromkeys("“”″", '"'),
    **dict.fromkeys("‐‑‒–—−", "-"),
    **dict.fromkeys("█▇▆▓", "#"),
    **dict.fromkeys("▅▄▒", "="),
    "✓": "v",
    "✔": "v",
    "✗": "x",
    "✘": "x",
    "×": "x",
    "░": ".",
    "…": "~",
    "±": "+",
    "≈": "~",
    "°": "o",
    "µ": "u",
    "μ": "u",
    "Ω": "O",
    "\N{NO-BREAK SPACE}": " ",
    "\N{THIN SPACE}": " ",
    "\N{NARROW NO-BREAK SPACE}": " ",
}
_DOTS = " .:-=+*##"


@lru_cache(4096)
def ascii_only(text: str) -> str:
    """The text in ASCII, as wide as it was: marks and lines by what looks like them, anything else as `?`."""
    if text.isascii():
        return text
    return "".join(character if character.isascii() else _in_ascii(character) for character in text)


def _in_ascii(character: str) -> str:
    drawn = _DRAWN.get(character)
    if drawn is not None:
        return drawn
    if 0x2800 <= ord(character) <= 0x28FF:
        return _DOTS[(ord(character) - 0x2800).bit_count()]
    return "?" * cell_len(character)


class Harmless(LineFilter):
    """Nothing but text: whatever a widget was given, no control character and no mark of direction leaves the console.

    Screens take such characters out of what they show already; this is for the one place that forgot to.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The same segments, as wide as they were."""
        return [
            segment if segment.text.isprintable() else Segment(_harmless(segment.text), segment.style, segment.control)
            for segment in segments
        ]


@lru_cache(4096)
def _harmless(text: str) -> str:
    return "".join(character if character.isprintable() else " " * cell_len(character) for character in text)


class AsciiOnly(LineFilter):
    """Nothing but ASCII, whatever a widget draws."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The same segments in ASCII."""
        return [
            segment if segment.text.isascii() else Segment(ascii_only(segment.text), segment.style, segment.control)
            for segment in segments
        ]


class Colourless(LineFilter):
    """No colour at all, as NO_COLOR asks; what stood out by its background is reversed instead."""

    CONTRAST = 0.15
    """Difference of brightness, from 0 to 1, from which on a background stands out."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The same text, bold, dim, underlined or reversed."""
        return [Segment(text, _colourless(style, background), control) for text, style, control in segments]


@lru_cache(4096)
def _colourless(style: Style | None, background: Color) -> Style | None:
    if style is None:
        return None
    reverse = bool(style.reverse)
    if style.bgcolor is not None and not style.bgcolor.is_default:
        own = Color.from_rich_color(style.bgcolor)
        if abs(own.brightness - background.brightness) > Colourless.CONTRAST:
            reverse = not reverse
    return Style(
        bold=style.bold,
        dim=style.dim,
        italic=style.italic,
        underline=style.underline,
        strike=style.strike,
        reverse=reverse or None,
        meta=style.meta,
    )
