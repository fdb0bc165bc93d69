"""`telemetry show`, `record` and `play`."""

import json
import os
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from fake_driver import FakeDriver

from eagle3ops.commands import telemetry as telemetry_commands
from eagle3ops.errors import RequestError
from eagle3ops.telemetry import processes
from eagle3ops.telemetry.processes import RUN_MARK
from eagle3ops.telemetry.recording import Player, Recorder

pytestmark = pytest.mark.skipif(not processes.available(), reason="needs a procfs")


def run(command: str, *, json: bool = False, **given: Any) -> int:
    args = {"file": None, "hz": 2.0, "seconds": None, "pid": [], **given}
    return telemetry_commands.telemetry(Namespace(telemetry_command=command, **args), json=json)


def test_show_with_gpus(
    driver: FakeDriver, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry_commands, "_SHOW_APART_S", 0.05)
    process = subprocess.Popen(["sleep", "1000"], env={**os.environ, RUN_MARK: "/nowhere/runs/20260101-x"})
    driver.say(
        f"0.process {process.pid} 5000000000",
        "0.process 4194303 7000000",
        "0.name H200\x1b[31m",
        "0.reasons 0x40",
        "0.field.230 1",
        "1.lost 1",
    )
    try:
        assert run("show") == 0
    finally:
        process.kill()
        process.wait()
    out = capsys.readouterr().out
    assert "sleep" in out
    assert "20260101-x" in out
    assert "pid 4194303, not visible here (7 MB)" in out
    assert "hardware thermal slowdown" in out
    assert "gpu 0: the driver advises: reset the GPU" in out
    assert "lost" in out
    assert "\x1b" not in out, "a name must not steer the terminal"


def test_show_without_gpus(
    driver: FakeDriver, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry_commands, "_SHOW_APART_S", 0.05)
    driver.say("init 9")
    assert run("show") == 0
    assert "GPUs: none: NVIDIA driver not loaded" in capsys.readouterr().out
    assert run("show", json=True) == 0
    sample = json.loads(capsys.readouterr().out)
    assert (sample["schema"], sample["gpu"], sample["gpu_absent"]) == (1, [], "NVIDIA driver not loaded")


def test_record_a_process_and_play_it(tmp_path: Path, capsys: pytest.CaptureFixture[str], driver: FakeDriver) -> None:
    path = tmp_path / "a.jsonl.gz"
    assert run("record", file=str(path), hz=20.0, seconds=0.5, pid=[os.getpid()]) == 0
    assert "samples" in capsys.readouterr().err
    samples = list(Player(path))
    assert len(samples) >= 2
    assert os.getpid() in [process["pid"] for process in samples[-1]["procs"]]
    assert run("play", file=str(path)) == 0
    assert capsys.readouterr().out.startswith("time")
    assert run("play", file=str(path), json=True) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["n"] for line in lines] == [sample["n"] for sample in samples]
    with pytest.raises(RequestError, match="exists already"):
        run("record", file=str(path), seconds=0.1)


def test_a_process_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no process 4194303"):
        run("record", file=str(tmp_path / "a"), pid=[4194303])
    assert not (tmp_path / "a").exists()


def test_playing_says_what_could_not_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.jsonl"
    with Recorder(path) as recorder:
        recorder.write({"t": 1e290, "mono": 1, "gpu": [{"i": 0, "state": "lost"}], "xids": [{"gpu": 0, "xid": 79}]})
    with path.open("a") as file:
        file.write('garbage\n{"t": 1, "mo')
    assert run("play", file=str(path)) == 0
    found = capsys.readouterr()
    assert "gpu 0 lost, Xid 79 on gpu 0" in found.out
    assert "1 lines are no samples" in found.err
    assert "the end is missing" in found.err


def test_a_recording_is_ended_by_ctrl_c(runtime: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    code = "import sys; from argparse import Namespace as N; from eagle3ops.commands.telemetry import telemetry;"
    code += (
        "sys.exit(telemetry(N(telemetry_command='record', file=sys.argv[1], hz=10.0, seconds=None, pid=[]), json=0))"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stderr=subprocess.PIPE, text=True) as process:
        while not path.exists() or path.stat().st_size == 0:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        words = process.stderr.read()
        assert process.wait() == 0, words
    assert "Traceback" not in words
    player = Player(path)
    assert len(list(player)) > 0
    assert not player.torn
