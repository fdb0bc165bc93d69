"""Does every room open, on a run that is done and on one that failed, small and large, without a defect?"""

from pathlib import Path

import pytest
from screen_text import shown, until
from stage import DONE, FAILED, canned_root, eight_gpus, staged

from eagle3ops.screens.rooms import ROOMS


@pytest.mark.parametrize(("run", "size"), [(DONE, (160, 48)), (FAILED, (80, 24))])
async def test_every_room(tmp_path: Path, run: str, size: tuple[int, int]) -> None:
    app = staged(canned_root(tmp_path), eight_gpus(40))
    async with app.run_test(size=size) as pilot:
        await until(pilot, "local: connected", "tiny")
        app.runs.select(run)
        for entry in ROOMS:
            await pilot.press(entry.key)
            for _ in range(400):
                await pilot.pause(0.05)
                if app.current_mode == entry.name and "Reading " not in shown(app):
                    break
            await pilot.pause(0.1)
            text = shown(app)
            assert app.current_mode == entry.name
            assert app._exception is None
            assert len(text.splitlines()) == size[1]
            assert all(one.isprintable() or one == "\n" for one in text), entry.name
            assert str(tmp_path) not in text, "a name that the agent did not say"
            told = [f"{note.title}: {note.message}" for note in app._notifications if note.severity == "error"]
            assert told == [], entry.name
