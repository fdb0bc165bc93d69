"""Do the rooms look as they did? With a clock that stands still and a canned root; see `snapshots` for how to renew."""

from pathlib import Path

import pytest
from screen_text import until
from snapshots import Snapshots
from stage import DONE, FAILED, SHOWN, canned_root, eight_gpus, staged, still

SMALL, LARGE = (80, 24), (160, 48)


@pytest.mark.parametrize("size", [SMALL, LARGE])
async def test_gpus(snapshots: Snapshots, tmp_path: Path, size: tuple[int, int]) -> None:
    app = staged(tmp_path, eight_gpus())
    async with app.run_test(size=size) as pilot:
        await until(pilot, "local: connected")
        await pilot.press("4")
        await until(pilot, "8 GPUs", "rank 7" if size == LARGE else "rank")
        await snapshots.match(pilot, f"gpus-{size[0]}x{size[1]}")


@pytest.mark.parametrize("size", [SMALL, LARGE])
async def test_overview(snapshots: Snapshots, tmp_path: Path, size: tuple[int, int]) -> None:
    app = staged(canned_root(tmp_path), eight_gpus())
    async with app.run_test(size=size) as pilot:
        await until(pilot, "local: connected", "✗ failed", "SIGKILL", f"{SHOWN}/runs")
        still(app)
        await snapshots.match(pilot, f"overview-{size[0]}x{size[1]}")


async def test_help(snapshots: Snapshots, tmp_path: Path) -> None:
    app = staged(tmp_path)
    async with app.run_test(size=(120, 36)) as pilot:
        await until(pilot, "local: connected", SHOWN)
        await pilot.press("question_mark")
        await until(pilot, "search: a key")
        still(app)
        await snapshots.match(pilot, "help-120x36")


ROOMS = {
    "run-120x36": (FAILED, ["2", "m", "down"], ["train: loss", "highest"]),
    "incidents-80x24": (FAILED, ["5"], ["train failed", "take the run up again", "ended by SIGKILL"]),
    "bench-160x48": (DONE, ["8"], ["Pareto", "no drafter is recommended", "1 drafter of tiny-random"]),
    "ledger-120x36": (FAILED, ["9", "space", "down", "space"], ["What changed", "stages.train.epochs"]),
}
"""Name and size -> the run, what is pressed, and what has to be there by then."""


@pytest.mark.parametrize("name", ROOMS)
async def test_rooms(snapshots: Snapshots, tmp_path: Path, name: str) -> None:
    run, keys, words = ROOMS[name]
    width, height = map(int, name.rpartition("-")[2].split("x"))
    app = staged(canned_root(tmp_path), eight_gpus())
    async with app.run_test(size=(width, height)) as pilot:
        await until(pilot, "local: connected", "tiny")
        app.runs.select(run)
        await until(pilot, run)
        for key in keys:
            await pilot.press(key)
            await pilot.pause(0.3)
        text = await until(pilot, *words)
        assert str(tmp_path) not in text
        await snapshots.match(pilot, name)


async def test_the_canned_root_has_a_run_of_each_kind(tmp_path: Path) -> None:
    app = staged(canned_root(tmp_path))
    async with app.run_test(size=LARGE) as pilot:
        text = await until(pilot, "failed", "done", "SIGKILL", f"{SHOWN}/runs")
        assert str(tmp_path) not in text
