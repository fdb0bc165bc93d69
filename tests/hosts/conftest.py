"""Servers to log in to, and toy jobs to run there."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "runs"))

from agent_fixtures import agents
from ssh_fixtures import ssh_home, ssh_world

__all__ = ["agents", "ssh_home", "ssh_world"]
