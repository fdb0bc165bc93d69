"""Does a run on another machine care whether the console, the agent, the SSH session or the line live?"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import follower
import pytest
from follower import seen, transport
from sshd_world import Sshd, SshWorld, python
from toy_world import Toy, prepare

from eagle3ops.hosts.link import Link
from eagle3ops.runs.directory import RunDirectory, runs_folder

SPEC = """\
schema: 1
name: survival
target: {model: none}
stages:
  make: {parts: %d, part_s: 0.05}
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@dataclass
class Line:
    """A cable to a network of its own that can be pulled."""

    name: str
    far: str

    def pull(self) -> None:
        ip("netns", "exec", self.name, "ip", "link", "set", "far0", "down")

    def plug(self) -> None:
        ip("netns", "exec", self.name, "ip", "link", "set", "far0", "up")


@pytest.fixture
def line(ssh_world: SshWorld) -> Iterator[Line]:
    # The kernel takes a network down after its name is gone: the next one must not have the same.
    name = f"e3-{uuid4().hex[:8]}"
    near, far = (f"198.18.{int(name[-2:], 16)}.{number}" for number in (1, 2))
    try:
        ip("netns", "add", name)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("network namespaces are not permitted here")
    try:
        ip("link", "add", f"{name}"[:12], "type", "veth", "peer", "name", "far0", "netns", name)
        ip("addr", "add", f"{near}/30", "dev", name[:12])
        ip("link", "set", name[:12], "up")
        ip("netns", "exec", name, "ip", "addr", "add", f"{far}/30", "dev", "far0")
        ip("netns", "exec", name, "ip", "link", "set", "far0", "up")
        yield Line(name, far)
    finally:
        for server in ssh_world.servers:
            server.stop()
        ip("netns", "del", name)


@dataclass
class Console:
    """The follower in a process of its own, started anew whenever it was killed."""

    server: Sshd
    run: str
    out: Path
    keepalive: tuple[float, int]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = [sys.executable, follower.__file__, self.server.url(), python()]
        words = [*map(str, self.keepalive), self.run, str(self.out)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([*program, *words], stdin=subprocess.DEVNULL, stderr=log)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    async def more(self, count: int = 10) -> None:
        """Until so many more events have arrived, or the run has ended."""
        wanted = len(seen(self.out)) + count
        await self.until(lambda: len(seen(self.out)) >= wanted)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            assert self.process is not None
            if self.process.poll() is not None:
                assert self.process.returncode == 0, self.log.read_text()
                return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("cut_s", "parts", "keepalive"),
    [
        (5.0, 300, (1.0, 2)),
        pytest.param(60.0, 1600, (5.0, 3), marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
        pytest.param(60.0, 1600, (15.0, 4), marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    ],
)
async def test_run_survives_everything_between_it_and_the_console(
    ssh_world: SshWorld, line: Line, tmp_path: Path, cut_s: float, parts: int, keepalive: tuple[float, int]
) -> None:
    toy = Toy(prepare(tmp_path))
    kept = ("EAGLE3OPS_JOBS", "EAGLE3OPS_ROOT", "EAGLE3OPS_CACHE", "EAGLE3OPS_STATE", "PYTHONPATH")
    environment = {name: toy.environment[name] for name in kept}
    server = ssh_world.server(netns=line.name, address=line.far, environment=environment)
    ssh_world.trust(server)
    out, log = tmp_path / "seen.jsonl", tmp_path / "console.log"
    spec = SPEC % parts
    (tmp_path / "undisturbed").mkdir()
    undisturbed = Toy(prepare(tmp_path / "undisturbed"))
    (undisturbed.folder / "toy.yaml").write_text(spec)
    quiet = undisturbed.start("--job", "pipeline", "--spec", "toy.yaml", "--detach")
    async with Link(transport(server.url(), python(), 15.0, 4)) as link:
        order = {"job": "pipeline", "spec_text": spec, "source": "survival.yaml", "key": "survival"}
        run_id = (await link.call("runs.place", **order))["run"]
        assert (await link.call("runs.place", **order))["run"] == run_id, "one key, one run"
    run = RunDirectory(runs_folder(toy.root) / run_id)
    console = Console(server, run_id, out, keepalive, log)
    try:
        console.start()
        await console.more()
        console.kill()
        before = len(seen(out))
        console.start()
        await console.more()

        for process in server.commands():
            os.kill(process.pid, signal.SIGKILL)
        await console.more()

        assert server.signal_sessions(signal.SIGKILL) > 0
        await console.more()

        line.pull()
        during = len(seen(out))
        await asyncio.sleep(cut_s)
        assert run.alive(), "the run must last longer than the cut, or nothing was tested"
        after = run.last_seq()
        assert after > during + 10, "the run goes on while nobody can see it"
        line.plug()
        await console.more()
        await console.until(lambda: False)
    finally:
        console.kill()
        for world in (toy, undisturbed):
            if run.alive():
                world.kill_everything(world.last())
    assert before > 0
    assert run.status() == "done"
    wanted = [event.seq for event in run.reader(0).read()]
    assert seen(out) == wanted == list(range(1, len(wanted) + 1))
    assert log.read_text().count("connected\n") >= 4

    quiet.communicate()
    assert quiet.returncode == 0
    assert undisturbed.call("runs", "follow", undisturbed.last().run_id).returncode == 0
    assert toy.outputs() == undisturbed.outputs()
