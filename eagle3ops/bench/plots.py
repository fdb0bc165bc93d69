"""How do curves, histograms and throughput look? Inline SVG whose colours follow the page's light or dark theme."""

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from eagle3ops.bench.accept import conditional_acceptance

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from eagle3ops.bench.report_data import Accept, Series, Timing

_INK, _QUIET = "#010203", "#040506"
_HUES = ("#010a01", "#010a02", "#010a03", "#010a04", "#010a05", "#010a06", "#010a07")
_VARIABLES = {_INK: "var(--ink)", _QUIET: "var(--line)"} | {
    hue: f"var(--hue-{number})" for number, hue in enumerate(_HUES, start=1)
}
"""Colours that no one would choose, drawn first and then replaced by the page's own."""

_MARKERS = "osD^vPX"
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "eagle3ops",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": _INK,
    "axes.edgecolor": _QUIET,
    "axes.labelcolor": _INK,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "grid.color": _QUIET,
    "grid.linewidth": 0.6,
    "xtick.color": _QUIET,
    "ytick.color": _QUIET,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "legend.frameon": False,
}


def curves(series: "Sequence[Series]", quantity: str, *, share: bool) -> str | None:
    """One line per TTT step over the optimiser steps; None when there are no points."""
    drawn = [item for item in series if item.points]
    if not drawn:
        return None

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        for number, item in enumerate(drawn):
            x, y = zip(*item.points, strict=True)
            marker = _MARKERS[number % len(_MARKERS)]
            every = max(1, len(x) // 8)
            axes.plot(x, y, color=_hue(number), label=_plain(item.name), marker=marker, markevery=every, markersize=4)
        axes.set_xlabel("optimiser step")
        axes.set_ylabel(quantity)
        if share:
            axes.set_ylim(0, 1)
            _percent(axes)
        axes.legend(loc="best", ncols=2)

    return _svg(draw, (4.6, 3.2))


def acceptance(accept: "Accept") -> str:
    """Left: share of verification steps by correct drafts. Right: chance of each position, given those before it."""

    def draw(figure: "Figure") -> None:
        left, right = figure.subplots(1, 2)
        sides = [("served", accept.served_histogram, _hue(0), "")]
        if accept.predicted_histogram:
            sides.append(("predicted", accept.predicted_histogram, _hue(1), "//"))
        for number, (label, histogram, colour, hatch) in enumerate(sides):
            total = sum(histogram) or 1.0
            width = 0.8 / len(sides)
            shift = (number - (len(sides) - 1) / 2) * width
            style = {"width": width * 0.92, "label": label, "color": colour, "hatch": hatch, "edgecolor": _INK}
            style["linewidth"] = 0.5
            left.bar([k + shift for k in range(len(histogram))], [count / total for count in histogram], **style)
            rates = conditional_acceptance(histogram)
            right.bar([k + 1 + shift for k in range(len(rates))], rates, **style)
        left.set_xlabel("correct drafts in a verification step")
        left.set_ylabel("share of steps")
        right.set_xlabel("draft position")
        right.set_ylabel("accepted, given those before it")
        left.set_xticks(range(max(len(side[1]) for side in sides)))
        right.set_xticks(range(1, max(max(len(side[1]) for side in sides), 2)))
        for axes in (left, right):
            axes.set_ylim(0, 1)
            axes.grid(False, axis="x")
            _percent(axes)
        right.legend(loc="best")

    return _svg(draw, (8.2, 3.2))


def throughput(timings: "Sequence[Timing]") -> str | None:
    """A bar per setting over all requests, and a dot for every request; None when nothing was timed."""
    if not timings:
        return None

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        for number, item in enumerate(timings):
            colour = _hue(0) if item.recommended else _hue(2) if item.speedup is None else _hue(1)
            axes.barh(number, item.tokens_per_s, height=0.62, color=colour, alpha=0.55)
            count = max(len(item.per_request) - 1, 1)
            heights = [number - 0.22 + 0.44 * k / count for k in range(len(item.per_request))]
            axes.plot(item.per_request, heights, "o", color=_INK, markersize=2.6, alpha=0.7)
        axes.set_yticks(range(len(timings)), [_plain(item.label) for item in timings])
        axes.invert_yaxis()
        axes.grid(False, axis="y")
        axes.set_xlim(left=0)
        axes.set_xlabel("tokens per second at batch 1; dots are single requests")

    return _svg(draw, (8.2, 0.9 + 0.5 * len(timings)))


def stacked(rows: Mapping[str, Mapping[str, float]], quantity: str) -> str | None:
    """A bar per row, made of its parts from left to right; every part has one colour in all rows."""
    names = list(dict.fromkeys(name for parts in rows.values() for name in parts))
    if not names:
        return None

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        for place, parts in enumerate(rows.values()):
            left = 0.0
            for number, name in enumerate(names):
                width = parts.get(name, 0.0)
                label = _plain(name) if not place else None
                hatch = "//" if number >= len(_HUES) else ""
                axes.barh(
                    place, width, left=left, height=0.62, label=label, hatch=hatch, color=_hue(number), edgecolor=_INK,
                    linewidth=0.5,
                )  # fmt: skip
                left += width
        axes.set_yticks(range(len(rows)), [_plain(label) for label in rows])
        axes.invert_yaxis()
        axes.grid(False, axis="y")
        axes.set_xlim(left=0)
        axes.set_xlabel(quantity)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.35), ncols=4)

    return _svg(draw, (8.2, 1.6 + 0.6 * len(rows)))


def standing_alone(svg: str) -> str:
    """A picture with colours of its own, for a file that no page includes."""
    hues = ("#2f5fd0", "#d9822b", "#7a8290", "#1b8a6b", "#a4409a", "#8a6d1b", "#b3261e")
    light = {"--ink": "#1d2129", "--line": "#8a8f99"} | {f"--hue-{at}": hue for at, hue in enumerate(hues, start=1)}
    style = ";".join(f"{name}:{colour}" for name, colour in light.items())
    return svg.replace("<svg ", f'<svg style="background:#ffffff;{style}" ', 1)


def _hue(number: int) -> str:
    return _HUES[number % len(_HUES)]


def _percent(axes: "Axes") -> None:
    from matplotlib.ticker import PercentFormatter

    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1.0, decimals=0))


def _plain(text: str) -> str:
    """Printable and short, for an axis."""
    return "".join(character if character.isprintable() else "?" for character in text)[:40]


def _svg(draw: "Callable[[Figure], None]", inches: tuple[float, float]) -> str:
    """Draw into a figure of its own (no global state, no display) and return the `<svg>` element."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with rc_context(_STYLE), _quiet():
        figure = Figure(figsize=inches, layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Type": None, "Format": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, variable)
    return text


@contextmanager
def _quiet() -> "Iterator[None]":
    """Characters that the layout's own font lacks are the browser's affair: it draws the text."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield
