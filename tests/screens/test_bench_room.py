"""The Bench room shows what was measured, promotes on evidence or with a reason, and goes back; never by a slip."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from bench_worlds import FINGERPRINT, alarmed_json, bench_json, make_bench_run
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from screen_text import shown, until
from textual.pilot import Pilot

from eagle3ops.outputs import drafters as outputs
from eagle3ops.screens.app import ConsoleApp
from eagle3ops.screens.bench.layout import bench_lines
from eagle3ops.screens.bench.model import VERDICTS, bench_facts, drafters
from eagle3ops.screens.bench.room import Bench
from eagle3ops.screens.bench.tables import Axis, drafter_lines, setting_at
from eagle3ops.screens.widgets.glyphs import ASCII, BLOCKS
from eagle3ops.screens.widgets.lines import Lines, Table
from eagle3ops.screens.widgets.wrapping import wrapped
from eagle3ops.settings import resolve
from eagle3ops.words import plain

FIRST, BEST, WRONG = "20261130-010000-first-aaaa", "20261130-020000-best-bbbb", "20261130-030000-wrong-cccc"
EVIL = "\x1b]52;c;eA==\x07[@click=app.quit]x[/] \u202e\x00"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three runs: a better one, the best one, and the newest one with a wrong wiring."""
    make_bench_run(tmp_path, FIRST)
    make_bench_run(tmp_path, BEST, bench_json(low=1.5, value=1.7, high=1.9))
    make_bench_run(tmp_path, WRONG, failing=("wiring",))
    return tmp_path


