"""Agents over a root of their own, and an end to every run that a test left behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_world import RUN, AgentWorld, make_world

from eagle3ops.runs.directory import RunDirectory, list_runs, runs_folder


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[AgentWorld]:
    """A root with nothing in it, and agents to be started over it."""
    made = make_world(tmp_path)
    yield made
    for run_id in list_runs(made.root):
        # A made-up run may name this very process as its supervisor.
        if not run_id.startswith(RUN[:-5]):
            made.toy.kill_everything(RunDirectory(runs_folder(made.root) / run_id))
