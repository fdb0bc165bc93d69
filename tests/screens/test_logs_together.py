"""The logs of many ranks as one, some ranks only, the cause of a failure, and a place that another room points to."""

import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from screen_text import shown, until
from textual.events import MouseScrollDown, MouseScrollUp
from textual.pilot import Pilot
from textual.widgets import Input, OptionList

from eagle3ops.screens.app import ConsoleApp
from eagle3ops.screens.logs.text import labels, parse_part, rank_of
from eagle3ops.screens.logs.view import LogView

RUN = "20261130-054512-ranks-bbbb"
OLDER = "20261129-054512-older-aaaa"
RANKS = 4


def lines_of(rank: int, first: int, last: int) -> str:
    return "".join(
        f"[2026-11-30 04:{n // 60:02d}:{n % 60:02d},{rank:03d}] INFO step {n}.\n" for n in range(first, last)
    )


def made(root: Path, run_id: str, logs: dict[str, str | bytes], **state: object) -> Path:
    """The logs of a run that has ended."""
    folder = root / "runs" / run_id
    (folder / "logs").mkdir(parents=True)
    (folder / "request.json").write_text(json.dumps({"job": "pipeline", "stages": [], "cache": "", "source": "x"}))
    (folder / "state.json").write_text(json.dumps({"status": "done", "job": "pipeline", "exit_code": 0} | state))
    for name, text in logs.items():
        (folder / "logs" / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        os.utime(folder / "logs" / name, (1_796_020_000, 1_796_020_000))
    return folder / "logs"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The logs of a training on several ranks, one of which failed."""
    made(tmp_path, OLDER, {"old.log": "long ago\n"})
    logs: dict[str, str | bytes] = {f"train-rank{rank}.log": lines_of(rank, 0, 300) for rank in range(RANKS)}
    logs["train-rank2.log"] = (
        f"{lines_of(2, 0, 299)}Traceback (most recent call last):\n  File x\nValueError: it broke\n"
    )
    logs["engine.log"] = "[2026-11-30 04:02:00] INFO TP3 ready\n[2026-11-30 04:02:01] INFO TP1 ready\n"
    failed = {"status": "failed", "log": "logs/train-rank2.log"}
    return made(tmp_path, RUN, logs, status="failed", exit_code=1, stages={"train": failed})


def console(folder: Path) -> ConsoleApp:
    return ConsoleApp(str(folder.parents[2]))


async def opened(pilot: "Pilot[int]") -> LogView:
    await until(pilot, "ranks-bbbb")
    await pilot.press("3")
    await until(pilot, "▶ following", "train-rank2.log  line 302 of 302", "ValueError: it broke")
    return pilot.app.screen.query_one(LogView)


async def typed(pilot: "Pilot[int]", key: str, text: str) -> None:
    await pilot.press(key)
    pilot.app.screen.query_one(Input).value = text
    await pilot.press("enter")


async def test_all_logs_as_one_and_back_to_the_log_of_a_line(folder: Path) -> None:
    async with console(folder).run_test(size=(120, 24), notifications=True) as pilot:
        view = await opened(pilot)
        await pilot.press("m")
        text = await until(pilot, "5 logs merged", "line 1,204 of 1,204", "▶ following")
        assert "All logs as one" in text
        rows = [line for line in text.splitlines() if "step 298." in line]
        assert [row.index("train-rank") for row in rows] == [rows[0].index("train-rank")] * 4
        assert [f"train-rank{rank}" in row for rank, row in enumerate(rows)] == [True] * 4
        # What the failed rank said stays together, before what the others say later.
        after = [line for line in text.splitlines() if "train-rank2 " in line][-3:]
        assert ["Traceback" in after[0], "ValueError" in after[2]] == [True, True]
        with (folder / "train-rank1.log").open("a") as file:
            file.write("[2026-11-30 04:06:00,000] INFO at last.\n")
        await until(pilot, "at last.", "of 1,205")
        await pilot.press("home", "pagedown")
        await until(pilot, "paused", "train-rank", "byte")
        place = view.rows.get(view.cursor)
        assert place is not None
        line = view.cursor + 1
        await pilot.press("m")
        await until(pilot, "of 300" if place.source != 2 else "of 302", place.text.split()[-1])
        await pilot.press("m")
        await until(pilot, "5 logs merged", f"line {line:,} of 1,205", place.text.split()[-1])


async def test_filters_hold_in_all_logs_as_one(folder: Path) -> None:
    async with console(folder).run_test(size=(100, 24), notifications=True) as pilot:
        await opened(pilot)
        await pilot.press("l", "home", "enter")
        await until(pilot, "5 logs merged", "of 1,204")
        await typed(pilot, "ampersand", "step 7.$")
        text = await until(pilot, "filter step 7.$: 4 lines")
        assert [f"train-rank{rank}" in text for rank in range(RANKS)] == [True] * RANKS
        await typed(pilot, "ampersand", "!INFO")
        await until(pilot, "filter !INFO: 3 lines", "ValueError: it broke")
        await pilot.press("e")
        await until(pilot, "!INFO and warnings and errors: 2 lines")
        await pilot.press("e", "e")
        await typed(pilot, "ampersand", "")
        await typed(pilot, "slash", "it broke")
        await until(pilot, "/it broke: 1 of 1", "train-rank2.log, byte")


async def test_only_some_ranks_and_roles(folder: Path) -> None:
    async with console(folder).run_test(size=(100, 24), notifications=True) as pilot:
        await opened(pilot)
        await typed(pilot, "number_sign", "train")
        await until(pilot, "4 logs merged", "only train")
        await typed(pilot, "number_sign", "0,2-3")
        await until(pilot, "3 logs merged", "only rank 0,2,3", "of 902")
        await typed(pilot, "number_sign", "5-1")
        await until(pilot, "Ranks are numbers such as")
        await typed(pilot, "number_sign", "")
        await until(pilot, "5 logs merged", "of 1,204")


async def test_ranks_that_only_the_lines_name(tmp_path: Path) -> None:
    text = "".join(f"[2026-11-30 04:00:{n:02d} TP{n % 8}] INFO x {n}.\n" for n in range(60))
    folder = made(tmp_path, RUN, {"engine.log": text})
    async with console(folder).run_test(size=(100, 24), notifications=True) as pilot:
        await until(pilot, "ranks-bbbb")
        await pilot.press("3", "m")
        await until(pilot, "There is only one log", "of 60")
        await typed(pilot, "number_sign", "1,7")
        await until(pilot, "filter rank 1,7: 15 lines", "TP7] INFO x 55.")


async def test_to_the_cause(folder: Path) -> None:
    async with console(folder).run_test(size=(120, 24), notifications=True) as pilot:
        await opened(pilot)
        await pilot.press("e")
        await until(pilot, "warnings and errors")
        await pilot.press("E")
        await until(
            pilot, "→ the exception that was raised first", "> 302 E ValueError: it broke".replace("> 302", "302")
        )
        assert "line 302 of 302" in await until(pilot, "train-rank2.log")
        await pilot.press("home", "m")
        await until(pilot, "5 logs merged", "paused")
        await pilot.press("E")
        await until(pilot, "raised first", "train-rank2.log, byte")
        await pilot.press("left_square_bracket")
        await until(pilot, "long ago")
        await pilot.press("E")
        await until(pilot, "No log of this run says")
        await pilot.press("right_square_bracket")
        await until(pilot, RUN, "ValueError: it broke")


async def test_another_room_points_to_a_place(folder: Path) -> None:
    app = console(folder)
    async with app.run_test(size=(100, 24), notifications=True) as pilot:
        await until(pilot, "ranks-bbbb")
        text = (folder / "train-rank1.log").read_text()
        app.open_log(RUN, "logs/train-rank1.log", text.index("step 123.") + 2)
        await until(pilot, "line 124 of 300", "train-rank1.log", "step 123.")
        app.open_log(OLDER, "old.log")
        await until(pilot, OLDER, "long ago", "▶ following")
        app.open_log(RUN, "missing.log", 5)
        await until(pilot, "has no log 'missing.log'")
        await pilot.press("l")
        assert app.screen.query_one(OptionList).option_count == 6


async def test_a_log_that_a_longer_one_replaces_is_another_log(folder: Path) -> None:
    async with console(folder).run_test(size=(100, 24), notifications=True) as pilot:
        await opened(pilot)
        await typed(pilot, "ampersand", "step 1..$")
        await until(pilot, "filter step 1..$: ")
        for log in [folder / f"train-rank{rank}.log" for rank in range(RANKS)]:
            log.write_text("".join(f"anew 1{n}.\nstep 1{n}.\n" for n in range(10_000)))
        await until(pilot, "filter step 1..$: 10 lines", "of 20,000")
        await typed(pilot, "ampersand", "")
        await until(pilot, "step 19999.", "20,000 of 20,000")


async def test_a_wrapped_line_that_is_taller_than_the_window_can_be_read(tmp_path: Path) -> None:
    long = " ".join(f"word{n}" for n in range(1000))
    folder = made(tmp_path, RUN, {"engine.log": f"first\n{long}\nlast\n"})
    async with console(folder).run_test(size=(80, 24), notifications=True) as pilot:
        await until(pilot, "ranks-bbbb")
        await pilot.press("3", "w")
        text = await until(pilot, "last", "word999", "wrapped")
        assert "first" not in text
        await pilot.press("home")
        await until(pilot, "first", "word0 ")
        await pilot.press("down")
        seen = ""
        for _ in range(12):
            seen += await until(pilot, "paused, 1 below")
            await pilot.press("pagedown")
            if "last" in shown(pilot.app):
                break
        numbers = set(re.findall(r"word(\d+)", re.sub(r"[\n│┃> ]", "", seen)))
        # Words at the edges of windows are torn.
        assert len({str(n) for n in range(1000)} - numbers) < 30
        view = pilot.app.screen.query_one(LogView)
        await pilot.press("end", "up", "up")
        await until(pilot, "paused")
        before = view._skip
        view.post_message(MouseScrollUp(view, 5, 5, 0, -1, 0, shift=False, meta=False, ctrl=False))
        await pilot.pause(0.1)
        assert view._skip == before - 3
        view.post_message(MouseScrollDown(view, 5, 5, 0, 1, 0, shift=False, meta=False, ctrl=False))
        await pilot.pause(0.1)
        assert view._skip == before


@pytest.mark.parametrize(
    ("typed_in", "ranks", "roles"),
    [("", (), ()), ("0,3-5", (0, 3, 4, 5), ()), ("Engine rank 2 train", (2,), ("engine", "train")), ("7 7", (7,), ())],
)
def test_parts(typed_in: str, ranks: tuple[int, ...], roles: tuple[str, ...]) -> None:
    part = parse_part(typed_in)
    assert part is not None
    assert (part.ranks, part.roles) == (ranks, roles)
    assert part.logs(["a.log", "b.log"]) == ("a.log", "b.log")


def test_ranks_in_names() -> None:
    names = {"train-rank3.log": 3, "train/tp12.log": 12, "train/0/stderr.log": 0, "engine-bench-3-1-4.log": None}
    assert {name: rank_of(name) for name in names} == names
    assert rank_of("step-3.log") is None


@given(st.text(max_size=30))
def test_any_part(text: str) -> None:
    part = parse_part(text)
    assert part is None or part.logs(["x-rank1.log", "y.log"])


@given(st.lists(st.text(min_size=1, max_size=40), min_size=1, max_size=5), st.integers(8, 20))
def test_labels_fit(names: list[str], width: int) -> None:
    assert all(cell_len(label) <= 2 * width and len(label) <= width for label in labels(names, width))
    assert labels([f"a-very-long-beginning-rank{n}.log" for n in range(3)], 12) == ("rank0", "rank1", "rank2")
