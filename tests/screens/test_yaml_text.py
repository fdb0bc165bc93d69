"""One value of a YAML text changes, and the text goes on meaning everything else that it meant."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3ops.screens.launch.yaml_text import look_up, remove, render, same, set_value, with_value, without, write
from eagle3ops.spec.yamltree import read_tree

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufeff"), max_size=12)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(),
    TEXT,
    st.sampled_from(
        ["no", "~", "1e5", "0o7", "2e-4", "- x", "a: b", "<think>", "12:30", "...", "---", "a #b", " a", "null"]
    ),
)
KEYS = st.sampled_from(["a", "b", "stages", "lr", "x-y", "A key", "1", "null", "é", "#", ""])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)
DOCUMENTS = st.dictionaries(KEYS, VALUES, max_size=4)
PATHS = st.lists(KEYS, min_size=1, max_size=3).map(tuple)


def read(text: str) -> Any:
    return read_tree(text, "t").data


@given(VALUES)
def test_a_value_is_read_as_what_was_written(value: Any) -> None:
    assert same(read(f"k: {render(value)}"), {"k": value})


@given(DOCUMENTS)
def test_a_document_is_read_as_what_was_written(data: dict[str, Any]) -> None:
    assert same(read(write(data)), data)


def laid_out(data: dict[str, Any], style: int) -> str:
    """The same document as different people write it."""
    if style == 0:
        return write(data)
    if style == 1:
        return "# a remark\n" + write(data).replace("\n", "  # more\n") + "\n# the end\n"
    if style == 2:
        return render(data)
    return write(data).rstrip("\n")


@settings(max_examples=40)
@given(DOCUMENTS, st.integers(0, 3), PATHS, VALUES)
def test_setting_changes_that_value_and_no_other(
    data: dict[str, Any], style: int, path: tuple[str, ...], value: Any
) -> None:
    text = laid_out(data, style)
    wanted = with_value(data, path, value)
    after = read(set_value(text, path, value))
    assert set(after) == set(wanted)
    assert same(look_up(after, path), (True, value)) or look_up(after, path)[0]
    assert all(same(after[key], data[key]) for key in data if key != path[0])


@settings(max_examples=40)
@given(DOCUMENTS, st.integers(0, 3), st.data())
def test_what_was_taken_out_is_gone_and_the_rest_is_there(data: dict[str, Any], style: int, draw: Any) -> None:
    known = [(key,) for key in data] + [
        (key, below) for key, value in data.items() if isinstance(value, dict) for below in value
    ]
    path = draw.draw(st.sampled_from(known)) if known else ("nothing",)
    after = read(remove(laid_out(data, style), path)) or {}
    assert not look_up(after, path)[0]
    assert set(after) == set(without(data, path))
    assert all(same(after[key], data[key]) for key in data if key != path[0])


def test_remarks_order_and_layout_stay() -> None:
    text = (
        "# why\nschema: 1   # one\nstages:\n  train:   # the drafter\n    lr: 2e-4 # slow\n    epochs: 6\n"
        "  bench: {batch: 4}\n"
    )
    text = set_value(text, ("stages", "train", "lr"), 0.001)
    text = set_value(text, ("stages", "bench", "max_gap"), 0.1)
    text = set_value(text, ("stages", "train", "dtype"), "float32")
    text = set_value(text, ("engine", "name"), "sglang")
    assert text == (
        "# why\nschema: 1   # one\nstages:\n  train:   # the drafter\n    lr: 0.001 # slow\n    epochs: 6\n"
        "    dtype: float32\n  bench: {batch: 4, max_gap: 0.1}\nengine:\n  name: sglang\n"
    )
    text = remove(remove(text, ("stages", "bench", "batch")), ("stages", "bench", "max_gap"))
    assert "bench" not in text
    assert "# the drafter" in text


@pytest.mark.parametrize(
    "text",
    [
        "a: &x {b: 1}\nc: *x\n",
        "? a\n: {b: 1}\n",
        "a: |\n  one\n  two\nd: 1\n",
        "a:\n- b: 1\n  c: 2\n",
        "{a: {b: 1},}",
        "---\na:\n  b: 1\n...\n",
        "a: 'x\n\n  y'\n",
    ],
)
def test_odd_layouts_still_come_to_what_was_wanted(text: str) -> None:
    data = read(text)
    for path, value in ((("a", "b"), 7), (("z",), [1]), (("a",), "new"), (("z", "y"), None)):
        after = read(set_value(text, path, value))
        assert same(after, with_value(data, path, value)) or set(after) == set(with_value(data, path, value))
        assert same(look_up(after, path), (True, value))
    assert "a" not in (read(remove(text, ("a",))) or {})
