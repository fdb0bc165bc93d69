"""Are the tables whole, and does looking for a few letters first leave out nothing that a pattern would find?"""

import re
import tomllib
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3ops.forensics import needles as needles_module
from eagle3ops.forensics.needles import grams, needles
from eagle3ops.forensics.signatures import tables

KINDS = tomllib.loads(resources.files("eagle3ops.assets").joinpath("failures.toml").read_text(encoding="utf-8"))["kind"]
TEXTS = [
    line
    for name in ("logs", "issues")
    for line in dict.fromkeys((Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8").split("\n"))
]


@pytest.mark.parametrize("kind", KINDS, ids=[f"{kind['role']}-{kind['category']}" for kind in KINDS])
def test_each_kind_says_where_it_is_known_from_and_what_helps(kind: dict[str, object]) -> None:
    assert re.fullmatch(r"(?:standard|[\w.-]+/[\w./# -]+|CVE-[\d-]+)[^\n]*", str(kind["source"]))
    if kind["role"] in ("root", "hang", "timeout", "signal", "consequence"):
        assert kind["explanation"]
        assert kind["fix"]


def test_no_table_finds_less_than_all_its_patterns() -> None:
    for table in tables().values():
        for text in TEXTS:
            every = next((kind for pattern, kind in table.each if pattern.search(text) is not None), None)
            assert table.find(text) is every, text


@settings(max_examples=300)
@given(st.sampled_from([(name, n) for name, table in tables().items() for n in range(len(table.each))]), st.data())
def test_what_a_pattern_needs_is_in_all_that_it_matches(one: tuple[str, int], data: st.DataObject) -> None:
    pattern = tables()[one[0]].each[one[1]][0]
    try:
        text = data.draw(st.from_regex(pattern))
    except Exception:  # noqa: BLE001  # some patterns are too odd to make texts from
        return
    needed = needles(pattern.pattern)
    if text.isascii() and pattern.search(text) is not None:
        assert not needed or any(piece in text.lower() for piece in needed)


@pytest.mark.parametrize(
    ("pattern", "needed"),
    [
        ("CUDA out of memory", {"cuda out of memory"}),
        ("(?i)xid.{0,20}gone|bus error", {"gone", "bus error"}),
        (r"\d+%\|", set()),
        ("(?:abc)?de", set()),
        ("(?:abc)+x", {"abc"}),
        ("ab[cd]efg", {"efg"}),
        ("(?!nothing)some", {"some"}),
        ("(", set()),
    ],
)
def test_needles(pattern: str, needed: set[str]) -> None:
    if pattern == "(":
        with pytest.raises(re.error):
            needles(pattern)
    else:
        assert needles(pattern) == needed


def test_without_the_parser_every_pattern_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needles_module, "parser", None)
    assert needles("CUDA out of memory") == frozenset()


@given(st.text(max_size=60))
def test_grams(text: str) -> None:
    assert all(gram in text.lower() for gram in grams(text))
