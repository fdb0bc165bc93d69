"""Every suspect stands in the list once, and what speaks for one comes before what clears another."""

from dataclasses import replace

import pytest

from eagle3ops.bench.accept import AcceptStats
from eagle3ops.bench.diversity import judge
from eagle3ops.bench.gap import hold_against
from eagle3ops.bench.suspects import Evidence, next_words, suspects

TEXT = [list(range(at, at + 64)) for at in range(20)]


def evidence(walk: tuple[int, ...], histogram: tuple[int, ...]) -> Evidence:
    one = AcceptStats(sum(histogram), sum(k * n for k, n in enumerate(histogram)), 0, histogram)
    return Evidence(
        gap=hold_against(walk, [one] * 20, 0.05),
        diversity=judge(TEXT, ["stop"] * 20, [one] * 20, TEXT),
        wiring=True,
        wiring_reason="boundaries 2, 4, 5",
        temperature=0.0,
        same_text=0.4,
        served_prompts=20,
        heldout_prompts=20,
        limit=128,
        longest=100,
    )


FIRST = evidence((300, 200, 300, 900), (40, 20, 10, 20))
"""Short from the first position on."""
LATER = evidence((400, 200, 300, 900), (20, 40, 15, 15))
"""As predicted at the first, short at the second."""
LOOPS = judge([[1, 2] * 32] * 20, ["length"] * 20, [AcceptStats(9, 9, 27, (4, 2, 2, 1))] * 20)


def states(known: Evidence) -> dict[str, str]:
    found = suspects(known)
    assert len({one.name for one in found}) == len(found) == 8
    order = [("likely", "possible", "cleared").index(one.state) for one in found]
    assert order == sorted(order)
    return {one.name: one.state for one in found if one.state != "cleared"}


@pytest.mark.parametrize(
    ("known", "wanted"),
    [
        (replace(FIRST, wiring=False), {"wiring": "likely"}),
        (replace(FIRST, wiring=None), {"wiring": "possible"}),
        (FIRST, {}),
        (LATER, {"drafting": "likely"}),
        (replace(FIRST, temperature=0.7), {"sampling": "likely", "weights": "possible"}),
        (replace(FIRST, same_text=0.02), {"weights": "likely"}),
        (replace(FIRST, heldout_prompts=500), {"prompts": "possible"}),
        (replace(FIRST, longest=2048), {"length": "possible"}),
        (replace(FIRST, diversity=LOOPS), {"looping": "likely"}),
    ],
)
def test_what_is_left(known: Evidence, wanted: dict[str, str]) -> None:
    assert states(known) == wanted
    assert all(name in next_words(suspects(known)) for name in wanted)


def test_nobody_left_is_said() -> None:
    assert "no suspect is left" in next_words(suspects(FIRST))