@pytest.fixture(scope="module")
def real_answer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the host answers about a run that is promoted."""
    root = tmp_path_factory.mktemp("answer")
    run = make_bench_run(root, FIRST, alarmed_json())
    outputs.promote(root, run=run.run_id, reason="why not", forced=True)
    answer: dict[str, Any] = json.loads(json.dumps(outputs.bench(root, run.run_id)))
    return answer | {"drafters": outputs.list_drafters(root)["drafters"]}


def now(root: Path) -> tuple[str, str, bool] | None:
    """The run and setting that are promoted, and whether by force."""
    found = outputs.show(root)["promoted"]
    one = found[0]["current"] if found else None
    return None if one is None else (one["run"], one["setting"], one["forced"])


async def noticed(pilot: "Pilot[int]", *words: str) -> None:
    """Wait until a message has said all the words."""
    for _ in range(600):
        if any(all(word in notice.message for word in words) for notice in pilot.app._notifications):
            return
        await pilot.pause(0.05)
    raise AssertionError(f"{words} not in {[notice.message for notice in pilot.app._notifications]}")


async def opened(pilot: "Pilot[int]", *words: str) -> str:
    """The room, once it shows the words."""
    await until(pilot, "local: connected")
    await pilot.press("8")
    return await until(pilot, *words)


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_what_was_measured(root: Path, size: tuple[int, int]) -> None:
    app = ConsoleApp(str(root))
    async with app.run_test(size=size) as pilot:
        said = [
            "recommended: 3/1/4  1.35x of the baseline, 95 % interval 1.20 to 1.50",
            "nothing promoted",
            "✗ 3/1/4 is not to be promoted  wiring is FAIL: why wiring",
            "3 drafters of toy, the fastest first",
            "1.70x",
            "├",
            "P Promote",
        ]
        if size[0] > 100:
            said += ["✗ FAIL wiring", "✓ PASS     equal output", "draft position", "61.3%", "c 1/1/2 (under 3/1/4)"]
        text = await opened(pilot, *said)
        assert "1.70x" in next(line for line in text.splitlines() if "best-bbbb" in line)
        if size[0] < 100:
            assert "draft position" not in text
            await pilot.press("pagedown")
            await until(pilot, "draft position", "61.3%")


async def test_promote_roll_back_and_overrule(root: Path) -> None:
    app = ConsoleApp(str(root))
    async with app.run_test(size=(110, 40)) as pilot:
        await opened(pilot, "recommended: 3/1/4", "best-bbbb")
        await pilot.press("P")
        await until(pilot, f"The gate refuses {WRONG} at 3/1/4", "wiring is FAIL: why wiring", "Say why")
        await pilot.press("enter")
        assert "Say why" in shown(app)
        await pilot.press("escape")
        # The best one is promoted in peace.
        table = app.screen.query_one("#drafters", Table)
        await pilot.click(table, offset=(3, 2))
        await pilot.press("enter")
        await until(pilot, "3/1/4 may be promoted")
        await pilot.press("P")
        await until(pilot, f"Promote {BEST} at 3/1/4?", "in place of no drafter")
        await pilot.press("n")
        assert now(root) is None
        await pilot.press("P", "y")
        assert "3/1/4 may be promoted" not in await until(pilot, "promoted: this drafter at 3/1/4")
        assert now(root) == (BEST, "3/1/4", False)
        await pilot.press("P")
        await noticed(pilot, "is what is promoted")
        # Another setting, by force, with a reason.
        page = app.screen.query_one("#page", Lines)
        at = next(row for row, line in enumerate(page._lines) if setting_at(line) == "1/1/2")
        await pilot.click(page, offset=(6, at))
        await until(pilot, "▸ 1/1/2")
        await pilot.press("s")
        await until(pilot, "▸ 3/1/4")
        await pilot.press("s")
        await until(pilot, "▸ 1/1/2")
        await pilot.press("P")
        await until(pilot, f"The gate refuses {BEST} at 1/1/2", "(1.70x, 1.50 to 1.90)")
        await pilot.press(*"a trial", "enter")
        await until(pilot, "promoted: this drafter at 1/1/2", "by force: a trial")
        assert now(root) == (BEST, "1/1/2", True)
        await pilot.press("B")
        await until(pilot, f"Roll back from {BEST} at 1/1/2?", f"toy is served with {BEST} at 3/1/4")
        await pilot.press("y")
        await until(pilot, "promoted: this drafter at 3/1/4")
        await pilot.press("B")
        await until(pilot, "toy is served with no drafter")
        await pilot.press("y")
        await until(pilot, "nothing promoted")
        await pilot.press("B")
        await noticed(pilot, "No drafter is promoted for toy")
    assert now(root) is None


async def test_what_others_decided_meanwhile_is_not_overwritten(root: Path) -> None:
    app = ConsoleApp(str(root))
    async with app.run_test(size=(110, 40)) as pilot:
        await opened(pilot, WRONG, "first-aaaa")
        app.runs.select(FIRST)
        await until(pilot, FIRST, "3/1/4 may be promoted")
        await pilot.press("P")
        await until(pilot, f"Promote {FIRST} at 3/1/4?")
        outputs.promote(root, run=BEST)
        await pilot.press("y")
        await noticed(pilot, "meanwhile")
        await until(pilot, f"promoted: {BEST} at 3/1/4")
        # And without anything done here it is seen after a while.
        outputs.rollback(root, target=FINGERPRINT)
        room = app.screen
        assert isinstance(room, Bench)
        room._read_at = 0.0
        await until(pilot, "nothing promoted")
    assert now(root) is None


async def test_read_only_promotes_nothing(root: Path) -> None:
    app = ConsoleApp(str(root), resolved=resolve({"read_only": True, "ascii": True}))
    async with app.run_test(size=(110, 40)) as pilot:
        text = await opened(pilot, "recommended: 3/1/4", "best-bbbb", "s Setting")
        assert text.isascii()
        assert "Promote" not in text
        await pilot.press("P", "B")
        await pilot.pause(0.2)
        assert isinstance(app.screen, Bench)
    assert now(root) is None


async def test_a_run_without_a_bench_and_hostile_names(root: Path) -> None:
    run = make_bench_run(root, "20261130-040000-odd-dddd")
    state = json.loads((run.path / "state.json").read_text())
    state["stages"]["bench"] = {"status": "failed"}
    (run.path / "state.json").write_text(json.dumps(state))
    target = next((root / "stages").glob("fetch-*/target.json"))
    target.write_text(json.dumps({"name": EVIL, "fingerprint": FINGERPRINT, "path": "/models/toy"}))
    app = ConsoleApp(str(root))
    async with app.run_test(size=(110, 40)) as pilot:
        text = await opened(pilot, "No benchmark: the bench stage has failed", "[@click=app.quit]x[/]", "best-bbbb")
        assert not {"\x1b", "\x07", "\x00", "\u202e"} & set(text)
        await pilot.press("P")
        await noticed(pilot, "There is nothing to promote: the bench stage has failed")
        await pilot.press("y")
        await noticed(pilot, "Nothing is promoted")


words = st.text(max_size=6) | st.just(EVIL)
values = st.none() | st.booleans() | st.integers() | st.floats() | words
json_like = st.recursive(
    values, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4), max_leaves=10
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a piece of JSON."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in inner for place in places(one, (*path, key)))]


@settings(deadline=None)
@given(st.data())
def test_any_answer_is_painted(real_answer: dict[str, Any], data: st.DataObject) -> None:
    """With anything in any place, or nothing sensible at all, lines come out that fit and steer nothing."""
    answer: Any = json.loads(json.dumps(real_answer))
    place = data.draw(st.sampled_from(places(answer)))
    value = data.draw(json_like)
    if place:
        at = answer
        for key in place[:-1]:
            at = at[key]
        at[place[-1]] = value
    else:
        answer = value
    width, glyphs = data.draw(st.sampled_from([20, 76, 90, 156, 240])), data.draw(st.sampled_from([BLOCKS, ASCII]))
    facts = bench_facts(answer)
    lines = bench_lines(facts, data.draw(st.sampled_from(["3/1/4", "1/1/2", ""])), width, 40, glyphs)
    head, rows = drafter_lines(drafters(answer), facts.run, width, glyphs, all_targets=data.draw(st.booleans()))
    for line in [*lines, head, *rows]:
        text = "".join(part for part, _ in line)
        assert plain(text) == text
        assert width < 76 or cell_len(text) <= width, text


@pytest.mark.parametrize("width", [80, 160])
def test_the_alarm_says_where_it_starts_and_who_is_left(real_answer: dict[str, Any], width: int) -> None:
    lines = bench_lines(bench_facts(real_answer), "3/1/4", width, 60, BLOCKS)
    text = "\n".join("".join(part for part, _ in line) for line in lines)
    said = " ".join(text.split())
    assert "ALARM served" in said
    assert "▸ position 2:" in said
    assert "wiring, measured again: boundaries 2, 4, 5, as in training" in said
    assert "? drafting, likely:" in said
    assert "? prompts, possible:" in said
    assert "text: 10% of 20 answers loop" in said
    assert "template" not in said


@given(st.text(), st.integers(8, 90), st.integers(0, 6))
def test_wrapping_loses_nothing_and_fits(text: str, width: int, indent: int) -> None:
    text = plain(text)
    lines = wrapped(text, width, indent=indent)
    assert all(cell_len(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e5), st.floats(0, 1e5)), max_size=5), st.integers(0, 60))
def test_intervals_stay_on_the_axis(numbers: list[tuple[float, float, float]], width: int) -> None:
    from eagle3ops.screens.bench.model import Interval

    intervals = [Interval(value, min(low, high), max(low, high)) for value, low, high in numbers]
    axis = Axis(intervals, width)
    assert cell_len(axis.heading()) == width
    for one in [*intervals, None]:
        assert cell_len(axis.row(one)) == width
        assert width < 3 or "●" in axis.row(one)


def test_the_mark_at_one_tells_better_from_worse() -> None:
    from eagle3ops.screens.bench.model import Interval

    better, unclear, worse = Interval(1.5, 1.4, 1.6), Interval(1.05, 0.9, 1.2), Interval(0.8, 0.7, 0.9)
    axis = Axis([better, unclear, worse], 40)
    assert axis.row(better).index("│") < axis.row(better).index("├")
    assert axis.row(worse).index("┤") < axis.row(worse).index("│")
    assert "│" not in axis.row(unclear)
    assert [one.look for one in (better, unclear, worse)] == ["good", "warn", "bad"]


@pytest.mark.parametrize(
    ("verdicts", "promoted", "told"),
    [
        ({}, None, "· 4 not made"),
        (dict.fromkeys(VERDICTS, True), None, "✓ PASS"),
        (dict.fromkeys(VERDICTS, True), "3/1/4", "✓ PASS ◆3/1/4"),
        (dict.fromkeys(VERDICTS, True) | {"wiring": False, "accept_length": False}, "3/1/4", "✗ 2 of 6 FAIL"),
        (dict.fromkeys(VERDICTS, True) | {"wiring": False}, None, "✗ FAIL wiring"),
        (dict.fromkeys(VERDICTS, True) | {"accept_length": False}, None, "✗ 1 of 6 FAIL"),
    ],
)
def test_a_narrow_list_of_drafters_cuts_no_verdict(verdicts: Any, promoted: Any, told: str) -> None:
    found = drafters({"drafters": [{"run": BEST, "setting": "1/1/2", "verdicts": verdicts, "promoted": promoted}]})
    _, [line] = drafter_lines(found, None, 76, BLOCKS, all_targets=False)
    assert line[-1][0].rstrip() == told


def test_many_drafters_are_listed_in_no_time(tmp_path: Path) -> None:
    for number in range(60):
        make_bench_run(tmp_path, f"20261130-01{number:02}00-many-{number:04}")
    began = time.process_time()
    assert len(outputs.list_drafters(tmp_path)["drafters"]) == 60
    assert (time.process_time() - began) / 60 < 0.02, f"{os.getloadavg()}"
