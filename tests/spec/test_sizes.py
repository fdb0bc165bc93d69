"""Sizes of a pipeline file: units, plain bytes, and an error for everything else."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from eagle3ops.spec.sizes import LARGEST, Size

ADAPTER = TypeAdapter(Size)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("200 GiB", 200 << 30),
        ("200GiB", 200 << 30),
        ("1.5 TB", 1_500_000_000_000),
        ("0.1 KiB", 102),
        ("10 kb", 10_000),
        ("7", 7),
        ("7 B", 7),
        (5_000_000, 5_000_000),
    ],
)
def test_sizes_are_bytes(text: object, count: int) -> None:
    assert ADAPTER.validate_python(text, strict=True) == count


@pytest.mark.parametrize(
    "value", ["", "GiB", "two GiB", "-1 GiB", "1 GiBi", "1,5 TB", "1e9", 0, "0 B", -3, True, 1.5, None]
)
def test_what_is_no_size_is_refused_with_an_example(value: object) -> None:
    with pytest.raises(ValidationError, match=r"200 GiB|above 0"):
        ADAPTER.validate_python(value)


@given(st.text(max_size=30) | st.from_regex(r"[0-9]{1,30}(\.[0-9]{1,20})? ?[kMGTP]i?B", fullmatch=True))
def test_any_text_is_a_size_in_range_or_refused(text: str) -> None:
    try:
        count = ADAPTER.validate_python(text)
    except ValidationError:
        return
    assert 0 < count <= LARGEST
    assert ADAPTER.validate_python(count) == count


@given(st.integers(1, LARGEST))
def test_the_schema_admits_what_is_read(count: int) -> None:
    schema = ADAPTER.json_schema()["anyOf"]
    assert schema[0]["type"] == "integer"
    for text in (f"{count} B", f"{count >> 30} GiB", f"{count} MB"):
        assert re.match(schema[1]["pattern"], text)
