"""A storm of starters that are killed at random points: `python storm_world.py ROOT SEED ROUNDS STARTERS KEYS`.

One warm process forks them, so that a round costs little. Everything is the real thing but two: a supervisor is forked
as well instead of being a fresh interpreter, and the stages are done already when the storm begins. A third of the
starters are killed at a random line of the code that starts runs, a third just after they have spawned a supervisor,
the others at a random time.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, cast

from eagle3ops.runs import starts
from eagle3ops.runs.directory import RunDirectory, list_runs, runs_folder
from eagle3ops.runs.events import read_events
from eagle3ops.runs.leash import adopt_orphans
from eagle3ops.runs.orders import Order, place
from eagle3ops.supervisor.__main__ import main as supervise

PIPELINE = "schema: 1\nname: storm\ntarget: {model: none}\n"

TRACED = frozenset({"orders.py", "starts.py", "directory.py", "files.py"})
"""Where a starter may be killed by line."""

AFTER_SPAWN = 25
"""Lines that follow a spawn: the narrow place, where a supervisor is on its way and nobody has written down which."""

END_S = 300.0
"""A round that takes longer hangs."""


Spawn = Callable[[RunDirectory, str], "subprocess.Popen[bytes]"]


class Forked:
    """What `launch` needs to know about a process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid


def fork_supervisor(run: RunDirectory, token: str) -> "subprocess.Popen[bytes]":
    """In place of a fresh interpreter: a fork in a session of its own, with its output in the run's logs."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            sys.settrace(None)
            os.setsid()
            log = os.open(run.logs / "supervisor.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.dup2(log, 1)
            os.dup2(log, 2)
            # What an exec would have closed: the locks of the starter.
            os.closerange(3, 64)
            sys.argv = ["supervisor", str(run.path), token]
            code = supervise()
        finally:
            os._exit(code)
    KillAtLine.spawned = True
    return cast("subprocess.Popen[bytes]", Forked(pid))


class KillAtLine:
    """Ends this process with SIGKILL when the traced code comes to its n-th line, or to its n-th after the spawn."""

    spawned = False

    def __init__(self, line: int, *, after_spawn: bool = False) -> None:
        self.left = line
        self.after_spawn = after_spawn

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if os.path.basename(frame.f_code.co_filename) not in TRACED:
            return None
        if event == "line" and (KillAtLine.spawned or not self.after_spawn):
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return self


def starter(order: Order, answers: Path, killer: KillAtLine | None) -> int:
    """Fork a process that places the order and appends the run's id to a file; returns its number."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            KillAtLine.spawned = False
            sys.settrace(killer)
            started = place(order)
            sys.settrace(None)
            with answers.open("a") as file:
                file.write(json.dumps([order.key, started.run.run_id]) + "\n")
            code = 0
        finally:
            os._exit(code)
    return pid


def count_lines(order: Order) -> int:
    """Lines that an undisturbed order takes."""
    counter = KillAtLine(1 << 60)
    sys.settrace(counter)
    place(order)
    sys.settrace(None)
    return (1 << 60) - counter.left


def reap_all(ended_by_signal: list[int]) -> bool:
    """Wait until no child is left, adopted orphans included; notes those that were killed."""
    deadline = time.monotonic() + END_S
    while time.monotonic() < deadline:
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if os.WIFSIGNALED(ended[1]):
                    ended_by_signal.append(ended[0])
        except ChildProcessError:
            return True
        time.sleep(0.002)
    return False


def check_run(run: RunDirectory) -> list[str]:
    """What is wrong with a run that was started many times."""
    events = list(read_events(run.events_file))
    beginnings = [event for event in events if event.kind == "run" and event.data.get("status") == "running"]
    wrong = []
    if len(starts.started_lines(run)) != 1:
        wrong.append(f"{run.run_id}: {len(starts.started_lines(run))} starts took effect")
    if len(beginnings) != 1:
        wrong.append(f"{run.run_id}: it began {len(beginnings)} times")
    if [event.seq for event in events] != list(range(1, len(events) + 1)):
        wrong.append(f"{run.run_id}: events are missing or doubled")
    if run.status() != "done":
        wrong.append(f"{run.run_id}: it is {run.status()}: {run.interruption()}")
    return wrong


