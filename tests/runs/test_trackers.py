"""Does shared memory go with those that held it, when they are ended hard?"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eagle3ops.runs import context
from eagle3ops.runs.custody import in_custody
from eagle3ops.runs.family import end_left_behind, spared, tree
from eagle3ops.runs.processes import RUN_VARIABLE, identify

HOARDER = """
import os, pathlib, signal, sys, time
from multiprocessing.shared_memory import SharedMemory
signal.signal(signal.SIGTERM, signal.SIG_IGN)
memory = SharedMemory(create=True, size=1 << 20)
told = pathlib.Path(sys.argv[1])
told.with_suffix(".new").write_text(f"{os.getpid()} {memory.name}")
told.with_suffix(".new").rename(told)
time.sleep(300)
"""
pytestmark = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory is no files here")


def argv(told: Path) -> list[str]:
    return [sys.executable, "-c", HOARDER, str(told)]


def held(told: Path) -> tuple[int, Path]:
    """Number of the process that holds the memory, and the memory."""
    deadline = time.monotonic() + 30
    while not told.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    pid, name = told.read_text().split()
    memory = Path("/dev/shm", name)
    assert memory.exists()
    return int(pid), memory


def test_what_a_run_left_behind(tmp_path: Path) -> None:
    environment = {**os.environ, RUN_VARIABLE: str(tmp_path)}
    with subprocess.Popen(argv(tmp_path / "told"), env=environment, start_new_session=True) as process:
        pid, memory = held(tmp_path / "told")
        own = identify(pid)
        assert own is not None
        below = tree(pid)
        assert len(below) == 1, "its tracker"
        assert spared(below | {pid: own}) == {pid: own}
        assert end_left_behind(tmp_path, grace=0.1) == sorted([pid, *below])
        assert process.wait() == -signal.SIGKILL
    assert not memory.exists()
    assert not [pid for pid, tracker in below.items() if identify(pid) == tracker]


def test_a_server_outside_of_a_run(tmp_path: Path) -> None:
    with subprocess.Popen(in_custody(argv(tmp_path / "told"))) as custodian:
        pid, memory = held(tmp_path / "told")
        os.kill(pid, signal.SIGKILL)
        assert custodian.wait(30) == -signal.SIGKILL
    assert not memory.exists()


async def test_a_program_of_a_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "TERM_GRACE_S", 0.1)
    process = await asyncio.create_subprocess_exec(*argv(tmp_path / "told"), start_new_session=True)
    _, memory = await asyncio.to_thread(held, tmp_path / "told")
    await context.end_group(process, identify(process.pid))
    assert process.returncode == -signal.SIGKILL
    assert not memory.exists()
