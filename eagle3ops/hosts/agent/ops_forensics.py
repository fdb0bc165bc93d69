"""The op that says why a run failed."""

from typing import Any

from eagle3ops.hosts.agent.operation import Surroundings, operation


def diagnose(here: Surroundings, *, run: str) -> dict[str, Any]:
    """`verdict`, `root`, `suspect_ranks` and `discounted` of one run; `file` in them is the name of a log."""
    from eagle3ops.hosts.agent.log_cause import diagnosed
    from eagle3ops.runs.directory import find_run

    found = find_run(here.root, run)
    return {"run": found.run_id} | diagnosed(found).plain()


OPERATIONS = (operation("runs.diagnose", diagnose),)
