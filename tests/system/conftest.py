"""Real servers and toy jobs, from the rooms that own them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "runs"))
sys.path.insert(0, str(Path(__file__).parents[1] / "hosts"))

from ssh_fixtures import ssh_home, ssh_world

__all__ = ["ssh_home", "ssh_world"]
