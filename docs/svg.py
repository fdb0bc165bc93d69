"""How does a screen become a picture that looks the same everywhere? SVG that carries the letters it needs.

The letters are those of DejaVu Sans Mono, which comes with matplotlib and may be handed on; only the ones that are used
are embedded. Every run of text says how long it is, so that it stays in its cells where a viewer takes another font.
"""

import base64
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import DEFAULT_TERMINAL_THEME

HEIGHT = 19.0
"""Of a cell, in pixels; a whole number, so that bars and frames meet."""
SIZE = HEIGHT * 2048 / 2384
"""Of the font, whose lines are 2384 of 2048 units high ..."""
WIDTH = SIZE * 1233 / 2048
"""... and whose letters are 1233 wide."""
ASCENT = SIZE * 1901 / 2048
MARGIN = 10.0
_DRAWN = {ord("⭘"): "○", ord("🔎"): "/ "}
"""What the font has not, by what looks like it."""
FONTS = "'DejaVu Sans Mono Used','DejaVu Sans Mono',Menlo,Consolas,monospace"


@dataclass(frozen=True, slots=True)
class Look:
    """What a run of text looks like."""

    colour: str
    bold: bool
    italic: bool
    underline: bool
    strike: bool


@dataclass(frozen=True, slots=True)
class Run:
    """Some cells of one row that look alike."""

    row: int
    column: float
    cells: int
    text: str
    look: Look
    ground: str


def svg(rows: Sequence[Iterable[Segment]], columns: int, title: str, ground: str) -> str:
    """A picture of rows of cells.

    Args:
        rows: what stands in them.
        columns: how many cells a row has.
        title: for those who do not see it.
        ground: colour around the cells, `#rrggbb`.
    """
    runs = [run for number, row in enumerate(rows) for run in _runs(number, row)]
    looks = list(dict.fromkeys(run.look for run in runs if run.text.strip()))
    width, height = columns * WIDTH + 2 * MARGIN, len(rows) * HEIGHT + 2 * MARGIN
    faces = [
        _face(runs, bold=False),
        *([_face(runs, bold=True)] if any(run.look.bold and run.text.strip() for run in runs) else []),
    ]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_px(width)} {_px(height)}" role="img">',
        f"<title>{escape(title)}</title>",
        "<style>",
        *faces,
        f"text{{font:{_px(SIZE)}px {FONTS};white-space:pre}}",
        *(f".{_name(at)}{{{_css(look)}}}" for at, look in enumerate(looks)),
        "</style>",
        f'<rect width="{_px(width)}" height="{_px(height)}" rx="8" fill="{ground}"/>',
        f'<g transform="translate({_px(MARGIN)},{_px(MARGIN)})">',
        '<g shape-rendering="crispEdges">',
        *_grounds(runs, ground),
        "</g>",
    ]
    for run in runs:
        text = run.text.rstrip(" ")
        bare = text.lstrip(" ")
        if bare:
            skipped = len(text) - len(bare)
            cells = run.cells - (len(run.text) - len(text)) - skipped
            parts.append(
                f'<text class="{_name(looks.index(run.look))}" x="{_px((run.column + skipped) * WIDTH)}" '
                f'y="{_px(run.row * HEIGHT + ASCENT)}" textLength="{_px(cells * WIDTH)}">{escape(bare)}</text>'
            )
    return "\n".join([*parts, "</g>", "</svg>", ""])


def _runs(number: int, row: Iterable[Segment]) -> list[Run]:
    """The runs of a row, as long as they can be."""
    found: list[Run] = []
    column = 0
    for segment in row:
        if segment.control:
            continue
        look, ground = _look(segment.style or Style())
        text = segment.text.translate(_DRAWN)
        last = found[-1] if found else None
        # What colour a blank has, nobody sees.
        alike = last is not None and last.ground == ground and (last.look == look or _blank(text, look))
        if last is not None and alike:
            found[-1] = Run(number, last.column, last.cells + segment.cell_length, last.text + text, last.look, ground)
        else:
            found.append(Run(number, column, segment.cell_length, text, look, ground))
        column += segment.cell_length
    return found


def _blank(text: str, look: Look) -> bool:
    return not text.strip(" ") and not look.underline and not look.strike


def _look(style: Style) -> tuple[Look, str]:
    """How letters look, and what is behind them."""
    theme = DEFAULT_TERMINAL_THEME
    front = style.color.get_truecolor(theme) if style.color is not None else theme.foreground_color
    back = style.bgcolor.get_truecolor(theme, foreground=False) if style.bgcolor is not None else theme.background_color
    if style.reverse:
        front, back = back, front
    if style.dim:
        front = type(front)(*(round(0.6 * one + 0.4 * other) for one, other in zip(front, back, strict=True)))
    look = Look(front.hex, bool(style.bold), bool(style.italic), bool(style.underline), bool(style.strike))
    return look, back.hex


def _grounds(runs: Iterable[Run], around: str) -> list[str]:
    """Rectangles behind the text; what is below another and like it is one with it."""
    tall: dict[tuple[float, int, str], list[int]] = {}
    for run in runs:
        if run.ground != around:
            tall.setdefault((run.column, run.cells, run.ground), []).append(run.row)
    drawn = []
    for (column, cells, ground), rows in tall.items():
        start = previous = rows[0]
        for row in [*rows[1:], -1]:
            if row != previous + 1:
                drawn.append((start, column, cells, previous - start + 1, ground))
                start = row
            previous = row
    return [
        f'<rect x="{_px(column * WIDTH)}" y="{_px(row * HEIGHT)}" width="{_px(cells * WIDTH)}" '
        f'height="{_px(high * HEIGHT)}" fill="{ground}"/>'
        for row, column, cells, high, ground in sorted(drawn)
    ]


def _face(runs: Iterable[Run], *, bold: bool) -> str:
    """The letters that are used, as a font."""
    from fontTools.subset import Options, Subsetter
    from fontTools.ttLib import TTFont
    from matplotlib import get_data_path

    name = "DejaVuSansMono-Bold.ttf" if bold else "DejaVuSansMono.ttf"
    font = TTFont(Path(get_data_path()) / "fonts" / "ttf" / name, recalcTimestamp=False)
    options = Options(
        drop_tables=["FFTM"], layout_features=[], hinting=False, notdef_outline=True, name_IDs=[0, 13], flavor="woff"
    )
    subsetter = Subsetter(options)
    subsetter.populate(unicodes={ord(one) for run in runs if run.look.bold is bold for one in run.text} | {0x20})
    subsetter.subset(font)
    font.flavor = "woff"
    data = io.BytesIO()
    font.save(data)
    weight = "bold" if bold else "normal"
    source = base64.b64encode(data.getvalue()).decode()
    return (
        f"@font-face{{font-family:'DejaVu Sans Mono Used';font-weight:{weight};"
        f"src:url(data:font/woff;base64,{source}) format('woff')}}"
    )


def _css(look: Look) -> str:
    rules = [f"fill:{look.colour}"]
    if look.bold:
        rules.append("font-weight:bold")
    if look.italic:
        rules.append("font-style:italic")
    lines = [word for word, wanted in (("underline", look.underline), ("line-through", look.strike)) if wanted]
    if lines:
        rules.append(f"text-decoration:{' '.join(lines)}")
    return ";".join(rules)


def _name(at: int) -> str:
    return f"l{at}"


def _px(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
