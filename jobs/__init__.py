"""One module per job: its Spec, its plan(), its run().

The registry is by name and imports a job's module only when it is asked for, so that a job's own libraries are not
loaded by those who want another.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eagle3ops.runs.job import Job
    from eagle3ops.spec.base import StageSpec

_MODULES = {
    "fetch": "Fetch",
    "generate": "Generate",
    "extract": "Extract",
    "train": "Train",
    "serve": "Serve",
    "verify": "Verify",
    "bench": "Bench",
    "profile": "ProfileJob",
    "sweep": "Sweep",
    "report": "Report",
    "compare": "Compare",
    "build": "Build",
}
"""Job name (and module) -> class, in the order in which the whole pipeline runs."""
_APART = frozenset({"profile", "sweep", "compare", "build"})
"""Those that the pipeline does not run: they are asked for by name."""


def names() -> list[str]:
    """All jobs, in pipeline order, those that are only run by name among them."""
    return list(_MODULES)


def job(name: str) -> "type[Job]":
    """The job class called `name`.

    Raises:
        KeyError: there is no such job.
    """
    module = import_module(f"eagle3ops.jobs.{name}") if name in _MODULES else None
    if module is None:
        raise KeyError(name)
    found: type[Job] = getattr(module, _MODULES[name])
    return found


def specs() -> "dict[str, type[StageSpec]]":
    """The Spec of every job, by job name, for reading a pipeline file."""
    return {name: job(name).Spec for name in _MODULES}


def order(target: str) -> list[str]:
    """The jobs that `target` needs, itself last; `pipeline` means all but those apart."""
    if target == "pipeline":
        return [name for name in _MODULES if name not in _APART]
    wanted: set[str] = set()
    pending = [target]
    while pending:
        name = pending.pop()
        if name not in wanted:
            wanted.add(name)
            pending.extend(job(name).needs)
    return [name for name in _MODULES if name in wanted]
