"""Real runs with jobs that need no model."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3ops.runs.directory import RunDirectory, list_runs, runs_folder
from eagle3ops.runs.family import left_behind

PYTHONPATH = [path for path in [os.environ.get("PYTHONPATH")] if path]
"""Where the code under test comes from, when it is not what is installed."""
PIPELINE = "schema: 1\nname: toy\ntarget: {model: none}\n"


@dataclass
class Toy:
    """A root, a pipeline file and the command line, in a world where `toy_jobs` are the jobs."""

    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    """For the command, beside the usual ones."""

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("EAGLE3OPS_")}
        return kept | {
            "EAGLE3OPS_JOBS": "toy_jobs",
            "EAGLE3OPS_ROOT": str(self.root),
            "EAGLE3OPS_CACHE": str(self.folder / "cache"),
            "EAGLE3OPS_STATE": str(self.folder / "state"),
            "PYTHONPATH": os.pathsep.join([str(self.folder), str(Path(__file__).parent), *PYTHONPATH]),
            **self.variables,
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "eagle3ops", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def job(self, *arguments: str, job: str = "pipeline") -> subprocess.CompletedProcess[str]:
        return self.call("--job", job, "--spec", "toy.yaml", *arguments)

    def last(self) -> RunDirectory:
        return RunDirectory(runs_folder(self.root) / list_runs(self.root)[-1])

    def until(self, path_is_there: str, timeout: float = 20.0) -> Path:
        """Wait for a file below the root, by glob."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            found = sorted(self.root.glob(path_is_there))
            if found:
                return found[0]
            time.sleep(0.01)
        raise AssertionError(f"{path_is_there} did not appear")

    def outputs(self) -> dict[str, bytes]:
        """Everything that the stages made, except when it was made."""
        return {
            path.relative_to(self.root).as_posix(): path.read_bytes()
            for path in sorted((self.root / "stages").rglob("*"))
            if path.is_file() and path.name != "done.json" and path.suffix != ".lock"
        }

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.last().events_file.read_text().splitlines()]

    def kill_everything(self, run: RunDirectory) -> None:
        """SIGKILL to the command, the supervisor, the stage and what it started, in one go."""
        supervisor = (run.living() or run.supervisor() or {}).get("pid")
        for pid in [*([supervisor] if supervisor else []), *left_behind(run.path)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.communicate()
        deadline = time.monotonic() + 10
        while (run.alive() or left_behind(run.path)) and time.monotonic() < deadline:
            time.sleep(0.01)


def prepare(folder: Path) -> Path:
    """Put the pipeline file, and the code that a stage depends on, into a folder."""
    (folder / "toy.yaml").write_text(PIPELINE)
    (folder / "toy_code.py").write_text("ANSWER = 42\n")
    return folder
