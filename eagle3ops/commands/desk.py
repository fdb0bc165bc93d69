"""Who answers questions about runs: this process, or an agent elsewhere?"""

from dataclasses import dataclass
from typing import Any

from eagle3ops import locations
from eagle3ops.runs.directory import RunDirectory, runs_folder

LOCAL = "local"


@dataclass(frozen=True, slots=True)
class Desk:
    """Who answers questions about runs: this machine's own root, or the agent of a host."""

    host: str
    root: str | None

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """The answer to one op of the agent's table; asked in this process where the host is this one."""
        if self.host != LOCAL:
            from eagle3ops.commands import remote

            return remote.ask(self.host, self.root, op, **arguments)
        from eagle3ops.hosts.agent.ops_runs import here
        from eagle3ops.operations import OPERATIONS

        return dict(OPERATIONS[op].call(here(self.root), **arguments))

    def command(self, verb: str, run_id: str) -> str:
        """The command line that does `verb` to a run."""
        if self.host == LOCAL:
            return RunDirectory(runs_folder(locations.root(self.root)) / run_id).command(verb)
        from eagle3ops.commands.remote import command

        return command(verb, run_id, self.host, self.root)
