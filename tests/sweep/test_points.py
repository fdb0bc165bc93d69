"""Are the points of a sweep those that its axes, constraints and points declare, and is the rest accounted for?"""

import itertools
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from eagle3ops.engines.reference.drafting import SpecSettings
from eagle3ops.errors import RequestError
from eagle3ops.jobs.sweep.spec import PointSpec, SweepSpec, expand_spec
from eagle3ops.sweep.constraints import parse
from eagle3ops.sweep.points import Axes, Point, Setting, capacity, expand, invalid

small = st.integers(1, 9)


def test_chains_of_one_to_seven_steps() -> None:
    points, left_out = expand(Axes(steps=range(1, 8), topk=(1,)))
    assert [point.label for point in points] == [f"{k}/1/{k + 1} @1" for k in range(1, 8)]
    assert left_out == []


@given(st.lists(small, unique=True), st.lists(small, unique=True), st.lists(st.integers(1, 40), unique=True))
def test_every_combination_is_a_point_or_is_left_out_with_a_reason(
    steps: list[int], topk: list[int], tokens: list[int]
) -> None:
    points, left_out = expand(Axes(steps=steps, topk=topk, draft_tokens=tokens, concurrency=(1, 8)))
    said = [label for one in left_out for label in one.labels]
    assert len(points) + len(said) == len(steps) * len(topk) * max(1, len(tokens)) * 2
    assert len({point.label for point in points}) == len(points)
    assert not {point.label for point in points} & set(said)
    assert all(one.why and str(len(one.labels)) in one.words for one in left_out)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 200))
def test_what_is_valid_is_what_our_engine_takes(steps: int, topk: int, tokens: int) -> None:
    try:
        SpecSettings(steps, topk, tokens)
        served = True
    except RequestError:
        served = False
    assert (invalid(steps, topk, tokens) is None) == served


def test_a_tree_holds_topk_and_then_topk_squared() -> None:
    assert capacity(3, 4) == 1 + 4 + 16 + 16
    assert invalid(1, 4, 16) == "more draft tokens than the tree holds"


def test_explicit_points_come_first_once_and_obey_the_constraints() -> None:
    tree = Point(Setting(3, 4, 16), 1)
    points, left_out = expand(
        Axes(steps=(1, 2, 3), topk=(1,)), [tree, Point(Setting(2, 1, 3), 1), tree], [parse("draft_tokens != 2")]
    )
    assert [point.label for point in points] == ["3/4/16 @1", "2/1/3 @1", "3/1/4 @1"]
    assert [(one.why, one.labels) for one in left_out] == [("not draft_tokens != 2", ("1/1/2 @1",))]


def test_engine_axes_multiply_and_explicit_points_name_their_values() -> None:
    spec = SweepSpec.model_validate(
        {
            "axes": {
                "steps": [3],
                "concurrency": [1, 8],
                "engine": {"attention": {"triton": {"arguments": ["--attention-backend", "triton"]}, "fa3": {}}},
            },
            "points": [{"steps": 3, "topk": 4, "draft_tokens": 16, "engine": {"attention": "fa3"}, "concurrency": [1]}],
            "constraints": ["attention == 'triton' or concurrency == 1"],
        }
    )
    points, left_out = expand_spec(spec)
    assert [point.label for point in points] == [
        "3/4/16 attention=fa3 @1",
        "3/1/4 attention=triton @1",
        "3/1/4 attention=triton @8",
        "3/1/4 attention=fa3 @1",
    ]
    assert [one.labels for one in left_out] == [("3/1/4 attention=fa3 @8",)]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"axes": {"steps": [0]}}, "between 1 and 4096"),
        ({"axes": {"concurrency": []}}, "at least one concurrency"),
        ({"axes": {"engine": {"steps": {"x": {}}}}}, "cannot name an engine axis"),
        ({"axes": {"engine": {"nccl": {}}}}, "has no values"),
        ({"points": [{"steps": 1, "topk": 2, "draft_tokens": 16}]}, "a tree of 1 steps with topk 2 holds 3"),
        ({"points": [{"steps": 3, "topk": 1, "draft_tokens": 9}]}, "a chain"),
        ({"constraints": ["__import__('os')"]}, "holds Call"),
    ],
)
def test_what_makes_no_sense_is_refused_with_words(data: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        SweepSpec.model_validate(data)


def test_a_value_that_no_axis_has_is_refused() -> None:
    spec = SweepSpec(points=(PointSpec(steps=3, topk=1, draft_tokens=4, engine={"attention": "fa3"}),))
    with pytest.raises(RequestError, match="attention: fa3"):
        expand_spec(spec)
    with pytest.raises(RequestError, match="names attention"):
        expand(Axes(steps=(1,), topk=(1,)), (), [parse("attention == 'fa3'")])


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 64), st.integers(1, 64))
def test_a_constraint_means_what_python_means(steps: int, topk: int, tokens: int, concurrency: int) -> None:
    values: dict[str, int | str] = {
        "steps": steps,
        "topk": topk,
        "draft_tokens": tokens,
        "concurrency": concurrency,
        "attention": "fa3",
    }
    for text in (
        "draft_tokens <= 2 * steps + 8",
        "topk == 1 or concurrency <= 8",
        "not (steps > 4 and topk in (2, 4)) and attention != 'triton'",
        "1 < steps <= 5",
        "draft_tokens % topk == 0 or -steps // 2 < concurrency - 10",
    ):
        assert parse(text).holds(values) == bool(eval(text, {}, values))


@given(st.text(max_size=60) | st.text("steps topk()[]<>=!+-*/'\"0123456789.,:andornot ", max_size=60))
def test_any_text_is_a_constraint_or_refused(text: str) -> None:
    with suppress(RequestError):
        constraint = parse(text)
        assert constraint.holds(dict.fromkeys(constraint.names, 2)) in (True, False)


def test_a_long_or_costly_constraint_is_refused() -> None:
    for text in ("(" * 150 + "1" + ")" * 150, "steps" + " + 1" * 100, "steps ** 9", "'a' * 3", "1 // 0", "lambda: 1"):
        with pytest.raises(RequestError):
            parse(text).holds({"steps": 3})


def test_labels_are_unique() -> None:
    choices = [(), (("a", "x"),), (("a", "x"), ("b", "y"))]
    settings = [Setting(s, t, n, c) for s, t, n, c in itertools.product((1, 11), (1, 2), (2, 12), choices)]
    assert len({one.label for one in settings}) == len(settings)
