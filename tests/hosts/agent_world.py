"""Roots with made-up runs, real agents over them, and agents that only pretend."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toy_world import Toy, prepare

from eagle3ops.hosts.local import LocalTransport
from eagle3ops.runs.directory import RunDirectory, runs_folder
from eagle3ops.runs.files import write_json
from eagle3ops.runs.processes import identify

RUN = "20260101-000000-made-aaaa"


@dataclass
class AgentWorld:
    """A root, and agents that serve it in a world where `toy_jobs` are the jobs."""

    folder: Path
    toy: Toy
    jobs: str = "toy_jobs"
    """The module that says which jobs there are."""

    @property
    def environment(self) -> dict[str, str]:
        return self.toy.environment | {
            "EAGLE3OPS_JOBS": self.jobs,
            "EAGLE3OPS_RUNTIME": str(self.folder / "runtime"),
        }

    @property
    def root(self) -> Path:
        return self.toy.root

    def transport(self) -> LocalTransport:
        return LocalTransport(environment=self.environment)

    def made_run(self, run_id: str = RUN, *, alive: bool = False) -> RunDirectory:
        """A run's folder, of which this process says that it looks after it, or nobody."""
        run = RunDirectory(runs_folder(self.root) / run_id)
        run.logs.mkdir(parents=True, exist_ok=True)
        write_json(run.path / "request.json", {"run_id": run_id, "job": "pipeline", "stages": [], "cache": "/nowhere"})
        if alive:
            self.set_alive(run, True)
        return run

    def set_alive(self, run: RunDirectory, alive: bool) -> None:
        me = identify(os.getpid())
        assert me is not None
        write_json(run.path / "supervisor.json", me.as_json() | ({} if alive else {"start": me.start + 1}))

    @contextmanager
    def raw(self, *arguments: str) -> Iterator["RawAgent"]:
        """An agent to which a test speaks in bytes."""
        process = subprocess.Popen(
            [sys.executable, "-m", "eagle3ops", "agent", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
        )
        try:
            yield RawAgent(process)
        finally:
            process.kill()
            process.communicate()


@dataclass
class RawAgent:
    process: subprocess.Popen[bytes]

    def say(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        heard: dict[str, Any] = json.loads(line)
        return heard

    def ask(self, message: object) -> dict[str, Any]:
        self.say(json.dumps(message).encode())
        return self.hear()

    def close(self) -> tuple[bytes, bytes]:
        """End its input; the rest of what it said, and its standard error."""
        out, err = self.process.communicate(timeout=60)
        return out, err


def make_world(folder: Path) -> AgentWorld:
    return AgentWorld(folder, Toy(prepare(folder)))


def event_line(seq: int, **data: Any) -> bytes:
    fields = {"seq": seq, "ts": 1796013913.25, "stage": "train", "kind": "metric", "data": data}
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def event_lines(numbers: Sequence[int], padding: int = 0) -> bytes:
    return b"".join(event_line(number, step=number, pad="x" * padding) for number in numbers)


def pretender(program: str) -> LocalTransport:
    """What is started instead of an agent."""
    return LocalTransport(command=[sys.executable, "-c", program], name="far")


HELLO = (
    '{"agent":"eagle3ops","protocol":%d,"version":"9.9.9","python":"3.11.2","host":"far","boot":"b","pid":1,'
    '"time":1.0,"root":"/r","ops":%s}'
)


def hello(protocol: int = 1, ops: Sequence[str] = ("ping", "runs.events")) -> str:
    return HELLO % (protocol, json.dumps(list(ops)))
