"""Does the real guard name what drills do for real?"""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from eagle3ops.drills import rehearsal
from eagle3ops.drills.catalogue import DRILLS, find
from eagle3ops.drills.rehearsal import deadline_of, rehearse
from eagle3ops.errors import Eagle3opsError
from eagle3ops.runs.processes import identify
from eagle3ops.watchdog.judge.deadlines import Deadlines

pytestmark = pytest.mark.skipif(not Path("/proc/self/wchan").exists(), reason="needs /proc")


def test_a_stopped_worker_is_named_with_evidence(tmp_path: Path) -> None:
    outcome = rehearse(find("stopped"), tmp_path, scale=0.2, lead=2.0)
    assert outcome.right, outcome
    assert outcome.said == "stopped"
    assert outcome.troubles == ()
    assert Path(outcome.evidence).is_relative_to(tmp_path)
    dossier = json.loads((Path(outcome.evidence) / "dossier.json").read_text())
    assert dossier


def test_every_fault_has_a_limit() -> None:
    for drill in DRILLS:
        if not drill.healthy:
            assert deadline_of(drill, Deadlines()) > 0


def test_whatever_happens_its_processes_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Broken:
        def __init__(self, pid: int, **_: object) -> None:
            seen.append(identify(pid))
            raise Eagle3opsError("the guard cannot be started")

    monkeypatch.setattr(rehearsal, "PidFinder", Broken)
    with pytest.raises(Eagle3opsError, match="cannot be started"):
        rehearse(find("idle"), tmp_path, for_s=1.0)
    assert seen[0] is not None
    assert identify(seen[0].pid) != seen[0]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["faults", "healthy"])
async def test_every_drill_is_named_rightly(name: str, tmp_path: Path) -> None:
    """Side by side, each by a command of its own: some change their mounts. With the deadlines as they are."""
    drills = [one for one in DRILLS if one.healthy == (name == "healthy") and one.reason() is None]

    async def hold(drill: str) -> dict[str, object]:
        command = (sys.executable, "-m", "eagle3ops", "drill", drill, "--json", "--for", "300", "--keep", str(tmp_path))
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        out, _ = await process.communicate()
        answer: dict[str, object] = json.loads(out.splitlines()[0])
        return answer

    outcomes = await asyncio.gather(*(hold(one.name) for one in drills))
    assert [one for one in outcomes if not one["right"]] == []
