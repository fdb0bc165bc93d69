"""GPUs and processes on the screen: from a stand-in for the driver through sampler, agent and link, and from a file."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_driver import build
from screen_text import shown, until
from textual.pilot import Pilot

from eagle3ops.screens.app import ConsoleApp
from eagle3ops.screens.feeds.machine_feed import MachineFeed
from eagle3ops.screens.gpus.room import GpusScreen
from eagle3ops.screens.widgets.glyphs import ASCII
from eagle3ops.telemetry.processes import RUN_MARK
from eagle3ops.telemetry.recording import Player

EVIL = "[bold red]x[/] \x1b[31m"


class Host:
    """A machine with 8 GPUs and some processes of a run."""

    def __init__(self, folder: Path) -> None:
        self.answers = folder / "gpus.txt"
        environment = {**os.environ, RUN_MARK: "/nowhere/runs/20261130-054512-demo-bbbb"}
        code = f"import time; time.sleep(1000)  # {EVIL}"
        self.process = subprocess.Popen([sys.executable, "-c", code], env=environment)

    def say(self, *lines: str, count: int = 8) -> None:
        fresh = self.answers.with_suffix(".new")
        fresh.write_text("\n".join([f"count {count}", *lines]) + "\n")
        fresh.replace(self.answers)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "runtime"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("EAGLE3OPS_RUNTIME", str(folder))
    return folder


@pytest.fixture
def host(library: Path, runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    host = Host(tmp_path)
    monkeypatch.setenv("FAKE_NVML", str(host.answers))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))
    host.say(
        *(f"{at}.util {90 + at}" for at in range(8)),
        *(f"{at}.mem_used {(at + 1) * 10**10}" for at in range(8)),
        f"0.name NVIDIA {EVIL}",
        f"2.process {host.process.pid} 5000000000",
        "4.mig 1",
        "4.error.nvmlDeviceGetUtilizationRates 3",
        "5.reasons 0x4",
        "6.lost 1",
    )
    yield host
    host.process.kill()
    host.process.wait()


async def open_it(pilot: "Pilot[int]") -> None:
    await until(pilot, "local: connected")
    await pilot.press("g")
    await until(pilot, "Selected")


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_eight_gpus_and_a_run(host: Host, tmp_path: Path, size: tuple[int, int]) -> None:
    app = ConsoleApp(str(tmp_path / "root"))
    async with app.run_test(size=size) as pilot:
        if size[0] < 100:
            await until(pilot, "6 lost", "97 %", "5  95 %")
        else:
            text = await until(pilot, "6 -                lost", "97 %", "✗ GPU number 6: lost")
            assert "5 Fake H200        throttled: software power cap" in text
        await open_it(pilot)
        text = await until(
            pilot, "8 GPUs", "90 %", "97 %", "9.3/140.4 GiB", "lost", "MIG", "1980", "120 W", "CPU", "process"
        )
        assert ("throttled: software power cap" if size[0] > 100 else "sw power cap") in text
        assert "\x1b" not in text
        if size[0] > 100:
            # Other runs of this machine may be on the screen too.
            assert isinstance(app.screen, GpusScreen)
            while not app.screen.select_process(host.process.pid):
                await pilot.pause(0.1)
            text = await until(pilot, "4.7 GiB", f"pid {host.process.pid}")
            assert "[bold red]x[/]" in text
            host.process.send_signal(signal.SIGSTOP)
            await until(pilot, "T stopped")
            host.process.send_signal(signal.SIGCONT)
        host.say("0.util 11")
        await until(pilot, "11 %")
        await pilot.press("s")
        await until(pilot, " by memory")
        await pilot.press("escape")
        await until(pilot, "No runs in", "GPUs")
        assert "Selected" not in shown(app)


async def test_no_gpu_says_why(runtime: Path, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = tmp_path / "gpus.txt"
    answers.write_text("count 0\n")
    monkeypatch.setenv("FAKE_NVML", str(answers))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))
    app = ConsoleApp(str(tmp_path / "root"))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "GPUs: no NVIDIA GPU")
        await open_it(pilot)
        await until(pilot, "No GPU: no NVIDIA GPU", "check lspci")
        await pilot.resize_terminal(80, 19)
        await pilot.press("escape")
        for _ in range(100):
            await pilot.pause(0.05)
            if "GPUs: no NVIDIA GPU" not in shown(app):
                break
        assert "GPUs: no NVIDIA GPU" not in shown(app), "there is no room for it"


async def test_a_lost_line_makes_all_figures_stale(host: Host, tmp_path: Path) -> None:
    app = ConsoleApp(str(tmp_path / "root"))
    async with app.run_test(size=(160, 48)) as pilot:
        await open_it(pilot)
        await until(pilot, "97 %")
        await app.link.close()
        text = await until(pilot, "STALE: read", "not connected")
        assert "97 %" in text, "what was known stays"


async def test_a_machine_that_cannot_be_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "no folder"
    folder.write_text("a file")
    monkeypatch.setenv("EAGLE3OPS_RUNTIME", str(folder))
    app = ConsoleApp(str(tmp_path / "root"))
    async with app.run_test(size=(80, 24)) as pilot:
        await open_it(pilot)
        await until(pilot, "The machine cannot be watched:")


class QuietFeed(MachineFeed):
    """Takes no samples but those it is given, and finds them fresh."""

    stale = ""

    async def run(self) -> None:
        """Nothing comes by itself."""


class Quiet(ConsoleApp):
    """A console that is given samples in place of a link's."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.feed = QuietFeed(self.link)


def procs(count: int) -> list[dict[str, object]]:
    return [
        {"pid": pid, "ppid": pid // 7, "start": float(pid), "run": "r", "name": f"worker{pid}", "cmd": f"run {pid}"}
        for pid in range(1, count + 1)
    ]


def sample(n: int, count: int = 240) -> dict[str, object]:
    return {"t": 1e9 + n, "mono": float(n), "boot": "b", "gpu": [], "procs": procs(count), "host": {}}


async def test_hundreds_of_processes_by_keyboard_and_mouse(tmp_path: Path) -> None:
    app = Quiet(str(tmp_path))
    app.feed.machine.take(sample(1), 0.0)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("g")
        await until(pilot, "240 processes by CPU", "run r: 240 processes", "pid 1")
        await pilot.press("end")
        await until(pilot, "worker240" if "worker240" in shown(app) else "└ worker")
        last = [line for line in shown(app).splitlines() if "worker" in line]
        await pilot.press("home")
        await until(pilot, "run r: 240 processes")
        assert [line for line in shown(app).splitlines() if "worker" in line] != last
        await pilot.press("pagedown", "pagedown", "down")
        await pilot.click("#processes", offset=(5, 3))
        await pilot.pause(0.1)
        screen = app.screen
        assert isinstance(screen, GpusScreen)
        chosen = screen._process()
        assert chosen is not None
        await until(pilot, f"run {chosen.pid}")
        app.feed.machine.take(sample(2, chosen.pid - 1), 0.0)
        await until(pilot, f"{chosen.pid - 1} process")
        app.feed.machine.take(sample(3, 0), 0.0)
        await until(pilot, "No process of a run, and none on a GPU.")


@pytest.mark.recordings
async def test_a_recording_in_ascii(recordings: Path, tmp_path: Path) -> None:
    app = Quiet(str(tmp_path))
    app.glyphs = ASCII
    for one in Player(recordings / "gpu" / "telemetry" / "ddp-2gpu-healthy.jsonl.gz"):
        app.feed.machine.take(one, 0.0)
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("g")
        text = await until(pilot, "2 GPUs", "#")
        assert "█" not in text.split("Host")[0]
