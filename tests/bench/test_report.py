"""A report is complete in itself, shows outside text as text, and leaves out what there is nothing to say about."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3ops.bench.report import duration, escape_markdown, fenced, render_html, render_markdown, write_report
from eagle3ops.bench.report_data import Accept, Check, Figure, ReportData, Series, StageLine, Table, Timing

FULL = ReportData(
    title="smollm2-135m-instruct with an EAGLE-3 drafter",
    run="20261130-044512-demo-a1b2",
    created="2026-11-30 04:59 UTC",
    figures=(
        Figure("Accept length", "1.52", "served at 3/1/4"),
        Figure("Speed-up", "1.18x", "1.09 to 1.27"),
        Figure("Wiring", "PASS"),
    ),
    checks=(
        Check("wiring", True, "training and serving use boundaries 2, 15, 27"),
        Check("accept_length", False, "served 1.38 against 1.52 predicted (-9.2 %, 5 % allowed)"),
    ),
    facts=(Table("Target", (), (("model", "smollm2-135m-instruct"), ("fingerprint", "bd3fe0af3be9d771"))),),
    stages=(StageLine("fetch", "done", 8.3), StageLine("train", "done", 301.0, "613 steps")),
    losses=tuple(
        Series(f"step {k}", tuple((float(x), 5.0 - k / 5 - x / 120) for x in range(0, 300, 5))) for k in (1, 2, 3)
    ),
    accuracies=tuple(Series(f"step {k}", tuple((float(x), x / 400 / k) for x in range(0, 300, 5))) for k in (1, 2, 3)),
    accept=(Accept("3/1/4", 1.52, (620.0, 290.0, 70.0, 20.0), 1.55, (600.0, 300.0, 75.0, 25.0)),),
    alarm=(
        Table("ALARM: not what was predicted", ("draft position", "tokens"), (("1", "-0.15"),), note="it starts at 1"),
        Table("What it can be", ("suspect", "state"), (("wiring", "cleared"), ("prompts", "possible"))),
    ),
    timings=(
        Timing("baseline", (28.1, 29.4, 27.7), 28.4),
        Timing("1/1/2", (33.0, 35.1, 31.2), 33.2, 1.17, 1.10, 1.24, 1.38, True),
        Timing("3/1/4", (31.0, 30.2, 29.9), 30.4, 1.07, 0.99, 1.15, 1.52),
    ),
    wiring=(
        Table(
            "engine reference",
            ("Segment", "Trained on", "Serves", "Cosine", "Verdict"),
            (("0", "boundary 2", "boundary 2", "0.9999", "PASS"), ("1", "boundary 15", "boundary 16", "0.97", "FAIL")),
        ),
    ),
    equality=(Table("float32", (), (("prompts", "64"), ("differ", "0"))),),
    launch="eagle3ops serve --model /models/target \\\n  --drafter /models/drafter",
    notes=("Two busy cores.",),
)


class Page(HTMLParser):
    """Collects tags, attributes and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_shows_every_section_and_figure() -> None:
    page = Page(render_html(FULL))
    for expected in (
        "Verdicts", "Throughput", "Accept length: predicted and served", "Training", "Wiring", "Serve it", "Stages",
        "What ran on what", "boundary 16", "1.520 served, 1.550 predicted (-1.9 %)", "5 min 01 s", "1.10 to 1.24",
    ):  # fmt: skip
        assert expected in page.text
    assert page.tags.count("svg") == 4
    assert page.text.count("PASS") == 3
    assert page.text.count("FAIL") == 2


def test_the_page_needs_no_network_and_no_scripts() -> None:
    html = render_html(FULL)
    page = Page(html)
    assert not {"script", "link", "img", "iframe", "object", "base", "form"} & set(page.tags)
    for name, value in page.attributes:
        if name in ("href", "src", "xlink:href", "action", "data"):
            assert value.startswith("#"), value
        assert not name.startswith("on")
    assert "@import" not in html
    assert re.search(r"url\((?!#)", html) is None


def test_plots_follow_the_theme() -> None:
    html = render_html(FULL)
    assert "var(--hue-1)" in html
    assert not re.search("#01020[3-6]|#010a0[1-7]", html)


def test_the_same_data_give_the_same_bytes() -> None:
    assert render_html(FULL) == render_html(FULL)


def test_an_empty_run_has_a_report_too(tmp_path: Path) -> None:
    html, markdown = write_report(ReportData(title="t", run="r", created="now"), tmp_path)
    page = Page(html.read_text())
    assert "svg" not in page.tags
    assert "h2" not in page.tags
    assert markdown.read_text().startswith("# t\n\nRun r, now\n")


def test_markdown_tables_have_as_many_cells_as_columns() -> None:
    text = render_markdown(FULL)
    block: list[str] = []
    tables = 0
    for line in [*text.split("\n"), ""]:
        if line.startswith("|"):
            block.append(line)
        elif block:
            tables += 1
            assert len({row.replace("\\|", "").count("|") for row in block}) == 1, block
            assert set(block[1]) <= set("|-: "), block
            block = []
    assert tables == 10
    assert "| FAIL | accept\\_length |" in text
    assert "| 1 | 38.0 % | 40.0 % |" in text


EVIL = "<script>alert(1)</script> [x](javascript:y) | `a` \x1b[31m\n# h $\\frac{1}{2}$ \"' onload=1 {{ 7 * 7 }}"


def evil() -> ReportData:
    return ReportData(
        title=EVIL,
        run=EVIL,
        created=EVIL,
        figures=(Figure(EVIL, EVIL, EVIL),),
        checks=(Check(EVIL, True, EVIL),),
        facts=(Table(EVIL, (EVIL, EVIL), ((EVIL, EVIL),), EVIL),),
        stages=(StageLine(EVIL, EVIL, 1.0, EVIL),),
        losses=(Series(EVIL, ((0.0, 1.0),)),),
        accept=(Accept(EVIL, 1.0, (1.0, 0.0)),),
        timings=(Timing(EVIL, (1.0,), 1.0),),
        launch=EVIL + " ```` ",
        notes=(EVIL,),
    )


def test_outside_text_stays_text() -> None:
    html = render_html(evil())
    page = Page(html)
    assert "script" not in page.tags
    assert "onload" not in {name for name, _ in page.attributes}
    assert "<script>" in page.text
    assert "{{ 7 * 7 }}" in page.text
    assert "\x1b" not in html + render_markdown(evil())
    assert "49" not in page.text.split("Verdicts")[0]
    markdown = render_markdown(evil())
    outside_code = re.sub(r"(`{3,})\n.*?\n\1\n", "", markdown, flags=re.DOTALL)
    assert "<script>" not in outside_code
    assert "](" not in outside_code
    assert not [line for line in outside_code.split("\n") if line.startswith("# h")]


@settings(max_examples=40)
@given(st.text())
def test_any_text_is_one_cell(text: str) -> None:
    cell = escape_markdown(text)
    assert "\n" not in cell
    assert re.search(r"(?<!\\)(?:\\\\)*\|", cell) is None
    assert "<" not in cell
    block = fenced(text).split("\n")
    assert not any(line.startswith(block[0]) for line in "\n".join(block[1:-1]).split("\n"))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0.0, "0.0 s"),
        (59.9, "59.9 s"),
        (59.97, "1 min 00 s"),
        (3599.6, "1 h 00 min"),
        (7500, "2 h 05 min"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text
