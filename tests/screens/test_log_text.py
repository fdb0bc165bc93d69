"""Whatever stands in a log is drawn as text; what a person types means what it seems to."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3ops.screens.logs.text import (
    LEVEL_PATTERNS,
    Condition,
    Shown,
    harmless,
    level_of,
    parse_condition,
    parse_place,
    show_line,
)
from eagle3ops.words import plain

BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f"
HOSTILE = [
    "\x1b]52;c;aGk=\x07",
    "\x1b[2J",
    "\x9b31m",
    "\0",
    "\ufffd",
    "[@click=app.quit]",
    "[/",
    "\t",
    "\r",
    "漢",
    "e\u0301",
    BIDI,
]
hostile = st.lists(st.sampled_from(HOSTILE) | st.text(max_size=4), max_size=12).map("".join)


@given(hostile, st.lists(st.tuples(st.integers(-2, 30), st.integers(-2, 30)), max_size=4))
def test_a_line_steers_nothing_and_loses_no_letter(text: str, spans: list[tuple[int, int]]) -> None:
    shown = show_line(text, tuple(spans))
    assert shown.text.isprintable()
    assert not set(shown.text) & (set(BIDI) | set("\x1b\x9b\0\r\n\t"))
    assert [letter for letter in text if letter.isalnum()] == [letter for letter in shown.text if letter.isalnum()]
    assert shown.text == show_line(text).text
    assert all(0 <= begin <= end <= len(shown.text) for begin, end in shown.spans)
    assert 0 <= shown.time <= len(shown.text)
    bare = shown.without_time()
    assert bare.text == shown.text[shown.time :]
    assert all(0 <= begin <= end <= len(bare.text) for begin, end in bare.spans)


@given(hostile, st.integers(2, 40))
def test_wrapped_pieces_are_the_line_and_fit(text: str, width: int) -> None:
    shown = Shown(harmless(text))
    places = shown.rows(width)
    assert "".join(shown.text[begin:end] for begin, end in places) == shown.text
    assert all(Shown(shown.text[begin:end]).width() <= width for begin, end in places)


def test_spans_move_with_what_is_left_out() -> None:
    text = "\x1b[31m\tERROR\x1b[0m: x"
    shown = show_line(text, ((6, 11),))
    assert [shown.text[begin:end] for begin, end in shown.spans] == ["ERROR"]
    timed = show_line("[2026-11-30 04:45:12] loss 3", ((20, 26),))
    assert timed.without_time().text == "loss 3"
    assert [timed.without_time().text[a:b] for a, b in timed.without_time().spans] == ["loss"]


def test_marks_of_direction_are_left_out_of_any_text() -> None:
    assert plain(f"a{BIDI}b") == "ab"


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("2026-11-30 10:00:00 ERROR it broke", "error"),
        ("INFO: 0 CRITICAL", "error"),
        ("ValueError: x", "error"),
        ("asyncio.exceptions.CancelledError", "error"),
        ("Traceback (most recent call last):", "error"),
        ("E1130 04:45:12.1 file.cc:1] x", "error"),
        ("W1130 04:45:12.1 file.cc:1] x", "warning"),
        ("[WARN] x", "warning"),
        ("x.py:3: UserWarning: y", "warning"),
        ("INFO 3 errors", "info"),
        ("DEBUG x", "debug"),
        ("no error here, nor SIZE1024 x", ""),
    ],
)
def test_levels_are_those_that_the_filter_finds(line: str, level: str) -> None:
    assert level_of(line) == level
    assert bool(re.search(LEVEL_PATTERNS["error"], line)) is (level == "error")
    assert bool(re.search(LEVEL_PATTERNS["warning"], line)) is (level in ("error", "warning"))


def test_what_is_typed_as_a_condition() -> None:
    assert parse_condition("") is None
    assert parse_condition("!") is None
    assert parse_condition("error") == Condition("error", ignore_case=True)
    assert parse_condition("Error") == Condition("Error")
    assert parse_condition(r"a\S") == Condition(r"a\S", ignore_case=True)
    assert parse_condition("!step") == Condition("step", invert=True, ignore_case=True)
    assert parse_condition(r"\!") == Condition("!", ignore_case=True)
    assert str(parse_condition("!step")) == "!step"


@given(st.text(max_size=20) | st.from_regex(r"-?\d{1,9}%?"), st.integers(1, 10**9))
def test_a_place_is_a_row_or_nothing(typed: str, total: int) -> None:
    row = parse_place(typed, total)
    assert row is None or 0 <= row < total


def test_places() -> None:
    assert [parse_place(typed, 1000) for typed in ("1", "1,000", "5000", "-1", "50%", "x", "")] == [
        0, 999, 999, 999, 500, None, None,
    ]  # fmt: skip
