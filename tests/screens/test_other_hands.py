"""What if somebody else deletes a run that is looked at, or the host's eagle3ops is older than the console?"""

import shutil
from pathlib import Path

from screen_text import shown, until
from stage import DONE, FAILED, Renamed, canned_root, staged
from textual.pilot import Pilot

from eagle3ops.screens.app import ConsoleApp
from eagle3ops.screens.rooms import ROOMS
from eagle3ops.settings import resolve

OLD = {
    "overview": "✓ done",
    "run": "stages 8",
    "logs": "following",
    "gpus": "No process of a run",
    "incidents": "cannot do 'incidents.list'",
    "wiring": "cannot do 'runs.wiring'",
    "tokens": "cannot do 'runs.tokens'",
    "bench": "cannot do 'runs.bench'",
    "ledger": "cannot do 'ledger.rows'",
    "launch": "cannot do 'spec.schema'",
}
"""What each room says of an agent that is older than the rooms."""
LACKING = ("runs.processes", "runs.artifacts", "log.merged", "incidents.list", "runs.wiring", "runs.tokens",
           "runs.bench", "drafters.list", "ledger.rows", "spec.schema")  # fmt: skip


async def test_a_run_that_somebody_deletes_is_left(tmp_path: Path) -> None:
    """It must not go on looking like a run that stands."""
    root = canned_root(tmp_path)
    app = ConsoleApp(str(root), resolved=resolve({"refresh": 0.2}))
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await until(pilot, "local: connected", "tiny")
        app.runs.select(FAILED)
        for key in "1236789":
            await pilot.press(key)
        await pilot.press("2")
        await until(pilot, FAILED, "SIGKILL")
        shutil.rmtree(root / "runs" / FAILED)
        await until(pilot, f"{FAILED} is gone", f"─ {DONE}", "stages 8")
        assert app.runs.selected == DONE
        for key, words in (("3", "engine-serve"), ("6", "✓ PASS"), ("1", "Runs: 1"), ("9", "1 run by")):
            await pilot.press(key)
            text = await until(pilot, words)
            assert FAILED not in text.replace(f"{FAILED} is gone", "")
        shutil.rmtree(root / "runs" / DONE)
        for key, words in (("1", "No runs in"), ("2", "no run yet"), ("3", ""), ("9", "no run yet")):
            await pilot.press(key)
            await until(pilot, words)
        await pilot.press("3")
        await pilot.pause(0.3)
        assert "engine-serve" not in shown(app)


async def test_an_older_agent_costs_only_what_it_cannot_do(tmp_path: Path) -> None:
    root = canned_root(tmp_path)
    app = staged(root)
    names = {f'"{op}"': f'"older.{op}"' for op in LACKING}
    app.link.transport = Renamed(app.link.transport, names)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await until(pilot, "local: connected", "tiny")
        app.runs.select(DONE)
        for entry in ROOMS:
            await pilot.press(entry.key)
            text = await until(pilot, *([] if entry.name == "gpus" else [OLD[entry.name]]))
            if "cannot do" in OLD[entry.name]:
                assert "install eagle3ops" in " ".join(text.split()), text
        await pilot.press("2")
        await until(pilot, "stages 8")
        await _tab(pilot, "processes")
        await until(pilot, "cannot do 'runs.processes'")
        await pilot.press("3")
        await until(pilot, "following")
        await pilot.press("m")
        await until(pilot, "'log.merged', which this one", "install eagle3ops")
        await pilot.press("m")
        # What it does know goes on: the log is still looked at.
        with (root / "runs" / DONE / "logs" / "engine-bench-1-1-2.log").open("a") as log:
            log.write("one more line\n")
        await until(pilot, "one more line")


async def _tab(pilot: Pilot[int], name: str) -> None:
    room = pilot.app.screen
    room.action_tab(name)  # type: ignore[attr-defined]
    await pilot.pause()
