"""The Bench room shows a sweep's points, whatever the host says of them, within the width that there is."""

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from screen_text import until
from sweep_worlds import make_bench_run, make_sweep_run, sweep_json

from eagle3ops.outputs import drafters
from eagle3ops.screens.app import ConsoleApp
from eagle3ops.screens.bench.sweep import sweep_facts, sweep_lines
from eagle3ops.screens.widgets.glyphs import ASCII, BLOCKS

BENCHED, SWEPT = "20261130-010000-toy-aaaa", "20261130-020000-toy-bbbb"

json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=200),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)


async def test_the_room_shows_the_points_and_the_winner(tmp_path: Path) -> None:
    make_bench_run(tmp_path, BENCHED)
    make_sweep_run(tmp_path, BENCHED, SWEPT)
    app = ConsoleApp(str(tmp_path))
    async with app.run_test(size=(160, 60)) as pilot:
        await until(pilot, "local: connected")
        await pilot.press("8")
        text = await until(
            pilot, "Sweep ─", "recommended: 3/4/16", "3/4/16 may be promoted", "winner: serve --at 3/4/16"
        )
        assert "1.25x (1.15 to 1.35) of the default 3/1/4" in " ".join(text.split())
        assert "1 server died or hung" in " ".join(text.split())


def answer(tmp_path: Path) -> Any:
    make_bench_run(tmp_path, BENCHED)
    make_sweep_run(tmp_path, BENCHED, SWEPT)
    return json.loads(json.dumps(drafters.bench(tmp_path, SWEPT)))["sweep"]


@given(
    st.sampled_from(["points", "winners", "decisive", "seconds", "row"]), json_like, st.integers(1, 200), st.booleans()
)
def test_any_answer_fits(place: str, value: Any, width: int, plain: bool) -> None:
    points = [
        {
            "setting": row["setting"],
            "concurrency": 1,
            "state": row["state"],
            "speedup": row.get("speedup"),
            "why": "x" * 300,
        }
        for row in sweep_json()["points"]
    ]
    found: dict[str, Any] = {"points": points, "winners": sweep_json()["winners"], "decisive": 1, "seconds": 3.0}
    if place == "row":
        points[0] = dict.fromkeys((*points[0], "tokens_per_s", "memory_bytes", "front"), value)
    else:
        found[place] = value
    facts = sweep_facts(found)
    if facts is not None:
        for line in sweep_lines(facts, width, ASCII if plain else BLOCKS):
            text = "".join(part for part, _ in line)
            assert cell_len(text) <= max(width, 8)
            assert text.isprintable()


def test_the_host_s_own_answer_is_understood(tmp_path: Path) -> None:
    facts = sweep_facts(answer(tmp_path))
    assert facts is not None
    lines = ["".join(part for part, _ in line) for line in sweep_lines(facts, 100, BLOCKS)]
    assert lines[1].split()[:4] == ["*", "3/4/16", "1", "1.45x"]
    assert any("failed: 3/1/4 @1: no answer within 20 s" in line for line in lines)