def spawn_supervisor(run: RunDirectory, token: str) -> "subprocess.Popen[bytes]":
    """The real thing, a fresh interpreter."""
    process = _real_spawn(run, token)
    KillAtLine.spawned = True
    return process


_real_spawn = starts.spawn


def kill_due(doomed: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """Kill those whose time has come; returns the others. Nobody has waited for them: the numbers are still theirs."""
    now = time.monotonic()
    for when, pid in doomed:
        if when <= now:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return [(when, pid) for when, pid in doomed if when > now]


def storm(
    root: Path, seed: int, rounds: int, starters: int, keys: int, *, spawn: Spawn = fork_supervisor
) -> dict[str, Any]:
    """All rounds; returns what was seen and all that was wrong."""
    chance = random.Random(seed)
    answers = root.parent / "answers.jsonl"
    adopt_orphans()
    starts.spawn = spawn  # type: ignore[assignment]

    def order(key: str) -> Order:
        return Order(spec_text=PIPELINE, source="storm", root=root, cache=root.parent / "cache", key=key)

    killed: list[int] = []
    place(order("warm"))
    assert reap_all(killed)
    lines = count_lines(order("counted"))
    assert reap_all(killed)
    began = time.monotonic()
    place(order("timed"))
    seconds = time.monotonic() - began
    assert reap_all(killed)

    wrong: list[str] = []
    runs = 0
    for number in range(rounds):
        answers.unlink(missing_ok=True)
        before = set(list_runs(root))
        names = [f"round {number} key {key}" for key in range(keys)]
        doomed: list[tuple[float, int]] = []
        for _ in range(starters):
            kind = chance.random()
            killer = None
            if kind < 0.35:
                # A starter that finds its run made takes a fraction of the lines.
                killer = KillAtLine(chance.randrange(1, lines + 1 if chance.random() < 0.5 else lines // 6))
            elif kind < 0.7:
                killer = KillAtLine(chance.randrange(1, AFTER_SPAWN + 1), after_spawn=True)
            pid = starter(order(chance.choice(names)), answers, killer)
            if killer is None:
                # All of them share the processors.
                doomed.append((time.monotonic() + chance.uniform(0, seconds * max(3, starters / 6)), pid))
            doomed = kill_due(doomed)
        while doomed := kill_due(doomed):
            time.sleep(0.001)
        # The undisturbed call comes while supervisors of the storm are still on their way, or when all are gone.
        if chance.random() < 0.5:
            reap_all(killed)
        led_to = {name: place(order(name)).run.run_id for name in names}
        if not reap_all(killed):
            wrong.append(f"round {number}: processes are left")
            break
        made = set(list_runs(root)) - before
        runs += len(made)
        if made != set(led_to.values()) or len(made) != keys:
            wrong.append(f"round {number}: {keys} keys led to runs {sorted(made)}")
        for line_text in answers.read_text().splitlines() if answers.exists() else []:
            key, run_id = json.loads(line_text)
            if led_to[key] != run_id:
                wrong.append(f"round {number}: {key} led to {run_id} and to {led_to[key]}")
        for run_id in made:
            wrong += [f"round {number}: {text}" for text in check_run(RunDirectory(runs_folder(root) / run_id))]
    hidden = sorted(path.name for path in runs_folder(root).glob(".*.new"))
    return {"lines": lines, "seconds": seconds, "runs": runs, "killed": len(killed), "hidden": hidden, "wrong": wrong}


if __name__ == "__main__":
    found = storm(Path(sys.argv[1]), *map(int, sys.argv[2:]))
    sys.stdout.write(json.dumps(found) + "\n")
