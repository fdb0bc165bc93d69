"""Does the console say in every room that a root is none, rather than that there are no runs?"""

from pathlib import Path

import pytest
from screen_text import until

from eagle3ops.screens.app import ConsoleApp


@pytest.mark.parametrize("kind", ["file", "dangling"])
async def test_a_root_that_is_none(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "root"
    if kind == "file":
        root.write_text("not a folder\n")
    else:
        root.symlink_to(tmp_path / "nowhere")
    words = "is a file, not a folder" if kind == "file" else "which is not there"
    app = ConsoleApp(str(root))
    async with app.run_test(size=(160, 40)) as pilot:
        app.clear_notifications()
        shown = await until(pilot, "The runs cannot be read.", words, "--root or EAGLE3OPS_ROOT")
        assert "No runs in" not in shown
        assert "No run yet" not in shown
        for key in ("2", "3", "7"):
            await pilot.press(key)
            shown = await until(pilot, "The runs cannot be read.", words.rpartition(" ")[2])
            assert "There is no run yet" not in shown
        # Put right, it goes on by itself.
        root.unlink()
        root.mkdir()
        await pilot.press("1")
        await until(pilot, "No runs in")
