"""What came out of a run? One HTML file that needs no network and one Markdown file, from plain data.

Everything in `ReportData` may come from outside (names, reasons, log lines): it is escaped on its way into either file.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from eagle3ops.bench.accept import conditional_acceptance
from eagle3ops.bench.report_data import ReportData, Series

if TYPE_CHECKING:
    from jinja2 import Environment

HTML_FILE, MARKDOWN_FILE = "report.html", "report.md"


@dataclass(frozen=True, slots=True)
class _Plots:
    """Inline SVG, or None where there is nothing to draw."""

    loss: str | None
    accuracy: str | None
    accept: tuple[str, ...]
    throughput: str | None


def write_report(data: ReportData, folder: Path) -> tuple[Path, Path]:
    """Write `report.html` and `report.md` into `folder`; returns both paths."""
    html, markdown = folder / HTML_FILE, folder / MARKDOWN_FILE
    html.write_text(render_html(data), encoding="utf-8")
    markdown.write_text(render_markdown(data), encoding="utf-8")
    return html, markdown


def render_html(data: ReportData) -> str:
    """One self-contained page: styles and plots inside, no scripts, nothing fetched."""
    from eagle3ops.bench import plots

    drawn = _Plots(
        loss=plots.curves(data.losses, "loss", share=False),
        accuracy=plots.curves(data.accuracies, "accuracy", share=True),
        accept=tuple(plots.acceptance(item) for item in data.accept),
        throughput=plots.throughput(data.timings),
    )
    return _environment(escape_html=True).get_template("report.html.j2").render(data=data, plots=drawn)


def render_markdown(data: ReportData) -> str:
    """The same facts without the plots."""
    return _environment(escape_html=False).get_template("report.md.j2").render(data=data)


def _environment(*, escape_html: bool) -> "Environment":
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(lambda name: (resources.files("eagle3ops.assets") / name).read_text(encoding="utf-8")),
        autoescape=escape_html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_printable,
    )
    environment.filters |= {
        "duration": duration,
        "md": escape_markdown,
        "fenced": fenced,
        "spread": spread,
        "acceptance": conditional_acceptance,
        "last": last_value,
    }
    return environment


_CONTROLS = dict.fromkeys([*range(9), 11, 12, *range(14, 32), *range(127, 160)], "\ufffd")


def _printable(value: object) -> object:
    """Outside text without control characters: a terminal that shows the Markdown file would obey them."""
    return value.translate(_CONTROLS) if type(value) is str else value


def duration(seconds: float | None) -> str:
    """`None` -> an en dash, 3.24 -> "3.2 s", 83 -> "1 min 23 s", 7500 -> "2 h 05 min"."""
    if seconds is None:
        return "–"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def spread(values: Sequence[float]) -> str:
    """Lowest and highest of several measurements."""
    return f"{min(values):.1f} to {max(values):.1f}" if values else "–"


def last_value(series: Series) -> float | None:
    """Where a curve ends."""
    return series.points[-1][1] if series.points else None


_MARKDOWN = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_{}[]()#+!|~"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"})


def escape_markdown(value: object) -> str:
    """Text that stays text within a paragraph, a list item or a table cell: no markup, no line breaks."""
    text = " ".join(str(value).split()).translate(_MARKDOWN)
    # At the start of a line a dash is a list item, and dashes, dots or equals signs alone make rules and headings.
    return f"\\{text}" if text[:1] in ("-", "=") else text


def fenced(text: str) -> str:
    """A code block whose fence is longer than any run of backticks within."""
    longest, run = 2, 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    fence = "`" * (longest + 1)
    return f"{fence}\n{text}\n{fence}"
