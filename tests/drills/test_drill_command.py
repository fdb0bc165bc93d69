"""What does `eagle3ops drill` answer?"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eagle3ops.cli import main
from eagle3ops.drills.catalogue import DRILLS, find
from eagle3ops.drills.drill import Skipped
from eagle3ops.runs.processes import identify


def test_the_list_names_every_drill_and_what_is_not_possible(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drill", "--list", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["name"] for row in rows] == [drill.name for drill in DRILLS]
    assert main(["drill", "--list"]) == 0
    text = capsys.readouterr().out
    for row in rows:
        assert row["name"] in text
        assert (row["skipped"] is None) == (f"\n{row['name']} is skipped here" not in text)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "which drill?"),
        (["no_such"], "there is no drill 'no_such'"),
        (["idle", "--deadline-scale", "0"], "--deadline-scale"),
        (["idle", "--for", "-1"], "--for"),
        (["idle", "--host", "gpu"], "takes no --host"),
    ],
)
def test_a_wrong_request_is_refused(words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drill", *words]) == 2
    assert complaint in capsys.readouterr().err


def test_one_that_cannot_be_held_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EAGLE3OPS_SGLANG_PYTHON", "/no/such/python")
    assert main(["drill", "sglang_stuck", "--keep", str(tmp_path)]) == 6
    assert "/no/such/python" in capsys.readouterr().err


def test_full_disks_are_seen_by_who_started_them_and_by_nobody_else(tmp_path: Path) -> None:
    """In a process of its own: it changes its mounts."""
    for name in ("disk_full", "shm_full"):
        reason = find(name).reason()
        if reason is not None:
            pytest.skip(reason)
        place = tmp_path / name
        place.mkdir()
        program = (
            "import os, sys; from pathlib import Path; from eagle3ops.drills.catalogue import find\n"
            f"folder = Path({str(place)!r})\n"
            f"with find({name!r}).start(folder):\n"
            f"    space = os.statvfs({'/dev/shm' if name == 'shm_full' else str(place / 'full')!r})\n"
            "    print(space.f_bavail, space.f_blocks * space.f_frsize)\n"
            "assert os.statvfs('/dev/shm').f_bavail > 0 and not os.path.ismount(folder / 'full')\n"
        )
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
        assert run.returncode == 0, run.stderr
        free, total = map(int, run.stdout.split())
        assert free == 0
        assert 0 < total <= 16 * 2**20
        # Here it is as it was.
        assert os.statvfs("/dev/shm").f_bavail > 0
        assert not os.path.ismount(place / "full")


def test_mounts_that_are_not_permitted_skip_the_drill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from eagle3ops.drills import dead_mount

    monkeypatch.setattr(dead_mount, "private_mounts", lambda: "mounts of its own are not permitted: EPERM")
    drill = find("disk_full")
    if drill.reason() is not None:
        pytest.skip("it is skipped before it comes to that")
    with pytest.raises(Skipped, match="EPERM"):
        drill.start(tmp_path)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_whoever_ends_the_command_ends_what_it_started(number: int, code: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "eagle3ops", "drill", "stopped", "--json", "--keep", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while not (told := list(tmp_path.glob("*/ready.json"))) and time.monotonic() < deadline:
            time.sleep(0.05)
        facts = json.loads(told[0].read_text())
        members = [found for pid in (facts["subject"], facts["worker"]) if (found := identify(pid)) is not None]
        assert len(members) == 2
        process.send_signal(number)
        assert process.wait(60) == code
    deadline = time.monotonic() + 30
    while any(identify(one.pid) == one for one in members) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [one for one in members if identify(one.pid) == one] == []
