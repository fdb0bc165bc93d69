"""The Wiring room: the verdict and its layers at a glance, on any target, in any terminal, from any answer."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from made_outputs import made_run, make_verdict
from rich.cells import cell_len
from screen_text import shown, until
from snapshots import Snapshots
from stage import DONE, canned_root, staged

from eagle3ops.eagle3.layers import AuxLayers
from eagle3ops.outputs.wiring import wiring_of
from eagle3ops.screens.app import ConsoleApp
from eagle3ops.screens.widgets.cells import Line
from eagle3ops.screens.widgets.glyphs import ASCII, BLOCKS
from eagle3ops.screens.widgets.lines import Lines
from eagle3ops.screens.wiring.map import fold, wiring_lines
from eagle3ops.screens.wiring.view import view_of

NOW = 1796035900.0
EVIL = "[bold red]x[/] [@click=app.quit]y[/] \x1b]52;c;aGk=\x07 \u202e"
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([EVIL, "", "stored", "served", "x" * 200]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
SEGMENT = st.fixed_dictionaries(
    {},
    optional={
        name: JSON | st.integers(0, 9)
        for name in ("segment", "trained", "served", "error", "margin", "cosine", "passed")
    },
)
CHECK = st.fixed_dictionaries(
    {}, optional={"name": JSON, "between": JSON | st.lists(st.text(max_size=5)), "reason": JSON,
                  "verdict": JSON | st.sampled_from(["PASS", "FAIL", "UNDECIDED", "not made"])}
)  # fmt: skip
SIDE = st.fixed_dictionaries(
    {}, optional={"side": JSON, "boundaries": JSON | st.lists(st.integers(-1, 90)), "names": JSON, "words": JSON,
                  "label": JSON, "passed": JSON, "segments": st.lists(SEGMENT, max_size=4)}
)  # fmt: skip
ANSWER = st.fixed_dictionaries(
    {},
    optional={
        "layers": JSON | st.integers(0, 90),
        "target": JSON,
        "sides": st.lists(JSON | SIDE, max_size=4),
        "verdict": JSON
        | st.fixed_dictionaries(
            {"passed": st.booleans(), "sides": st.lists(SIDE, max_size=3), "checks": st.lists(CHECK, max_size=3)}
        ),
        "needed": JSON,
        "advice": st.lists(JSON, max_size=3),
        "judged": JSON,
        "words": JSON,
    },
)


def texts(lines: Sequence[Line]) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]


@given(st.integers(1, 200), st.sets(st.integers(-2, 210), max_size=9), st.integers(1, 60))
def test_folding_leaves_nothing_out_and_shows_what_is_wanted(count: int, wanted: set[int], budget: int) -> None:
    rows = fold(count, wanted, budget)
    assert [at for row in rows for at in row] == list(range(count))
    assert {at for at in wanted if 0 <= at < count} <= {row[0] for row in rows if len(row) == 1} or count <= budget
    assert all(len(one) == 1 or len(other) == 1 for one, other in pairwise(rows))
    least = len([at for at in wanted if 0 <= at < count])
    assert len(rows) <= max(budget, 2 * least + 1)


@settings(max_examples=40, deadline=None)
@given(ANSWER, st.integers(20, 180), st.integers(0, 60), st.booleans())
@example({"verdict": {"passed": False, "sides": [{"boundaries": None, "segments": [{}]}]}}, 155, 0, False)
@example({"verdict": {"passed": False, "sides": [{"boundaries": None, "segments": [{}]}]}}, 130, 0, True)
@example({"advice": [EVIL], "words": EVIL, "target": {"name": EVIL}}, 40, 10, False)
def test_any_answer_becomes_lines_that_fit(answer: dict[str, Any], width: int, height: int, plainly: bool) -> None:
    for line in wiring_lines(view_of(answer), width, height, ASCII if plainly else BLOCKS, NOW):
        text = "".join(text for text, _ in line)
        assert all(character.isprintable() for character in text)
        assert cell_len(text) <= max(width, 80), text


def test_eighty_layers_fit_into_24_rows(tmp_path: Path) -> None:
    made_run(tmp_path, layers=80, trained=(2, 40, 77), served=(2, 41, 77))
    lines = texts(wiring_lines(view_of(wiring_of(tmp_path, "last")), 75, 19, BLOCKS, NOW))
    map_ = lines[lines.index("") + 1 :]
    map_ = map_[: map_.index("")]
    assert len(map_) <= 13
    folded = [line.split("  ")[-1].strip() for line in map_ if "nobody reads" in line]
    assert folded == ["3 to 39: 37 boundaries that nobody reads", "42 to 76: 35 boundaries that nobody reads",
                      "78 to 79: 2 boundaries that nobody reads"]  # fmt: skip
    rows = {line.split()[1]: line for line in map_ if line.startswith(("┌", "├", "└"))}
    assert "● seg 1      ✗ not served" in rows["40"]
    assert rows["41"].rstrip().endswith("✗ seg 1")
    assert "embedding" in rows["0"]
    assert "none" in rows["80"]


def test_an_undecided_verdict_and_its_checks(tmp_path: Path) -> None:
    checks = [
        {"name": "template", "between": ["data", "engine"], "verdict": "PASS", "reason": "alike"},
        {
            "name": "loss_mask",
            "between": ["data", "training"],
            "verdict": "UNDECIDED",
            "reason": "who knows",
            "fix": "x",
        },
        {"name": "greedy", "between": ["data", "engine"], "verdict": "not made", "reason": "the answers were sampled"},
    ]
    made_run(tmp_path, error=0.09, served=(2, 4, 5), checks=checks)
    for width in (76, 156):
        lines = texts(wiring_lines(view_of(wiring_of(tmp_path, "last")), width, 40, BLOCKS, NOW))
        assert lines[0].startswith("? UNDECIDED")
        text = "\n".join(lines)
        assert "→ To decide it: measure how far this engine moves" in text
        assert "engine reference  ? UNDECIDED" in text
        assert "✗" not in text
        told = [line[-60:].strip() if width > 100 else line.strip() for line in lines]
        names = ("? UNDECIDED  loss mask", "who knows", "- not made  greedy", "sampled", "✓ PASS  template")
        places = [next(at for at, line in enumerate(told) if name in line) for name in names]
        assert places == sorted(places), told


async def test_a_failing_verdict_in_80_by_24(tmp_path: Path) -> None:
    made_run(tmp_path, served=(2, 4, 6), serve={"convention": "boundary", "ids": [2, 4, 6]})
    app = ConsoleApp(str(tmp_path))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "demo-bbbb")
        await pilot.press("6")
        text = await until(pilot, "✗ FAIL", "✗ seg 2", "✗ not served")
        assert "verdict FAIL" in text
        assert "engine reference: boundary 6 instead of 5" in text
        assert "(--set stages.serve.aux_layers=null)" in text
        await pilot.press("pagedown")
        await until(pilot, "✗ differs")
        await pilot.press("end")
        await until(pilot, "HF hidden_states", "2, 4, 6")


async def test_map_and_fingerprints_stand_side_by_side_when_there_is_room(tmp_path: Path) -> None:
    made_run(tmp_path, layers=80, trained=(2, 40, 77))
    app = ConsoleApp(str(tmp_path))
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, "demo-bbbb")
        await pilot.press("6")
        text = await until(pilot, "✓ PASS", "hidden_states[40]", "● segment 1", "✓ same", "1, 39, 76")
        assert "nobody reads" in text
        await pilot.press("u")
        text = await until(pilot, "after layer 30")
        assert "nobody reads" not in text


async def test_no_verdict_yet_and_no_target_yet(tmp_path: Path) -> None:
    made_run(tmp_path, stages=(), run_id="20261130-054512-demo-aaaa")
    made_run(tmp_path, stages=("fetch", "generate", "extract"))
    app = ConsoleApp(str(tmp_path))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "demo-bbbb")
        await pilot.press("6")
        await until(pilot, "no verdict", "the verify stage has not run yet", "● seg 0")
        await pilot.press("[")
        await until(pilot, "the fetch stage has not run yet")


def copied_text(folder: Path) -> str:
    [copied] = folder.glob("eagle3ops-copied-*.txt")
    return copied.read_text()


async def test_ascii_and_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLE3OPS_ASCII", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.delenv("TMUX", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made_run(tmp_path, served=(2, 4, 6))
    app = ConsoleApp(str(tmp_path))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "demo-bbbb")
        await pilot.press("6")
        await until(pilot, "x FAIL", "x seg 2", "v seg 0")
        assert shown(app).isascii()
        await pilot.press("y")
        for _ in range(100):
            await pilot.pause(0.05)
            if any(toast.title == "Copied the wiring" for toast in app._notifications):
                break
    told = copied_text(tmp_path)
    assert "segment 2 was trained on boundary 5 (output of layer 4), but boundary 6" in told
    assert "x differs" in told


async def test_nothing_is_painted_at_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_run(tmp_path)
    app = ConsoleApp(str(tmp_path))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "demo-bbbb")
        await pilot.press("6")
        await until(pilot, "✓ PASS")
        await pilot.pause(0.6)
        painted: list[object] = []
        page = app.screen.query_one("#wiring", Lines)
        monkeypatch.setattr(page, "refresh", lambda *regions, **_: painted.append(regions))
        await pilot.pause(0.6)
        assert painted == []


def test_the_answer_is_small() -> None:
    lines = wiring_lines(
        view_of({"advice": ["x" * 5000] * 50, "sides": [{"side": "stored", "boundaries": [1] * 999}]}),
        80,
        24,
        BLOCKS,
        NOW,
    )
    assert len(json.dumps(texts(lines))) < 100_000


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_it_looks_as_it_did(snapshots: Snapshots, tmp_path: Path, size: tuple[int, int]) -> None:
    root = canned_root(tmp_path)
    folder = next((root / "stages").glob("verify-*/"))
    make_verdict(folder, AuxLayers((2, 4, 5), 8), None, (2, 4, 6), 0.01, 1.0)
    app = staged(root)
    async with app.run_test(size=size) as pilot:
        await until(pilot, "local: connected", "tiny")
        app.runs.select(DONE)
        await pilot.press("6")
        await until(pilot, "✗ FAIL", "✗ not served")
        await snapshots.match(pilot, f"wiring-{size[0]}x{size[1]}")
