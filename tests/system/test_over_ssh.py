"""Is a job on another machine the same to a person as one on this machine? The command line, over a real sshd."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sshd_world import Sshd, SshWorld, python
from toy_world import Toy, prepare

from eagle3ops.runs.directory import RunDirectory, list_runs, runs_folder

SLOW_PARTS = ("--set", "stages.make.part_s=0.2", "--set", "stages.make.parts=40")


class There:
    """Two worlds: the console's, and the host's with toy jobs of its own."""

    def __init__(self, world: SshWorld, server: Sshd, here: Toy, there: Toy) -> None:
        self.world, self.server, self.here, self.there = world, server, here, there

    def start(self, *words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "eagle3ops", *words],
            cwd=self.here.folder,
            env=self.here.environment
            | {"HOME": str(self.world.home), "EAGLE3OPS_CONFIG": str(self.world.folder / "config")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.here.started.append(process)
        return process

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*words)
        out, err = process.communicate(timeout=90)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def job(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.call("--job", "pipeline", "--spec", "toy.yaml", "--host", "big", *words)

    def runs(self) -> list[RunDirectory]:
        return [RunDirectory(runs_folder(self.there.root) / run_id) for run_id in list_runs(self.there.root)]


@pytest.fixture
def big(ssh_world: SshWorld, tmp_path: Path) -> There:
    worlds = []
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        worlds.append(Toy(prepare(tmp_path / name)))
    kept = ("EAGLE3OPS_JOBS", "EAGLE3OPS_ROOT", "EAGLE3OPS_CACHE", "PYTHONPATH")
    server = ssh_world.server(environment={name: worlds[1].environment[name] for name in kept})
    ssh_world.trust(server)
    made = There(ssh_world, server, *worlds)
    added = made.call("hosts", "add", "big", server.url(), "--python", python())
    assert added.returncode == 0, added.stderr
    return made


def wait_for(condition: object, what: str) -> None:
    assert callable(condition)
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_a_job_runs_there_and_is_told_here(big: There) -> None:
    done = big.job("--json", "--key", "nightly")
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    (run,) = big.runs()
    assert [event["seq"] for event in events] == list(range(1, run.last_seq() + 1))
    assert "PASS  use/joined" in done.stderr
    assert f"{run.path} on big" in done.stderr
    assert list_runs(big.here.root) == []
    again = big.job("--key", "nightly")
    assert again.returncode == 0
    assert "nothing is started anew" in again.stderr
    assert len(big.runs()) == 1
    listed = json.loads(big.call("runs", "list", "--host", "big", "--json").stdout)
    assert [row["run_id"] for row in listed] == [run.run_id]
    shown = big.call("runs", "show", "last", "--host", "big")
    assert "verdict use/joined: PASS" in shown.stdout
    planned = json.loads(big.call("plan", "toy.yaml", "--host", "big", "--json").stdout)
    assert [stage["done"] for stage in planned["stages"]] == [True, True, True]
    assert planned["root"] == str(big.there.root)
    assert big.call("runs", "diff", "last", "last", "--host", "big").stdout == "no differences\n"
    assert "would be deleted" in big.call("runs", "gc", "--keep", "0", "--host", "big").stdout


def test_the_exit_code_is_that_of_the_run(big: There) -> None:
    assert big.job("--set", "stages.use.passed=false").returncode == 3
    failed = big.job("--set", "stages.use.mode=explain")
    assert failed.returncode == 1
    assert "the model file is damaged" in failed.stderr
    assert "runs resume" in failed.stderr
    assert "--host big" in failed.stderr
    refused = big.job("--set", f"stages.make.forecast_bytes={10**18}")
    assert refused.returncode == 6
    assert "disk: " in refused.stderr


def test_interrupting_here_cancels_there_and_resuming_goes_on(big: There) -> None:
    process = big.start("--job", "pipeline", "--spec", "toy.yaml", "--host", "big", *SLOW_PARTS)
    wait_for(lambda: list(big.there.root.glob("stages/make-*/part-1")), "no part was made")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    (run,) = big.runs()
    assert run.state()["status"] == "cancelled"
    assert f"eagle3ops runs resume {run.run_id} --host big" in err
    resumed = big.call("runs", "resume", "last", "--host", "big")
    assert resumed.returncode == 0, resumed.stderr
    assert len(list(big.there.root.glob("stages/make-*/part-*"))) == 40


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_a_console_that_goes_away_leaves_the_run_alone(big: There, number: signal.Signals) -> None:
    process = big.start("--job", "pipeline", "--spec", "toy.yaml", "--host", "big", *SLOW_PARTS)
    wait_for(lambda: list(big.there.root.glob("stages/make-*/part-1")), "no part was made")
    process.send_signal(number)
    process.communicate(timeout=60)
    (run,) = big.runs()
    followed = big.call("runs", "follow", run.run_id, "--host", "big")
    assert followed.returncode == 0, followed.stderr
    assert run.state()["status"] == "done"


def test_a_session_that_is_killed_is_said_and_nothing_is_lost(big: There) -> None:
    process = big.start("--job", "pipeline", "--spec", "toy.yaml", "--host", "big", "--json", *SLOW_PARTS)
    for part in (3, 9):
        wait_for(lambda part=part: list(big.there.root.glob(f"stages/make-*/part-{part}")), "no part was made")
        assert big.server.signal_sessions(signal.SIGKILL)
    out, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    assert "what runs there goes on" in err
    assert "big: connected again" in err
    numbers = [json.loads(line)["seq"] for line in out.splitlines()]
    assert numbers == list(range(1, big.runs()[0].last_seq() + 1))


def test_detached_and_cancelled_from_here(big: There) -> None:
    started = big.job("--detach", "--set", "stages.use.mode=child")
    assert started.returncode == 0
    assert "runs follow" in started.stderr
    wait_for(lambda: list(big.there.root.glob("runs/*/child.pid")), "no child was started")
    cancelled = big.call("runs", "cancel", "last", "--host", "big")
    assert cancelled.returncode == 0, cancelled.stderr
    assert big.runs()[0].state()["exit_code"] == 130


def test_a_host_that_cannot_be_reached_is_exit_code_5(big: There) -> None:
    big.server.stop()
    gone = big.job()
    assert gone.returncode == 5
    assert "refused" in gone.stderr
    assert "Traceback" not in gone.stderr
    strange = big.call("--job", "pipeline", "--spec", "toy.yaml", "--host", "bog")
    assert strange.returncode == 2
    assert "did you mean 'big'?" in strange.stderr


def test_an_unknown_key_never_connects(big: There) -> None:
    os.unlink(big.world.ssh / "known_hosts")
    refused = big.job()
    assert refused.returncode == 5
    assert "eagle3ops hosts trust big" in refused.stderr
    assert "Accepted publickey" not in big.server.log()
