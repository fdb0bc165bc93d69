"""Does a server that was started outside of a run leave nothing behind, whoever is killed?"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eagle3ops.engines.base import ServeSpec
from eagle3ops.engines.reference.adapter import ReferenceAdapter
from eagle3ops.engines.serving import free_port, logged, running
from eagle3ops.runs.family import tree
from eagle3ops.runs.processes import identify

ENGINE = Path(__file__).with_name("forking_engine.py")
HOLDER = """
import asyncio, sys
from pathlib import Path
from eagle3ops.engines.base import ServeSpec
from eagle3ops.engines.reference.adapter import ReferenceAdapter
from eagle3ops.engines.serving import free_port, logged, running
async def hold(log, argv):
    async with logged(Path(log))(argv, role="engine") as process:
        print(process.pid, flush=True)
        await asyncio.sleep(300)
asyncio.run(hold(sys.argv[1], sys.argv[2:]))
"""


def wait_for(what: Callable[[], bool], seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while not (done := what()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return done


def pids(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "pids").read_text().split()]


def alive(folder: Path) -> list[int]:
    return [pid for pid in pids(folder) if identify(pid) is not None]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Whatever a test shows, nothing of it stays."""
    yield tmp_path
    if (tmp_path / "pids").exists():
        for pid in alive(tmp_path):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def holder(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that has started the engine, and waits."""
    argv = [sys.executable, "-c", HOLDER, str(folder / "engine.log"), sys.executable, str(ENGINE), str(folder)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert wait_for((folder / "up").exists), (folder / "engine.log").read_text()
            assert len(alive(folder)) == 3
            yield process
        finally:
            process.kill()


def test_nothing_is_left_when_the_command_is_killed(holder: "subprocess.Popen[str]", folder: Path) -> None:
    everyone = tree(holder.pid)
    assert set(alive(folder)) - set(everyone) == set(), "they left the tree before anybody was killed"
    holder.kill()
    assert wait_for(lambda: not [pid for pid, one in everyone.items() if identify(pid) == one]), alive(folder)
    assert not alive(folder)


def test_a_stopped_engine_does_not_outlive_the_command(holder: "subprocess.Popen[str]", folder: Path) -> None:
    os.kill(pids(folder)[-1], signal.SIGSTOP)
    holder.kill()
    assert wait_for(lambda: not alive(folder)), alive(folder)


def test_who_keeps_it_ends_it_when_told_so(holder: "subprocess.Popen[str]", folder: Path) -> None:
    assert holder.stdout is not None
    os.kill(int(holder.stdout.readline()), signal.SIGTERM)
    assert wait_for(lambda: not alive(folder)), alive(folder)
    assert holder.poll() is None


@pytest.mark.parametrize("code", [0, 7, -signal.SIGABRT, -signal.SIGKILL])
def test_an_engine_that_ends_takes_its_workers_along_and_its_end_is_seen(folder: Path, code: int) -> None:
    async def run() -> int:
        argv = [sys.executable, str(ENGINE), str(folder), str(code)]
        async with logged(folder / "engine.log")(argv, role="engine") as process:
            return await asyncio.wait_for(process.wait(), 30)

    assert asyncio.run(run()) == code
    assert len(pids(folder)) == 3
    assert not alive(folder)


def test_the_end_of_the_block_ends_all(folder: Path) -> None:
    async def run() -> int | None:
        argv = [sys.executable, str(ENGINE), str(folder)]
        async with logged(folder / "engine.log")(argv, role="engine") as process:
            assert await asyncio.to_thread(wait_for, (folder / "up").exists)
        code: int | None = process.returncode
        return code

    assert asyncio.run(run()) == -signal.SIGTERM
    assert not alive(folder)


def test_who_keeps_it_may_be_killed_as_well_once_the_server_was_seen(folder: Path) -> None:
    """The reference engine in name, and one with workers in fact."""

    class Adapter(ReferenceAdapter):
        def argv(self, spec: ServeSpec) -> list[str]:
            return [sys.executable, str(ENGINE), str(folder), "--http", str(spec.port)]

    async def run() -> None:
        spec = ServeSpec(model=folder, port=free_port(), device="cpu")
        log = folder / "engine.log"
        async with running(Adapter(), spec, spawn=logged(log), log=log, timeout_s=30) as client:
            assert client.process is not None
            assert len(alive(folder)) == 3
            os.kill(int((folder / "keeper").read_text()), signal.SIGKILL)

    (folder / "config.json").write_text("{}")
    asyncio.run(run())
    assert wait_for(lambda: not alive(folder)), alive(folder)


def test_a_program_that_is_not_there_is_told_in_the_log(folder: Path) -> None:
    async def run() -> int:
        async with logged(folder / "engine.log")(["/no/such/engine"], role="engine") as process:
            return await asyncio.wait_for(process.wait(), 30)

    assert asyncio.run(run()) == 127
    assert "cannot start /no/such/engine" in (folder / "engine.log").read_text()
