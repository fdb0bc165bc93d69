"""A pipeline is drawn in any width, whatever its stages are called and however they stand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from eagle3ops.screens.feeds.watching import StageRow
from eagle3ops.screens.overview.graph import graph_lines, now_line, verdict_lines
from eagle3ops.screens.widgets.cells import Line
from eagle3ops.screens.widgets.glyphs import ASCII, BLOCKS
from eagle3ops.screens.widgets.status_marks import MARKS, mark
from eagle3ops.words import plain

STAGES = [
    StageRow("fetch", "reused", 0.3),
    StageRow("generate", "done", 20.4),
    StageRow("extract", "done", 4.0),
    StageRow("train", "running", None, 200, 400, "steps", 10.0, 1000.0),
    StageRow("serve", "waiting"),
    StageRow("verify", "failed", 3.0, 3, 4, "probes"),
    StageRow("bench", "interrupted"),
    StageRow("report", "waiting"),
]


def text(lines: list[Line]) -> str:
    return "\n".join("".join(part for part, _ in line) for line in lines)


def test_two_rows_on_80_columns_and_one_on_160() -> None:
    low = graph_lines(STAGES, 78, BLOCKS, boxed=False)
    assert len(low) == 5
    drawn = text(low)
    for words in ("✓ fetch", "reused 0.3 s", "● train", "running 50%", "█████░░░░░ 20 s", "✗ verify", "failed 75%"):
        assert words in drawn
    assert drawn.count("→") == 7
    wide = text(graph_lines(STAGES, 158, BLOCKS, boxed=True))
    assert wide.count("╭") == 8
    assert len(wide.splitlines()) == 6
    for words in ("● running 50%", "10 steps/s", "20 s left", "✓ reused", "◌ interrupted", "· waiting"):
        assert words in wide


def test_boxes_say_nothing_where_there_is_nothing_to_say() -> None:
    done = [StageRow("fetch", "done", 1.0), StageRow("train", "done", 2.0)]
    assert len(graph_lines(done, 158, BLOCKS, boxed=True)) == 3


def test_ascii() -> None:
    assert all(part.isascii() for line in graph_lines(STAGES[4:5], 78, ASCII, boxed=True) for part, _ in line[:1])
    assert "->" not in text(graph_lines(STAGES, 158, ASCII, boxed=True))
    assert " > " in text(graph_lines(STAGES, 158, ASCII, boxed=True))


def test_what_works_now() -> None:
    assert text([now_line(STAGES, 78, BLOCKS, 1001.0)]) == "train: 200 of 400 steps, 10.0 steps/s, 20 s left"
    quiet = now_line(STAGES, 78, BLOCKS, 1120.0)
    assert quiet[0][1] == "warn"
    assert text([quiet]).endswith("said 2 min ago")
    assert now_line(STAGES[:2], 78, BLOCKS, 0.0) == ()
    again = StageRow("train", "running", facts={"attempt": 2})
    assert text([now_line([again], 78, BLOCKS, 0.0)]).startswith("train, attempt 2:")
    assert "running again" in text(graph_lines([again], 78, BLOCKS, boxed=True))
    assert "no progress reported yet" in text([now_line([StageRow("serve", "running")], 78, BLOCKS, 0.0)])


def test_a_verdict_that_failed_comes_first_with_its_reason() -> None:
    lines = verdict_lines(
        [("verify/wiring", True, "same"), ("bench/accept_length", False, "served 1.1, 2.0 predicted")], 78, BLOCKS, 3
    )
    assert text(lines).splitlines() == [
        "✗ FAIL bench/accept_length  served 1.1, 2.0 predicted",
        "✓ PASS wiring   ",
    ]


@pytest.mark.parametrize("status", [*MARKS, "never heard of"])
def test_a_state_is_a_mark_and_a_word(status: str) -> None:
    assert len(mark(status)[0]) == 1
    assert status in text(graph_lines([StageRow("one", status)], 40, BLOCKS, boxed=True))


NUMBER = st.none() | st.floats(-1e9, 1e12) | st.integers(0, 10**9)
ROW = st.builds(
    StageRow,
    st.text(max_size=40).map(plain),
    st.sampled_from([*MARKS, "odd"]) | st.text(max_size=12).map(plain),
    NUMBER,
    NUMBER,
    NUMBER,
    st.text(max_size=8).map(plain),
    NUMBER,
    NUMBER,
)


@settings(max_examples=60)
@given(st.lists(ROW, max_size=9), st.integers(0, 200), st.sampled_from([BLOCKS, ASCII]), st.booleans())
def test_nothing_is_too_wide_and_nothing_breaks(rows: list[StageRow], width: int, glyphs: object, boxed: bool) -> None:
    assert isinstance(glyphs, type(BLOCKS))
    lines = graph_lines(rows, width, glyphs, boxed=boxed)
    if width >= 8:
        lines.append(now_line(rows, width, glyphs, 1e9))
        lines += verdict_lines([(row.name, row.seconds is None, row.unit) for row in rows], width, glyphs, 4)
    for line in lines:
        assert cell_len("".join(part for part, _ in line)) <= max(width, 0)


def test_many_stages_are_cut_short() -> None:
    drawn = text(graph_lines([StageRow(f"s{at}", "done") for at in range(1000)], 80, BLOCKS, boxed=False))
    assert "and 952 more stages" in drawn
