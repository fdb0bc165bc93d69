"""Is a job on another machine the same to a person as one on this machine? The command line, over a real sshd."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from sshd_world import Sshd, SshWorld, python
from toy_world import Toy, prepare

from eagle3ops.runs.directory import RunDirectory, list_runs, runs_folder

SLOW_PARTS = ("--set", "stages.make.part_s=0.2", "--set", "stages.make.parts=40")
LONG = ("--set", "stages.make.part_s=0.2", "--set", "stages.make.parts=3000")


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
    kept = ("EAGLE3OPS_JOBS", "EAGLE3OPS_ROOT", "EAGLE3OPS_CACHE", "EAGLE3OPS_STATE", "PYTHONPATH")
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
    assert "big: big:" not in err
    assert "big: connected again" in err
    numbers = [json.loads(line)["seq"] for line in out.splitlines()]
    assert numbers == list(range(1, big.runs()[0].last_seq() + 1))


LOSES = """
import json, os, subprocess, sys, threading
op, hook, said, lost = sys.argv[1:5]
agent = subprocess.Popen(sys.argv[5:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
ids = set()

def ask():
    for line in sys.stdin.buffer:
        with open(said, "ab") as file:
            file.write(line)
        message = json.loads(line)
        if message.get("op") == op:
            ids.add(message["id"])
        agent.stdin.write(line)
        agent.stdin.flush()
    agent.stdin.close()

threading.Thread(target=ask, daemon=True).start()
for line in agent.stdout:
    try:
        message = json.loads(line)
    except ValueError:
        message = {}
    if message.get("id") in ids and "ok" in message and not os.path.exists(lost):
        open(lost, "w").close()
        subprocess.run(hook, shell=True, check=True, stdout=subprocess.DEVNULL)
        os._exit(9)
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
"""


class Losing:
    """A line that breaks once: after an op was carried out and before its answer arrives; meanwhile something happens
    on the host."""

    def __init__(self, big: There, op: str, hook: str = "true") -> None:
        self.big = big
        self.said = big.world.folder / "said"
        self.lost = big.world.folder / "lost"
        program = big.world.folder / "loses.py"
        program.write_text(LOSES)
        words = [python(), str(program), op, hook, str(self.said), str(self.lost), python()]
        interpreter = big.world.folder / "losing-python"
        interpreter.write_text(
            f'#!/bin/sh\ncase "$*" in *"-m eagle3ops agent"*) exec {shlex.join(words)} "$@";; esac\n'
            f'exec {python()} "$@"\n'
        )
        interpreter.chmod(0o755)
        assert big.call("hosts", "add", "big", big.server.url(), "--python", str(interpreter)).returncode == 0

    def asked(self, op: str) -> list[dict[str, Any]]:
        """The arguments of every time that an op was asked for."""
        messages = [json.loads(line) for line in self.said.read_text().splitlines()]
        return [message["args"] for message in messages if message.get("op") == op]


def test_a_resumption_whose_answer_is_lost_stays_with_its_run(big: There) -> None:
    """`last` is another run by the time that the answer is asked for again."""
    failed = big.job("--set", "stages.use.mode=explain")
    assert failed.returncode == 1
    (first,) = big.runs()
    before = first.last_seq()
    another = f"cd {shlex.quote(str(big.there.folder))} && {python()} -m eagle3ops --job pipeline --spec toy.yaml"
    line = Losing(big, "runs.resume", another)
    resumed = big.call("runs", "resume", "last", "--host", "big", "--json")
    assert line.lost.exists()
    assert resumed.returncode == 1, resumed.stderr
    assert len(big.runs()) == 2
    asked = line.asked("runs.resume")
    assert [args["run"] for args in asked] == [first.run_id] * 2
    assert f"run {first.run_id} on big" in resumed.stderr
    assert "for this key" not in resumed.stderr
    numbers = [json.loads(line)["seq"] for line in resumed.stdout.splitlines()]
    assert numbers == list(range(before + 1, first.last_seq() + 1)), "from where it was taken up, not from the start"


@pytest.mark.parametrize("words", [(), ("--key", "nightly")])
def test_a_placement_whose_answer_is_lost_is_this_very_run(big: There, words: tuple[str, ...]) -> None:
    line = Losing(big, "runs.place")
    done = big.job("--json", *words)
    assert line.lost.exists()
    assert done.returncode == 0, done.stderr
    assert len(line.asked("runs.place")) == 2
    (run,) = big.runs()
    assert "before" not in done.stderr
    assert f"run {run.run_id} on big" in done.stderr
    numbers = [json.loads(line)["seq"] for line in done.stdout.splitlines()]
    assert numbers == list(range(1, run.last_seq() + 1))


def test_following_that_ends_for_good_says_which_run_goes_on(big: There) -> None:
    process = big.start("--job", "pipeline", "--spec", "toy.yaml", "--host", "big", *LONG)
    wait_for(lambda: list(big.there.root.glob("stages/make-*/part-1")), "no part was made")
    known = big.world.ssh / "known_hosts"
    known.write_text(
        f"[127.0.0.1]:{big.server.port} {' '.join(Path(f'{big.world.key}.pub').read_text().split()[:2])}\n"
    )
    assert big.server.signal_sessions(signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 5, err
    (run,) = big.runs()
    lines = err.splitlines()
    assert f"run {run.run_id} on big" in lines
    assert f"{run.run_id} on big: no longer followed; the run goes on" in lines
    assert f"  follow it again: eagle3ops runs follow {run.run_id} --host big" in lines
    assert "THE HOST KEY HAS CHANGED" in err
    assert "resume" not in err
    known.write_text(big.server.known)
    assert big.call("runs", "cancel", run.run_id, "--host", "big").returncode == 0


def test_a_placement_that_may_have_happened(big: There) -> None:
    known = big.world.ssh / "known_hosts"
    strange = " ".join(Path(f"{big.world.key}.pub").read_text().split()[:2])
    Losing(big, "runs.place", f"echo '[127.0.0.1]:{big.server.port} {strange}' > {known}")
    lost = big.job("--detach")
    assert lost.returncode == 5
    assert "whether the run was started is not known" in lost.stderr
    assert "eagle3ops runs list --host big" in lost.stderr


def test_what_is_left_goes_on_and_is_followed_again(big: There) -> None:
    """Whoever stops following is told how to follow; resuming is for runs that have ended."""
    started = big.job("--detach", "--json", *LONG)
    assert started.returncode == 0, started.stderr
    (run,) = big.runs()
    assert json.loads(started.stdout) == {"run": run.run_id, "host": "big", "path": str(run.path)}
    again = f"  follow it again: eagle3ops runs follow {run.run_id} --host big"
    for number in (signal.SIGINT, signal.SIGHUP):
        process = big.start("runs", "follow", "last", "--host", "big", "--json")
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130, err
        assert "no longer followed; the run goes on" in err
        assert again in err.splitlines()
        assert "resume" not in err
    assert big.call("runs", "cancel", run.run_id, "--host", "big").returncode == 0


def test_a_cancel_that_reached_nobody_is_said(big: There) -> None:
    """Ctrl-C twice with the host out of reach: what runs there has not heard of it."""
    process = big.start("--job", "pipeline", "--spec", "toy.yaml", "--host", "big", *LONG)
    assert process.stderr is not None
    told = process.stderr.readline()
    (run,) = big.runs()
    assert told == f"run {run.run_id} on big\n"
    big.server.stop()
    for number, words in ((None, "reconnecting"), (signal.SIGINT, "once more to leave"), (signal.SIGINT, None)):
        if number is not None:
            process.send_signal(number)
        while words is not None and words not in told:
            told = process.stderr.readline()
            assert told, "it ended"
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "the cancel did not reach big; the run may be going on" in err
    assert f"eagle3ops runs cancel {run.run_id} --host big" in err
    assert f"  follow it again: eagle3ops runs follow {run.run_id} --host big" in err.splitlines()
    assert "resume" not in err
    big.server.start()
    assert big.call("runs", "cancel", run.run_id, "--host", "big").returncode == 0


def test_remedies_of_the_host_name_commands_for_the_host(big: There) -> None:
    assert big.job("--detach", "--set", "stages.use.mode=child").returncode == 0
    wait_for(lambda: list(big.there.root.glob("runs/*/child.pid")), "no child was started")
    refused = big.call("runs", "resume", "last", "--host", "big")
    assert refused.returncode == 6
    assert f"eagle3ops runs follow --host big {big.runs()[0].run_id}" in refused.stderr
    missing = big.call("runs", "show", "none", "--host", "big")
    assert missing.returncode == 2
    assert "eagle3ops runs list --host big" in missing.stderr
    assert big.call("runs", "cancel", "last", "--host", "big").returncode == 0


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
