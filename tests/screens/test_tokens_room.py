"""The Supervised tokens room: what is trained on is seen at a glance, token by token, and outside text is only text."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from made_outputs import TRAIN, made_run
from rich.cells import cell_len
from screen_text import shown, until
from snapshots import Snapshots
from stage import staged
from textual.pilot import Pilot

from eagle3ops.outputs.tokens import tokens_of
from eagle3ops.screens.app import ConsoleApp
from eagle3ops.screens.tokens.flow import (
    SampleView,
    column_of,
    fact_lines,
    flow,
    paint,
    row_of,
    token_at,
    token_lines,
    view_of,
)
from eagle3ops.screens.tokens.lines import TokenText
from eagle3ops.screens.widgets.cells import Line
from eagle3ops.screens.widgets.glyphs import ASCII, BLOCKS

TEXT = st.text(max_size=12) | st.sampled_from(
    [" a", "\n", "\t", "\x1b[31m", "\u202e", "e\u0301", "\u0301", "你", "[/]", ""]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
PLACES = st.lists(st.integers(0, 30), max_size=6)
SAMPLE = st.fixed_dictionaries(
    {"ids": st.lists(st.integers(0, 300), max_size=30)},
    optional={
        "texts": st.lists(TEXT | st.lists(st.text(max_size=2) | st.integers(0, 255), max_size=3) | JSON, max_size=30),
        "trained": st.lists(st.tuples(st.integers(0, 30), st.integers(0, 40)).map(list), max_size=3) | JSON,
        "thinking": st.lists(st.tuples(st.integers(0, 30), st.integers(0, 40)).map(list), max_size=3) | JSON,
        "missed": PLACES | JSON,
        "special": PLACES | JSON,
        "total": JSON,
        "first": JSON | st.integers(0, 40),
        "id": JSON,
        "finish_reason": JSON,
        "trained_tokens": JSON | st.integers(0, 40),
        "missed_tokens": JSON,
        "whole": JSON,
    },
)
ANSWER = st.fixed_dictionaries(
    {"sample": SAMPLE},
    optional={
        "row": JSON,
        "rows": JSON,
        "density": JSON
        | st.fixed_dictionaries(
            {
                "rows": st.integers(0, 9),
                "bins": st.lists(JSON, max_size=20),
                "missed_most": st.lists(
                    st.tuples(JSON | st.integers(0, 9), st.integers(), TEXT | JSON).map(list), max_size=4
                ),
            }
        ),
        "vocabulary": JSON,
        "words": JSON,
        "split": JSON,
    },
)


def texts(lines: Sequence[Line]) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]


def sample_of(root: Path, **arguments: Any) -> SampleView:
    sample = view_of(json.loads(json.dumps(tokens_of(root, "last", **arguments)))).sample
    assert sample is not None
    return sample


@settings(max_examples=40, deadline=None)
@given(ANSWER, st.integers(20, 120), st.booleans(), st.booleans())
@example({"sample": {"ids": [100] * 5}}, 43, True, False)
@example({"sample": {"ids": [1, 2], "texts": ["a\nb", ["\x1b", 200]], "trained": [[0, 9]]}}, 20, True, True)
def test_any_answer_becomes_lines_that_fit(answer: dict[str, Any], width: int, edges: bool, plainly: bool) -> None:
    glyphs = ASCII if plainly else BLOCKS
    view = view_of(answer)
    assert view.sample is not None
    rows = flow(view.sample, width, glyphs, edges=edges)
    lines = paint(rows, 0) + fact_lines(view, width, glyphs, tall=True) + token_lines(view.sample, 0, width, glyphs)
    for text in texts(lines):
        assert all(character.isprintable() for character in text)
    assert {piece.token for row in rows for piece in row.pieces} - {-1} == set(range(len(view.sample.ids)))
    for text in texts(paint(rows, None)):
        # Only what cannot be torn apart, a code, may be longer than a narrow row.
        assert cell_len(text) <= max(width, 36)


@given(ANSWER, st.integers(20, 60), st.data())
@settings(max_examples=30, deadline=None)
def test_the_mouse_finds_the_token_that_the_keys_find(answer: dict[str, Any], width: int, data: st.DataObject) -> None:
    sample = view_of(answer).sample
    assert sample is not None
    if not sample.ids:
        return
    token = data.draw(st.integers(0, len(sample.ids) - 1))
    rows = flow(sample, width, BLOCKS, edges=False)
    row = rows[row_of(rows, token)]
    found = token_at(row, column_of(row, token))
    assert found is not None
    # A token without cells of its own is hidden behind the next.
    assert found == token or not cell_len("".join(piece.text for piece in row.pieces if piece.token == token))


def test_looks_say_what_is_trained_missed_and_thought(tmp_path: Path) -> None:
    made_run(tmp_path)
    sample = sample_of(tmp_path, row=1)
    line = {look for row in flow(sample, 200, BLOCKS, edges=False) for look in (piece.look for piece in row.pieces)}
    assert line == {"masked", "trained", "thinking"}
    [masked, second] = texts(paint(flow(sample, 200, BLOCKS, edges=False), None))
    assert masked == "    0 ~ <|im_start|>Think.<|im_end|><think>hm ‹E4›‹BD›‹A0›</think>↵"
    assert second.endswith("[@click=app.quit]x[/] ‹U+001B›[31m.")


def test_a_character_in_several_tokens_is_named(tmp_path: Path) -> None:
    made_run(tmp_path)
    sample = sample_of(tmp_path, row=1)
    at = next(at for at, text in enumerate(sample.texts) if text == (0xBD,))
    assert token_lines(sample, at, 100, BLOCKS)[1][0][0].endswith(f"bytes bd  tokens {at - 1} to {at + 1} together: 你")


def test_words_are_not_torn_at_the_end_of_a_row(tmp_path: Path) -> None:
    made_run(tmp_path)
    rows = texts(paint(flow(sample_of(tmp_path, row=2), 28, BLOCKS, edges=False), None))
    assert rows == ["    0   <|im_start|>Tell me", "    8    all about", "   18    tea.<|im_end|>Tea."]


async def until_told(pilot: "Pilot[int]", words: str) -> None:
    """Wait for a toast."""
    for _ in range(200):
        if any(words in toast.message for toast in pilot.app._notifications):
            return
        await pilot.pause(0.05)
    raise AssertionError(f"nothing told of {words!r}")


async def test_walking_through_samples_and_tokens(tmp_path: Path) -> None:
    made_run(tmp_path)
    app = ConsoleApp(str(tmp_path))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "demo-bbbb")
        await pilot.press("7")
        text = await until(
            pilot,
            "sample 1 of 3  train  coffee/words  from the feature shards",
            "Name words.",
            "Beans",
            "1 of these not in the draft",
        )
        prompt = len([*TRAIN[0].prompt.replace("<|im_start|>", "x").replace("<|im_end|>", "x")])
        assert f"token {prompt} of" in text
        assert "× drafter" in text
        await pilot.press("x")
        await until(pilot, "trained, not in the draft vocabulary, answer", "text ·drafter")
        await pilot.press("right")
        await until(pilot, "text .")
        await pilot.press("e")
        await until(pilot, "B│e│a│n│s")
        await pilot.press("n")
        await until(pilot, "sample 2 of 3", "│@│c│l│i│c│k")
        await pilot.press("e", "n", "n", "n")
        await until(pilot, "sample 3 of 3", "tea/long")
        await pilot.press("s")
        await until(pilot, "sample 1 of 1  heldout  held/one")


async def test_going_to_a_sample_by_number_and_by_id(tmp_path: Path) -> None:
    made_run(tmp_path)
    app = ConsoleApp(str(tmp_path))
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, "demo-bbbb")
        await pilot.press("7")
        await until(pilot, "sample 1 of 3")
        await pilot.press("slash")
        await until(pilot, "Go to which sample?")
        await pilot.press("t", "e", "a", "enter")
        await until(pilot, "sample 3 of 3", "tea/long")
        await pilot.press("slash", "q", "q", "enter")
        await until_told(pilot, "No id in train holds 'qq'.")
        await pilot.press("slash", "2", "enter")
        await until(pilot, "sample 2 of 3")
        await pilot.press("slash", "escape")
        await until(pilot, "sample 2 of 3")


async def test_a_click_selects_a_token_and_arrows_change_rows(tmp_path: Path) -> None:
    made_run(tmp_path)
    app = ConsoleApp(str(tmp_path))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "demo-bbbb")
        await pilot.press("7")
        await until(pilot, "sample 1 of 3")
        await pilot.press("n")
        await until(pilot, "sample 2 of 3")
        await pilot.click(TokenText, offset=(9, 1))
        await until(pilot, "id 258  masked, special, prompt")
        await pilot.press("down")
        await until(pilot, "text [")
        await pilot.press("up", "home", "end")
        await until(pilot, "text .  bytes 2e")
        assert "\x1b" not in shown(app)


async def test_before_extract_the_answers_stand_in(tmp_path: Path) -> None:
    made_run(tmp_path, stages=("fetch", "generate"))
    app = ConsoleApp(str(tmp_path))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "demo-bbbb")
        await pilot.press("7")
        await until(pilot, "from the answers", "the extract stage has not run yet", "Beans")


async def test_without_samples_it_says_why(tmp_path: Path) -> None:
    made_run(tmp_path, stages=("fetch",))
    app = ConsoleApp(str(tmp_path))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "demo-bbbb")
        await pilot.press("7")
        await until(pilot, "no sample", "the generate stage has not run yet")
        await pilot.press("n", "p", "x", "right", "end", "greater_than_sign", "y", "s", "N", "escape", "e")
        await until(pilot, "heldout")
        await until_told(pilot, "There is nothing to copy yet.")


async def test_it_looks_as_it_did(snapshots: Snapshots, tmp_path: Path) -> None:
    made_run(tmp_path)
    app = staged(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "local: connected", "demo-bbbb")
        await pilot.press("7")
        await until(pilot, "sample 1 of 3", "× drafter")
        await pilot.press("n")
        await until(pilot, "sample 2 of 3", "[@click=app.quit]")
        await snapshots.match(pilot, "tokens-80x24")
