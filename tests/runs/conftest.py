"""A world of toy jobs for every test that wants one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from toy_world import Toy, prepare

from eagle3ops.runs.directory import RunDirectory, list_runs, runs_folder


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[Toy]:
    made = Toy(prepare(tmp_path))
    yield made
    for run_id in list_runs(made.root):
        run = RunDirectory(runs_folder(made.root) / run_id)
        made.kill_everything(run)
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.communicate()
